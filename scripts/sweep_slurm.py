"""Trials as one Slurm job array, an array task a trial (scripts/slurm/sweep.sbatch runs it)."""
import hashlib
import os
import shutil
import subprocess
import time

from sweep_file import BadInput, ROOT
from sweep_trials import INTERNAL, train_binary, write_whole

LOOK_SECONDS = 5      # between two looks at the queue
MISSING_SECONDS = 15  # the exit code of a job that has left the queue may take this long to be seen


class SlurmLauncher:
    name = "slurm"

    def __init__(self, folder):
        self.folder, self.sweep = folder, folder.sweep
        # The queue is asked for this name, so that jobs are found again even if the sweep was killed
        # before it had noted their number.
        self.job_name = "sweep-" + hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]
        self.script = ROOT / "scripts" / "slurm" / "sweep.sbatch"
        self.queue, self.ours, self.missing, self.looked = {}, set(), {}, 0.0
        self.stopping = False

    def command(self, trial):
        return [train_binary(), "--config", str(self.sweep.config.resolve()),
                *trial.overrides(self.sweep, self.sweep.threads), "--resume", "latest"]

    def submit_line(self, trials):
        array = ",".join(str(t.number) for t in trials)
        line = ["sbatch", "--parsable", f"--job-name={self.job_name}", f"--array={array}%{self.sweep.at_once}",
                f"--nodes={self.sweep.nodes}", f"--ntasks-per-node={self.sweep.ranks // self.sweep.nodes}",
                f"--output={self.folder.path}/trials/%4a/log.txt"]
        if self.sweep.threads:
            line.append(f"--cpus-per-task={self.sweep.threads}")
        return line + self.sweep.slurm_options + [str(self.script), str(self.folder.path)]

    def dry_run(self, trials):
        return ([self.submit_line(trials)] if trials else []) + [self.command(t) for t in trials]

    @staticmethod
    def available():
        return bool(shutil.which("sbatch") and shutil.which("squeue"))

    def begin(self, trials):
        if not self.available():
            raise BadInput("--launcher slurm: sbatch and squeue not found in PATH; start it on a login node of the cluster")
        self.look()
        new = [t for t in trials if t.number not in self.queue]
        self.ours = {t.number for t in trials}
        if not new:
            return
        for trial in new:
            write_whole(trial.folder / "arguments", "\n".join(self.command(trial)[1:]) + "\n")
        environment = dict(os.environ, SPILLWAY_ROOT=str(ROOT), SPILLWAY_TRAIN=train_binary(),
                           SPILLWAY_LAUNCH=self.sweep.launch)
        # sbatch holds the sweep's lock too: a sweep that is killed here and started again waits for it.
        done = subprocess.run(self.submit_line(new), env=environment, capture_output=True, text=True,
                              pass_fds=[self.folder.lock_file.fileno()])
        if done.returncode != 0:
            raise BadInput(f"sbatch: {done.stderr.strip()}; key \"slurm.options\" of {self.sweep.path} is handed to it")
        print(f"submitted job array {done.stdout.strip().split(';')[0]}: {len(new)} trials, {self.sweep.at_once} at once",
              flush=True)
        self.look()

    def look(self):
        """The queue: trial → (state, reason). A Slurm controller that does not answer is asked again later."""
        self.looked = time.monotonic()
        done = subprocess.run(["squeue", "--noheader", "--array", "--me", f"--name={self.job_name}", "--format=%K %T %r"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            return False
        self.queue = {}
        for line in done.stdout.splitlines():
            index, state, reason = (line.split(maxsplit=2) + ["", ""])[:3]
            if index.isdigit():
                self.queue[int(index)] = (state, reason)
        return True

    def over(self):
        return self.stopping or not self.ours

    def running_trials(self):
        return [t for t in self.folder.trials
                if self.queue.get(t.number, [""])[0] in ("RUNNING", "COMPLETING") and t.state() == "unfinished"]

    def waiting_text(self):
        """What the queue says of trials that do not run, such as "3 in the queue (Priority)"."""
        reasons = [reason for state, reason in self.queue.values() if state not in ("RUNNING", "COMPLETING")]
        return f"{len(reasons)} in the queue ({', '.join(sorted(set(reasons) - {'None'})) or 'new'})" if reasons else ""

    def step(self):
        if time.monotonic() - self.looked < LOOK_SECONDS or not self.look():
            return
        for number in sorted(self.ours):
            trial = self.folder.trials[number]
            if trial.state() != "unfinished":
                self.ours.discard(number)
            elif number in self.queue:
                self.missing.pop(number, None)
            elif time.monotonic() - self.missing.setdefault(number, time.monotonic()) > MISSING_SECONDS:
                with open(trial.log, "a", encoding="utf-8") as log:
                    log.write("slurm: the job left the queue without an exit code (cancelled, time limit or node lost)\n")
                trial.set_exit_code(INTERNAL)
                self.ours.discard(number)

    def stop_early(self, trial):
        """Why it could not be told to stop, or None."""
        done = subprocess.run(["squeue", "--noheader", "--array", "--me", f"--name={self.job_name}", "--format=%K %F"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            return f"squeue: {done.stderr.strip()}"
        for line in done.stdout.splitlines():
            index, _, array = line.partition(" ")
            if index == str(trial.number):
                told = subprocess.run(["scancel", "--batch", "--signal=USR1", f"{array.strip()}_{index}"],
                                      capture_output=True, text=True)
                return None if told.returncode == 0 else f"scancel: {told.stderr.strip()}"
        return None  # it has ended by itself

    def stop(self):
        self.stopping = True

    def farewell(self):
        return f"the jobs go on; start the sweep again to watch them, or end them: scancel --name={self.job_name}"
