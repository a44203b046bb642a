"""The trainer under many schedules of the emulated device: no missing wait, no byte read that
nothing wrote, no pinned buffer touched in flight. A report ends the run with exit code 66."""
import json
import pathlib
import subprocess
import unittest

from e2e import common
import emulated
from trainer_placement_test import rows

SEEDS = 200 if common.LONG else 20


class Races(unittest.TestCase):
    def test_two_layers_two_steps_everything_streaming(self):
        with common.Folder() as folder:
            expected = {}
            for seed in range(1, SEEDS + 1):
                family = ("llama", "gpt2")[seed % 2]
                precision = ("bf16", "f32")[seed // 2 % 2]
                ranks = (0, 2)[seed % 5 == 0]
                value = emulated.config(
                    family, train={"precision": precision, "steps": 2,
                                   "batch": 2 * max(1, ranks), "eval_every": 2, "eval_batches": 1},
                    place=rows(family, precision)["everything streamed"])
                output = folder / f"out{seed}"
                with self.subTest(seed=seed):
                    done = emulated.run("cuda", folder, value, output, ranks=ranks, seed=seed)
                    self.assertNotIn("emulated CUDA", done.stderr)
                    bits = common.exact(output)
                    self.assertEqual(bits, expected.setdefault((family, precision, ranks), bits))


class SameSources(unittest.TestCase):
    def test_the_emulated_trainer_links_the_backend_s_own_objects(self):
        build = pathlib.Path(common.TRAIN).parent
        listed = (build / "runtime_cuda_objects.txt").read_text().split(";")
        sources = {p.name for p in (common.ROOT / "src" / "runtime" / "cuda").glob("*.cpp")}
        self.assertEqual({pathlib.Path(o.strip()).name for o in listed}, {s + ".o" for s in sources})
        for binary in ("train", "train_emulated"):
            link = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", binary],
                                  capture_output=True, text=True, check=True).stdout
            for entry in listed:
                self.assertIn(str(pathlib.Path(entry.strip()).relative_to(build)), link, binary)
        # The emulated libraries stand where the real ones do in `train`.
        self.assertNotIn("cudart", link)
        self.assertNotIn("libnccl", link)

    def test_every_file_of_kernels_is_launched(self):
        launched = set()
        with common.Folder() as folder:
            for family, precision in (("llama", "bf16"), ("llama", "f32"), ("gpt2", "bf16"),
                                      ("gpt2", "f32")):
                value = emulated.config(family, train={"precision": precision, "steps": 1,
                                                       "batch": 2, "eval_every": 1,
                                                       "eval_batches": 1, "check_every": 1})
                value["model"]["context"] = 64
                value["optimizer"]["warmup"] = 0
                emulated.run("cuda", folder, value, folder / f"{family}{precision}", ranks=2,
                             environment={"SPILLWAY_EMULATED_STATS": str(folder / "stats.%r")})
                launched |= set(emulated.stats(folder / "stats.%r")["sources"])
        files = {path.name for path in (common.ROOT / "kernels" / "cuda").glob("*.cu")}
        self.assertGreater(len(files), 10)
        self.assertEqual(files - launched, set())


if __name__ == "__main__":
    unittest.main()
