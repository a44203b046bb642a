"""Runs `train` for the end-to-end tests: small models on the shipped text, in throw-away folders."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = os.environ.get("SPILLWAY_TRAIN", str(ROOT / "build" / "train"))
LONG = os.environ.get("SPILLWAY_LONG") == "1"

ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMP_WAIT_POLICY="passive")

# What a resumed or differently placed run must repeat bit for bit.
EXACT = ("step", "loss", "grad_norm", "lr", "tokens", "token_hash")


def config(**changes):
    """A tiny run; `changes` are merged section by section."""
    base = {
        "model": {"family": "llama", "layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2,
                  "ffn": 96, "context": 32, "tied_head": True},
        "data": {"train": [str(ROOT / "data" / "austen.txt")], "tokenizer": "bytes",
                 "validation": 0.01},
        "train": {"steps": 12, "batch": 8, "micro_batch": 2, "precision": "f32", "seed": 1,
                  "threads": 1},
        "optimizer": {"lr": 1e-3, "warmup": 2, "schedule": "cosine"},
    }
    for section, values in changes.items():
        if isinstance(values, dict) and isinstance(base.get(section), dict):
            base[section].update(values)
        else:
            base[section] = values
    return base


class Folder:
    """A temporary folder, removed at the end of a `with`."""

    def __enter__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="spillway-"))
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def write_config(folder, value):
    path = pathlib.Path(folder) / "run.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def command(*arguments, ranks=0):
    """The command line; ranks > 0 runs under mpirun."""
    line = [TRAIN, *map(str, arguments)]
    if ranks:
        line = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", *line]
    return line


def run(*arguments, ranks=0, timeout=300, **options):
    return subprocess.run(command(*arguments, ranks=ranks), capture_output=True, text=True,
                          timeout=timeout, env=ENVIRONMENT, cwd=ROOT, **options)


def one_line(test, done, code, words=()):
    """The run ended with that exit code and one line on standard error, which has the words."""
    test.assertEqual(done.returncode, code, done.stdout + done.stderr)
    lines = [line for line in done.stderr.splitlines() if line]
    test.assertEqual(len(lines), 1, done.stderr)
    for word in words:
        test.assertIn(word, lines[0])


def train(config_path, output, *arguments, ranks=0, expect=0, **options):
    done = run("--config", config_path, "--set", f"output={output}", *arguments, ranks=ranks,
               **options)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"exit code {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}")
    return done


def metrics(output):
    """Rows of a run by step; the last of a step wins."""
    rows = {}
    for line in (pathlib.Path(output) / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["step"]] = row
    return rows


def exact(output):
    return {step: tuple(row[key] for key in EXACT) for step, row in metrics(output).items()}


def newest_checkpoint(output):
    return sorted((pathlib.Path(output) / "checkpoints").glob("step_*"))[-1]


def hashes(checkpoint):
    """state_hash and weights_hash of a checkpoint."""
    done = run("inspect", checkpoint)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return dict(line.split() for line in done.stdout.splitlines()[-2:])
