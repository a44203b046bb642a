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
import struct

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
BATCH, MICRO_BATCHES = 2, 2
DRAWS = 24
EPS = struct.unpack("f", struct.pack("f", 1e-5))[0]  # ours is an f32 as well

GPT2 = dict(family="gpt2", layers=2, hidden=24, heads=3, kv_heads=3, head_dim=8, ffn=56,
            context=16, vocab=37, tied_head=True, qkv_bias=True, qk_norm=False)
LLAMA = dict(family="llama", layers=2, hidden=24, heads=4, kv_heads=2, head_dim=8, ffn=20,
             context=16, vocab=37, tied_head=False, qkv_bias=False, qk_norm=True,
             rope=dict(theta=100.0, llama3_scaling=True, factor=4.0, low_freq_factor=1.0,
                       high_freq_factor=4.0, original_context=64))
LLAMA_TIED = dict(LLAMA, tied_head=True, qkv_bias=True, qk_norm=False, kv_heads=1,
                  rope=dict(LLAMA["rope"], theta=10000.0, llama3_scaling=False))
MODELS = {"gpt2": GPT2, "llama": LLAMA, "llama_tied": LLAMA_TIED}


def parameter_shapes(c):
    gpt2 = c["family"] == "gpt2"
    h, heads, kv, d = c["hidden"], c["heads"], c["kv_heads"], c["head_dim"]
    qkv = (heads + 2 * kv) * d
    shapes = {"embed.weight": [c["vocab"], h]}
    if gpt2:
        shapes["pos_embed.weight"] = [c["context"], h]

    def norm(name):
        shapes[name + ".weight"] = [h]
        if gpt2:
            shapes[name + ".bias"] = [h]

    def linear(name, rows, columns, bias):
        shapes[name + ".weight"] = [rows, columns]
        if bias:
            shapes[name + ".bias"] = [rows]

    for k in range(c["layers"]):
        b = f"blk.{k}."
        norm(b + "attn_norm")
        linear(b + "qkv", qkv, h, gpt2 or c["qkv_bias"])
        if c["qk_norm"]:
            shapes[b + "q_norm.weight"] = [d]
            shapes[b + "k_norm.weight"] = [d]
        linear(b + "proj", h, heads * d, gpt2)
        norm(b + "ffn_norm")
        linear(b + "up", c["ffn"] if gpt2 else 2 * c["ffn"], h, gpt2)
        linear(b + "down", h, c["ffn"], gpt2)
    norm("final_norm")
    if not c["tied_head"]:
        shapes["head.weight"] = [c["vocab"], h]
    return shapes


def inverse_frequencies(c, dtype):
    d, rope = c["head_dim"], c["rope"]
    freq = rope["theta"] ** (-torch.arange(0, d, 2, dtype=dtype) / d)
    if not rope["llama3_scaling"]:
        return freq
    old, low, high = rope["original_context"], rope["low_freq_factor"], rope["high_freq_factor"]
    wavelength = 2 * math.pi / freq
    smooth = (old / wavelength - low) / (high - low)
    between = (1 - smooth) * freq / rope["factor"] + smooth * freq
    scaled = torch.where(wavelength > old / low, freq / rope["factor"], between)
    return torch.where(wavelength < old / high, freq, scaled)


def rotate(x, c):
    """x: [batch, heads, tokens, head_dim]; the half-rotation convention."""
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    angle = torch.outer(torch.arange(x.shape[2], dtype=acc), inverse_frequencies(c, acc))
    angle = torch.cat([angle, angle], dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def forward(c, p, tokens):
    """Logits [batch, tokens, vocabulary]."""
    gpt2 = c["family"] == "gpt2"
    heads, kv, d = c["heads"], c["kv_heads"], c["head_dim"]

    def norm(x, name):
        w = p[name + ".weight"]
        if gpt2:
            return F.layer_norm(x, w.shape, w, p[name + ".bias"], EPS)
        return F.rms_norm(x, w.shape, w, EPS)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    x = F.embedding(tokens, p["embed.weight"])
    if gpt2:
        x = x + p["pos_embed.weight"][: tokens.shape[1]]
    for k in range(c["layers"]):
        b = f"blk.{k}."
        qkv = linear(norm(x, b + "attn_norm"), b + "qkv")
        qkv = qkv.view(*tokens.shape, heads + 2 * kv, d).transpose(1, 2)
        q, key, v = qkv.split([heads, kv, kv], dim=1)
        if c["qk_norm"]:
            q = F.rms_norm(q, [d], p[b + "q_norm.weight"], EPS)
            key = F.rms_norm(key, [d], p[b + "k_norm.weight"], EPS)
        if not gpt2:
            q, key = rotate(q, c), rotate(key, c)
        key, v = (t.repeat_interleave(heads // kv, dim=1) for t in (key, v))
        o = F.scaled_dot_product_attention(q, key, v, is_causal=True)
        x = x + linear(o.transpose(1, 2).reshape(*tokens.shape, heads * d), b + "proj")
        up = linear(norm(x, b + "ffn_norm"), b + "up")
        if gpt2:
            act = F.gelu(up, approximate="tanh")
        else:
            gate, value = up.chunk(2, dim=-1)
            act = F.silu(gate) * value
        x = x + linear(act, b + "down")
    head = p["embed.weight"] if c["tied_head"] else p["head.weight"]
    return F.linear(norm(x, "final_norm"), head)


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
