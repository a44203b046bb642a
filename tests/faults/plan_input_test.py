"""What the planner cannot use is one clear line on standard error and a documented exit code: hardware
profiles, budgets, pins, plans for something else, certificates that were altered."""
import json
import unittest

from e2e.common import Folder, ROOT, config, one_line, run, write_config

CPU = ROOT / "configs" / "hardware" / "cpu.json"


class PlanInput(unittest.TestCase):
    def refused(self, code, words, *arguments):
        one_line(self, run("plan", *arguments), code, words)

    def test_profiles(self):
        """Zero, missing, negative or of another type: the file and the key are named."""
        with Folder() as folder:
            path = write_config(folder, config())
            profile = folder / "mine.json"
            rates = ("h2d_bandwidth", "d2h_bandwidth", "memory_bandwidth", "host_bandwidth", "intra_node_bandwidth",
                     "network_bandwidth", "uplink_bandwidth", "both_ways_bandwidth", "peak_f32")
            for key in rates:
                for value in ("0GB/s" if "bandwidth" in key else 0, None, -1, "fast"):
                    with self.subTest(key=key, value=value):
                        table = json.loads(CPU.read_text())
                        if value is None:
                            del table[key]
                        else:
                            table[key]["value"] = value
                        profile.write_text(json.dumps(table))
                        self.refused(2, ["mine.json", key], "--config", path, "--set", f"hardware.profile={profile}")

    def test_capacity_below_the_smallest_slot(self):
        with Folder() as folder:
            path = write_config(folder, config())
            self.refused(3, ["device memory 1.00 KiB", "minimum", "memory.device"], "--config", path, "--set",
                         "memory.device=1KiB")
            self.refused(3, ["host memory 16 B", "memory.host"], "--config", path, "--set", "memory.host=16B")

    def test_contradictory_pins(self):
        with Folder() as folder:
            pins = {"qkv@0-1": "host", "moments": "host", "qkv@1-2": "device"}
            path = write_config(folder, config(place=pins))
            self.refused(2, ["place.qkv@0-1", "place.qkv@1-2", "contradict"], "--config", path)

    def test_a_plan_for_something_else(self):
        with Folder() as folder:
            path = write_config(folder, config())
            plan = folder / "plan.json"
            self.assertEqual(run("plan", "--config", path, "--out", plan).returncode, 0)
            made = json.loads(plan.read_text())
            for option in ("--plan", "--verify"):
                self.refused(2, ["plan.json", made["numerics"]["hash"], "another config", "train.seed", "1", "7"],
                             "--config", path, option, plan, "--set", "train.seed=7")
                self.refused(2, ["plan.json", made["profile"]["hash"], "another hardware profile", "h2d_bandwidth"],
                             "--config", path, option, plan, "--set", "hardware.link=1GB/s")

    def test_altered_certificates(self):
        with Folder() as folder:
            path = write_config(folder, config(memory={"device": "1.9MiB"}, hardware={"link": "0.5GB/s"},
                                               train={"precision": "bf16", "batch": 16}))
            plan = folder / "plan.json"
            self.assertEqual(run("plan", "--config", path, "--out", plan).returncode, 0)
            self.assertEqual(run("plan", "--config", path, "--verify", plan).returncode, 0)

            def altered(change, words):
                j = json.loads(plan.read_text())
                change(j["quality"])
                other = folder / "altered.json"
                other.write_text(json.dumps(j))
                self.refused(2, ["altered.json", *words], "--config", path, "--verify", other)
                self.refused(2, ["altered.json", *words], "--config", path, "--plan", other)

            def first(quality):
                return quality["certificates"][0]

            def raised(quality):
                quality["bound_seconds"] *= 1.01

            def flipped(quality):
                rows = first(quality)["multipliers"]
                row = next(r for r in rows if r == "device memory" or r.startswith(("h2d", "d2h")))
                rows[row] = -rows[row]

            altered(raised, [])
            altered(flipped, ["multiplies"])
            altered(lambda q: q["certificates"].pop(), ["certificate"])
            altered(lambda q: first(q)["multipliers"].update({"no such row": 1.0}), ["no such row"])
            altered(lambda q: q.update(device_bytes=1024), ["certificate"])


if __name__ == "__main__":
    unittest.main()
