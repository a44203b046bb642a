"""The folder of a sweep, which is all that it remembers:

    sweep.json              what the sweep is (Sweep.identity), written once, before anything runs
    lock                    held while sweep.py runs there
    trials/0003/
        plan.json           what `train plan` said before anything was launched
        arguments           of `train`, one a line
        log.txt             what the trial printed, all its starts one after the other
        run/                its output folder: metrics, checkpoints
        stop_early          there if --stop-worst ended it
        exit_code           of its last run; absent while it has not ended for good

Each file appears whole (written beside, synced, renamed) or not at all, so that a sweep killed at
any instant finds a folder that says what is done. What is lost then is only the knowledge that a
trial has just ended: it is started once more, finds its last checkpoint and does nothing.
"""
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import time

from sweep_file import BadInput, ROOT, set_arguments

DONE, INTERNAL, BAD, NO_FIT, NO_PROGRESS, RESUME = 0, 1, 2, 3, 4, 75  # exit codes of `train`
LOCK_SECONDS = 5  # what a killed sweep was just starting may hold its lock for a moment


def write_whole(path, text):
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path):
    """None if it is not there. A file of ours that does not parse is somebody else's doing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadInput(f"{path}: not JSON ({error}); it is a sweep's own file: take another output") from None


def seconds_text(seconds):
    seconds = int(seconds + 0.5)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"


class Metrics:
    """The rows of a trial, read on as the file grows; a row repeated after a resume replaces the
    earlier one, and a line cut short by a kill is passed over."""

    def __init__(self, path):
        self.path, self.offset, self.rest, self.rows = path, 0, b"", {}

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return self.rows
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            try:
                row = json.loads(line)
                step = row["step"]
            except (ValueError, KeyError, TypeError):
                continue
            self.rows.pop(step, None)  # the newest last
            self.rows[step] = row
        return self.rows

    def last(self):
        rows = self.read()
        return rows[max(rows)] if rows else None


@dataclasses.dataclass
class Trial:
    number: int
    values: dict
    folder: pathlib.Path

    def __post_init__(self):
        self.metrics = Metrics(self.output / "metrics.jsonl")

    @property
    def name(self):
        return self.folder.name

    @property
    def output(self):
        return self.folder / "run"

    @property
    def log(self):
        return self.folder / "log.txt"

    def overrides(self, sweep, threads):
        values = dict(self.values)
        if threads:
            values["train.threads"] = threads
        return set_arguments({**values, "output": str(self.output)})

    def plan(self):
        return read_json(self.folder / "plan.json")

    def exit_code(self):
        try:
            return int((self.folder / "exit_code").read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise BadInput(f"{self.folder / 'exit_code'}: not a number; remove it to run the trial again") from None

    def set_exit_code(self, code):
        write_whole(self.folder / "exit_code", f"{code}\n")

    def stopped_early(self):
        return (self.folder / "stop_early").exists()

    def state(self):
        """finished, failed, does not fit, stopped early; or unfinished: to be started or resumed."""
        code = self.exit_code()
        if code is not None:
            if code == DONE:
                return "finished"
            if code == RESUME:
                return "stopped early" if self.stopped_early() else "unfinished"
            return "does not fit" if code == NO_FIT else "failed"
        plan = self.plan()
        if plan and plan["exit_code"] != DONE:
            return "does not fit" if plan["exit_code"] == NO_FIT else "failed"
        return "unfinished"

    def code(self):
        code = self.exit_code()
        plan = self.plan()
        return code if code is not None or not plan or plan["exit_code"] == DONE else plan["exit_code"]

    def error(self):
        """The line that says why it failed, or ''."""
        if self.state() not in ("failed", "does not fit"):
            return ""
        plan = self.plan()
        if self.exit_code() is None and plan:
            return plan["error"]
        return last_error(self.log) or f"ended with exit code {self.exit_code()}, see {self.log}"

    def forget_failure(self):
        (self.folder / "exit_code").unlink(missing_ok=True)


# What `train` says when it ends badly; a launcher says more, later and less to the point.
OWN_ERROR = re.compile(r"^(train: |peer lost: |no progress |slurm: |sweep: )")
BOILERPLATE = re.compile(r"^[-=\s*]*$|^(== |Primary job|mpirun |a non-zero|mpiexec |prterun |srun: |slurmstepd: |\s*(Process name|Exit code|while attempting))")


def last_error(log, tail=1 << 16):
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if OWN_ERROR.match(line):
            return line
    for line in reversed(lines):
        if not BOILERPLATE.match(line):
            return line.strip()
    return ""


class SweepFolder:
    """The sweep's state. Making one reads; `begin` writes."""

    def __init__(self, sweep):
        self.sweep = sweep
        self.path = pathlib.Path(os.path.abspath(sweep.output))
        self.trials = [Trial(i, values, self.path / "trials" / f"{i:04d}") for i, values in enumerate(sweep.trials)]
        self.lock_file = None

    def lock(self):
        """Only one sweep.py at a time runs in a folder; the lock dies with its owner."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock_file = open(self.path / "lock", "a+", encoding="utf-8")
        patience = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < patience:
                    time.sleep(0.1)
                    continue
            self.lock_file.seek(0)
            owner = self.lock_file.read().strip() or "somebody"
            raise BadInput(f"{self.path}: {owner} runs a sweep in this folder already; look with `sweep.py status`, "
                           "or take another output")
        self.lock_file.truncate(0)
        self.lock_file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        self.lock_file.flush()

    def locked(self):
        try:
            with open(self.path / "lock", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def begin(self):
        """Makes the folder this sweep's, or checks that it is. More trials at the end are fine."""
        path = self.path / "sweep.json"
        now, before = self.sweep.identity(), read_json(path)
        if before is not None:
            self.compare(path, before, now)
        if before != now:
            write_whole(path, json.dumps(now, indent=1) + "\n")
        for trial in self.trials:
            trial.folder.mkdir(parents=True, exist_ok=True)

    def compare(self, path, before, now):
        advice = "take another output, or remove this one"
        try:
            old = before["trials"]
            for key in ("config", "config_sha256", "ranks"):
                if before[key] != now[key]:
                    what = f"{before['config']} was another text" if key == "config_sha256" else \
                        f"{key} is {before[key]} there and {now[key]} in {self.sweep.path}"
                    raise BadInput(f"{path}: the sweep began with another base: {what}; {advice}")
        except (KeyError, TypeError):
            raise BadInput(f"{path}: not a sweep's file; {advice}") from None
        for i, values in enumerate(old):
            found = now["trials"][i] if i < len(now["trials"]) else None
            if found != values:
                raise BadInput(f"{path}: trial {i} is {json.dumps(values)} there and {json.dumps(found)} in "
                               f"{self.sweep.path}; {advice}")

    def unfinished(self):
        return [t for t in self.trials if t.state() == "unfinished"]

    def forget_failures(self):
        """--retry-failed. Bad input and what does not fit would only fail again."""
        for trial in self.trials:
            if trial.state() == "failed" and trial.exit_code() not in (None, BAD, NO_FIT):
                trial.forget_failure()


def train_binary():
    path = pathlib.Path(os.environ.get("SPILLWAY_TRAIN", ROOT / "build" / "train"))
    if not os.access(path, os.X_OK):
        raise BadInput(f"{path}: no such program; build it (scripts/quickstart.sh does), or name it in SPILLWAY_TRAIN")
    return str(path)
