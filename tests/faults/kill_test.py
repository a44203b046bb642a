"""kill -9 of a random rank, or of mpirun, at a random instant: start-up, step, evaluation, save, exit.
Then resume: the final state is bitwise the undisturbed run's, no announced checkpoint is lost, no process
or lock is left, and segments of shared memory are gone after the next start. 20 trials; 200 if
SPILLWAY_LONG is 1."""
import os
import pathlib
import random
import re
import signal
import subprocess
import time
import unittest

from e2e.common import (ENVIRONMENT, LONG, ROOT, Folder, command, config, hashes, newest_checkpoint, run,
                        train, write_config)

TRIALS = 200 if LONG else 20
STEPS, RANKS = 40, 2
PATIENCE = 30  # seconds until all has ended
PHASES = ("start", "run", "run", "save", "exit")


def processes(marker):
    """Processes of this trial by name: those whose command line holds `marker`."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if state not in "ZX" and marker.encode() in b" ".join(line):
            found[int(entry.name)] = pathlib.Path(os.fsdecode(line[0])).name
    return found


def segments(pids):
    """Files of shared memory that processes have mapped by name: theirs, whoever else runs here."""
    found = set()
    for pid in pids:
        try:
            lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {line[line.index("/dev/shm/"):] for line in lines if "/dev/shm/" in line and "(deleted)" not in line}
    return found


class Kill(unittest.TestCase):
    def start(self, path, output, log):
        line = command("--config", path, "--set", f"output={output}", "--resume", "latest", ranks=RANKS)
        return subprocess.Popen(line, env=ENVIRONMENT, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)

    def wait_for(self, condition, process):
        deadline = time.time() + 60
        while time.time() < deadline and process.poll() is None and not condition():
            time.sleep(0.002)

    def trial(self, folder, path, number, rng, straight, seconds, first_step):
        output = folder / f"kill{number}"
        log_path = folder / f"log{number}"
        phase = rng.choice(PHASES)
        with open(log_path, "wb") as log:
            process = self.start(path, output, log)
            if phase == "start":
                time.sleep(rng.random() * first_step)
            elif phase == "run":
                time.sleep(first_step + rng.random() * (seconds - first_step))
            elif phase == "save":
                saves = rng.randrange(1, STEPS // 5)
                self.wait_for(lambda: len(list((output / "checkpoints").glob("*"))) >= saves, process)
                time.sleep(rng.random() * 0.02)
            else:
                self.wait_for(lambda: f"step_{STEPS:08d}" in log_path.read_text(), process)
                time.sleep(rng.random() * 0.1)
            victims = processes(str(output))
            mapped = segments(victims)
            ranks = sorted(pid for pid, name in victims.items() if name == "train")
            victim = rng.choice([process.pid, *ranks] if ranks else [process.pid])
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
            what = "mpirun" if victim == process.pid else "a rank"
            begin = time.time()
            process.wait(timeout=PATIENCE)
            while (left := processes(str(output))) and time.time() - begin < PATIENCE:
                time.sleep(0.02)
        ended = time.time() - begin
        text = log_path.read_text(errors="replace")
        self.assertEqual(left, {}, f"{what} killed in {phase}: processes are left\n{text}")
        announced = re.findall(r"^checkpoint (\S+)", text, re.M)
        for checkpoint in announced:
            self.assertEqual(run("inspect", checkpoint).returncode, 0, f"{checkpoint} was announced\n{text}")
        # The next start clears up and goes on; it has nothing to say about a lock.
        done = train(path, output, "--resume", "latest", ranks=RANKS)
        if announced:
            step = int(announced[-1][-8:])
            resumed = re.search(r"resuming \S+ at step (\d+)", done.stdout)
            self.assertTrue(resumed, done.stdout)
            self.assertGreaterEqual(int(resumed.group(1)), step, done.stdout)
        self.assertEqual(hashes(newest_checkpoint(output)), straight, f"{what} killed in {phase}\n{text}")
        self.assertEqual({s for s in mapped if os.path.exists(s)}, set(), "segments are left")
        print(f"{number}: {what} killed in {phase}, {len(announced)} checkpoints announced, "
              f"all ended after {ended:.1f} s", flush=True)

    def test_killed_and_resumed(self):
        seed = random.SystemRandom().randrange(2**32)
        print("seed", seed, flush=True)
        rng = random.Random(seed)
        with Folder() as folder:
            path = write_config(folder, config(
                model={"layers": 2, "hidden": 32, "ffn": 48, "heads": 2, "kv_heads": 1},
                train={"steps": STEPS, "batch": 4, "micro_batch": 1, "eval_every": 4, "eval_batches": 8,
                       "check_every": 7},
                checkpoint={"every": 5, "keep": 1000}))
            begin = time.time()
            with open(folder / "log", "wb") as log:
                process = self.start(path, folder / "straight", log)
                metrics = folder / "straight" / "metrics.jsonl"
                self.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
                first_step = time.time() - begin
                self.assertEqual(process.wait(timeout=120), 0, (folder / "log").read_text())
            seconds = time.time() - begin
            straight = hashes(newest_checkpoint(folder / "straight"))
            print(f"undisturbed: {seconds:.1f} s, first step after {first_step:.1f} s", flush=True)
            for number in range(TRIALS):
                self.trial(folder, path, number, rng, straight, seconds, first_step)


if __name__ == "__main__":
    unittest.main()
