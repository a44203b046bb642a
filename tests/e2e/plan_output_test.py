"""What `train plan` prints for people is what the plan is, and the same as its JSON says."""
import json
import re
import subprocess
import sys
import unittest

from e2e.common import ROOT, Folder, config, run, write_config

STATE = {"moments": 1, "master": 1, "gradients": 2, "parameters": 3}  # the ZeRO stage that shards it


def plan(folder, value, *arguments, expect=0):
    done = run("plan", "--config", write_config(folder, value), *arguments)
    if done.returncode != expect:
        raise AssertionError(f"exit code {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}")
    return done


def plan_json(folder, value, *arguments, expect=0):
    return json.loads(plan(folder, value, "--json", *arguments, expect=expect).stdout)


def small(device, **changes):
    """A model that does not fit at once; the link is slow enough to be worth something."""
    return config(memory={"device": device}, hardware={"link": "0.5GB/s"},
                  train={"precision": "bf16", "batch": 16, "micro_batch": 2, **changes.pop("train", {})},
                  **changes)


class Text(unittest.TestCase):
    def test_says_what_json_says(self):
        with Folder() as folder:
            value = small("1.5MiB")
            text, j = plan(folder, value, "--ranks", "2").stdout, plan_json(folder, value, "--ranks", "2")
            self.assertTrue(text.startswith("fits on cpu: 2 ranks, 512 tokens a step\n"), text)
            for name, n in j["layers_by_name"].items():
                found = re.search(rf"^  {name} +(\d+) +(\d+) +(\d+) +(\d+)$", text, re.M)
                self.assertEqual([int(v) for v in found.groups()],
                                 [n[k] for k in ("resident", "streamed", "recomputed", "sharded")], name)
            for name in set(j["device_bytes_by_class"]) | set(j["host_bytes_by_class"]):
                self.assertRegex(text, rf"(?m)^  {name} ", name)
            self.assertEqual(sum(j["device_bytes_by_class"].values()), j["device_peak_bytes"])
            self.assertIn(f"{1e3 * j['step_seconds']:.2f} ms", text)
            self.assertIn(f"{1e3 * j['bound_seconds']:.2f} ms", text)
            self.assertIn(f"{1e3 * j['exposed_transfer_seconds']:.2f} ms", text)
            causes = j["exposed_seconds"]
            self.assertEqual(list(causes), ["h2d", "d2h", "communication", "cpu_update"])
            self.assertAlmostEqual(causes["h2d"] + causes["d2h"], j["exposed_transfer_seconds"])
            self.assertIn(f"{1e3 * causes['h2d']:.2f} ms of copies in", text)
            self.assertIn(f"{1e3 * causes['communication']:.2f} ms of communication", text)
            self.assertIn(f"at most {100 * j['gap']:.2f} % are left", text)
            self.assertAlmostEqual(j["gap"], j["step_seconds"] / j["bound_seconds"] - 1)
            self.assertIn(f"MFU {100 * j['mfu']:.1f} %", text)

    def test_sharded_by_stage(self):
        """Every layer has parameters, gradients and moments; what of them is sharded follows from the
        stage, and nothing is on one rank."""
        with Folder() as folder:
            for stage in range(4):
                value = small("auto", parallel={"zero": stage, "reduce_every": 1})
                for ranks in (1, 2):
                    counts = plan_json(folder, value, "--ranks", ranks)["layers_by_name"]
                    for name, n in counts.items():
                        layers = n["resident"] + n["streamed"] + n["recomputed"]
                        if name in ("parameters", "gradients", "moments"):
                            self.assertEqual(layers, 3 + 2)
                        sharded = ranks > 1 and stage >= STATE.get(name, 4)
                        self.assertEqual(n["sharded"], layers if sharded else 0, (stage, ranks, name))


class MarginalsAndPareto(unittest.TestCase):
    def test_each_is_checked_by_planning(self):
        """Planning with the memory or the link that a marginal value is of gives what it says."""
        with Folder() as folder:
            value = small("1.9MiB")
            j = plan_json(folder, value, "--marginals")
            text = plan(folder, value, "--marginals").stdout
            found = {m["resource"]: m for m in j["marginals"]}
            self.assertEqual(set(found), {"device_memory", "host_memory", "link"})
            for m in found.values():
                self.assertGreaterEqual(m["dual_seconds"], 0)
                self.assertAlmostEqual(m["replanned_seconds"], j["step_seconds"] - m["step_seconds"], delta=1e-9)
                self.assertRegex(text, rf" {-1e3 * m['replanned_seconds']:.3f} ms\n".replace("-0.000", "0.000"))
            again = {"device_memory": f"memory.device={j['device_budget_bytes'] + int(found['device_memory']['bytes'])}B",
                     "link": f"hardware.link={5e8 + found['link']['bytes_per_second']:.0f}B/s"}
            for resource, key in again.items():
                planned = plan_json(folder, value, "--set", key)
                self.assertAlmostEqual(planned["bound_seconds"], found[resource]["bound_seconds"], delta=1e-9)
                self.assertGreaterEqual(planned["step_seconds"], found[resource]["step_seconds"] - 1e-12)

    def test_pareto_never_slower_with_more(self):
        with Folder() as folder:
            value = small("1.9MiB")
            j = plan_json(folder, value, "--pareto")
            rows = j["pareto"]["rows"]
            self.assertEqual(len(rows), 12)
            self.assertEqual(rows[0]["device_budget_bytes"], j["device_minimum_bytes"])
            self.assertEqual(rows[-1]["device_budget_bytes"], j["all_resident_device_bytes"])
            for smaller, larger in zip(rows, rows[1:]):
                self.assertLess(smaller["device_budget_bytes"], larger["device_budget_bytes"])
                self.assertLessEqual(larger["step_seconds"], smaller["step_seconds"])
            for row in rows:
                self.assertLessEqual(row["device_bytes"], row["device_budget_bytes"])
            self.assertEqual(j["pareto"]["all_resident"]["device_bytes"], j["all_resident_device_bytes"])
            planned = plan_json(folder, value, "--set", f"memory.device={rows[5]['device_budget_bytes']}B")
            self.assertGreaterEqual(planned["step_seconds"], rows[5]["step_seconds"] - 1e-12)
            self.assertAlmostEqual(planned["bound_seconds"], rows[5]["bound_seconds"], delta=1e-9)
            text = plan(folder, value, "--pareto").stdout
            for row in rows:
                self.assertRegex(text, rf" {1e3 * row['step_seconds']:.2f} ms +{1e3 * row['bound_seconds']:.2f} ms")


class Pictures(unittest.TestCase):
    def report(self, path):
        return subprocess.run([sys.executable, ROOT / "scripts/report.py", "--plan", path], capture_output=True, text=True)

    def test_report_of_a_plan(self):
        with Folder() as folder:
            out, trace = folder / "plan.json", folder / "trace.json"
            value = small("1.9MiB")
            j = json.loads(plan(folder, value, "--json", "--pareto", "--out", out, "--timeline", trace).stdout)
            self.assertEqual(run("plan", "--config", folder / "run.json", "--plan", out).returncode, 0)
            self.assertEqual(run("plan", "--config", folder / "run.json", "--verify", out).returncode, 0)
            bars = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
            self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in bars) * 1e-6, j["step_seconds"], delta=1e-9)
            timeline = json.loads(out.read_text())["report"]["timeline"]
            self.assertAlmostEqual(timeline["seconds"], j["step_seconds"], delta=1e-9)
            for tier, total in (("device", j["device_peak_bytes"]), ("host", j["host_peak_bytes"])):
                for _, classes in timeline["memory"][f"{tier} memory"]:
                    self.assertLessEqual(sum(classes.values()), total)
            done = self.report(out)
            self.assertEqual(done.returncode, 0, done.stderr)
            page = (folder / "plan.html").read_text()
            self.assertEqual(page.count("<svg"), 4)  # two tiers, lanes, curve
            self.assertNotIn("http", page.replace("http://www.w3.org", ""))
            for text in ("Device memory", "Host memory", "Lanes of one step", "all resident", "full recompute",
                         f"{1e3 * j['step_seconds']:.2f} ms", f"{1e3 * j['bound_seconds']:.2f} ms"):
                self.assertIn(text, page)
            for row in j["pareto"]["rows"]:
                self.assertIn(f"<td>{1e3 * row['step_seconds']:.2f} ms", page)
            for name in j["device_bytes_by_class"]:
                if name not in ("transients and workspace",):
                    self.assertIn(name, page)

    def test_no_pictures(self):
        with Folder() as folder:
            (folder / "plan.json").write_text('{"format": "spillway plan 2"}')
            for name in ("plan.json", "absent.json"):
                done = self.report(folder / name)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f"{name}: not a plan with pictures", done.stderr)


class DoesNotFit(unittest.TestCase):
    def check(self, folder, value, *arguments):
        j = plan_json(folder, value, *arguments, expect=3)
        text = plan(folder, value, *arguments, expect=3).stdout
        self.assertIn("minimum device memory", text)
        for change in j["changes_that_fit"]:
            keys = [word for key, to in change["set"].items() for word in ("--set", f"{key}={to}")]
            again = plan_json(folder, value, *arguments, *keys)
            self.assertTrue(again["fits"])
            self.assertEqual(again["device_peak_bytes"], change["device_bytes"])
            self.assertEqual(again["step_seconds"], change["step_seconds"])
            self.assertIn(", ".join(f"{key}: {to}" for key, to in change["set"].items()), text)
        return [change["set"] for change in j["changes_that_fit"]]

    def test_changes_fit(self):
        """Each change that is offered fits when it is planned, with the time that it was given."""
        with Folder() as folder:
            self.assertEqual(len(self.check(folder, small("1.3MiB"), "--ranks", "2")), 3)
            pinned = self.check(folder, small("1.9MiB", place={"moments": "device", "parameters": "device",
                                                                "gradients": "device"}))
            self.assertTrue(any("place" in change for change in pinned), pinned)
            plain = self.check(folder, small("1.9MiB", offload="off", recompute="off"))
            self.assertTrue(any("offload" in change for change in plain), plain)
            host = self.check(folder, config(memory={"host": "16B"}))
            self.assertTrue(any("memory.host" in change for change in host), host)


if __name__ == "__main__":
    unittest.main()
