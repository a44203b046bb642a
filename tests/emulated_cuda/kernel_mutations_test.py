"""The checker finds every bug that kernel_mutations.py plants within 20 seeds and names a line of
the patched file; without a bug it reports nothing on any of them."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import kernel_mutations  # noqa: E402

BUILD = pathlib.Path(os.environ["SPILLWAY_MUTANTS"])
SEEDS = range(1, 21)


def run(program, mutation, seed):
    environment = dict(os.environ, SPILLWAY_EMULATED_SEED=str(seed),
                       SPILLWAY_TEST_CASES=mutation.cases)
    result = subprocess.run(
        [program, f"--gtest_filter=All/CudaOp.MatchesTheReference/{mutation.op}"],
        env=environment, capture_output=True, text=True, timeout=600, check=False)
    return result.stdout + result.stderr, result.returncode


class KernelMutations(unittest.TestCase):
    def test_every_planted_bug_is_found(self):
        found = 0
        for mutation in kernel_mutations.MUTATIONS:
            with self.subTest(mutation.name):
                self.assertIsNotNone(
                    kernel_mutations.patched(mutation),
                    f"{mutation.name} no longer applies to {mutation.file}: adapt it")
                wanted = re.compile(
                    rf"emulated CUDA: (?:{'|'.join(mutation.kinds)}): .*\b{mutation.file}:\d+")
                for seed in SEEDS:
                    text, code = run(BUILD / f"mutant_{mutation.name}", mutation, seed)
                    if match := wanted.search(text):
                        self.assertNotEqual(code, 0)
                        print(f"{mutation.name}, seed {seed}: {match.group(0)}")
                        found += 1
                        break
                else:
                    self.fail(f"not found in {len(SEEDS)} seeds; the last run said\n{text[-3000:]}")
        print(f"{found} of {len(kernel_mutations.MUTATIONS)} planted bugs found")

    def test_right_kernels_are_left_alone(self):
        done = set()
        for mutation in kernel_mutations.MUTATIONS:
            if (mutation.op, mutation.cases) in done:
                continue
            done.add((mutation.op, mutation.cases))
            for seed in (1, 20):
                text, code = run(BUILD / "ops_emulated_test", mutation, seed)
                self.assertEqual(code, 0, f"{mutation.op}, seed {seed}\n{text[-3000:]}")
                self.assertIn("1 test.", text)
                self.assertNotIn("emulated CUDA", text)


if __name__ == "__main__":
    unittest.main()
