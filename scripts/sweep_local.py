"""Trials on this machine, `at_once` at a time, each in processes of its own."""
import ctypes
import os
import pathlib
import signal
import subprocess
import time

from sweep_trials import RESUME, train_binary

PR_SET_PDEATHSIG = 1
LEFTOVER_SECONDS = 120  # a trial of an earlier sweep has this long to stop at a checkpoint


def processes_of(trial):
    """Launcher and ranks of a trial, whoever started them."""
    argument = os.fsencode(f"output={trial.output}")
    found = []
    for path in pathlib.Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            if argument in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            pass
    return found


class Running:
    def __init__(self, trial, process):
        self.trial, self.process, self.told = trial, process, False


class LocalLauncher:
    name = "local"

    def __init__(self, folder):
        self.folder, self.sweep = folder, folder.sweep
        self.threads = self.sweep.threads or max(1, (os.cpu_count() or 1) // (self.sweep.ranks * self.sweep.at_once))
        self.running, self.waiting, self.leftovers, self.stopping = [], [], {}, False
        self.libc = ctypes.CDLL(None, use_errno=True)

    def command(self, trial):
        line = [train_binary(), "--config", str(self.sweep.config), *trial.overrides(self.sweep, self.threads),
                "--resume", "latest"]
        if self.sweep.ranks > 1:
            line = ["mpirun", "-np", str(self.sweep.ranks), "--oversubscribe", "--bind-to", "none", *line]
        return line

    def dry_run(self, trials):
        return [self.command(trial) for trial in trials]

    def begin(self, trials):
        self.waiting = list(trials)

    def over(self):
        return not self.running and (self.stopping or not self.waiting)

    def running_trials(self):
        return [r.trial for r in self.running]

    def waiting_text(self):
        return f"waiting for processes of an earlier start ({len(self.leftovers)} trials)" if self.leftovers else ""

    def step(self):
        """Takes note of what has ended and starts what can run."""
        for run in list(self.running):
            code = run.process.poll()
            if code is not None:
                self.running.remove(run)
                self.ended(run, code if code >= 0 else 128 - code)
        while not self.stopping and self.waiting and len(self.running) < self.sweep.at_once:
            if not self.clear(self.waiting[0]):
                break
            self.start(self.waiting.pop(0))

    def ended(self, run, code):
        trial = run.trial
        if run.told and code >= 128 or code == RESUME:  # a launcher that had no handler yet dies of the signal
            if trial.stopped_early():
                trial.set_exit_code(RESUME)
            elif not self.stopping:
                self.waiting.insert(0, trial)
            return
        trial.set_exit_code(code)

    def clear(self, trial):
        """False while processes of an earlier sweep, killed before they ended, still run this trial."""
        left = processes_of(trial)
        if not left:
            self.leftovers.pop(trial.number, None)
            return True
        now = time.monotonic()
        since, told = self.leftovers.get(trial.number, (now, 0.0))
        if now - told > 2:
            told = now
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL if now - since > LEFTOVER_SECONDS else signal.SIGUSR1)
                except ProcessLookupError:
                    pass
        self.leftovers[trial.number] = (since, told)
        return False

    def start(self, trial):
        parent = os.getpid()

        def before_exec():
            # Killed at any instant, the sweep takes its trials along, to a checkpoint.
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
            if os.getppid() != parent:
                os._exit(RESUME)
        with open(trial.log, "ab") as log:
            # Out of the terminal's process group, whose Ctrl-C is the sweep's to handle.
            process = subprocess.Popen(self.command(trial), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       preexec_fn=before_exec, start_new_session=True)
        self.running.append(Running(trial, process))

    def tell(self, run):
        run.told = True
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGUSR1)  # mpirun hands it on to all ranks

    def stop_early(self, trial):
        """Why it could not be told to stop, or None."""
        for run in self.running:
            if run.trial is trial:
                self.tell(run)

    def stop(self):
        """All trials to a checkpoint; asked again, at once."""
        for run in self.running:
            if not self.stopping:
                self.tell(run)
            else:
                run.told = True
                os.killpg(run.process.pid, signal.SIGKILL)
        self.stopping = True

    def farewell(self):
        return "trials stopped at checkpoints; start the sweep again to go on"
