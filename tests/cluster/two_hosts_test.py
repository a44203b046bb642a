# needs: two_hosts
"""One run over two hosts: bitwise the run on one; a network that is cut for good ends it everywhere
within 30 seconds, named, and it resumes; one that is cut for a moment costs nothing, or ends it clearly."""
import re
import subprocess
import time
import unittest

from cluster.two_hosts import TwoHosts
from e2e.common import Folder, config, exact, hashes, metrics, newest_checkpoint, train, write_config

STEPS = 200
LIMIT = 30
# Slow enough to be cut in the middle.
SLOW = ["--set", "place.moments=host", "--chaos-us", "3000", "--chaos-seed", "1"]


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder()
        cls.path = cls.folder.__enter__()
        cls.addClassCleanup(cls.folder.__exit__)
        cls.config = write_config(cls.path, config(train={"steps": STEPS}, checkpoint={"every": 10}))
        train(cls.config, cls.path / "one", ranks=2)
        cls.straight = exact(cls.path / "one")
        cls.weights = hashes(newest_checkpoint(cls.path / "one"))["weights_hash"]
        cls.hosts = TwoHosts().__enter__()
        cls.addClassCleanup(cls.hosts.__exit__)

    def start(self, name, *arguments):
        return self.hosts.mpirun(self.path / f"{name}.log", "--config", self.config, "--set", f"output={self.path / name}", *arguments)

    def log(self, name):
        return (self.path / f"{name}.log").read_text(errors="replace")

    def finish(self, process, name):
        process.wait(timeout=120)
        text = self.log(name)
        self.assertEqual(process.returncode, 0, text)
        self.assertEqual(exact(self.path / name), self.straight)
        self.assertEqual(hashes(newest_checkpoint(self.path / name))["weights_hash"], self.weights)
        return text

    def wait_steps(self, process, name, steps):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if max(metrics(self.path / name), default=0) >= steps:
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        process.kill()
        self.fail(f"no {steps} steps: " + self.log(name))

    def test_same_bits_as_on_one_host(self):
        process = self.start("two")
        text = self.finish(process, "two")
        self.assertIn("2 ranks", text)

    def ended_everywhere(self, process, name):
        """Waits until launcher and ranks have ended on both hosts; returns the seconds that took."""
        start = time.monotonic()
        while self.hosts.ranks(1) or self.hosts.ranks(2) or process.poll() is None:
            if time.monotonic() - start > LIMIT:
                left = self.hosts.ranks(1), self.hosts.ranks(2)
                for pid in [*left[0], *left[1]]:
                    subprocess.run(["kill", "-KILL", str(pid)])
                process.kill()
                self.fail(f"after {LIMIT} s ranks {left} are left, mpirun {process.poll()}\n" + self.log(name))
            time.sleep(0.1)
        return time.monotonic() - start

    def test_cut_for_good(self):
        process = self.start("cut", *SLOW)
        self.wait_steps(process, "cut", 15)
        self.hosts.link(2, "down")
        try:
            seconds = self.ended_everywhere(process, "cut")
        finally:
            self.hosts.link(2, "up")
        text = self.log("cut")
        print(f"cut for good: all ended after {seconds:.1f} s, code {process.returncode}")
        self.assertNotIn(process.returncode, (0, 75), text)
        self.assertRegex(text, r"\bh2\b", "the host that was lost is named")
        self.assertLess(max(metrics(self.path / "cut")), STEPS)
        process = self.start("cut", "--resume", "latest")
        self.assertIn("resuming", self.finish(process, "cut"))

    def test_cut_for_two_seconds(self):
        process = self.start("blink", *SLOW)
        self.wait_steps(process, "blink", 15)
        self.hosts.link(2, "down")
        time.sleep(2)
        self.hosts.link(2, "up")
        try:
            process.wait(timeout=120)
        finally:
            process.kill()
        text = self.log("blink")
        print(f"cut for 2 s: code {process.returncode}")
        if process.returncode != 0:  # then it says so, and can be resumed
            self.assertNotEqual(process.returncode, 75, text)
            self.assertTrue(re.search(r"peer lost|no progress|lost|h2", text), text)
            process = self.start("blink", "--resume", "latest")
            self.finish(process, "blink")
        self.assertEqual(exact(self.path / "blink"), self.straight)
        self.assertEqual(hashes(newest_checkpoint(self.path / "blink"))["weights_hash"], self.weights)


if __name__ == "__main__":
    unittest.main()
