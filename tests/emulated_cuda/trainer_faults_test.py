"""Errors of CUDA and NCCL and memory that is not there: how a run on the emulated device ends."""
import pathlib
import random
import time
import unittest

from e2e import common
import emulated

SEED = 20240917
LIMIT = 30  # seconds in which all ranks must have ended


def leftovers():
    return {path.name for path in pathlib.Path("/dev/shm").iterdir()
            if path.name.startswith(("spillway", "nccl"))}


class InjectedErrors(unittest.TestCase):
    def calls_of(self, folder, value, ranks):
        """How many calls a whole run makes before it tears down, so that one can be drawn."""
        emulated.run("cuda", folder, value, folder / "count", ranks=ranks,
                     environment={"SPILLWAY_EMULATED_STATS": str(folder / "stats.%r")})
        made = emulated.stats(folder / "stats.%r", 1)
        return made["calls"] - made["allocations"]["events"] - 40

    def test_an_error_on_one_of_two_ranks_ends_both(self):
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 2},
                                    place={"moments": "host", "ffn_up": "host"})
            calls = self.calls_of(folder, value, 2)
            for trial in range(40 if common.LONG else 6):
                # Half of them once the arenas stand, where most calls differ from each other.
                number = chance.randrange(2 * calls // 3 if trial % 2 else 1, calls + 1)
                with self.subTest(call=number):
                    start = time.monotonic()
                    done = emulated.run("cuda", folder, value, folder / f"out{trial}", ranks=2,
                                        environment={"SPILLWAY_EMULATED_FAIL": f"any:{number}",
                                                     "SPILLWAY_EMULATED_FAIL_RANK": "1"},
                                        expect=None, timeout=3 * LIMIT)
                    self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertLess(time.monotonic() - start, LIMIT)
                    self.assertRegex(done.stderr, r"(cuda|nccl|cuBLAS|cublas|cuStream|NCCL|CUDA)\w*")

    def test_the_message_names_call_instruction_step_and_rank(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 3}, place={"moments": "host"})
            for call, number, told in (("cudaMemcpyAsync", 120, "cudaMemcpyAsync"),
                                       ("cudaLaunchKernelExC", 150, "the launch of a kernel"),
                                       ("ncclGroupEnd", 6, "ncclGroupEnd")):
                with self.subTest(call=call):
                    done = emulated.run("cuda", folder, value, folder / call, ranks=2,
                                        environment={"SPILLWAY_EMULATED_FAIL": f"{call}:{number}",
                                                     "SPILLWAY_EMULATED_FAIL_RANK": "1"},
                                        expect=None, timeout=3 * LIMIT)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertRegex(done.stderr,
                                     rf"rank 1, step \d+, instruction [^:]+: {told} failed: ")


class Memory(unittest.TestCase):
    def refused(self, environment, *words, ranks=0, value=None):
        value = value or emulated.config("llama", train={"steps": 2}, place={"moments": "host"})
        before = leftovers()
        with common.Folder() as folder:
            done = emulated.run("cuda", folder, value, folder / "out", ranks=ranks, expect=3,
                                environment=environment)
            lines = [line for line in done.stderr.splitlines() if line.startswith("train: ")]
            self.assertEqual(len(lines), 1, done.stderr)
            for word in words:
                self.assertIn(word, lines[0])
            self.assertFalse((folder / "out").exists())
        self.assertEqual(leftovers(), before)

    def test_out_of_device_memory(self):
        for ranks in (0, 2):
            self.refused({"SPILLWAY_EMULATED_DEVICE_BYTES": str(302 << 20),
                          "SPILLWAY_EMULATED_FOREIGN_BYTES": str(300 << 20)},
                         "device tier", "the plan needs", "memory.device", "300.00 MiB", ranks=ranks)

    def test_out_of_pinned_memory(self):
        for ranks in (0, 2):
            self.refused({"SPILLWAY_EMULATED_PINNED_BYTES": str(1 << 20)},
                         "host tier", "cudaHostRegister", "ulimit -l", "cgroup", "memory.host",
                         ranks=ranks)

    def test_growth_beside_the_arena_is_told(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 2})
            done = emulated.run("cuda", folder, value, folder / "out",
                                environment={"SPILLWAY_EMULATED_FOREIGN_GROWTH": str(8 << 20)})
            self.assertIn("device memory beside the arena grew", done.stdout + done.stderr)
            done = emulated.run("cuda", folder, value, folder / "again")
            self.assertNotIn("device memory beside the arena grew", done.stdout + done.stderr)

    def test_nothing_is_allocated_after_the_second_step(self):
        everything = {"moments": "host", "gradients": "host", "parameters": "host", "qkv": "host",
                      "ffn_up": "host", "ffn_act": "recompute"}
        made = {}
        with common.Folder() as folder:
            for steps in (2, 7):
                value = emulated.config("llama", train={"steps": steps, "eval_every": 2,
                                                        "eval_batches": 2}, place=everything,
                                        checkpoint={"every": 3, "keep": 1})
                emulated.run("cuda", folder, value, folder / f"out{steps}", ranks=2, seed=steps,
                             environment={"SPILLWAY_EMULATED_STATS": str(folder / "stats.%r")})
                made[steps] = [emulated.stats(folder / "stats.%r", r)["allocations"] for r in (0, 1)]
        self.assertEqual(made[2], made[7])
        self.assertGreater(made[2][0]["events"], 0)


class Backends(unittest.TestCase):
    def test_without_a_device_auto_trains_on_the_cpu_and_says_so(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 2})
            value["hardware"] = {"backend": "auto"}
            path = common.write_config(folder, value)
            for binary in (common.TRAIN, emulated.TRAIN_EMULATED):
                done = emulated.subprocess.run(
                    [binary, "--config", path, "--set", f"output={folder / pathlib.Path(binary).name}"],
                    capture_output=True, text=True, cwd=common.ROOT, timeout=120,
                    env=dict(common.ENVIRONMENT, SPILLWAY_EMULATED_DEVICES="0"))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("training on the CPU backend", done.stdout)
                self.assertIn("backend cpu", done.stdout)

    def test_without_a_device_cuda_is_an_error(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 2})
            for ranks in (0, 2):
                done = emulated.run("cuda", folder, value, folder / "out", ranks=ranks, expect=2,
                                    environment={"SPILLWAY_EMULATED_DEVICES": "0"})
                self.assertEqual(done.stderr.count("train: "), 1, done.stderr)
                self.assertIn("finds no device", done.stderr)
                self.assertFalse((folder / "out").exists())

    def test_every_rank_needs_a_device_of_its_own(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 2})
            done = emulated.run("cuda", folder, value, folder / "out", ranks=2, expect=2,
                                environment={"SPILLWAY_EMULATED_DEVICES": "1"})
            self.assertIn("every rank needs one of its own", done.stderr)
            done = emulated.run("cuda", folder, value, folder / "auto", "--set",
                                "hardware.backend=auto", "--set", "hardware.profile=auto", ranks=2,
                                environment={"SPILLWAY_EMULATED_DEVICES": "1"})
            self.assertIn("training on the CPU backend: ", done.stdout)
            done = emulated.run("cuda", folder, value, folder / "out", ranks=3, expect=2,
                                environment={"SPILLWAY_EMULATED_DEVICES": "2"})
            self.assertIn("start at most 2 ranks a node", done.stderr)

    def test_a_profile_is_derived_or_refused(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 2})
            value["hardware"] = {"backend": "cuda"}
            emulated.run("cuda", folder, value, folder / "derived")
            self.assertIn("derived from emulated device", (folder / "derived" / "plan.json").read_text())
            done = emulated.run("cuda", folder, value, folder / "cpu", "--set",
                                "hardware.profile=cpu", expect=2)
            self.assertIn("hardware.profile", done.stderr)


if __name__ == "__main__":
    unittest.main()
