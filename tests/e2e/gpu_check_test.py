"""scripts/gpu_check.sh as far as it goes without a GPU: arguments, the refusal before anything is
built, parts that fail or hang while the others run, the parts themselves on the CPU backend, and
the report from recorded numbers."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from e2e.common import ENVIRONMENT, ROOT, TRAIN, Folder, config, run, write_config

CHECK = ROOT / "scripts" / "gpu_check.sh"
PARTS = ROOT / "scripts" / "gpu_parts.py"
REPORT = ROOT / "scripts" / "gpu_report.py"
NAMES = ["kernels", "placement", "resume", "memcheck", "racecheck", "device", "slice", "slice-small"]


def tool(path, text):
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.path = self.folder.__enter__()
        self.bin = self.path / "bin"
        self.bin.mkdir()

    def tearDown(self):
        self.folder.__exit__()

    def check(self, *arguments, expect, **environment):
        """gpu_check.sh with the tools of self.bin found first."""
        done = subprocess.run([CHECK, *arguments], capture_output=True, text=True, timeout=120, cwd=self.path,
                              env=dict(ENVIRONMENT, PATH=f"{self.bin}:{os.environ['PATH']}",
                                       OUT=str(self.path / "out"), **environment))
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def parts(self, *arguments, home=ROOT, binaries=None, expect=0, seconds=200):
        done = subprocess.run([sys.executable, PARTS, "--bin", binaries or self.bin, "--home", home, "--out",
                               self.path / "out", "--seconds", str(seconds), *arguments],
                              capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return json.loads((self.path / "out" / "report.json").read_text())["parts"]

    def no_gpu(self):
        tool(self.bin / "nvidia-smi", "exit 9\n")
        tool(self.bin / "cmake", f"touch {self.path}/built\nexit 1\n")

    def test_arguments(self):
        self.no_gpu()
        self.assertIn("unknown option --prebuild", self.check("--prebuild", "x", expect=2))
        self.assertIn("needs a value", self.check("--prebuilt", expect=2))
        self.assertIn("no program 'train'", self.check("--prebuilt", str(self.path), expect=2))
        self.assertIn("invalid choice: 'kernel'", self.check("--only", "kernel", expect=2))

    def test_no_gpu_is_said_before_building(self):
        self.no_gpu()
        self.assertIn("no GPU found", self.check(expect=1))
        tool(self.bin / "nvidia-smi", "echo 'No devices were found'\n")
        self.assertIn("no GPU found", self.check("--only", "resume", expect=1))
        self.assertFalse((self.path / "built").exists())
        self.assertFalse((self.path / "out").exists())

    def test_a_failed_build_shows_its_end(self):
        self.no_gpu()
        tool(self.bin / "nvidia-smi", "[ \"$1\" = -L ] && echo 'GPU 0: Test' || echo 9.0\n")
        tool(self.bin / "cmake", "echo what the compiler said\nexit 1\n")
        self.assertIn("what the compiler said", self.check(expect=1))

    def test_prebuilt_runs_what_is_asked_for(self):
        tool(self.bin / "nvidia-smi", "echo 'GPU 0: Test'\n")
        bundle = self.path / "bundle"
        bundle.mkdir()
        for name in ("train", "ops_cuda_test"):
            tool(bundle / name, "echo '[  PASSED  ] 3 tests.'\n")
        text = self.check("--prebuilt", str(bundle), "--only", "kernels", expect=0)
        self.assertIn("kernels: passed", text)
        self.assertNotIn("resume:", text)
        self.assertLessEqual(len(list((self.path / "out").iterdir())), 8)

    def test_parts_fail_and_hang_alone(self):
        tool(self.bin / "train", "[ \"$1\" = bench ] && sleep 60\necho what went wrong >&2; exit 7\n")
        tool(self.bin / "ops_cuda_test", "echo '[  FAILED  ] 1 test'; exit 1\n")
        found = self.parts("--only", "kernels", "--only", "device", "--only", "resume", expect=1, seconds=4)
        self.assertEqual([found[n]["status"] for n in ("kernels", "device", "resume")],
                         ["failed", "timed out", "timed out"])
        self.assertIn("FAILED", found["kernels"]["detail"])
        tool(self.bin / "ops_cuda_test", "echo '[  PASSED  ] 0 tests.'; echo '[  SKIPPED ] 26 tests.'\n")
        self.assertEqual(self.parts("--only", "kernels", expect=1)["kernels"]["status"], "failed")
        self.assertEqual(found["resume"]["detail"], "no time was left")
        found = self.parts("--only", "resume", "--only", "placement", expect=1)
        self.assertIn("what went wrong", found["resume"]["detail"])
        self.assertIn("what went wrong", found["placement"]["detail"])

    def test_parts_on_the_cpu_backend(self):
        os.symlink(TRAIN, self.bin / "train")
        tool(self.bin / "ops_cuda_test", "echo '[  PASSED  ] 3 tests.'\n")
        found = self.parts("--backend", "cpu", "--tiny")
        self.assertEqual(list(found), NAMES)
        for name in NAMES:
            expected = ("passed", "skipped") if name.endswith("check") else ("passed",)
            self.assertIn(found[name]["status"], expected, f"{name}: {found[name]}")
        small, whole = found["slice-small"]["numbers"], found["slice"]["numbers"]
        self.assertLessEqual(small["device_bytes"], 0.6 * whole["device_bytes"])
        ops = {op["op"]: op for op in found["device"]["numbers"]["ops"]}
        self.assertEqual(ops["attention"]["calls"], 3 * 4)  # layers × micro-batches
        self.assertGreater(ops["matmul"]["share_of_roofline"], 0)

    def test_report_and_profile_from_recorded_numbers(self):
        recorded = json.loads((pathlib.Path(__file__).parent / "gpu_report.json").read_text())
        out = self.path / "recorded"
        out.mkdir()
        (out / "report.json").write_text(json.dumps(recorded))
        subprocess.run([sys.executable, REPORT, out / "report.json"], check=True, timeout=60)
        text = (out / "report.md").read_text()
        for line in ("| memcheck | skipped | 0.0 | compute-sanitizer is not installed |",
                     "| both ways under a GEMM | 20.00 | 19.00 |",
                     "| slice-small | 30.00 | 1000.0 | 1100.0 | 16384 | 40.0 % |",
                     "| matmul | 28 | 100.000 | 700.00 | 200.00 | 70.8 % |"):
            self.assertIn(line, text)
        # The profile is one that the planner takes.
        home = self.path / "home"
        (home / "configs" / "hardware").mkdir(parents=True)
        for entry in (ROOT / "configs").iterdir():
            if entry.name != "hardware":
                os.symlink(entry, home / "configs" / entry.name)
        (home / "configs" / "hardware" / "measured.json").write_text((out / "hardware.json").read_text())
        profile = json.loads((out / "hardware.json").read_text())
        self.assertEqual(profile["h2d_bandwidth"]["value"], "20000000000B/s")
        link = recorded["parts"]["device"]["numbers"]["link"]
        self.assertEqual(profile["h2d_alone_bandwidth"]["value"], f"{int(link['h2d'])}B/s")
        self.assertEqual(profile["both_ways_bandwidth"]["value"], f"{int(link['h2d_both'] + link['d2h_both'])}B/s")
        self.assertEqual(profile["gemm_fraction"]["value"], 0.7)
        self.assertIn("carried over", profile["network_bandwidth"]["source"])
        path = write_config(self.path, config(hardware={"profile": "measured"}))
        done = subprocess.run([TRAIN, "plan", "--config", path], capture_output=True, text=True, timeout=120,
                              env=dict(ENVIRONMENT, SPILLWAY_HOME=str(home)))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_report_refuses_what_is_none(self):
        (self.path / "report.json").write_text("{}")
        done = subprocess.run([sys.executable, REPORT, self.path / "report.json"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected what gpu_check.sh writes", done.stderr)

    def test_bench_device_says_where_it_cannot_write(self):
        done = run("bench", "device", "--config", write_config(self.path, config()), "--repeat", 1, "--json",
                   self.path / "none" / "x.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot be written", done.stderr)


if __name__ == "__main__":
    unittest.main()
