"""No silent lack of progress: one of two ranks is killed or stopped at a random instant; all end
non-zero within 30 s, and the message names rank, step and instruction."""
import os
import random
import re
import signal
import subprocess
import time
import unittest

from e2e.common import ENVIRONMENT, LONG, ROOT, Folder, command, config, metrics, write_config

TRIALS = 50 if LONG else 10
LIMIT = 30


def ranks_of(process):
    listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], capture_output=True, text=True)
    return [int(line.split()[0]) for line in listing.stdout.splitlines()
            if int(line.split()[1]) == process.pid and line.split()[2] == "train"]


class Peers(unittest.TestCase):
    def trial(self, folder, name, number, rng):
        output = folder / f"{name}{number}"
        path = write_config(folder, config(train={"steps": 100000}))
        line = command("--config", path, "--set", f"output={output}", "--set", "place.moments=host",
                       "--chaos-us", "2000", "--chaos-seed", number + 1, ranks=2)
        process = subprocess.Popen(line, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        deadline = time.time() + 60
        while time.time() < deadline:
            try:
                if max(metrics(output), default=0) >= 2:
                    break
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        time.sleep(rng.random() * 0.3)
        ranks = sorted(ranks_of(process))
        self.assertEqual(len(ranks), 2)
        victim = rng.randrange(2)
        start = time.time()
        os.kill(ranks[victim], getattr(signal, name))
        try:
            text = process.communicate(timeout=LIMIT)[0]
        finally:
            for pid in ranks:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        print(f"{name} of rank {victim}: ended after {time.time() - start:.1f} s, code {process.returncode}")
        self.assertNotIn(process.returncode, (0, 75), text)
        self.assertRegex(text, rf"rank {victim} .*at step \d+ .*\S", text)
        self.assertRegex(text, re.compile(r"peer lost|no progress"), text)

    def test_killed_and_stopped(self):
        seed = random.SystemRandom().randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)
        with Folder() as folder:
            for number in range(TRIALS):
                self.trial(folder, "SIGKILL" if number % 2 else "SIGSTOP", number, rng)

    def test_a_slow_rank_is_named(self):
        # Rank 1 is stopped half of the time: never long enough to be lost, and the run goes on.
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 100000}))
            log = folder / "log"
            with open(log, "wb") as file:
                process = subprocess.Popen(command("--config", path, "--set", f"output={folder}/out", ranks=2),
                                           env=ENVIRONMENT, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            try:
                deadline = time.time() + 120
                while len(ranks_of(process)) < 2 or not (folder / "out" / "metrics.jsonl").exists():
                    self.assertLess(time.time(), deadline, log.read_text())
                    time.sleep(0.05)
                pids = {int(self.variable(pid, "OMPI_COMM_WORLD_RANK")): pid for pid in ranks_of(process)}
                while "straggler: rank 1 (host " not in log.read_text():
                    self.assertLess(time.time(), deadline, log.read_text())
                    self.assertIsNone(process.poll(), log.read_text())
                    os.kill(pids[1], signal.SIGSTOP)
                    time.sleep(0.06)
                    os.kill(pids[1], signal.SIGCONT)
                    time.sleep(0.02)
            finally:
                process.terminate()
                process.wait(timeout=60)
            self.assertRegex(log.read_text(), r"straggler: rank 1 \(host \S+\) works [\d.]+ ms a step, the median rank [\d.]+ ms")

    @staticmethod
    def variable(pid, name):
        with open(f"/proc/{pid}/environ", "rb") as file:
            values = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        return values[name.encode()].decode()


if __name__ == "__main__":
    unittest.main()
