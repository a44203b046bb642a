"""Reads the include lines of the tree and fails on what the design forbids: an arrow that points
up, a CUDA header outside its rooms, a verifier that sees more than data types, a file too long."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Each folder of src/ and the folders whose headers it may include, besides its own.
BELOW = {
    "base": set(),
    "config": {"base"},
    "graph": {"base", "config"},
    "model": {"base", "config", "graph"},
    "parallel": {"base", "config", "graph"},
    "program": {"base", "config", "graph", "parallel"},
    "plan": {"base", "config", "graph", "model", "parallel", "program"},
    "verify": {"base", "config", "graph", "parallel", "program"},
    "runtime": {"base", "config", "graph", "program", "kernels"},
    "data": {"base", "config", "runtime"},
    "checkpoint": {"base", "config", "runtime"},
    "telemetry": {"base", "config", "program", "runtime"},
}
BELOW["train"] = set(BELOW) | {"kernels"}
CUDA_ROOMS = ("src/runtime/cuda/", "kernels/cuda/", "tests/emulated_cuda/")
CUDA_HEADER = re.compile(r"^(cuda|cublas|nccl|cudnn|nvtx|cooperative_groups)")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)
SOURCES = (".h", ".cpp", ".cu", ".cuh")


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES:
                yield path


def includes(path):
    return INCLUDE.findall(path.read_text())


class Architecture(unittest.TestCase):
    def test_arrows_point_down(self):
        seen = 0
        for path in sources("src"):
            parts = path.relative_to(ROOT / "src").parts
            if len(parts) == 1:
                continue  # main.cpp puts the pieces together
            folder = parts[0]
            self.assertIn(folder, BELOW, f"{path}: a folder without a place in the order")
            for quote, header in includes(path):
                target = header.split("/")[0]
                if quote != '"' or target == folder:
                    continue
                seen += 1
                self.assertIn(target, BELOW[folder],
                              f"{path.relative_to(ROOT)} includes {header}: {folder} may not see {target}")
        self.assertGreater(seen, 100)

    def test_kernels_see_value_types_only(self):
        allowed = {"base/dtype.h", "base/error.h", "base/philox.h", "graph/kernel_abi.h",
                   "graph/op_list.h"}
        for path in sources("kernels"):
            for quote, header in includes(path):
                if quote == '"' and not header.startswith("kernels/"):
                    self.assertTrue(header in allowed or header.startswith("graph/ops/"),
                                    f"{path.relative_to(ROOT)} includes {header}")

    def test_verifier_shares_types_only(self):
        """Programs are proved from their own types alone; certificates from schedule and profile,
        never from a pass of the planner or of lowering, and without a solver."""
        certificate = {"program/certificate.h", "program/placement.h"}
        of_certificate = ("certificate", "step_work", "stays", "least_bytes")
        for path in sources("src/verify"):
            for quote, header in includes(path):
                self.assertFalse(header.startswith("coin/"), str(path))
                if quote != '"' or header.split("/")[0] in ("verify", "base"):
                    continue
                if path.name.startswith(of_certificate):
                    if header.startswith("program/"):
                        self.assertIn(header, certificate, str(path))
                else:
                    self.assertEqual(header, "program/program.h", str(path))

    def test_program_types_hold_no_code(self):
        text = (ROOT / "src/program/program.h").read_text()
        for match in re.findall(r"\w+\([^)]*\)\s*(?:const)?\s*\{", text):
            self.assertTrue(match.startswith("bytes("), f"program.h defines a function: {match}")

    def test_cuda_stays_in_its_rooms(self):
        for path in sources("src", "kernels", "tests"):
            name = str(path.relative_to(ROOT))
            if name.startswith(CUDA_ROOMS):
                continue
            for _, header in includes(path):
                self.assertIsNone(CUDA_HEADER.match(header.split("/")[-1]), f"{name}: {header}")

    def test_a_type_has_one_definition(self):
        """All of src is one namespace: two types of one name outside anonymous namespaces share
        their inline functions, and the linker keeps either's."""
        seen = {}
        for path in sources("src"):
            text = re.sub(r"^namespace \{$.*?^\}  // namespace$", "", path.read_text(),
                          flags=re.M | re.S)
            for name in re.findall(r"^(?:struct|class|enum class|enum) (\w+)\b(?!::)[^;{\n]*\{", text, re.M):
                other = seen.setdefault(name, path)
                self.assertEqual(other, path,
                                 f"{name} is defined in {other.relative_to(ROOT)} and "
                                 f"{path.relative_to(ROOT)}")
        self.assertGreater(len(seen), 100)

    def test_no_file_holds_two_ideas(self):
        for path in sources("src", "kernels", "tests"):
            lines = len(path.read_text().splitlines())
            self.assertLessEqual(lines, 600, f"{path.relative_to(ROOT)} has {lines} lines")

    def test_top_level_entries(self):
        allowed = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "src", "kernels",
                   "configs", "scripts", "tests", "data", "runs"}
        for entry in ROOT.iterdir():
            if not entry.name.startswith((".", "build")):
                self.assertIn(entry.name, allowed)


if __name__ == "__main__":
    unittest.main()
