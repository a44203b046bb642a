"""scripts/sweep.py on this machine: what it prints and leaves behind, bad sweep files, and that it goes
on after every kind of end as if it had never been disturbed."""
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from e2e.common import ENVIRONMENT, LONG, ROOT, Folder, config, exact, hashes, metrics, newest_checkpoint, write_config

SCRIPT = ROOT / "scripts" / "sweep.py"
STEPS = 12
KILLS = 20 if LONG else 6


def command(*arguments):
    return [sys.executable, "-B", SCRIPT, *map(str, arguments)]


def sweep(*arguments, timeout=300):
    return subprocess.run(command(*arguments), env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def rows(folder):
    with open(folder / "results.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Columns that do not depend on how long anything took.
RESULT = ("trial", "state", "step", "loss", "validation_loss", "tokens", "exit_code", "error")


def same(folder):
    return [tuple(row[key] for key in RESULT) for row in rows(folder)]


class Sweep(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.path = self.folder.__enter__()
        self.addCleanup(self.folder.__exit__)
        self.base = write_config(self.path, config(train={"steps": STEPS, "eval_every": 6, "eval_batches": 2},
                                                   checkpoint={"every": 4}))

    def file(self, name, **keys):
        path = self.path / f"{name}.json"
        path.write_text(json.dumps({"config": str(self.base), "output": str(self.path / name), "threads": 1, **keys}))
        return path

    def ends(self, folder):
        """How often each trial ran to its end, from what `train` printed."""
        counts = []
        for log in sorted(folder.glob("trials/*/log.txt")):
            text = log.read_text()
            counts.append(text.count("done: ") - text.count("is done already"))
        return counts

    def test_grid(self):
        path = self.file("grid", grid={"optimizer.lr": [0.001, 0.01], "train.precision": ["f32", "bf16"]}, at_once=2)
        done = sweep(path, "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("--config"), 4, done.stdout)
        self.assertIn("--set optimizer.lr=0.01 --set train.precision=bf16", done.stdout)
        self.assertFalse((self.path / "grid").exists(), "a dry run wrote something")
        self.assertEqual(sweep("status", path).returncode, 2)

        done = sweep(path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = rows(self.path / "grid")
        self.assertEqual([(r["optimizer.lr"], r["train.precision"]) for r in found],
                         [("0.001", "f32"), ("0.001", "bf16"), ("0.01", "f32"), ("0.01", "bf16")])
        best = min(found, key=lambda r: float(r["validation_loss"]))
        self.assertRegex(done.stdout, rf"best: trial {best['trial']} optimizer.lr={best['optimizer.lr']} ")
        for row in found:
            last = metrics(self.path / "grid/trials" / row["trial"] / "run")[STEPS]
            self.assertEqual((row["state"], int(row["step"])), ("finished", STEPS))
            self.assertEqual((float(row["loss"]), float(row["validation_loss"])), (last["loss"], last["validation_loss"]))
        page = (self.path / "grid/results.html").read_text()
        self.assertNotRegex(page, r"(src|href)=|https?:", "the page is not self-contained")
        for title in ("Validation loss", "Training loss", "Final loss over optimizer.lr", "Final loss over train.precision"):
            self.assertIn(title, page)
        self.assertEqual(page.count("<polyline"), 8)
        self.assertIn(f"Best: {best['trial']} ", page)

        again = sweep(path)  # finished trials are not repeated
        self.assertEqual(again.returncode, 0)
        self.assertEqual(self.ends(self.path / "grid"), [1] * 4)
        self.assertEqual(rows(self.path / "grid"), found)
        status = sweep("status", path)
        self.assertIn("4 of 4 trials finished; sweep.py is not running", status.stdout)

    def test_failures_are_told_apart(self):
        trials = [{"train.seed": 1}, {"memory.device": "64KiB"}, {"optimizer.lrr": 1}, {"data.train": ["missing.txt"]},
                  {"data.validation": [str(self.path / "later.txt")]}]
        path = self.file("bad", list=trials)
        done = sweep(path)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        found = rows(self.path / "bad")
        self.assertEqual([(r["state"], r["exit_code"]) for r in found],
                         [("finished", "0"), ("does not fit", "3"), ("failed", "2"), ("failed", "2"), ("failed", "2")])
        for row, word in zip(found[1:], ("memory.device", 'did you mean "optimizer.lr"', "missing.txt", "later.txt")):
            self.assertIn(word, row["error"])
            self.assertIn(row["error"], done.stdout)
        self.assertIn("does not fit: ", done.stdout.split("sweep: ")[0], "told before anything was launched")
        self.assertFalse((self.path / "bad/trials/0001/log.txt").exists())
        logs = {p: p.read_text() for p in self.path.glob("bad/trials/*/log.txt")}
        self.assertEqual(sweep(path, "--retry-failed").returncode, 1)  # neither exit 2 nor 3 is tried again
        self.assertEqual({p: p.read_text() for p in self.path.glob("bad/trials/*/log.txt")}, logs)

    def test_a_failed_trial_is_retried_only_if_asked(self):
        path = self.file("retry", list=[{"train.seed": 1, "train.steps": 100000}], at_once=1)
        process = subprocess.Popen(command(path), env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.wait_steps("retry", 5)
        os.kill(self.pids("retry")[0], signal.SIGKILL)
        text = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, text)
        row = rows(self.path / "retry")[0]
        self.assertEqual((row["state"], row["exit_code"]), ("failed", "137"))
        steps = max(metrics(self.path / "retry/trials/0000/run"))
        self.assertEqual(sweep(path).returncode, 1)
        self.assertEqual(max(metrics(self.path / "retry/trials/0000/run")), steps, "retried without being asked")
        process = subprocess.Popen(command(path, "--retry-failed"), env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.wait_steps("retry", steps + 1)
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75, text)
        self.assertIn("resuming", (self.path / "retry/trials/0000/log.txt").read_text())

    def pids(self, name):
        """Of everything that runs for a sweep's trials."""
        listing = subprocess.run(["ps", "-e", "-o", "pid=,args="], capture_output=True, text=True).stdout
        return [int(line.split()[0]) for line in listing.splitlines() if f"output={self.path / name}/trials" in line]

    def wait_steps(self, name, steps, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if max(metrics(self.path / name / "trials/0000/run"), default=0) >= steps:
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        self.fail(f"no {steps} steps within {seconds} s")

    def test_interrupted_and_looked_at(self):
        path = self.file("stop", list=[{"train.steps": 3000, "train.eval_every": 0}], ranks=2)
        process = subprocess.Popen(command(path), env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.wait_steps("stop", 5)
        status = sweep("status", path)
        self.assertIn("running", status.stdout.splitlines()[1], status.stdout)
        self.assertIn("0 of 1 trials finished; sweep.py is running", status.stdout)
        second = sweep(path)  # two at a time would spoil each other
        self.assertEqual(second.returncode, 2, second.stdout)
        self.assertIn(f"process {process.pid}", second.stderr)
        process.send_signal(signal.SIGTERM)
        text = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75, text)
        self.assertEqual(rows(self.path / "stop")[0]["state"], "stopped")
        self.assertTrue(newest_checkpoint(self.path / "stop/trials/0000/run"))
        self.assertFalse(self.pids("stop"), "processes were left")
        changed = self.file("stop", list=[{"train.steps": 3000, "train.eval_every": 1}], ranks=2)
        done = sweep(changed)
        self.assertEqual(done.returncode, 2)
        self.assertIn("trial 0", done.stderr)

    def test_killed_at_random_instants(self):
        """Started again until it ends, it has run every trial to its end once, with the same results."""
        seed = random.SystemRandom().randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)
        keys = {"grid": {"optimizer.lr": [0.001, 0.003], "train.seed": [1, 2]}, "ranks": 2, "at_once": 2,
                "set": {"place.moments": "host", "hardware.link": "10MB/s"}}
        start = time.monotonic()
        self.assertEqual(sweep(self.file("straight", **keys)).returncode, 0)
        whole = time.monotonic() - start
        path = self.file("killed", **keys)
        kills = 0
        for number in range(KILLS):
            process = subprocess.Popen(command(path), env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
            try:
                # Early and late instants alike, as each start has less left to do.
                process.communicate(timeout=rng.random() * whole * (0.6 if number % 2 else 0.2))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)  # the sweep alone: its trials find out by themselves
                process.communicate()
                if number % 3 == 2:  # and as if the machine had gone down
                    for pid in self.pids("killed"):
                        try:
                            os.kill(pid, signal.SIGKILL)
                        except ProcessLookupError:
                            pass
                kills += 1
        done = sweep(path)
        print(f"{kills} of {KILLS} starts were killed")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(same(self.path / "killed"), same(self.path / "straight"))
        self.assertEqual(self.ends(self.path / "killed"), [1] * 4)
        for number in range(4):
            a, b = (self.path / name / f"trials/{number:04d}/run" for name in ("straight", "killed"))
            self.assertEqual(exact(a), exact(b))
            self.assertEqual(hashes(newest_checkpoint(a)), hashes(newest_checkpoint(b)))
        self.assertFalse(self.pids("killed"), "processes were left")
        self.assertGreater(kills, 0)

    def test_stop_worst(self):
        """The median rule is off unless asked for; then the hopeless trial ends, and stays ended."""
        keys = {"list": [{"optimizer.lr": lr} for lr in (0.003, 0.002, 0.0025, 1e-9)], "stop_worst_after": 6,
                "set": {"train.steps": 200, "train.eval_every": 0, "checkpoint.every": 0}}
        path = self.file("worst", **keys)
        done = sweep(path, "--stop-worst")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = rows(self.path / "worst")
        self.assertEqual([r["state"] for r in found], ["finished"] * 3 + ["stopped early"], done.stdout)
        self.assertLess(int(found[3]["step"]), 200)
        self.assertEqual(sweep(path).returncode, 0)
        self.assertEqual(rows(self.path / "worst"), found)

    def test_random_is_the_same_for_the_same_seed(self):
        space = {"optimizer.lr": {"log": [1e-4, 1e-1]}, "optimizer.warmup": {"integer": [0, 5]},
                 "optimizer.weight_decay": {"uniform": [0, 0.2]}, "train.precision": ["f32", "bf16"]}
        one, two, other = (sweep(self.file("random", random={"trials": n, "seed": s, "space": space}), "--dry-run").stdout
                           for n, s in ((20, 1), (30, 1), (20, 2)))
        self.assertEqual(two.splitlines()[:20], one.splitlines())
        self.assertNotEqual(other, one)
        rates = [float(x) for x in re.findall(r"optimizer.lr=(\S+)", two)]
        self.assertTrue(all(1e-4 <= x <= 1e-1 for x in rates))
        self.assertLess(min(rates), 1e-3)  # half of the range on a logarithmic scale is below 3e-3
        self.assertGreater(max(rates), 1e-2)
        self.assertEqual(set(re.findall(r"train.precision=(\S+)", two)), {"f32", "bf16"})
        self.assertLessEqual(set(re.findall(r"optimizer.warmup=(\S+)", two)), set("012345"))

    def test_more_than_the_machine_has(self):
        """Each fits alone; all together they do not."""
        keys = {"list": [{"train.seed": 1}] * 64, "at_once": 64, 
                "set": {"model.hidden": 4096, "model.heads": 32, "model.kv_heads": 32, "model.ffn": 16384, "model.layers": 1}}
        done = sweep(self.file("huge", **keys))
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"at_once.* 64 trials at once take \d+ MiB, and this machine has \d+ MiB")

    def test_bad_sweep_files(self):
        grid = {"grid": {"train.seed": [1]}}
        cases = [
            ('{"config": ', ["bad.json:1:", "not JSON"]),
            ("[]", ["the file", "found []", "an object"]),
            ({}, ["key \"config\" is missing"]),
            ({"config": "no/such.json", **grid}, ["key \"config\"", "no/such.json"]),
            ({"grids": {"train.seed": [1]}}, ["unknown key \"grids\"", "did you mean \"grid\""]),
            ({"config": None, **grid}, ["key \"config\"", "null", "a string"]),
            ({**grid, "list": [{}]}, ["grid and list"]),
            ({"set": {"train.steps": 1}}, ["found none of grid, list and random"]),
            ({"grid": {"train.seed": 1}}, ["grid.train.seed", "found 1", "a list"]),
            ({"grid": {"train.seed": []}}, ["grid.train.seed", "found []", "at least one value"]),
            ({"grid": {"train.seed": [{}]}}, ["grid.train.seed[0]", "found {}"]),
            ({"grid": {"output": ["a"]}}, ["grid.output", "cannot be swept"]),
            ({"list": [1]}, ["list[0]", "found 1", "an object"]),
            ({**grid, "ranks": 0}, ["\"ranks\"", "found 0", "an integer from 1"]),
            ({**grid, "ranks": True}, ["\"ranks\"", "found true"]),
            ({**grid, "at_once": 1.5}, ["\"at_once\"", "found 1.5"]),
            ({**grid, "set": {"train.seed": 2}}, ["set.train.seed", "also swept by grid"]),
            ({**grid, "slurm": {"node": 2}}, ["unknown key \"slurm.node\"", "slurm.nodes"]),
            ({**grid, "slurm": {"nodes": 2}}, ["slurm.nodes", "found 2", "a divisor of ranks, 1"]),
            ({**grid, "slurm": {"launch": "ssh"}}, ["slurm.launch", "\"ssh\"", "\"srun\" or \"mpirun\""]),
            ({"random": {"trials": 3, "space": {"optimizer.lr": {"log": [0, 1]}}}}, ["random.space.optimizer.lr", "low > 0"]),
            ({"random": {"space": {"optimizer.lr": [1]}}}, ["random.trials", "missing"]),
            ('{"config": "a", "config": "b"}', ["\"config\" is there twice"]),
            ('{"config": "a", "grid": {"train.seed": [NaN]}}', ["found NaN"]),
        ]
        path = self.path / "bad.json"
        for content, words in cases:
            with self.subTest(content=content):
                if isinstance(content, dict):
                    content = json.dumps({"config": str(self.base), **content} if content else content)
                path.write_text(content)
                done = sweep(path)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                for word in ["bad.json", *words]:
                    self.assertIn(word, done.stderr)
        done = sweep(self.path / "absent.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("No such file", done.stderr)


if __name__ == "__main__":
    unittest.main()
