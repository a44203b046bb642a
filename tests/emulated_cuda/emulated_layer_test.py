"""The emulation stays small, and the product knows nothing of it."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYER = ROOT / "tests/emulated_cuda"
TESTS = re.compile(r"_test\.(cpp|py)$|^checker_kernels|^kernel_mutations|^program_|^forked_ranks"
                   r"|^emulated\.py$")
LINES, PAGE = 6000, 75


def lines(path):
    return len(path.read_text().splitlines())


class Layer(unittest.TestCase):
    def test_it_is_small(self):
        files = [f for f in [*LAYER.glob("*"), *(LAYER / "port").glob("*")]
                 if f.suffix in (".h", ".cuh", ".cpp") and not TESTS.search(f.name)]
        self.assertGreater(len(files), 30)
        total = sum(map(lines, files))
        print(f"{total} lines in {len(files)} files")
        self.assertLess(total, LINES)
        for file in files:
            self.assertLessEqual(lines(file), 600, file)
        self.assertLessEqual(lines(LAYER / "README.md"), PAGE)

    def test_the_readme_names_every_variable(self):
        text = (LAYER / "README.md").read_text()
        used = set()
        for file in LAYER.glob("*.cpp"):
            if not TESTS.search(file.name):
                used |= set(re.findall(r'"SPILLWAY_EMULATED(_\w+)"', file.read_text()))
        self.assertIn("_SEED", used)
        for name in used:
            self.assertRegex(text, rf"`(SPILLWAY_EMULATED)?{name}`")

    def test_product_sources_hold_no_switch(self):
        switch = re.compile(r"^\s*#\s*(if|elif|ifdef|ifndef|define)\b.*(EMULAT|emulat)"
                            r"|SPILLWAY_EMULATED|emulated::", re.MULTILINE)
        for folder in ("src", "kernels"):
            for file in (ROOT / folder).rglob("*"):
                if file.is_file() and file.suffix in (".h", ".cuh", ".cpp", ".cu"):
                    self.assertIsNone(switch.search(file.read_text()), file)


if __name__ == "__main__":
    unittest.main()
