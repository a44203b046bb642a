"""Runs `train` and its emulated twin: the same program with the CUDA backend on an emulated device."""
import json
import os
import pathlib
import subprocess

from e2e import common

TRAIN_EMULATED = os.environ.get("SPILLWAY_TRAIN_EMULATED",
                                str(common.ROOT / "build" / "train_emulated"))

# As small as the kernels' head size of 64 allows: every step is a second of emulation.
MODELS = {
    "llama": {"family": "llama", "layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1,
              "head_dim": 64, "ffn": 48, "context": 16, "tied_head": False, "qk_norm": True},
    "gpt2": {"family": "gpt2", "layers": 2, "hidden": 64, "heads": 1, "kv_heads": 1, "ffn": 72,
             "context": 16, "tied_head": True},
}


def config(family="llama", **changes):
    """A tiny run that both backends can take, planned for the same machine."""
    train = {"steps": 20, "batch": 2, "micro_batch": 1, "precision": "f32", "seed": 1, "threads": 1}
    base = common.config(
        train=train, hardware={"profile": "h100-80", "backend": "cuda"},
        optimizer={"lr": 1e-3, "warmup": 2, "schedule": "cosine", "clip": 1.0})
    base["model"] = dict(MODELS[family])
    for section, values in changes.items():
        if isinstance(values, dict) and isinstance(base.get(section), dict):
            base[section].update(values)
        else:
            base[section] = values
    return base


def run(backend, folder, value, output, *arguments, ranks=0, seed=1, environment=None, expect=0,
        timeout=300):
    """`backend` is "cuda" (emulated; `seed` draws its schedule) or "cpu"."""
    path = common.write_config(folder, value)
    command = common.command("--config", path, "--set", f"output={output}",
                             "--set", f"hardware.backend={backend}", *arguments, ranks=ranks)
    if backend == "cuda":
        command = [TRAIN_EMULATED if word == common.TRAIN else word for word in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=common.ROOT,
                          env=dict(common.ENVIRONMENT, SPILLWAY_EMULATED_SEED=str(seed),
                                   **(environment or {})))
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{' '.join(map(str, command))}\nexit code {done.returncode}, expected "
                             f"{expect}\n{done.stdout}\n{done.stderr}")
    return done


def losses(output):
    return {step: row["loss"] for step, row in common.metrics(output).items()}


def stats(path, rank=0):
    """What SPILLWAY_EMULATED_STATS wrote for a rank."""
    return json.loads(pathlib.Path(str(path).replace("%r", str(rank))).read_text())
