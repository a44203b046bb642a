"""Copies are real: a slow link makes the step transfer-bound by as much as the bytes say, and what
is waited for is reported as exposed."""
import re
import statistics
import unittest

from e2e.common import Folder, config, metrics, run, train, write_config

SECONDS = 0.4  # that the moments of one step take each way over the slow link


class Link(unittest.TestCase):
    def test_a_slow_link_bounds_the_step(self):
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 5}))
            done = train(path, folder / "resident")
            parameters = int(re.search(r"(\d+) parameters", done.stdout)[1])
            moments = 2 * 4 * parameters  # bytes each way, a little more with the padding
            slow = moments / SECONDS
            results = {}
            for name, rate in (("slow", slow), ("fast", 20 * slow)):
                train(path, folder / name, "--set", "place.moments=host", "--set",
                      f"hardware.link={int(rate)}B/s")
                rows = [metrics(folder / name)[step] for step in range(2, 6)]
                results[name] = rows
                self.assertEqual([r["loss"] for r in rows],
                                 [metrics(folder / "resident")[s]["loss"] for s in range(2, 6)])
            seconds = statistics.median(r["step_seconds"] for r in results["slow"])
            exposed = statistics.median(r["exposed_transfer_seconds"] for r in results["slow"])
            self.assertGreater(seconds, 0.95 * SECONDS)
            self.assertGreater(exposed, 0.5 * SECONDS)
            fast = statistics.median(r["step_seconds"] for r in results["fast"])
            print(f"slow link {seconds:.3f} s a step, {exposed:.3f} s exposed; 20 times faster {fast:.3f} s")


class Skipped(unittest.TestCase):
    def test_a_run_that_only_skips_ends(self):
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 50, "max_skipped": 3},
                                               optimizer={"lr": 1000, "weight_decay": 100, "warmup": 0,
                                                          "schedule": "constant"}))
            done = train(path, folder / "run", expect=4)
            self.assertIn("max_skipped", done.stderr)
            rows = metrics(folder / "run")
            self.assertTrue(all(rows[s]["loss"] is None or rows[s]["grad_norm"] is None
                                for s in list(rows)[-3:]))


if __name__ == "__main__":
    unittest.main()
