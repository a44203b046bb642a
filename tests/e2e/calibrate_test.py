"""`train calibrate` writes a profile that loads, whose every number says where it is from, and that
`train plan` uses; a paced link is measured as fast as it is paced."""
import json
import unittest

from e2e.common import Folder, config, run, write_config

MEASURED = "measured by train calibrate"
PACE = 200e6  # bytes a second, far below what memory gives on a busy machine


def calibrated(folder, ranks=0, link=None, **options):
    """The profile's JSON and its path."""
    out = folder / "machine.json"
    path = write_config(folder, config())
    settings = ["--set", f"hardware.link={int(link)}B/s"] if link else []
    done = run("calibrate", "--config", path, *settings, "--out", out, ranks=ranks, **options)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return json.loads(out.read_text()), out


def rate(profile, key):
    text = profile[key]["value"]
    units = {"GB/s": 1e9, "MB/s": 1e6, "KB/s": 1e3, "GiB/s": 2**30, "MiB/s": 2**20, "KiB/s": 2**10,
             "TiB/s": 2**40, "TB/s": 1e12, "B/s": 1}
    unit = next(u for u in units if text.endswith(u) and text[:-len(u)].replace(".", "").isdigit())
    return float(text[:-len(unit)]) * units[unit]


class Calibrate(unittest.TestCase):
    def check(self, profile, unmeasured):
        for key, entry in profile.items():
            if key in ("description", "kind", "tiers"):
                continue
            measured = entry["source"].startswith(MEASURED)
            self.assertEqual(measured, key not in unmeasured, f"{key}: {entry['source']}")
            if not measured:
                self.assertIn('as the profile "cpu" has it', entry["source"])

    def check_op_rates(self, profile):
        """Every op of training in both precisions, each with a time."""
        rates = profile["op_rates"]["value"]
        for op in ("matmul", "matmul_dinput", "matmul_dweight", "attention", "attention_grad",
                   "head_loss_grad", "gelu", "swiglu_grad", "rmsnorm", "layernorm_grad", "adamw"):
            for precision in ("f32", "bf16"):
                found = [r for r in rates if (r["op"], r["precision"]) == (op, precision)]
                self.assertEqual(len(found), 1, (op, precision))
                self.assertGreater(found[0]["seconds"] + found[0].get("flops_per_second", 0)
                                   + found[0].get("bytes_per_second", 0), 0)

    def test_one_rank(self):
        with Folder() as folder:
            profile, path = calibrated(folder, link=PACE)
            self.check(profile, {"device_bytes", "reserve_bytes", "gemm_workspace", "host_bytes",
                                 "exchange_seconds", "intra_node_bandwidth", "network_bandwidth",
                                 "intra_node_path", "network_path"})
            for key in ("h2d", "d2h", "h2d_alone", "d2h_alone"):
                measured = rate(profile, f"{key}_bandwidth")
                print(f"{key}: {measured / 1e6:.1f} MB/s measured, paced at {PACE / 1e6:.0f}")
                self.assertLess(measured, 1.05 * PACE, key)
                self.assertGreater(measured, 0.3 * PACE, key)  # the machine may be busy
            self.assertLess(rate(profile, "both_ways_bandwidth"), 2.1 * PACE)

            run_json = folder / "run.json"
            plans = {}
            for name in ("cpu", str(path)):
                done = run("plan", "--config", run_json, "--set", f"hardware.profile={name}", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                plans[name] = json.loads(done.stdout)
            self.assertNotEqual(*[p["step_seconds"] for p in plans.values()])
            self.check_op_rates(profile)

            # A benchmark draws runs and says how well the profile foretells them.
            done = run("bench", "predict", "--config", run_json, "--set", f"hardware.profile={path}",
                       "--cases", 2, "--repeat", 1, "--seed", 3)
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [line for line in done.stdout.splitlines() if line.startswith(("gpt2 ", "llama "))]
            self.assertEqual(len(rows), 2, done.stdout)
            self.assertIn("seed 3", done.stdout)
            self.assertRegex(done.stdout, r"2 cases: error [\d.]+ % median")

            # A run takes it too, and its plan says which.
            done = run("plan", "--config", run_json, "--set", f"hardware.profile={path}")
            self.assertIn("on machine:", done.stdout)

    def test_two_ranks(self):
        with Folder() as folder:
            profile, _ = calibrated(folder, ranks=2)
            self.check(profile, {"device_bytes", "reserve_bytes", "gemm_workspace", "host_bytes",
                                 "network_bandwidth", "intra_node_path", "network_path"})
            self.assertEqual(profile["devices_per_node"]["value"], 2)
            self.check_op_rates(profile)
            self.assertIn("rank_sum", {r["op"] for r in profile["op_rates"]["value"]})

    def test_bad_input(self):
        with Folder() as folder:
            path = write_config(folder, config())

            def refused(*arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                return done.stderr

            self.assertIn(".json", refused("calibrate", "--config", path, "--out", folder / "machine"))
            self.assertIn("absent", refused("calibrate", "--config", path, "--out",
                                            folder / "absent" / "machine.json"))
            self.assertIn("--out", refused("calibrate", "--config", path))
            error = refused("plan", "--config", path, "--set",
                            f"hardware.profile={folder}/absent.json")
            self.assertIn("hardware.profile", error)
            self.assertIn("train calibrate", error)
            broken = folder / "broken.json"
            broken.write_text('{"kind": "cpu"}')
            self.assertIn("is missing", refused("plan", "--config", path, "--set",
                                                f"hardware.profile={broken}"))
            self.assertEqual([p.name for p in folder.glob("*.partial")], [])


if __name__ == "__main__":
    unittest.main()
