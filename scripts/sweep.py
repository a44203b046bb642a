#!/usr/bin/env python3
"""Trains one config many times with other values of some keys, and says which were best.

    scripts/sweep.py configs/sweeps/quickstart_lr.json
    scripts/sweep.py SWEEP.json --launcher slurm       one job array on a cluster
    scripts/sweep.py SWEEP.json --dry-run              prints the commands, runs nothing
    scripts/sweep.py status SWEEP.json                 how it stands, from another terminal

Killed or interrupted and started again, a sweep goes on: finished trials are not repeated, stopped
ones resume. sweep_file.py says what a sweep file holds. Exit codes: 0 all trials finished (or were
stopped early), 1 some failed or do not fit, 2 bad input, 3 too much at once for this machine, 75
interrupted, start it again.
"""
import argparse
import concurrent.futures
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time

import sweep_file
import sweep_results
from sweep_file import BadInput
from sweep_local import LocalLauncher, processes_of
from sweep_slurm import SlurmLauncher
from sweep_trials import DONE, NO_FIT, RESUME, SweepFolder, seconds_text, train_binary, write_whole

LAUNCHERS = {"local": LocalLauncher, "slurm": SlurmLauncher}
LOOK = 0.05         # seconds between two looks at the trials
LINE_SECONDS = 30   # between two progress lines where nobody watches
PEERS = 3           # --stop-worst needs so many other trials to compare with
FAILED = 1          # exit code of the sweep where trials failed


# ---- before anything is launched ------------------------------------------------------------------

def plan_trial(sweep, trial, launcher):
    line = [train_binary(), "plan", "--config", str(sweep.config), "--ranks", str(sweep.ranks), "--json",
            *trial.overrides(sweep, launcher.threads if launcher.name == "local" else sweep.threads)]
    if sweep.nodes > 1 and launcher.name == "slurm":
        line += ["--set", f"hardware.devices_per_node={sweep.ranks // sweep.nodes}"]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    result = {"exit_code": done.returncode, "error": (done.stderr.strip().splitlines() or [""])[-1]}
    try:
        report = json.loads(done.stdout)
        result.update({k: report[k] for k in ("device_peak_bytes", "host_peak_bytes", "machine_memory_bytes")})
    except (ValueError, KeyError):
        if done.returncode == DONE:
            raise BadInput(f"{shlex.join(line)}: found {done.stdout[:80]!r}, expected a plan as JSON") from None
    write_whole(trial.folder / "plan.json", json.dumps(result) + "\n")


def plan_all(folder, launcher):
    """Asks `train plan` about every trial that has not run yet; a bad answer is asked for again at
    the next start."""
    todo = [t for t in folder.trials if t.exit_code() is None and (not t.plan() or t.plan()["exit_code"] != DONE)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in [pool.submit(plan_trial, folder.sweep, t, launcher) for t in todo]:
            result.result()
    for trial in todo:
        if trial.state() != "unfinished":
            print(f"trial {trial.name} {trial.state()}: {trial.error()}", flush=True)


def check_together(folder):
    """On the CPU both tiers are this machine's memory, which trials at the same time share."""
    sweep, todo = folder.sweep, folder.unfinished()
    if sweep.at_once > 1 and any(config_value(sweep, t, "hardware", "backend") == "cuda" for t in todo):
        raise BadInput(f"{sweep.path}: key \"at_once\": not supported yet: several trials at once that share this machine's "
                       "CUDA devices; expected 1, or --launcher slurm")
    plans = [t.plan() for t in todo]
    need = sorted((p["device_peak_bytes"] + p["host_peak_bytes"] for p in plans), reverse=True)[:sweep.at_once]
    total = min((p["machine_memory_bytes"] for p in plans), default=0)  # physical memory or the cgroup's limit
    if sweep.at_once > 1 and sum(need) * sweep.ranks > total:
        raise BadInput(f"{sweep.path}: key \"at_once\": {len(need)} trials at once take {sum(need) * sweep.ranks >> 20} MiB, "
                       f"and this machine has {total >> 20} MiB; lower at_once or set memory.device", NO_FIT)


# ---- --stop-worst ---------------------------------------------------------------------------------

def recent_loss(trial, step):
    """Mean training loss of the last tenth of the steps up to `step`; None if it has not got there."""
    rows = trial.metrics.read()
    losses = [rows[s]["loss"] for s in range(step - max(1, step // 10) + 1, step + 1) if s in rows]
    if step not in rows or not losses:
        return None
    return float("inf") if None in losses else sum(losses) / len(losses)


def stop_worst(folder, launcher, judged):
    """The median rule: at every multiple of stop_worst_after a trial ends if its loss there is above
    the median of the others that have been there."""
    every = folder.sweep.stop_worst_after
    for trial in launcher.running_trials():
        last = trial.metrics.last()
        if not last or trial.stopped_early():
            continue
        step = last["step"] // every * every
        if step == 0 or judged.get(trial.number, 0) >= step:
            continue
        own = recent_loss(trial, step)
        others = [x for x in (recent_loss(t, step) for t in folder.trials if t is not trial) if x is not None]
        if own is None or len(others) < PEERS:
            continue
        judged[trial.number] = step
        if own > statistics.median(others):
            print(f"\rtrial {trial.name} stopped early: loss {own:.4f} at step {step}, median {statistics.median(others):.4f}",
                  flush=True)
            write_whole(trial.folder / "stop_early", f"step {step}\n")
            problem = launcher.stop_early(trial)
            if problem:  # it is judged again later
                (trial.folder / "stop_early").unlink()
                print(f"trial {trial.name} could not be stopped: {problem}", file=sys.stderr, flush=True)


# ---- while it runs --------------------------------------------------------------------------------

class Progress:
    """One line that is kept up to date on a terminal; now and then a line in a log."""

    def __init__(self, folder):
        self.folder, self.terminal = folder, sys.stdout.isatty()
        self.begun, self.shown, self.counts = time.monotonic(), -1e9, None
        self.first = self.steps()

    def steps(self):
        return sum((t.metrics.last() or {"step": 0})["step"] for t in self.folder.trials)

    def text(self, launcher):
        states = [t.state() for t in self.folder.trials]
        parts = [f"{states.count('finished')}/{len(states)} finished"]
        parts += [f"{states.count(s)} {s}" for s in ("failed", "does not fit", "stopped early") if s in states]
        running = launcher.running_trials()
        if running:
            where = []
            for trial in running[:4]:
                row = trial.metrics.last()
                loss = row and row.get("loss")
                where.append(f"{trial.name} step {row['step']}" + (f" loss {loss:.3f}" if loss is not None else "")
                             if row else f"{trial.name} starting")
            parts.append(f"{len(running)} running ({', '.join(where)}{', …' if len(running) > 4 else ''})")
        if launcher.waiting_text():
            parts.append(launcher.waiting_text())
        left = self.left(states)
        if left is not None:
            parts.append(f"ETA {seconds_text(left)}")
        return "sweep: " + ", ".join(parts)

    def left(self, states):
        """Seconds, from the steps of this start; None before there are any."""
        todo, now = 0, self.steps()
        for trial, state in zip(self.folder.trials, states):
            if state == "unfinished":
                todo += max(0, (steps_of(self.folder.sweep, trial) or 0) - (trial.metrics.last() or {"step": 0})["step"])
        done = now - self.first
        return (time.monotonic() - self.begun) * todo / done if done > 0 else None

    def show(self, launcher):
        now = time.monotonic()
        counts = [t.state() for t in self.folder.trials] if now - self.shown > 0.5 else self.counts
        changed = counts != self.counts
        self.counts = counts
        if not changed and now - self.shown < (0.5 if self.terminal else LINE_SECONDS):
            return
        self.shown = now
        text = self.text(launcher)
        if self.terminal:
            width = os.get_terminal_size().columns
            print(f"\r{text[:width - 1].ljust(width - 1)}", end="", flush=True)
        else:
            print(text, flush=True)

    def end(self):
        if self.terminal:
            print("\r" + " " * (os.get_terminal_size().columns - 1) + "\r", end="", flush=True)


def steps_of(sweep, trial):
    steps = config_value(sweep, trial, "train", "steps")
    return steps if isinstance(steps, int) else None


def config_value(sweep, trial, section, key):
    """A key of a trial's config as far as files and overrides say it; else None."""
    try:
        base = json.loads(sweep.config.read_text()).get(section, {}).get(key)
    except (ValueError, AttributeError):  # `train plan` says what is wrong with it
        base = None
    return trial.values.get(f"{section}.{key}", base)


def run(folder, launcher, stop_worst_on):
    """Until all trials have ended, or somebody interrupts. Returns whether it was interrupted."""
    asked = []

    def on_signal(number, _):
        asked.append(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)
    progress, judged, handled = Progress(folder), {}, 0
    launcher.begin(folder.unfinished())
    while True:
        launcher.step()
        if len(asked) > handled:
            handled = len(asked)
            progress.end()
            print("sweep: stopping trials at checkpoints; once more to end them now" if launcher.name == "local"
                  else "sweep: leaving", flush=True)
            launcher.stop()
        if launcher.over():
            break
        if stop_worst_on:
            stop_worst(folder, launcher, judged)
        progress.show(launcher)
        time.sleep(LOOK)
    progress.end()
    return bool(asked) and bool(folder.unfinished())


def write_results(folder, launcher=None):
    rows = sweep_results.results(folder, launcher.running_trials() if launcher else ())
    print(sweep_results.table(folder.sweep, rows))
    for path in (sweep_results.write_csv(folder, rows), sweep_results.write_html(folder, rows)):
        print(f"results: {os.path.relpath(path)}")
    return rows


def status(path):
    sweep = sweep_file.load(path)
    folder = SweepFolder(sweep)
    if not (folder.path / "sweep.json").exists():
        raise BadInput(f"{sweep.output}: no sweep has begun there; start it: scripts/sweep.py {path}")
    running = []
    alive = folder.locked()
    if alive:  # what has no end yet and has begun is what runs now, as far as a folder can tell
        running = [t for t in folder.unfinished() if processes_of(t)]
    slurm = SlurmLauncher(folder)
    if slurm.available():
        slurm.look()
        running += [t for t in slurm.running_trials() if t not in running]
        if slurm.waiting_text():
            print(slurm.waiting_text())
    print(sweep_results.table(sweep, sweep_results.results(folder, running)))
    states = [t.state() for t in folder.trials]
    print(f"{states.count('finished')} of {len(states)} trials finished; sweep.py {'is running' if alive else 'is not running'}")
    return DONE


def sweep_command(arguments):
    sweep = sweep_file.load(arguments.sweep)
    folder = SweepFolder(sweep)
    launcher = LAUNCHERS[arguments.launcher](folder)
    if arguments.dry_run:
        for line in launcher.dry_run([t for t in folder.trials if t.state() == "unfinished"]):
            print(shlex.join(line))
        return DONE
    folder.lock()
    folder.begin()
    if arguments.retry_failed:
        folder.forget_failures()
    plan_all(folder, launcher)
    if launcher.name == "local":
        check_together(folder)
    interrupted = run(folder, launcher, arguments.stop_worst)
    rows = write_results(folder, launcher)
    if interrupted:
        print(f"sweep: {launcher.farewell()}")
        return RESUME
    return DONE if all(r.state in ("finished", "stopped early") for r in rows) else FAILED


def main(words):
    if words[:1] == ["status"]:
        parser = argparse.ArgumentParser(prog="sweep.py status", description="Prints how a sweep stands.")
        parser.add_argument("sweep", help="the sweep file")
        return status(parser.parse_args(words[1:]).sweep)
    parser = argparse.ArgumentParser(prog="sweep.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", metavar="SWEEP.json", help="the sweep file")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="local", help="where trials run (default: this machine)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing, write nothing")
    parser.add_argument("--retry-failed", action="store_true",
                        help="run failed trials again (not bad input, nor what does not fit)")
    parser.add_argument("--stop-worst", action="store_true",
                        help="end trials whose loss is above the median of the others (the file's stop_worst_after)")
    return sweep_command(parser.parse_args(words))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        sys.exit(error.code)
