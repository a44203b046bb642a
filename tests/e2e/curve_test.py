"""A 300-step curve on the shipped text beside PyTorch's: the same weights, the same batches."""
# needs: torch
import json
import os
import subprocess
import sys
import unittest

from e2e.common import ROOT, Folder, config, metrics, newest_checkpoint, train, write_config

if __name__ == "__main__" and "SPILLWAY_IN_TORCH" not in os.environ:
    python = os.environ.get("SPILLWAY_PYTHON") or subprocess.check_output(
        [str(ROOT / "scripts" / "install_torch.sh")], text=True).strip()
    os.environ["SPILLWAY_IN_TORCH"] = "1"
    os.execv(python, [python, "-B", *sys.argv])

import numpy
import safetensors.torch
import torch
import torch.nn.functional as F

from golden.torch_model import EPS, forward, parameter_shapes

STEPS = 300
CONFIG = config(
    model={"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "context": 64,
           "tied_head": False, "qk_norm": True},
    train={"steps": STEPS, "batch": 16, "micro_batch": 8, "threads": 1},
    optimizer={"lr": 3e-3, "min_lr": 3e-4, "warmup": 20, "schedule": "cosine",
               "weight_decay": 0.1, "clip": 1.0})
OFFLOAD = ["--set", "place.moments=host", "--set", "place.parameters=host",
           "--set", "place.gradients=host", "--set", "place.qkv=host",
           "--set", "place.ffn_act=recompute"]


def initial_weights(folder, config_path):
    """The weights that every run of this config and seed starts from: those of a checkpoint after
    one step that is too small to change any of them."""
    output = folder / "initial"
    train(config_path, output, "--set", "optimizer.lr=1e-30", "--set", "optimizer.min_lr=0",
          "--stop-at", 1, expect=75)
    shards = list(newest_checkpoint(output).glob("*.safetensors"))
    assert len(shards) == 1, shards
    return safetensors.torch.load_file(shards[0])


def torch_curve(c, weights, tokens, targets, rates):
    """Losses and gradient norms of PyTorch's training in f32 on tokens[step, batch, context]."""
    p = {name: weights[name].clone().requires_grad_() for name in weights}
    o = c["optimizer"]
    # As ours: no decay on norms and biases.
    matrices = [w for w in p.values() if w.dim() == 2]
    vectors = [w for w in p.values() if w.dim() != 2]
    groups = [{"params": matrices, "weight_decay": o["weight_decay"]},
              {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=o["betas"], eps=o["eps"])
    losses, norms = [], []
    for step, rate in enumerate(rates):
        optimizer.zero_grad()
        logits = forward(c["model"], p, tokens[step])
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=-1)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), o["clip"]).item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


class Curve(unittest.TestCase):
    def test_the_curve_is_pytorchs(self):
        torch.set_num_threads(1)  # more would wait for each other, so small is the model
        with Folder() as folder:
            path = write_config(folder, CONFIG)
            output, dump = folder / "run", folder / "batches"
            train(path, output, *OFFLOAD, "--dump-batches", dump)
            rows = metrics(output)
            c = json.loads((output / "config.json").read_text())
            weights = initial_weights(folder, path)
            batches = torch.from_numpy(numpy.fromfile(dump, dtype="<i4")).long()
        self.assertEqual(sorted(rows), list(range(1, STEPS + 1)))
        self.assertGreater(rows[STEPS]["host_peak_bytes"], 0)  # it did offload
        self.assertEqual(c["model"]["norm_eps"], 1e-5)  # EPS is this in f32
        self.assertAlmostEqual(EPS, 1e-5, delta=1e-11)
        shapes = parameter_shapes(c["model"])
        weights = {name: weights[name] for name in shapes}
        for name, shape in shapes.items():
            self.assertEqual(list(weights[name].shape), shape, name)

        batches = batches.view(STEPS, 2, c["train"]["batch"], c["model"]["context"])
        ours = [rows[step]["loss"] for step in range(1, STEPS + 1)]
        theirs, norms = torch_curve(c, weights, batches[:, 0], batches[:, 1],
                                    [rows[step]["lr"] for step in range(1, STEPS + 1)])
        for step in (1, 50, 100, 200, STEPS):
            print(f"step {step}: ours {ours[step - 1]:.6f}, PyTorch {theirs[step - 1]:.6f}")
        # Before training amplifies any rounding: the same weights, the same batch, the same update.
        for step in range(3):
            self.assertAlmostEqual(ours[step] / theirs[step], 1, delta=1e-5)
            self.assertAlmostEqual(rows[step + 1]["grad_norm"] / norms[step], 1, delta=1e-4)
        for begin in range(0, STEPS, 20):
            mean = [sum(curve[begin:begin + 20]) / 20 for curve in (ours, theirs)]
            self.assertAlmostEqual(mean[0] / mean[1], 1, delta=0.005)
        print(f"mean of the last 20: ours {mean[0]:.6f}, PyTorch {mean[1]:.6f}")
        self.assertLess(mean[0], 0.5 * ours[0])  # and it learned something worth comparing


if __name__ == "__main__":
    unittest.main()
