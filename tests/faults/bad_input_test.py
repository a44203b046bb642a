"""Bad input is one clear line on standard error and a documented exit code, never a crash."""
import json
import os
import random
import subprocess
import unittest

from e2e.common import (Folder, ROOT, config, hashes, newest_checkpoint, one_line, run, train, write_config)


def changed(path, value):
    """The tiny config with one key (dotted) set, or removed if value is None."""
    result = config()
    *parents, last = path.split(".")
    section = result
    for name in parents:
        section = section.setdefault(name, {})
    if value is None:
        section.pop(last, None)
    else:
        section[last] = value
    return result


# key, value, words that the message must contain
CASES = [
    ("train.stepz", 5, ["train.stepz", "train.steps"]),
    ("optimiser", {}, ["optimiser", "optimizer"]),
    ("train.steps", "many", ["train.steps", "many"]),
    ("train.steps", -3, ["train.steps", "-3"]),
    ("train.steps", 0, ["train.steps"]),
    ("train.batch", 0, ["train.batch"]),
    ("model.layers", -1, ["model.layers"]),
    ("model.heads", 5, ["heads", "hidden"]),
    ("model.kv_heads", 3, ["kv_heads", "heads"]),
    ("model.hidden", 1.5, ["model.hidden"]),
    ("model.family", "lama", ["lama", "llama"]),
    ("model.moe", {"experts": 8}, ["not supported yet", "moe"]),
    ("model.dropout", 0.1, ["not supported yet", "dropout"]),
    ("model.rope_scaling", {"type": "yarn"}, ["rope"]),
    ("parallel.tensor", 2, ["not supported yet", "tensor"]),
    ("parallel.zero", 4, ["zero"]),
    ("train.precision", "fp8", ["fp8"]),
    ("train.batch", 7, ["batch", "7"]),
    ("memory.device", "512", ["memory.device", "unit"]),
    ("memory.device", "0B", ["memory.device"]),
    ("memory.device", "-1GiB", ["memory.device"]),
    ("hardware.link", "2GB", ["hardware.link"]),
    ("optimizer.warmup", 500, ["warmup"]),
    ("optimizer.schedule", "cosin", ["cosin", "cosine"]),
    ("optimizer.betas", [0.9], ["betas"]),
    ("hardware.profile", "h100-8", ["h100-8", "h100-80"]),
    ("hardware.backend", "cuda", ["cuda"]),
    ("place", {"qvk": "host"}, ["qvk", "qkv"]),
    ("place", {"qkv": "hots"}, ["hots", "host"]),
    ("place", {"qkv@0-99": "host"}, ["99"]),
    ("place", {"moments": "recompute"}, ["moments"]),
    ("place", {"qkv": "host", "qkv@1": "device"}, ["qkv", "contradict"]),
    ("model.vocab", 100, ["100", "257"]),
    ("data.train", ["no/such/file.txt"], ["no/such/file.txt"]),
    ("data.train", [], ["data.train"]),
    ("data.tokenizer", "byts", ["byts", "bytes"]),
    ("data", None, ["data"]),
    ("model", None, ["model"]),
]


class BadInput(unittest.TestCase):
    def test_config_keys(self):
        with Folder() as folder:
            for key, value, words in CASES:
                with self.subTest(key=key, value=value):
                    path = write_config(folder, changed(key, value))
                    one_line(self, run("--config", path, "--set", f"output={folder}/out"), 2, words)

    def test_config_files(self):
        with Folder() as folder:
            text = json.dumps(config())
            bad = {"not json": text[:-5], "not text": "\xff\xfe", "duplicate": '{"train": {}, "train": {}}',
                   "empty": "", "array": "[]", "deep": "[" * 10000}
            for name, value in bad.items():
                with self.subTest(name=name):
                    one_line(self, run("--config", write_config(folder, value)), 2, ["run.json"])
            huge = folder / "huge.json"
            with open(huge, "wb") as file:
                file.truncate(17 << 20)
            one_line(self, run("--config", huge), 2, ["huge.json", "16"])
            one_line(self, run("--config", folder / "absent.json"), 2, ["absent.json"])
            one_line(self, run("--config", folder), 2)

    def test_token_files(self):
        with Folder() as folder:
            def data(name, content, tokenizer, **model):
                path = folder / name
                path.write_bytes(content)
                return write_config(folder, config(data={"train": [str(path)], "tokenizer": tokenizer,
                                                         "validation": 0}, model={"vocab": 300, **model}))
            one_line(self, run("--config", data("empty.txt", b"", "bytes")), 2, ["empty.txt"])
            one_line(self, run("--config", data("short.txt", b"abc", "bytes")), 2, ["short.txt"])
            one_line(self, run("--config", data("odd.bin", b"\1\0\2\0\3" * 101, "uint16")), 2, ["odd.bin"])
            out_of_range = b"\1\0" * 500 + (400).to_bytes(2, "little") + b"\1\0" * 500
            one_line(self, run("--config", data("range.bin", out_of_range, "uint16")), 2,
                          ["range.bin", "1000", "400"])
            header = b"".join(v.to_bytes(4, "little") for v in (20240520, 1, 5000)) + b"\0" * 1012
            one_line(self, run("--config", data("truncated.bin", header + b"\1\0" * 100, "gpt2.bin")), 2,
                          ["truncated.bin"])

    def test_command_line(self):
        for arguments in (["--confg", "x"], [], ["plan"], ["sample"], ["frobnicate"], ["--config"],
                          ["inspect", "/nowhere"], ["sample", "--checkpoint", "/nowhere"],
                          ["--config", "x", "--stop-at", "-4"]):
            with self.subTest(arguments=arguments):
                one_line(self, run(*arguments), 2)
        with Folder() as folder:
            path = write_config(folder, config())
            one_line(self, run("--config", path, "--set", "train.steps"), 2, ["train.steps"])
            one_line(self, run("--config", path, "--set", "train.stps=3"), 2, ["train.steps"])

    def test_output_folder(self):
        with Folder() as folder:
            path = write_config(folder, config())
            (folder / "file").write_text("in the way")
            one_line(self, run("--config", path, "--set", f"output={folder}/file/x"), 2, ["file/x"])

    def test_does_not_fit(self):
        with Folder() as folder:
            path = write_config(folder, config(memory={"device": "100KiB"}))
            done = run("--config", path, "--set", f"output={folder}/out")
            one_line(self, done, 3, ["device"])
            done = run("plan", "--config", path, "--json")
            one_line(self, done, 3, ["device"])
            self.assertFalse(json.loads(done.stdout)["fits"])
            path = write_config(folder, config(memory={"host": "1KiB"}))
            one_line(self, run("--config", path, "--set", f"output={folder}/out"), 3, ["host"])

    def test_plan_for_another_config(self):
        with Folder() as folder:
            path = write_config(folder, config())
            plan = folder / "plan.json"
            self.assertEqual(run("plan", "--config", path, "--out", plan).returncode, 0)
            self.assertEqual(run("plan", "--config", path, "--plan", plan).returncode, 0)
            one_line(self, run("--config", path, "--plan", plan, "--set", "model.layers=2", "--set",
                              f"output={folder}/o1"), 2, ["plan.json"])
            plan.write_text(plan.read_text()[:-20])
            one_line(self, run("--config", path, "--plan", plan, "--set", f"output={folder}/o2"), 2,
                          ["plan.json"])

    def test_damaged_checkpoints(self):
        seed = random.SystemRandom().randrange(2**32)
        print("seed", seed)
        rng = random.Random(seed)
        with Folder() as folder:
            path = write_config(folder, config(train={"steps": 2}))
            output = folder / "run"
            train(path, output)
            checkpoint = newest_checkpoint(output)
            shard, manifest = checkpoint / "rank_00000.safetensors", checkpoint / "manifest.json"
            whole = {f: f.read_bytes() for f in (shard, manifest)}

            def refused():
                for arguments in (["--config", path, "--set", f"output={output}", "--resume", checkpoint],
                                  ["--config", path, "--set", f"output={output}", "--resume", "latest"],
                                  ["inspect", checkpoint], ["sample", "--checkpoint", checkpoint]):
                    one_line(self, run(*arguments), 2)

            for file in whole:
                data = bytearray(whole[file])
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                file.write_bytes(data)
                with self.subTest(flipped=file.name):
                    refused()
                file.write_bytes(whole[file][:rng.randrange(len(whole[file]))])
                with self.subTest(truncated=file.name):
                    refused()
                file.unlink()
                with self.subTest(absent=file.name):
                    refused()
                file.write_bytes(whole[file])
            manifest.write_text('{"format": "something else"}')
            refused()
            manifest.write_bytes(whole[manifest])
            self.assertEqual(run("inspect", checkpoint).returncode, 0)

    @unittest.skipIf(os.environ.get("SPILLWAY_WITHOUT_TMPFS"), "left out by --without tmpfs")
    def test_full_disk(self):
        with Folder() as folder:
            disk = folder / "disk"
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=20", "tmpfs", disk],
                           check=True)
            try:
                (disk / "filler").write_bytes(b"x" * 4096)
                path = write_config(folder, config())
                one_line(self, run("--config", path, "--set", f"output={disk}/run"), 2, ["run"])
            finally:
                subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    unittest.main()
