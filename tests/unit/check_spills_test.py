"""scripts/check_spills.py on planted compiler output: a spill fails, and nothing else does."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/check_spills.py"
KERNEL = "_ZN8spillway4cuda10add_kernelILb1EEEvNS0_7AddArgsE"


def entry(name=KERNEL, architecture="sm_90", stack=0, stores=0, loads=0, registers=24):
    return (f"ptxas info    : Compiling entry function '{name}' for '{architecture}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers, 256 bytes smem, "
            "400 bytes cmem[0]\n"
            "ptxas info    : Compile time = 3.141 ms\n")


HEADER = "ptxas info    : 0 bytes gmem\n"
# A function that was not inlined spills: reported apart from the kernels.
FUNCTION = ("ptxas info    : Function properties for __internal_trig_reduction_slowpathd\n"
            "    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n")


class CheckSpills(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.object = self.folder / "kernel.o"

    def run_on(self, output, *options, status=0, stream="stderr"):
        """The script's run of a compiler that prints `output` and ends with `status`."""
        text = self.folder / "output"
        text.write_text(output)
        compiler = self.folder / "compiler.py"
        compiler.write_text("import sys\n"
                            f"sys.{stream}.write(open({str(text)!r}).read())\n"
                            f"sys.exit({status})\n")
        return subprocess.run(
            [sys.executable, "-B", SCRIPT, *options, "--", sys.executable, compiler, "-c",
             "kernels/cuda/add.cu", "-o", self.object],
            capture_output=True, text=True, timeout=60)

    def report(self):
        return (self.folder / "kernel.o.ptxas").read_text().splitlines()

    def test_no_spill(self):
        for stream in ("stderr", "stdout"):
            done = self.run_on(HEADER + entry(architecture="sm_80") + entry() + FUNCTION, stream=stream)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            lines = self.report()
            self.assertEqual(len(lines), 2)
            self.assertIn("sm_80 registers 24 shared 256 stack 0 spilled 0+0", lines[0])
            self.assertIn("add_kernel<true>", lines[0])

    def test_no_report_at_all_fails(self):
        for text in ("", HEADER):
            done = self.run_on(text)
            self.assertEqual(done.returncode, 1)
            self.assertIn("kernels/cuda/add.cu: ptxas reported no kernel", done.stderr)

    def test_arrays_in_memory(self):
        done = self.run_on(entry(stack=48))
        self.assertEqual(done.returncode, 1)
        self.assertIn("add_kernel<true>(spillway::cuda::AddArgs) keeps 48 bytes", done.stderr)
        self.assertEqual(self.run_on(entry(stack=48), "--allow", "add_kernel").returncode, 0)

    def test_spills(self):
        for planted in ({"stores": 8}, {"loads": 4}, {"stores": 8, "loads": 12, "registers": 255}):
            done = self.run_on(entry(architecture="sm_80") + entry(**planted))
            self.assertEqual(done.returncode, 1, planted)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            for part in ("kernels/cuda/add.cu", "add_kernel<true>", "sm_90",
                         f"spills {planted.get('stores', 0)} bytes",
                         f"loads {planted.get('loads', 0)} ", str(planted.get("registers", 24))):
                self.assertIn(part, done.stderr)

    def test_every_kernel_that_spills_is_named(self):
        done = self.run_on(entry(stores=8) + entry(name="other", loads=8) + entry(name="third"))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 2)
        self.assertNotIn("third", done.stderr)

    def test_allowed_kernels_may_spill(self):
        output = entry(stores=8) + entry(name="other", stores=8)
        self.assertEqual(self.run_on(output, "--allow", "add_kernel", "--allow", "^other$").returncode, 0)
        done = self.run_on(output, "--allow", "add_kernel")
        self.assertEqual(done.returncode, 1)
        self.assertIn("other spills 8", done.stderr)

    def test_a_kernel_without_a_verdict_is_a_fault(self):
        done = self.run_on("ptxas info    : Compiling entry function 'silent' for 'sm_90'\n"
                           "ptxas info    : Used 24 registers, 400 bytes cmem[0]\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("silent", done.stderr)

    def test_the_compilers_own_messages_and_status_are_kept(self):
        message = "add.cu(7): error: identifier \"x\" is undefined"
        done = self.run_on(HEADER + entry(stores=8) + message + "\n", status=3)
        self.assertEqual((done.returncode, done.stderr), (3, message + "\n"))
        self.assertFalse((self.folder / "kernel.o.ptxas").exists())
        done = self.run_on("warning: slow\n" + entry())
        self.assertEqual((done.returncode, done.stderr), (0, "warning: slow\n"))

    def test_no_command(self):
        done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)

    def test_the_build_runs_it(self):
        text = (ROOT / "kernels/cuda/CMakeLists.txt").read_text()
        self.assertIn("scripts/check_spills.py", text)
        self.assertIn("-Xptxas=-v", text)


if __name__ == "__main__":
    unittest.main()
