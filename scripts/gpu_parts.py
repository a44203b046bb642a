#!/usr/bin/env python3
"""The parts of scripts/gpu_check.sh: each in a time box, none stopping the others.

    scripts/gpu_parts.py --bin FOLDER --home FOLDER --out FOLDER [--seconds N] [--only PART]…

FOLDER of --bin holds the programs `train` and `ops_cuda_test`, that of --home configs/ and data/.
Results are written to OUT/report.json after every part, report.md and hardware.json at the end
(scripts/gpu_report.py). Standard library only.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import gpu_report

# What runs that differ only in placement, or were stopped and resumed, must repeat bit for bit.
EXACT = ("step", "loss", "grad_norm", "lr", "tokens", "token_hash")


class Failed(Exception):
    """A part's finding; its text goes into the report."""


class OutOfTime(Exception):
    """The parts before took all of it."""


class Skipped(Exception):
    """Why a part cannot run here."""


class Check:
    def __init__(self, arguments, work, deadline):
        self.train = str(pathlib.Path(arguments.bin) / "train")
        self.ops = str(pathlib.Path(arguments.bin) / "ops_cuda_test")
        self.home, self.backend, self.tiny = pathlib.Path(arguments.home), arguments.backend, arguments.tiny
        self.work, self.deadline = work, deadline

    def run(self, *line, expect=0):
        """Standard output of a command, within the part's time."""
        left = max(self.deadline - time.monotonic(), 0.01)
        # In a session of its own, so that nothing it started outlives the part's time.
        process = subprocess.Popen([str(word) for word in line], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace", cwd=self.home,
                                   start_new_session=True,
                                   env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                                            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))
        try:
            output, errors = process.communicate(timeout=left)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode != expect:
            text = (output + errors).strip().splitlines()
            raise Failed(f"exit code {process.returncode}, expected {expect}: " + " | ".join(text[-6:]))
        return output

    def config(self, name, value):
        path = self.work / f"{name}.json"
        path.write_text(json.dumps(value))
        return path

    def small_run(self, steps=6):
        """A model of attention's smallest head size that streams quickly."""
        return {
            "model": {"family": "llama", "layers": 3, "hidden": 128, "heads": 2, "kv_heads": 1,
                      "ffn": 256, "context": 64},
            "data": {"train": [str(self.home / "data" / "austen.txt")], "tokenizer": "bytes"},
            "train": {"steps": steps, "batch": 8, "micro_batch": 2, "precision": "bf16", "seed": 1,
                      "threads": 1},
            "optimizer": {"lr": 1e-3, "warmup": min(2, steps - 1)},
            "hardware": {"backend": self.backend},
        }

    def slice_run(self):
        """Layers of the shape of Llama 3 8B; few enough for any device of 40 GB or more."""
        value = self.small_run(1)
        if not self.tiny:
            value["model"] = {"family": "llama", "layers": 4, "hidden": 4096, "heads": 32,
                              "kv_heads": 8, "ffn": 14336, "context": 4096, "vocab": 32768}
            value["train"].update(batch=4, micro_batch=1, threads=0)
        value["offload"], value["recompute"] = "off", "off"
        return value

    def exact(self, output):
        lines = (output / "metrics.jsonl").read_text().splitlines()
        rows = {row["step"]: [row[key] for key in EXACT] for row in map(json.loads, lines)}
        newest = sorted((output / "checkpoints").glob("step_*"))[-1]
        return rows, self.run(self.train, "inspect", newest).splitlines()[-2:]

    def trained(self, name, config, *extra):
        output = self.work / name
        self.run(self.train, "--config", config, "--set", f"output={output}", *extra)
        return self.exact(output)


def kernels(check):
    if not pathlib.Path(check.ops).exists():
        raise Failed(f"{check.ops} is missing")
    lines = check.run(check.ops, "--gtest_brief=1").strip().splitlines()
    if any("SKIPPED" in line for line in lines):
        raise Failed(f"tests were skipped: {lines[-1]}")
    passed = [line for line in lines if "PASSED" in line]
    if not passed:
        raise Failed(f"no tests ran: {lines[-1] if lines else ''}")
    return {"summary": passed[-1].strip()}


PLACEMENTS = {
    "all streaming": ["moments=host", "master=host", "parameters=host", "gradients=host", "qkv=host",
                      "attn_out=host", "ffn_up=host", "ffn_act=host"],
    "activations recomputed": ["qkv=recompute", "ffn_act=recompute"],
}


def placement(check):
    config = check.config("placement", check.small_run())
    off = ["--set", "offload=off", "--set", "recompute=off"]
    straight = check.trained("resident", config, *off)
    for name, places in PLACEMENTS.items():
        sets = [word for place in places for word in ("--set", f"place.{place}")]
        if check.trained(name.replace(" ", "-"), config, *sets) != straight:
            raise Failed(f"{name}: other bits than all resident")
    return {"placements": 1 + len(PLACEMENTS)}


def resume(check):
    config = check.config("resume", check.small_run())
    straight = check.trained("straight", config)
    output = check.work / "stopped"
    check.run(check.train, "--config", config, "--set", f"output={output}", "--stop-at", 3, expect=75)
    check.run(check.train, "--config", config, "--set", f"output={output}", "--resume", "latest")
    if check.exact(output) != straight:
        raise Failed("a run stopped at step 3 and resumed has other bits than one that never stopped")
    return {}


def sanitized(check, tool):
    program = shutil.which("compute-sanitizer")
    if not program:
        raise Skipped("compute-sanitizer is not installed")
    config = check.config(tool, check.small_run(2))
    check.run(program, "--tool", tool, "--error-exitcode", 9, check.train, "--config", config,
              "--set", f"output={check.work / tool}", "--set", "place.moments=host",
              "--set", "place.qkv=host")
    return {}


def bench(check, name, config, *extra):
    """`train bench device` and what it measured."""
    path = check.work / f"{name}.bench.json"
    check.run(check.train, "bench", "device", "--config", config, "--repeat", 3, "--json", path,
              "--set", f"output={check.work / name}", *extra)
    return json.loads(path.read_text())


def device(check):
    measured = bench(check, "device", check.config("device", check.slice_run()))
    if not measured["link"]["gemm_bits_same"]:
        raise Failed("a GEMM has other bits at other addresses or under copies")
    foreign = list(measured["link"]["foreign_bytes"].values())
    if foreign[-1] != foreign[-2]:
        raise Failed(f"memory beside the arena grew from {foreign[-2]} to {foreign[-1]} bytes")
    return measured


def slice_of(check, share):
    config = check.config("slice", check.slice_run())
    plan = json.loads(check.run(check.train, "plan", "--config", config, "--json"))
    resident = plan["device_peak_bytes"]
    extra = []
    if share < 1:
        extra = ["--set", f"memory.device={int(share * resident)}B", "--set", "offload=auto",
                 "--set", "recompute=auto"]
    measured = bench(check, "slice", config, *extra)
    return {"share": share, "resident_bytes": resident, **measured["step"]}


# Name, seconds at most, what it does.
PARTS = {
    "kernels": (150, kernels, "every kernel against the double reference"),
    "placement": (60, placement, "placements with the same bits"),
    "resume": (45, resume, "a resumed run with the same bits"),
    "memcheck": (90, lambda c: sanitized(c, "memcheck"), "compute-sanitizer memcheck, 2 steps"),
    "racecheck": (90, lambda c: sanitized(c, "racecheck"), "compute-sanitizer racecheck, 2 steps"),
    "device": (100, device, "copies, GEMM bits, memory beside the arena, shares of the roofline"),
    "slice": (80, lambda c: slice_of(c, 1.0), "MFU of a Llama-8B-shaped slice, resident"),
    "slice-small": (80, lambda c: slice_of(c, 0.6), "the same in 40 % less device memory"),
}


def run_part(name, arguments, left):
    box, body, _ = PARTS[name]
    started = time.monotonic()
    result = {"status": "passed", "detail": "", "numbers": {}}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        try:
            seconds = min(box, left)
            if seconds <= 1:
                raise OutOfTime("no time was left")
            check = Check(arguments, pathlib.Path(work), started + seconds)
            result["numbers"] = body(check)
        except Skipped as reason:
            result.update(status="skipped", detail=str(reason))
        except subprocess.TimeoutExpired:
            result.update(status="timed out", detail=f"not done after {seconds:.0f} s")
        except OutOfTime as reason:
            result.update(status="timed out", detail=str(reason))
        except Exception as error:  # whatever a part meets, the others run
            result.update(status="failed", detail=f"{type(error).__name__}: {error}"
                          if not isinstance(error, Failed) else str(error))
    result["seconds"] = round(time.monotonic() - started, 1)
    return result


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--list", action="store_true", help="names of the parts; runs nothing")
    parser.add_argument("--bin")
    parser.add_argument("--home")
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=580)
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: tries the parts themselves where there is no GPU")
    parser.add_argument("--tiny", action="store_true", help="a toy in place of the Llama-8B slice")
    arguments = parser.parse_args()
    if arguments.list:
        for name, (box, _, what) in PARTS.items():
            print(f"{name:<12} {box:>4} s  {what}")
        return 0
    if not (arguments.bin and arguments.home and arguments.out):
        parser.error("--bin, --home and --out are needed")
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + arguments.seconds
    report = {"machine": machine(), "backend": arguments.backend, "parts": {}}
    for name in arguments.only or PARTS:
        print(f"{name}: {PARTS[name][2]} …", flush=True)
        result = run_part(name, arguments, end - time.monotonic())
        report["parts"][name] = result
        print(f"{name}: {result['status']} in {result['seconds']} s {result['detail']}", flush=True)
        (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    gpu_report.write(report, out, pathlib.Path(arguments.home) / "configs" / "hardware")
    print(f"written: {out}/report.md")
    bad = [name for name, r in report["parts"].items() if r["status"] in ("failed", "timed out")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
