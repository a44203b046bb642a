# needs: slurm
"""On a real two-node Slurm: a preempted job comes back and ends with the weights of the run that was
never disturbed; a sweep as a job array."""
import csv
import json
import re
import subprocess
import sys
import time
import unittest

from cluster import slurm
from e2e.common import ROOT, Folder, config, exact, hashes, metrics, newest_checkpoint, train, write_config

STEPS = 60
SLOW = ["--chaos-us", "6000", "--chaos-seed", "1", "--set", "place.moments=host"]  # copies that dawdle


def steps_done(output):
    try:
        return max(metrics(output), default=0)
    except (OSError, ValueError):
        return 0


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder()
        cls.path = cls.folder.__enter__()
        cls.config = write_config(cls.path, config(train={"steps": STEPS}))
        train(cls.config, cls.path / "straight", ranks=2)
        cls.straight = exact(cls.path / "straight")
        cls.weights = hashes(newest_checkpoint(cls.path / "straight"))["weights_hash"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.__exit__()

    def submit(self, cluster, name, launch, *arguments):
        return cluster.submit("--time=30", f"--output={self.path}/{name}.log", "scripts/slurm/train.sbatch", self.config,
                              "--set", f"output={self.path}/{name}", *arguments, env={"SPILLWAY_LAUNCH": launch})

    def log(self, name):
        return (self.path / f"{name}.log").read_text()

    def check_end(self, cluster, job, name):
        state = cluster.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        self.assertEqual((state["JobState"], state["ExitCode"]), ("COMPLETED", "0:0"), f"{state}\n{self.log(name)}")
        self.assertGreaterEqual(int(state["Restarts"]), 1, self.log(name))
        self.assertIn("ended with exit code 75", self.log(name))
        self.assertRegex(self.log(name), r"resuming .*step_\d+ at step \d+")
        self.assertEqual(exact(self.path / name), self.straight)
        self.assertEqual(hashes(newest_checkpoint(self.path / name))["weights_hash"], self.weights)

    def test_preempted_by_another_job(self):
        """By a job of a partition of higher priority, and back by exit code (RequeueExit)."""
        with slurm.Cluster() as cluster:
            job = self.submit(cluster, "srun", "srun", *SLOW)
            cluster.wait_for(lambda: steps_done(self.path / "srun") >= 5, "five steps")
            urgent = cluster.submit("--partition=urgent", "--nodes=2", "--exclusive", f"--output={self.path}/urgent.log", "--wrap=sleep 1")
            cluster.wait_state(urgent, "COMPLETED", seconds=60)
            self.assertLess(steps_done(self.path / "srun"), STEPS, "the urgent job came too late")
            self.check_end(cluster, job, "srun")
            self.assertIn("2 ranks", self.log("srun"))

            readme = re.search(r"^sbatch (.*)$", (ROOT / "README.md").read_text(), re.M).group(1).split()
            job = cluster.submit(f"--output={self.path}/readme.log", "--time=10", *readme, "--set", f"output={self.path}/readme",
                                 "--set", "train.steps=4", "--set", "optimizer.warmup=2")
            state = cluster.wait_state(job, "COMPLETED", "FAILED", "TIMEOUT")
            self.assertEqual((state["JobState"], state["NumNodes"], steps_done(self.path / "readme")), ("COMPLETED", "2", 4),
                             self.log("readme"))

            bad = self.submit(cluster, "bad", "srun", "--set", "optimizer.lr=-1")
            state = cluster.wait_state(bad, "COMPLETED", "FAILED")
            self.assertEqual((state["JobState"], state["ExitCode"], state["Restarts"]), ("FAILED", "2:0", "0"), self.log("bad"))

    def test_signalled_under_mpirun(self):
        """As ahead of a time limit, and back through scontrol, where the cluster lists no exit code."""
        with slurm.Cluster(requeue_exit=None) as cluster:
            job = self.submit(cluster, "mpirun", "mpirun", *SLOW)
            cluster.wait_for(lambda: steps_done(self.path / "mpirun") >= 5, "five steps")
            cluster.call("scancel", "--batch", "--signal=USR1", job, check=True)
            self.check_end(cluster, job, "mpirun")

            gone = self.submit(cluster, "gone", "srun", *SLOW)
            cluster.wait_for(lambda: steps_done(self.path / "gone") >= 5, "five steps")
            cluster.call("scancel", gone, check=True)
            cluster.wait_for(lambda: not cluster.call("squeue", "-h", "-j", gone), "end of a cancelled job", 60)
            state = cluster.job(gone)
            self.assertEqual((state["JobState"], state["Restarts"]), ("CANCELLED", "0"), self.log("gone"))

    def test_sweep_as_a_job_array(self):
        """Four trials: one preempted, one undisturbed, one that does not fit, one with bad input; and
        sweep.py itself killed and started again, which finds its jobs in the queue."""
        trials = [{"optimizer.lr": 0.001}, {"optimizer.lr": 0.003}, {"optimizer.lr": 0.001, "memory.device": "64KiB"},
                  {"optimizer.lr": 0.001, "data.train": ["missing.txt"]}]
        sweep = self.path / "sweep.json"
        (self.path / "base").mkdir()
        base = write_config(self.path / "base", config(train={"steps": STEPS}, place={"moments": "host"},
                                                             hardware={"link": "2MB/s"}))
        sweep.write_text(json.dumps({
            "config": str(base), "output": str(self.path / "sweep"), "list": trials, "ranks": 2, "threads": 1, "at_once": 4,
            "slurm": {"nodes": 2, "options": ["--time=10"]}}))
        line = [sys.executable, "-B", ROOT / "scripts/sweep.py", sweep, "--launcher", "slurm"]
        first = self.path / "sweep/trials/0000"
        with slurm.Cluster() as cluster:
            def start():
                return subprocess.Popen(line, env=cluster.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            process = start()
            try:
                cluster.wait_for(lambda: steps_done(first / "run") >= 5 or process.poll() is not None, "five steps of a trial")
                number = cluster.call("squeue", "-h", "-r", "-o", "%K %F_%K").splitlines()
                task = next(line.split()[1] for line in number if line.startswith("0 "))
                cluster.call("scancel", "--batch", "--signal=USR1", task, check=True)
                process.kill()
                self.assertIn("submitted job array", process.communicate()[0])
                process = start()
                deadline = time.monotonic() + 180
                while process.poll() is None and time.monotonic() < deadline:
                    cluster.hurry()
                    time.sleep(0.2)
                text = process.communicate(timeout=10)[0]
            finally:
                process.kill()
        self.assertEqual(process.returncode, 1, text)
        self.assertNotIn("submitted", text)
        with open(self.path / "sweep/results.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(r["state"], r["exit_code"], r["step"]) for r in rows],
                         [("finished", "0", str(STEPS)), ("finished", "0", str(STEPS)), ("does not fit", "3", "0"),
                          ("failed", "2", "0")], text)
        self.assertIn("memory.device", rows[2]["error"])
        self.assertIn("missing.txt", rows[3]["error"])
        for row in rows[2:]:  # the terminal's table names them too
            self.assertIn(row["error"], text)
        log = (first / "log.txt").read_text()
        self.assertIn("ended with exit code 75", log)
        self.assertIn("resuming", log)
        self.assertFalse((self.path / "sweep/trials/0002/log.txt").exists(), "what does not fit was launched")
        self.assertEqual((self.path / "sweep/trials/0003/log.txt").read_text().count("ended with exit code"), 1)
        for number, name in ((0, "one"), (1, "two")):
            train(base, self.path / name, "--set", "hardware.link=unpaced", "--set",
                  f"optimizer.lr={trials[number]['optimizer.lr']}", ranks=2)
            output = self.path / f"sweep/trials/{number:04d}/run"
            self.assertEqual(exact(output), exact(self.path / name))
            self.assertEqual(hashes(newest_checkpoint(output))["weights_hash"],
                             hashes(newest_checkpoint(self.path / name))["weights_hash"])


if __name__ == "__main__":
    unittest.main()
