#!/usr/bin/env python3
"""GPT-2 124M: a full training step of this trainer beside PyTorch's, on the CPU.

PyTorch runs the same model (scaled_dot_product_attention, the vocabulary padded as ours is), the
same step (forward, backward, clipping by the global norm, fused AdamW in f32) and the same number
of threads: eager and torch.compile, each with malloc as it comes and with malloc kept in huge
pages. In bf16 it takes the form named by --bf16:
  master    bf16 weights and gradients beside f32 weights and moments, as ours
  autocast  f32 weights under torch.autocast
All variants take turns, --repeats times over; the table shows medians. At the default size most of
the time is PyTorch's own: some 10 minutes in f32 and 6 in bf16 on two quiet cores; it needs 16 GiB.
Usage: bench_pytorch.py [options], after scripts/install_torch.sh and a build of `train`
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HUGE_PAGES = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=8589934592:"
              "glibc.malloc.trim_threshold=17179869184")
GPT2 = {"family": "gpt2", "layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "head_dim": 64,
        "ffn": 3072, "vocab": 50304, "tied_head": True, "qkv_bias": True, "qk_norm": False}

# Tokens/s that PyTorch 2.15 reached on a quiet machine with two threads at 8 × 512. Where it is
# much slower than on such a CPU, the machine was busy and the comparison says nothing.
EXPECTED = {"Granite Rapids": {("f32", "eager", False): 197, ("f32", "compile", False): 222,
                               ("bf16", "eager", False): 414, ("bf16", "compile", False): 672,
                               ("bf16", "compile", True): 774}}
VOID_BELOW = 0.9


# ---- PyTorch: one process for each setting of malloc ---------------------------------------------


def make_step(o):
    """step(mode) trains one step on random tokens. Both modes share a process and its weights, so
    that a machine of 24 GiB holds everything that takes turns."""
    import torch
    import torch.nn.functional as F
    sys.path.insert(0, str(ROOT / "tests"))
    from golden.torch_model import forward, parameter_shapes

    torch.set_num_threads(o["threads"])
    torch.manual_seed(1)
    model = o["model"]
    masters = {}
    for name, shape in parameter_shapes(model).items():
        fill = 0.02 * torch.randn(shape) if len(shape) == 2 else \
            torch.full(shape, float(name.endswith("weight")))
        masters[name] = fill.requires_grad_()
    own_masters = o["precision"] == "bf16" and o["bf16"] == "master"
    p = {n: w.detach().bfloat16().requires_grad_() for n, w in masters.items()} if own_masters \
        else masters
    optimizer = torch.optim.AdamW(
        [{"params": [w for w in masters.values() if w.dim() == 2], "weight_decay": 0.1},
         {"params": [w for w in masters.values() if w.dim() == 1], "weight_decay": 0.0}],
        lr=1e-5, betas=(0.9, 0.95), fused=True)
    if own_masters:
        for w in masters.values():
            w.grad = torch.zeros_like(w)
    tokens, targets = torch.randint(model["vocab"], (2, o["batch"], model["context"]))
    autocast = o["precision"] == "bf16" and not own_masters

    def loss_of(p, tokens, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = forward(model, p, tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    losses = {"eager": loss_of, "compile": torch.compile(loss_of)}

    def step(mode):
        losses[mode](p, tokens, targets).backward()
        if own_masters:
            with torch.no_grad():
                torch._foreach_copy_([w.grad for w in masters.values()],
                                     [w.grad for w in p.values()])
        torch.nn.utils.clip_grad_norm_(masters.values(), 1.0)
        optimizer.step()
        if own_masters:
            with torch.no_grad():
                torch._foreach_copy_(list(p.values()), list(masters.values()))
        for w in p.values():
            w.grad = None

    return step


def work(o):
    """Warms up, then answers every mode on standard input with the seconds of a step."""
    step = make_step(o)
    for mode in o["modes"]:
        for _ in range(o["warmup"]):
            step(mode)
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(o["steps"]):
            step(line.strip())
        print((time.perf_counter() - begin) / o["steps"], flush=True)


class Worker:
    def __init__(self, python, options):
        env = dict(os.environ, OMP_NUM_THREADS=str(options["threads"]))
        env.pop("GLIBC_TUNABLES", None)
        if options["huge"]:
            env["GLIBC_TUNABLES"] = HUGE_PAGES
        self.process = subprocess.Popen([python, "-B", __file__, "--worker", json.dumps(options)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=env)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench_pytorch.py: PyTorch ended with exit code {self.process.wait()}")
        return line

    def seconds(self, mode):
        self.process.stdin.write(mode + "\n")
        self.process.stdin.flush()
        return float(self.answer())

    def memory(self):
        """Resident bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def end(self):
        self.process.stdin.close()
        self.process.wait()


# ---- ours ----------------------------------------------------------------------------------------


def our_step(binary, precision, a):
    """Seconds of a step, and its share of the best GEMM in the same process."""
    settings = {"model.context": a.context, "model.layers": a.layers, "train.batch": a.batch,
                "train.micro_batch": a.batch, "train.precision": precision,
                "train.threads": a.threads}
    line = [binary, "bench", "step", "--repeat", str(a.steps)]
    for key, value in settings.items():
        line += ["--set", f"{key}={value}"]
    text = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
    milliseconds = re.search(r"step ([0-9.]+) ms, ([0-9.]+) tokens/s", text)
    share = re.search(r"reaches ([0-9.]+) %", text)
    if not milliseconds or not share:
        sys.exit(f"bench_pytorch.py: unexpected output of {binary}:\n{text}")
    return float(milliseconds[1]) / 1e3, float(share[1])


# ---- the comparison ------------------------------------------------------------------------------


def cpu():
    """The CPU's name, and a known kind or "". Virtual machines hide the model, but not its matrix
    unit and last-level cache."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)
    cache = re.search(r"^cache size\s*: (\d+) KB$", text, re.M)
    older_have_at_most = 320 * 1024
    known = flags and cache and "amx_bf16" in flags[1] and int(cache[1]) > older_have_at_most
    return name[1] if name else "unknown CPU", "Granite Rapids" if known else ""


def name(mode, huge):
    return mode + (" + huge pages" if huge else "")


def compare(precision, python, a):
    model = dict(GPT2, layers=a.layers, context=a.context)
    options = {"model": model, "batch": a.batch, "threads": a.threads, "precision": precision,
               "bf16": a.bf16, "modes": a.modes, "steps": a.steps, "warmup": a.warmup}
    variants = [(mode, huge) for mode in a.modes for huge in (False, True)]
    workers = {}
    for huge in (False, True):
        workers[huge] = Worker(python, dict(options, huge=huge))
        print(f"{precision}{' huge pages' if huge else ''}: warm, "
              f"{workers[huge].memory() / 2**30:.1f} GiB resident", file=sys.stderr, flush=True)
    seconds = {v: [] for v in variants}
    ours, shares = [], []
    for repeat in range(a.repeats):
        s, share = our_step(a.train_binary, precision, a)
        ours.append(s)
        shares.append(share)
        for v in variants:
            seconds[v].append(workers[v[1]].seconds(v[0]))
        print(f"{precision} repeat {repeat + 1}: ours {ours[-1]:.2f} s, "
              + ", ".join(f"{name(m, h)} {seconds[m, h][-1]:.2f} s" for m, h in variants),
              file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.end()

    tokens = a.batch * a.context
    rate = {v: tokens / statistics.median(seconds[v]) for v in variants}
    best = max(rate.values())
    our_rate = tokens / statistics.median(ours)
    form = f" ({a.bf16})" if precision == "bf16" else ""
    for (mode, huge), r in rate.items():
        print(f"| {precision} | PyTorch {name(mode, huge)}{form} | {r:.0f} | {our_rate / r:.2f} |")
    print(f"| {precision} | Spillway | {our_rate:.0f} | {our_rate / best:.2f} × PyTorch's best |",
          flush=True)
    notes = [f"{precision}: our step reaches {statistics.median(shares):.0f} % of the best GEMM of "
             f"its own process (median)"]
    if (a.batch, a.context, a.layers, a.threads) == (8, 512, 12, 2):
        for (mode, huge), r in rate.items():
            expected = EXPECTED.get(cpu()[1], {}).get((precision, mode, huge))
            if expected and r < VOID_BELOW * expected:
                notes.append(f"VOID: PyTorch {precision} {name(mode, huge)} reached {r:.0f} "
                             f"tokens/s, {expected} on a quiet machine with this CPU")
    return notes


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("f32", "bf16", "both"), default="both")
    parser.add_argument("--bf16", choices=("master", "autocast"), default="master")
    parser.add_argument("--modes", nargs="+", choices=("eager", "compile"),
                        default=["eager", "compile"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--layers", type=int, default=GPT2["layers"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="measured steps per repeat")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the first measured one")
    parser.add_argument("--train-binary", default=str(ROOT / "build" / "train"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        work(json.loads(a.worker))
        return
    a.train_binary = str(pathlib.Path(a.train_binary).resolve())
    python = os.environ.get("SPILLWAY_PYTHON") or subprocess.check_output(
        [str(ROOT / "scripts" / "install_torch.sh")], text=True).strip()
    version = subprocess.check_output([python, "-c", "import torch; print(torch.__version__)"],
                                      text=True).strip()
    print(f"GPT-2 with {a.layers} layers, batch {a.batch} × {a.context} tokens, "
          f"{a.threads} threads, PyTorch {version}, {' '.join(filter(None, cpu()))}; "
          f"{a.repeats} repeats, medians\n")
    print("| precision | | tokens/s | ours / it |\n| --- | --- | --- | --- |", flush=True)
    notes = []
    for precision in ("f32", "bf16") if a.precision == "both" else (a.precision,):
        notes += compare(precision, python, a)
    print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()
