"""Sweep files: which trials a sweep has, and how it runs them.

    {
      "config": "configs/runs/quickstart.json",    base config; each trial overrides keys of it
      "output": "runs/sweeps/lr",                  the sweep's folder
      "set": {"train.steps": 200},                 overrides of every trial
      "grid": {"optimizer.lr": [1e-3, 3e-3]},      one of grid, list and random:
      "list": [{"optimizer.lr": 1e-3}, …],           every combination; these; or so many draws,
      "random": {"trials": 20, "seed": 1, "space": {  the same ones for the same seed
          "optimizer.lr": {"log": [1e-4, 1e-2]}, "optimizer.warmup": {"integer": [0, 100]},
          "optimizer.weight_decay": {"uniform": [0, 0.2]}, "train.batch": [16, 32]}},
      "ranks": 2, "threads": 1,                    of each trial; threads 0: a share of the cores
      "at_once": 1,                                trials that run at the same time
      "stop_worst_after": 100,                     --stop-worst judges from this step on
      "slurm": {"nodes": 1, "launch": "srun", "options": ["--time=02:00:00"]}
    }
"""
import dataclasses
import difflib
import hashlib
import itertools
import json
import math
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[1]


class BadInput(Exception):
    """One line for the user: file, key, what was found, what was expected. `code` as `train`'s."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass
class Sweep:
    path: pathlib.Path
    config: pathlib.Path
    output: pathlib.Path
    ranks: int = 1
    threads: int = 0
    at_once: int = 1
    stop_worst_after: int = 0
    nodes: int = 1
    launch: str = "srun"
    slurm_options: list = dataclasses.field(default_factory=list)
    axes: list = dataclasses.field(default_factory=list)    # keys that differ between trials
    trials: list = dataclasses.field(default_factory=list)  # overrides of each: {key: value}

    def identity(self):
        """What may not change while a sweep goes on, since a trial's bits depend on it."""
        digest = hashlib.sha256(self.config.read_bytes()).hexdigest()
        return {"config": str(self.config), "config_sha256": digest, "ranks": self.ranks, "trials": self.trials}


def shown(value, limit=60):
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + " …"


def parse_json(path):
    def no_twice(pairs):
        seen = {}
        for key, value in pairs:
            if key in seen:
                raise BadInput(f"{path}: key \"{key}\" is there twice")
            seen[key] = value
        return seen

    def no_constant(name):
        raise BadInput(f"{path}: found {name}, expected a finite number")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; expected a sweep file (JSON)") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: offset {error.start}: not UTF-8; expected a sweep file (JSON)") from None
    try:
        return json.loads(text, object_pairs_hook=no_twice, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply; expected a sweep file") from None


class Reader:
    """The values of one object, each checked; what is not asked for is an unknown key."""

    def __init__(self, path, value, prefix=""):
        self.path, self.prefix = path, prefix
        if not isinstance(value, dict):
            self.fail(prefix.rstrip(".") or "the file", value, "an object")
        self.value, self.known = value, ["$schema"]

    def fail(self, key, found, expected):
        where = "the file" if key == "the file" else f"key \"{key}\""
        raise BadInput(f"{self.path}: {where}: found {shown(found)}, expected {expected}")

    def has(self, key):
        self.known.append(key)
        return key in self.value

    def get(self, key, default, good, expected):
        if not self.has(key):
            if default is None:
                raise BadInput(f"{self.path}: key \"{self.prefix}{key}\" is missing; expected {expected}")
            return default
        if not good(self.value[key]):
            self.fail(self.prefix + key, self.value[key], expected)
        return self.value[key]

    def integer(self, key, default, least, most):
        return self.get(key, default, lambda v: is_integer(v) and least <= v <= most,
                        f"an integer from {least} to {most}")

    def text(self, key, default):
        return self.get(key, default, lambda v: isinstance(v, str) and v != "" and "\0" not in v, "a string")

    def end(self):
        for key in self.value:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, 1, 0.5)
                hint = f"; did you mean \"{self.prefix}{near[0]}\"?" if near else \
                    f"; expected one of {', '.join(self.known[1:])}"
                raise BadInput(f"{self.path}: unknown key \"{self.prefix}{key}\"{hint}")


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value):
    return (is_integer(value) or isinstance(value, float)) and math.isfinite(value)


# Keys that the sweep itself sets for each trial.
OWN_KEYS = {"output": "each trial has a folder of its own in the sweep's",
            "train.threads": "it is the sweep's own key \"threads\""}


def check_key(reader, where, key):
    if not key or "=" in key or any(c in key for c in "\n\r\0"):
        reader.fail(where, key, "a key of the config, such as \"optimizer.lr\"")
    if key in OWN_KEYS:
        raise BadInput(f"{reader.path}: key \"{where}.{key}\" cannot be swept: {OWN_KEYS[key]}")


def check_value(reader, where, value):
    if isinstance(value, dict) or (isinstance(value, str) and any(c in value for c in "\n\r\0")):
        reader.fail(where, value, "a value for --set: a number, a boolean, one line of text or a list")


def overrides(reader, where, value):
    if not isinstance(value, dict):
        reader.fail(where, value, "an object of overrides, such as {\"optimizer.lr\": 0.001}")
    for key, v in value.items():
        check_key(reader, where, key)
        check_value(reader, f"{where}.{key}", v)
    return value


def grid_trials(reader, grid):
    if not isinstance(grid, dict) or not grid:
        reader.fail("grid", grid, "an object of keys, each with a list of values")
    for key, values in grid.items():
        check_key(reader, "grid", key)
        if not isinstance(values, list) or not values:
            reader.fail(f"grid.{key}", values, "a list with at least one value")
        for i, value in enumerate(values):
            check_value(reader, f"grid.{key}[{i}]", value)
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def list_trials(reader, trials):
    if not isinstance(trials, list) or not trials:
        reader.fail("list", trials, "a list with at least one object of overrides")
    return [overrides(reader, f"list[{i}]", trial) for i, trial in enumerate(trials)]


def draw(rule, rng):
    if isinstance(rule, list):
        return rule[int(rng.random() * len(rule))]
    kind, (low, high) = next(iter(rule.items()))
    u = rng.random()
    if kind == "integer":
        return low + int(u * (high - low + 1))
    value = low + u * (high - low) if kind == "uniform" else math.exp(math.log(low) + u * math.log(high / low))
    return float(f"{value:.4g}")


def check_rule(reader, where, rule):
    if isinstance(rule, list) and rule:
        for i, value in enumerate(rule):
            check_value(reader, f"{where}[{i}]", value)
        return
    kind = next(iter(rule)) if isinstance(rule, dict) and len(rule) == 1 else None
    bounds = rule[kind] if kind in ("uniform", "log", "integer") else None
    good = isinstance(bounds, list) and len(bounds) == 2 and all(map(is_number, bounds)) and bounds[0] < bounds[1]
    if good and kind == "integer":
        good = all(map(is_integer, bounds))
    if good and kind == "log":
        good = bounds[0] > 0
    if not good:
        reader.fail(where, rule, "a list of values, or one of {\"uniform\": [low, high]}, {\"log\": [low, high]} "
                    "with low > 0, {\"integer\": [low, high]}, with low < high")


def random_trials(reader, value):
    inner = Reader(reader.path, value, "random.")
    count = inner.integer("trials", None, 1, 100000)
    seed = inner.integer("seed", 1, 0, 2**63)
    space = inner.get("space", None, lambda v: isinstance(v, dict) and v, "an object of keys, each with a range or a list")
    inner.end()
    for key, rule in space.items():
        check_key(reader, "random.space", key)
        check_rule(reader, f"random.space.{key}", rule)
    rng = random.Random(seed)
    return [{key: draw(rule, rng) for key, rule in space.items()} for _ in range(count)]


def found_file(path, text):
    """As the config's own paths: from the current folder, else from the folder that holds configs/."""
    for candidate in (pathlib.Path(text), ROOT / text):
        if candidate.is_file():
            return candidate
    raise BadInput(f"{path}: key \"config\": {text}: no such file; expected a config that `train --config` takes")


def load(path):
    """Reads and checks a sweep file. Throws BadInput."""
    path = pathlib.Path(path)
    reader = Reader(path, parse_json(path))
    sweep = Sweep(path, found_file(path, reader.text("config", None)),
                  pathlib.Path(reader.text("output", f"runs/sweeps/{path.stem}")))
    sweep.ranks = reader.integer("ranks", 1, 1, 1 << 20)
    sweep.threads = reader.integer("threads", 0, 0, 4096)
    sweep.at_once = reader.integer("at_once", 1, 1, 100000)
    sweep.stop_worst_after = reader.integer("stop_worst_after", 1, 1, 1 << 62)
    common = overrides(reader, "set", reader.value["set"]) if reader.has("set") else {}
    if reader.has("slurm"):
        slurm = Reader(path, reader.value["slurm"], "slurm.")
        sweep.nodes = slurm.integer("nodes", 1, 1, 65536)
        sweep.launch = slurm.get("launch", "srun", lambda v: v in ("srun", "mpirun"), "\"srun\" or \"mpirun\"")
        sweep.slurm_options = slurm.get(
            "options", [], lambda v: isinstance(v, list) and all(isinstance(o, str) and o.startswith("-") for o in v),
            "a list of options of sbatch, such as [\"--time=02:00:00\"]")
        slurm.end()
        if sweep.ranks % sweep.nodes:
            reader.fail("slurm.nodes", sweep.nodes, f"a divisor of ranks, {sweep.ranks}")
    kinds = {"grid": grid_trials, "list": list_trials, "random": random_trials}
    chosen = [kind for kind in kinds if reader.has(kind)]
    reader.end()
    if len(chosen) != 1:
        raise BadInput(f"{path}: found {' and '.join(chosen) or 'none'} of grid, list and random; expected one of them")
    drawn = kinds[chosen[0]](reader, reader.value[chosen[0]])
    if len(drawn) > 100000:
        reader.fail(chosen[0], len(drawn), "at most 100000 trials")
    for trial in drawn:
        for key in trial:
            if key in common:
                raise BadInput(f"{path}: key \"set.{key}\" is also swept by {chosen[0]}; expected it in one of them")
            if key not in sweep.axes:
                sweep.axes.append(key)
    sweep.trials = [{**common, **trial} for trial in drawn]
    return sweep


def set_arguments(values):
    """--set arguments for `train`: text as it is, anything else as JSON."""
    line = []
    for key, value in values.items():
        line += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return line
