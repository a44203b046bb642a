"""The model families in PyTorch, parameter for parameter: what goldens, curves and speed are
compared with. A model is a dict with the keys of a config's "model" section, all of them present;
its parameters are a dict of tensors named as in our checkpoints.
"""

import math
import struct

import torch
import torch.nn.functional as F

EPS = struct.unpack("f", struct.pack("f", 1e-5))[0]  # ours is an f32 as well


def parameter_shapes(c):
    """Shape of every parameter by its name in our checkpoints; vocabulary without padding."""
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
        if heads != kv:
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
