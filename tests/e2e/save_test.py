"""Checkpoints of a run that goes on: the same bytes as saved with nothing beside them, kept as asked,
moved anywhere; saves that the system refuses; one run a folder; and nothing grows in 1,000 steps."""
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

from e2e.common import (ENVIRONMENT, ROOT, Folder, command, config, hashes, metrics,
                        newest_checkpoint, run, train, write_config)

OFFLOAD = ["--set", "place.moments=host", "--set", "place.parameters=host"]


def start(config_path, output, *arguments, ranks=0, **options):
    return subprocess.Popen(command("--config", config_path, "--set", f"output={output}", *arguments,
                                    ranks=ranks),
                            env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)


def done_steps(output):
    try:
        return max(metrics(output), default=0)
    except (OSError, ValueError):
        return 0


def wait_for(condition, process, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        if process.poll() is not None or time.time() > deadline:
            out, err = process.communicate() if process.poll() is not None else ("", "")
            raise AssertionError(f"did not come, exit code {process.poll()}\n{out}\n{err}")
        time.sleep(0.01)


def steps_of(output):
    return sorted(int(p.name[5:]) for p in (pathlib.Path(output) / "checkpoints").glob("step_*"))


class Save(unittest.TestCase):
    def test_same_bytes_as_a_save_that_waits(self):
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 9}))
            for ranks in (0, 2):
                for step in (3, 6):
                    train(path, folder / f"stop{ranks}{step}", "--stop-at", step, ranks=ranks, expect=75)
                for name, extra in (("copy", []), ("place", ["--set", "checkpoint.copy=off"]),
                                    ("offload", OFFLOAD),
                                    ("offload in place", OFFLOAD + ["--set", "checkpoint.copy=off"])):
                    output = folder / f"{name}{ranks}"
                    done = train(path, output, "--set", "checkpoint.every=3", *extra, "--chaos-us", 2000,
                                 "--chaos-seed", 1, ranks=ranks)
                    self.assertEqual(done.stdout.count("training waited"), 3, done.stdout)
                    for step in (3, 6):
                        self.assertEqual(hashes(output / "checkpoints" / f"step_{step:08}"),
                                         hashes(newest_checkpoint(folder / f"stop{ranks}{step}")))
                    rows = metrics(output)
                    # The second may be published after the last row.
                    told = {rows[s]["checkpoint"]["step"] for s in rows if "checkpoint" in rows[s]}
                    self.assertIn(told, ({3}, {3, 6}))
                    self.assertTrue(all(rows[s]["save_stall_seconds"] >= 0 for s in rows))

    def test_keep_every(self):
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 9},
                                               checkpoint={"every": 1, "keep": 2, "keep_every": 4}))
            train(path, folder / "run")
            self.assertEqual(steps_of(folder / "run"), [4, 8, 9])

    def test_moves_between_folders(self):
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 8}))
            train(path, folder / "straight")
            train(path, folder / "first", "--stop-at", 4, expect=75)
            moved = folder / "elsewhere" / "a copy"
            moved.parent.mkdir()
            shutil.move(newest_checkpoint(folder / "first"), moved)
            shutil.rmtree(folder / "first")
            train(path, folder / "second", "--resume", moved)
            self.assertEqual(hashes(newest_checkpoint(folder / "second")),
                             hashes(newest_checkpoint(folder / "straight")))
            shutil.move(folder / "second", folder / "third")
            done = train(path, folder / "third", "--resume", "latest")
            self.assertIn("done already", done.stdout)

    def test_a_file_that_the_system_refuses(self):
        """The kernel refuses files above a size, then it does not any more."""
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 200}, optimizer={"warmup": 2},
                                               checkpoint={"every": 20, "keep": 50}))
            train(path, folder / "straight", "--set", "checkpoint.every=0")
            output = folder / "run"
            small = 300 << 10  # a shard is four times as large, everything else smaller

            def limit():
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (small, resource.RLIM_INFINITY))
            process = start(path, output, "--chaos-us", 1000, "--chaos-seed", 1, preexec_fn=limit)
            wait_for(lambda: done_steps(output) >= 45, process)
            self.assertFalse(steps_of(output))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE,
                             (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            out, err = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn("rank_00000.safetensors: cannot write: File too large; the run goes on", err)
            self.assertIn("checkpoint of step 20", err)
            self.assertIn("saves again at step 40", err)
            self.assertGreater(len(steps_of(output)), 2)
            self.assertEqual(hashes(newest_checkpoint(output)),
                             hashes(newest_checkpoint(folder / "straight")))

            # The last one, or the one before exit 75, must be there.
            for extra in (["--stop-at", 3], ["--set", "train.steps=3"]):
                output = folder / f"last{len(extra[1:])}{extra[0][2:]}"
                process = start(path, output, *extra, preexec_fn=limit)
                out, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1, err)
                self.assertIn("the checkpoint of step 3 could not be saved, tried twice", err)
                self.assertIn(f"{output}/checkpoints/.tmp_step_00000003/rank_00000.safetensors", err)
                self.assertFalse(list((output / "checkpoints").iterdir()))
                train(path, output, "--resume", "latest", "--set", "train.steps=3")
                self.assertEqual(steps_of(output), [3])

    def test_one_run_a_folder(self):
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 100000}, checkpoint={"every": 3}))
            output = folder / "run"
            first = start(path, output, ranks=2)
            try:
                wait_for(lambda: done_steps(output) >= 5, first)
                pid = next(word for word in (output / ".lock").read_text().split()
                           if word.rstrip(",").isdigit()).rstrip(",")
                os.kill(int(pid), 0)
                for extra in ([], ["--resume", "latest"]):
                    for ranks in (0, 2):
                        second = train(path, output, *extra, ranks=ranks, expect=2)
                        self.assertIn("another run writes into this folder", second.stderr)
                        self.assertIn(os.uname().nodename, second.stderr)
                        self.assertIn(f"pid {pid}", second.stderr)
                self.assertIsNone(first.poll())
            finally:
                first.kill()
                first.communicate()
            # Its ranks end on their own; the lock ends with them.
            deadline = time.time() + 60
            while pathlib.Path(f"/proc/{pid}").exists() and time.time() < deadline:
                time.sleep(0.05)
            done = train(path, output, "--resume", "latest", "--stop-at", 30 + done_steps(output), expect=75)
            self.assertIn("resuming", done.stdout)
            self.assertFalse((output / ".lock").exists())

    def test_nothing_grows(self):
        """Sampled from outside, between steps, in evaluations and in saves."""
        with Folder() as folder:
            # So little text that every page of it is in memory after some steps.
            text = folder / "text.txt"
            text.write_bytes((ROOT / "data" / "austen.txt").read_bytes()[:40000])
            path = write_config(folder, config(
                data={"train": [str(text)], "validation": 0.1},
                train={"steps": 1000, "eval_every": 10, "eval_batches": 2},
                checkpoint={"every": 10, "keep": 2}))
            output = folder / "run"
            process = start(path, output, "--chaos-us", 100, "--chaos-seed", 1, *OFFLOAD)
            proc = pathlib.Path(f"/proc/{process.pid}")
            samples = []
            while process.poll() is None:
                try:
                    step = (output / "metrics.jsonl").read_bytes().count(b"\n")
                    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
                    kib = {key: int(status[key].split()[0]) for key in ("VmRSS", "VmSize", "VmLck")}
                    files = len(list((proc / "fd").iterdir()))
                    samples.append((step, kib["VmRSS"], kib["VmSize"], kib["VmLck"],
                                    int(status["Threads"]), files))
                except (OSError, KeyError):
                    pass
                time.sleep(0.003)
            out, err = process.communicate()
            self.assertEqual(process.returncode, 0, err)
            rows = metrics(output)
            self.assertEqual(len(rows), 1000)
            self.assertIn(sum("checkpoint" in row for row in rows.values()), (98, 99))
            for key in ("device_peak_bytes", "host_peak_bytes"):
                self.assertEqual(len({row[key] for row in rows.values()}), 1)
            early = [s for s in samples if 20 <= s[0] < 200]
            late = [s for s in samples if 200 <= s[0] < 990]
            self.assertGreater(len(early), 50)
            self.assertGreater(len(late), 100)
            middle = sorted(s[1] for s in early)[len(early) // 2]
            for sample in early + late:
                self.assertLess(abs(sample[1] - middle), 0.01 * middle, (sample, middle))
            for column, name in ((2, "address space"), (3, "locked"), (4, "threads")):
                self.assertEqual({s[column] for s in late}, {s[column] for s in early}, name)
            # A save has its folder's files open: what is open between saves, and at most, stays.
            self.assertEqual(min(s[5] for s in late), min(s[5] for s in early))
            self.assertLessEqual(max(s[5] for s in late), max(s[5] for s in early) + 1)


if __name__ == "__main__":
    unittest.main()
