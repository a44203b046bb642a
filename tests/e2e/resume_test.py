"""A resumed run is the same run: stopped at random steps in every way, on other placements and rank
counts."""
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from e2e.common import (ENVIRONMENT, ROOT, Folder, command, config, exact, hashes, metrics,
                        newest_checkpoint, run, train, write_config)

STEPS = 12
OFFLOAD = ["--set", "place.moments=host", "--set", "place.qkv=host", "--set", "place.ffn_act=recompute",
           "--set", "place.parameters=host", "--set", "place.gradients=host"]


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(2**32)
        print("seed", cls.seed)
        cls.random = random.Random(cls.seed)
        cls.folder = Folder()
        path = cls.folder.__enter__()
        cls.path = path
        cls.config = write_config(path, config(train={"steps": STEPS}))
        train(cls.config, path / "straight")
        cls.straight = exact(path / "straight")
        cls.final = hashes(newest_checkpoint(path / "straight"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.__exit__()

    def check(self, output):
        self.assertEqual(exact(output), self.straight)
        self.assertEqual(hashes(newest_checkpoint(output)), self.final)

    def test_stop_at_random_steps_with_offload_on_either_side(self):
        steps = self.random.sample(range(1, STEPS), 4)
        for i, step in enumerate(steps):
            before = OFFLOAD if i & 1 else []
            after = OFFLOAD if i & 2 else []
            output = self.path / f"stop{step}"
            train(self.config, output, "--stop-at", step, *before, expect=75)
            train(self.config, output, "--resume", "latest", *after)
            self.check(output)

    def test_updates_move_between_device_and_host(self):
        """Wherever updates stand, before and after the stop: the same run."""
        positions = ["end", "rotated", "host", "host_rotated"]
        for i in range(3):
            before, after = self.random.sample(positions, 2) if i else ("host_rotated", "end")
            output = self.path / f"update{i}"
            train(self.config, output, "--stop-at", self.random.randrange(1, STEPS), "--set",
                  f"place.update={before}", *(OFFLOAD if i & 1 else []), expect=75)
            other = self.random.choice(positions) if i else after
            train(self.config, output, "--resume", "latest", "--set", f"place.update@0={after}",
                  "--set", f"place.update@1={other}")
            self.check(output)

    def test_several_stops(self):
        output = self.path / "several"
        train(self.config, output, "--stop-at", 1, expect=75)
        for step in (4, 5, 11):
            train(self.config, output, "--stop-at", step, "--resume", "latest", expect=75)
        train(self.config, output, "--resume", "latest")
        self.check(output)

    def start_until(self, output, step, ranks, extra=()):
        """Starts a long run and returns it once it has done `step` steps."""
        line = command("--config", self.config, "--set", f"output={output}", *extra, ranks=ranks)
        process = subprocess.Popen(line, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        deadline = time.time() + 60
        while time.time() < deadline and process.poll() is None:
            try:
                if max(metrics(output), default=0) >= step:
                    break
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        return process

    def ranks_of(self, process):
        """Processes below mpirun."""
        listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], capture_output=True,
                                 text=True).stdout
        return [int(line.split()[0]) for line in listing.splitlines()
                if int(line.split()[1]) == process.pid and line.split()[2] == "train"]

    def test_signals_stop_all_ranks_at_a_checkpoint(self):
        slow = ["--chaos-us", "20000", "--chaos-seed", "1"]
        straight = self.path / "straight2"
        train(self.config, straight, ranks=2)
        for name, to in (("SIGTERM", "rank"), ("SIGUSR1", "rank"), ("SIGINT", "rank"),
                         ("SIGUSR1", "launcher")):
            output = self.path / f"{name}{to}"
            process = self.start_until(output, 2, ranks=2, extra=slow)
            ranks = self.ranks_of(process)
            self.assertEqual(len(ranks), 2, process.poll())
            os.kill(self.random.choice(ranks) if to == "rank" else process.pid, getattr(signal, name))
            text = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 75, text)
            train(self.config, output, "--resume", "latest", ranks=2)
            self.assertEqual(exact(output), exact(straight))
            self.assertEqual(hashes(newest_checkpoint(output)), hashes(newest_checkpoint(straight)))

    def test_killed_while_saving(self):
        """A checkpoint after every step, so that a random instant is often inside a save."""
        for trial in range(4):
            output = self.path / f"killed{trial}"
            every = ["--set", "checkpoint.every=1", "--set", "checkpoint.keep=2"]
            process = self.start_until(output, self.random.randrange(1, STEPS - 2), ranks=0, extra=every)
            time.sleep(self.random.random() * 0.03)
            process.kill()
            process.communicate()
            before = [p.name for p in (output / "checkpoints").glob("step_*")]
            done = train(self.config, output, "--resume", "latest", *every)
            self.assertTrue(not before or "resuming" in done.stdout, done.stdout)
            self.check(output)
            self.assertFalse(list((output / "checkpoints").glob(".tmp*")))

    def test_other_rank_counts_read_the_same_tokens(self):
        output = self.path / "ranks"
        train(self.config, output, "--stop-at", 4, ranks=2, expect=75)
        train(self.config, output, "--stop-at", 8, "--resume", "latest", expect=75)
        train(self.config, output, "--resume", "latest", ranks=4)
        rows, straight = metrics(output), metrics(self.path / "straight")
        for step in range(1, STEPS + 1):
            self.assertEqual(rows[step]["token_hash"], straight[step]["token_hash"])
            self.assertAlmostEqual(rows[step]["loss"], straight[step]["loss"], delta=1e-4)

    def test_other_shards_of_two_levels(self):
        """Four ranks as two nodes of two: whatever the ranks hold before and after, the same run; and
        another number of ranks, in one level, goes on from there."""
        straight, output = self.path / "levels", self.path / "levels_cut"
        tree, one = ("--set", "parallel.tree=2"), ("--set", "parallel.zero=1")
        train(self.config, straight, *tree, *one, ranks=4)
        zero = self.random.choice([3, 2, 0])
        train(self.config, output, *tree, "--set", f"parallel.zero={zero}", "--stop-at", 5,
              ranks=4, expect=75)
        train(self.config, output, *tree, "--set", f"parallel.zero={(zero + 2) % 4}", "--resume",
              "latest", "--stop-at", 9, ranks=4, expect=75)
        other = self.path / "levels_other"
        shutil.copytree(output, other)
        train(self.config, output, *tree, *one, "--resume", "latest", ranks=4)
        self.assertEqual(exact(output), exact(straight))
        self.assertEqual(hashes(newest_checkpoint(output)), hashes(newest_checkpoint(straight)))
        train(self.config, other, "--set", "parallel.zero=3", "--resume", "latest", ranks=2)
        rows = metrics(other)
        for step, row in metrics(straight).items():
            self.assertAlmostEqual(rows[step]["loss"], row["loss"], delta=1e-4)

    def test_resume_without_and_with_broken_checkpoints(self):
        output = self.path / "latest"
        done = train(self.config, output, "--resume", "latest")
        self.assertIn("starting at step 0", done.stdout)
        self.check(output)
        output = self.path / "broken"
        train(self.config, output, "--set", "checkpoint.every=4", "--set", "checkpoint.keep=9")
        folders = sorted((output / "checkpoints").glob("step_*"))
        self.assertEqual(len(folders), 3)
        shard = folders[-1] / "rank_00000.safetensors"
        data = bytearray(shard.read_bytes())
        data[-100] ^= 4
        shard.write_bytes(data)
        done = train(self.config, output, "--resume", "latest")
        self.assertIn(folders[-1].name, done.stderr)  # says what it skipped
        self.check(output)
        for folder in sorted((output / "checkpoints").glob("step_*")):
            (folder / "manifest.json").write_text("{}")
        done = train(self.config, output, "--resume", "latest", expect=2)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_fixed_key_may_not_change(self):
        output = self.path / "fixed"
        train(self.config, output, "--stop-at", 2, expect=75)
        for change, values in (("train.seed=9", ("1", "9")), ("optimizer.lr=0.5", ("0.001", "0.5"))):
            done = train(self.config, output, "--resume", "latest", "--set", change, expect=2)
            self.assertIn(change.split("=")[0], done.stderr)
            for value in values:
                self.assertIn(value, done.stderr)
        done = train(self.config, output, expect=2)
        self.assertIn("--resume", done.stderr)


if __name__ == "__main__":
    unittest.main()
