"""The whole trainer on an emulated device: the losses of the CPU backend, the same bits wherever
tensors live, the same bits after a resume, and checkpoints that pass between the backends."""
import unittest

from e2e import common
import emulated

STEPS = 20
FEW = STEPS if common.LONG else 3
# Each row of the placement table alone, and all of them.
ACTIVATIONS = {"llama": ["resid", "attn_norm", "qkv", "attn_out", "ffn_norm", "ffn_up", "ffn_act"],
               "gpt2": ["resid", "attn_norm", "qkv", "attn_out", "ffn_norm", "ffn_up", "ffn_act"]}


def rows(family, precision):
    activations = ACTIVATIONS[family]
    table = {
        "activations streamed": {name: "host" for name in activations},
        "activations recomputed": {name: "recompute" for name in activations[1:]},
        "moments streamed": {"moments": "host"},
        "gradients streamed": {"gradients": "host"},
        "parameters streamed": {"parameters": "host"},
    }
    table["updated on the host"] = {"update": "host"}
    table["updated on the host in the next step"] = {"update": "host_rotated"}
    if precision == "bf16":
        table["master weights streamed"] = {"master": "host"}
    everything = {}
    for place in table.values():
        if "update" in place:
            continue
        everything.update({name: "host" for name in place})
    table["everything streamed"] = everything
    return table


class Placement(unittest.TestCase):
    def check(self, family, precision, ranks, each_row):
        """Everything streamed over all steps; everything resident, and each row alone, over a few."""
        tolerance = 1e-4 if precision == "f32" else 2e-2
        table = rows(family, precision)
        value = emulated.config(family, offload="off", recompute="off", train={
            "precision": precision, "steps": STEPS, "batch": 2 * max(1, ranks)})
        with common.Folder() as folder:
            emulated.run("cpu", folder, value, folder / "cpu", ranks=ranks)
            expected = emulated.losses(folder / "cpu")
            self.assertEqual(len(expected), STEPS)
            value["place"] = table.pop("everything streamed")
            emulated.run("cuda", folder, value, folder / "cuda", ranks=ranks, seed=1)
            bits = common.exact(folder / "cuda")
            self.assertEqual(len(bits), STEPS)
            for step, loss in emulated.losses(folder / "cuda").items():
                self.assertLessEqual(abs(loss - expected[step]), tolerance * abs(expected[step]),
                                     f"{family} {precision} {ranks} ranks, step {step}")
            if not (each_row or common.LONG):
                table = {}
            table["everything resident"] = {}
            for number, (name, place) in enumerate(table.items()):
                with self.subTest(family=family, precision=precision, ranks=ranks, place=name):
                    value["place"] = place
                    output = folder / f"placed{number}"
                    cut = ("--stop-at", FEW) if FEW < STEPS else ()
                    emulated.run("cuda", folder, value, output, *cut, ranks=ranks,
                                 seed=number + 2, expect=75 if cut else 0)
                    self.assertEqual(common.exact(output),
                                     {step: bits[step] for step in range(1, FEW + 1)})

    def test_llama_f32(self):
        self.check("llama", "f32", 0, False)

    def test_llama_bf16(self):
        self.check("llama", "bf16", 0, True)

    def test_gpt2_f32(self):
        self.check("gpt2", "f32", 0, True)

    def test_gpt2_bf16(self):
        self.check("gpt2", "bf16", 0, False)

    def test_llama_on_two_ranks(self):
        self.check("llama", "f32", 2, False)
        self.check("llama", "bf16", 2, False)

    def test_gpt2_on_two_ranks(self):
        self.check("gpt2", "f32", 2, False)
        self.check("gpt2", "bf16", 2, False)

    def test_two_levels_on_four_ranks(self):
        """Two nodes of two ranks: whatever the ranks share, the same bits over emulated NCCL."""
        steps = STEPS if common.LONG else 2
        value = emulated.config("llama", train={"precision": "bf16", "steps": steps, "batch": 4},
                                parallel={"tree": 2})
        outcomes = []
        with common.Folder() as folder:
            emulated.run("cpu", folder, value, folder / "cpu", ranks=4)
            for zero in (0, 1, 3):
                value["parallel"]["zero"] = zero
                output = folder / f"zero{zero}"
                emulated.run("cuda", folder, value, output, ranks=4, seed=zero + 1)
                outcomes.append(common.exact(output))
                for step, loss in emulated.losses(folder / "cpu").items():
                    self.assertLessEqual(abs(emulated.losses(output)[step] - loss), 2e-2 * abs(loss))
        self.assertEqual(len(outcomes[0]), steps)
        self.assertEqual(outcomes[1], outcomes[0])
        self.assertEqual(outcomes[2], outcomes[0])


class Resume(unittest.TestCase):
    def test_a_resumed_run_is_the_same_run(self):
        for family, precision, ranks in (("llama", "bf16", 2), ("gpt2", "f32", 0)):
            with self.subTest(family=family), common.Folder() as folder:
                value = emulated.config(family, train={"precision": precision, "steps": 5,
                                                       "batch": 2 * max(1, ranks)},
                                        place=rows(family, precision)["everything streamed"])
                emulated.run("cuda", folder, value, folder / "straight", ranks=ranks, seed=3)
                emulated.run("cuda", folder, value, folder / "cut", "--stop-at", "2", ranks=ranks,
                             seed=4, expect=75)
                value["place"] = {"moments": "host"}
                emulated.run("cuda", folder, value, folder / "cut", "--resume", "latest",
                             ranks=ranks, seed=5)
                self.assertEqual(common.exact(folder / "cut"), common.exact(folder / "straight"))
                self.assertEqual(common.hashes(common.newest_checkpoint(folder / "cut")),
                                 common.hashes(common.newest_checkpoint(folder / "straight")))

    def test_a_checkpoint_passes_between_the_backends(self):
        for first, second in (("cpu", "cuda"), ("cuda", "cpu")):
            with self.subTest(first=first), common.Folder() as folder:
                value = emulated.config("llama", train={"steps": 6})
                emulated.run(first, folder, value, folder / "straight")
                emulated.run(first, folder, value, folder / "run", "--stop-at", "3", expect=75)
                done = emulated.run(second, folder, value, folder / "run", "--resume", "latest")
                self.assertIn("written on another device", done.stdout + done.stderr)
                expected = emulated.losses(folder / "straight")
                for step, loss in emulated.losses(folder / "run").items():
                    self.assertLessEqual(abs(loss - expected[step]), 1e-4 * abs(expected[step]))

    def test_the_algorithms_of_gemms_stand_in_the_checkpoint_and_are_kept(self):
        with common.Folder() as folder:
            value = emulated.config("llama", train={"steps": 4})
            emulated.run("cuda", folder, value, folder / "run", "--stop-at", "2", expect=75)
            manifest = common.newest_checkpoint(folder / "run") / "manifest.json"
            table = emulated.json.loads(emulated.json.loads(manifest.read_text())["gemm_algorithms"])
            self.assertGreater(len(table["algorithms"]), 5)
            # The CPU backend has no use for it and hands it on.
            emulated.run("cpu", folder, value, folder / "run", "--resume", "latest")
            manifest = common.newest_checkpoint(folder / "run") / "manifest.json"
            self.assertEqual(emulated.json.loads(
                emulated.json.loads(manifest.read_text())["gemm_algorithms"]), table)


class Plan(unittest.TestCase):
    def test_the_plan_of_an_h100_runs_on_both_backends(self):
        """A Llama in small, streamed because the budget asks for it: one plan file, two backends."""
        with common.Folder() as folder:
            value = emulated.config("llama", train={"precision": "bf16", "steps": 3},
                                    model={"layers": 4})
            done = common.run("plan", "--config", common.write_config(folder, value), "--json")
            sizes = emulated.json.loads(done.stdout)
            least, most = sizes["device_minimum_bytes"], sizes["all_resident_device_bytes"]
            budget = least + (most - least) // 3
            value["memory"] = {"device": f"{budget}B"}
            emulated.run("cuda", folder, value, folder / "cuda")
            plan = (folder / "cuda" / "plan.json").read_text()
            self.assertIn('"host"', plan)
            emulated.run("cpu", folder, value, folder / "cpu", "--plan",
                         folder / "cuda" / "plan.json")
            self.assertEqual((folder / "cpu" / "plan.json").read_text().strip(), plan.strip())
            expected = emulated.losses(folder / "cpu")
            for step, loss in emulated.losses(folder / "cuda").items():
                self.assertLessEqual(abs(loss - expected[step]), 2e-2 * abs(expected[step]))
            peaks = [common.metrics(folder / name)[1]["device_peak_bytes"] for name in ("cpu", "cuda")]
            self.assertEqual(peaks[0], peaks[1])
            self.assertLessEqual(peaks[0], budget)


if __name__ == "__main__":
    unittest.main()
