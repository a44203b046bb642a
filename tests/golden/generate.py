#!/usr/bin/env python3
"""Writes the golden losses and gradients of tiny models, computed by PyTorch.

For every model NAME of MODELS, beside this script:
  NAME.json  config, tokens, targets, losses, and for every parameter its shape, its place in
             NAME.bin, and PyTorch's own relative error against f64: in f32 of this draw of weights
             and tokens, in bf16 the root mean square over DRAWS of them, because the error of one
             loss is a sum of a few roundings that may cancel by luck
  NAME.bin   little-endian: all weights as f32, then all gradients as f64
Weights are exact in bf16, so that all precisions start from the same numbers.
Usage: generate.py   (needs PyTorch, see scripts/install_torch.sh)
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F

from torch_model import EPS, forward, parameter_shapes

HERE = pathlib.Path(__file__).resolve().parent
BATCH, MICRO_BATCHES = 2, 2
DRAWS = 24

GPT2 = dict(family="gpt2", layers=2, hidden=24, heads=3, kv_heads=3, head_dim=8, ffn=56,
            context=16, vocab=37, tied_head=True, qkv_bias=True, qk_norm=False)
LLAMA = dict(family="llama", layers=2, hidden=24, heads=4, kv_heads=2, head_dim=8, ffn=20,
             context=16, vocab=37, tied_head=False, qkv_bias=False, qk_norm=True,
             rope=dict(theta=100.0, llama3_scaling=True, factor=4.0, low_freq_factor=1.0,
                       high_freq_factor=4.0, original_context=64))
LLAMA_TIED = dict(LLAMA, tied_head=True, qkv_bias=True, qk_norm=False, kv_heads=1,
                  rope=dict(LLAMA["rope"], theta=10000.0, llama3_scaling=False))
MODELS = {"gpt2": GPT2, "llama": LLAMA, "llama_tied": LLAMA_TIED}


def run(c, weights, tokens, targets, dtype):
    """Losses of the micro-batches and gradients, both as f64."""
    p = {name: w.detach().to(dtype, copy=True).requires_grad_() for name, w in weights.items()}
    losses = []
    for micro in range(MICRO_BATCHES):
        logits = forward(c, p, tokens[micro])
        logits = logits if dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets[micro].flatten(), ignore_index=-1,
                               reduction="sum") / tokens.numel()
        loss.backward()
        losses.append(loss.item())
    return losses, {name: w.grad.double() for name, w in p.items()}


def error(a, b):
    return ((a - b).norm() / b.norm()).item()


def draw(c, seed):
    g = torch.Generator().manual_seed(seed)
    weights = {}
    for parameter, shape in parameter_shapes(c).items():
        values = torch.randn(shape, generator=g, dtype=torch.float64)
        if parameter.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif len(shape) == 1:
            values = 0.1 * values
        else:
            values = values * (1.0 if "embed" in parameter else shape[1] ** -0.5)
        weights[parameter] = values.to(torch.bfloat16).double()
    size = [MICRO_BATCHES, BATCH, c["context"]]
    tokens = torch.randint(c["vocab"], size, generator=g)
    targets = torch.randint(c["vocab"], size, generator=g)
    targets[0, 1, :3] = -1  # not counted
    return weights, tokens, targets


def errors(other, truth):
    """Relative errors of two results of run(): of the losses, and of each gradient."""
    losses = (torch.tensor(r[0], dtype=torch.float64) for r in (other, truth))
    return {"losses": error(*losses)} | {n: error(other[1][n], truth[1][n]) for n in truth[1]}


def main():
    torch.set_num_threads(1)
    for name, c in MODELS.items():
        weights, tokens, targets = draw(c, 1)
        truth = run(c, weights, tokens, targets, torch.float64)
        single = errors(run(c, weights, tokens, targets, torch.float32), truth)
        half = []
        for seed in range(1, DRAWS + 1):
            inputs = draw(c, seed)
            half.append(errors(run(c, *inputs, torch.bfloat16), run(c, *inputs, torch.float64)))
        half = {n: math.sqrt(sum(e[n] ** 2 for e in half) / DRAWS) for n in half[0]}

        parameters, offset = [], 0
        for parameter, w in weights.items():
            parameters.append(dict(name=parameter, shape=list(w.shape), begin=offset,
                                   f32_error=single[parameter], bf16_error=half[parameter]))
            offset += w.numel()
        blob = b"".join(w.float().numpy().tobytes() for w in weights.values())
        blob += b"".join(truth[1][n].numpy().tobytes() for n in weights)
        (HERE / f"{name}.bin").write_bytes(blob)
        golden = dict(model=dict(c, norm_eps=EPS), batch=BATCH, micro_batches=MICRO_BATCHES,
                      draws=DRAWS, elements=offset, losses=truth[0],
                      f32_loss_error=single["losses"], bf16_loss_error=half["losses"],
                      tokens=tokens.flatten().tolist(), targets=targets.flatten().tolist(),
                      parameters=parameters)
        (HERE / f"{name}.json").write_text(json.dumps(golden, indent=1) + "\n")
        print(f"{name}: {offset} parameters, losses {truth[0]}, "
              f"bf16 gradient error {max(p['bf16_error'] for p in parameters):.3g}")


if __name__ == "__main__":
    main()
