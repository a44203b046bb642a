"""Orders of the work that a plan may choose: groups of micro-batches and updates in the next step's
forward pass. A whole run, with evaluations, checks of the ranks, saves, a stop and a resume, gives
the bits of the plain order."""
import json
import unittest

from e2e.common import (Folder, config, exact, hashes, metrics, newest_checkpoint, run, train,
                        write_config)

STEPS = 9
ROTATED = "embed,0-2,head"
PLAIN = {"group": 1, "rotated": ""}
ORDERS = [{"group": 1, "rotated": ROTATED}, {"group": 2, "rotated": "0,2"},
          {"group": 4, "rotated": ROTATED}, {"group": 4, "rotated": ""}]
MIXED = [{"0": "0", "2": "embed", "3": "1-2,head"}, {"1": "0,head", "3": "embed,1-2"}]  # ZeRO stages


def plan_file(folder, path, order, *arguments):
    """The planner's own plan of this run with another order of the work."""
    out = folder / "plan.json"
    done = run("plan", "--config", path, "--out", out, *arguments)
    assert done.returncode == 0, done.stderr
    plan = json.loads(out.read_text())
    assert ("zero" in plan) == (order["zero"] is not None), plan
    plan.update((key, value) for key, value in order.items() if value is not None)
    if order["zero"] is not None:
        plan.pop("quality", None)  # proves nothing of other stages
    out.write_text(json.dumps(plan))
    return out


def outcome(output):
    """Steps, evaluations and the last checkpoint's hashes."""
    rows = metrics(output)
    evaluations = {step: row["validation_loss"] for step, row in rows.items() if "validation_loss" in row}
    return exact(output), evaluations, hashes(newest_checkpoint(output))


class Order(unittest.TestCase):
    def check(self, ranks, **parallel):
        value = config(
            train={"steps": STEPS, "batch": 8 * max(1, ranks), "micro_batch": 2, "eval_every": 2,
                   "precision": "bf16", "check_every": 3},
            checkpoint={"every": 4, "keep": 2}, parallel=parallel,
            place={"moments": "host", "master": "host", "gradients@1": "host"})
        with Folder() as folder:
            path = write_config(folder, value)

            def go(output, order, *arguments, expect=0):
                stages = MIXED[len(arguments) % 2] if parallel.get("zero") == "auto" else None
                plan = plan_file(folder, path, dict(order, zero=stages), "--ranks", max(1, ranks))
                return train(path, folder / output, "--plan", plan, *arguments, ranks=ranks,
                             expect=expect)

            go("plain", PLAIN)
            expected = outcome(folder / "plain")
            self.assertEqual((len(expected[0]), len(expected[1])), (STEPS, STEPS // 2 + 1))
            for number, order in enumerate(ORDERS):
                with self.subTest(order, ranks=ranks):
                    output = f"order{number}"
                    go(output, order, "--stop-at", 5, expect=75)
                    go(output, ORDERS[number - 1], "--resume", "latest")
                    self.assertEqual(outcome(folder / output), expected)

    def test_one_rank(self):
        self.check(0)

    def test_two_ranks_with_everything_sharded(self):
        self.check(2, zero=3)

    def test_four_ranks_in_two_levels_with_stages_by_layer(self):
        self.check(4, zero="auto", tree=2)

    def test_two_ranks_summed_after_every_micro_batch(self):
        self.check(2, zero=0, reduce_every=1)


if __name__ == "__main__":
    unittest.main()
