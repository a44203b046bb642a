"""scripts/prepare_data.py: text and JSON lines through a tokenizer.json into files that train reads."""
# needs: torch
import array
import json
import os
import struct
import subprocess
import sys
import unittest

from e2e.common import ROOT, Folder, config, metrics, train, write_config

if __name__ == "__main__" and "SPILLWAY_IN_TORCH" not in os.environ:
    python = os.environ.get("SPILLWAY_PYTHON") or subprocess.check_output(
        [str(ROOT / "scripts" / "install_torch.sh")], text=True).strip()
    os.environ["SPILLWAY_IN_TORCH"] = "1"
    os.execv(python, [python, "-B", *sys.argv])

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = (ROOT / "data" / "austen.txt").read_text()[:200_000]


def make_tokenizer(path, vocabulary, extra=0):
    """A byte-level BPE of the shipped text; `extra` added tokens push ids beyond 16 bits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<|endoftext|>"],
                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([f"<extra_{i}>" for i in range(extra)])
    tokenizer.save(str(path))
    return tokenizer


def prepare(*arguments, expect=0):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "prepare_data.py", *map(str, arguments)],
                          capture_output=True, text=True)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done


def read_bin(path):
    """Ids of an llm.c file, its header checked."""
    data = path.read_bytes()
    magic, version, count = struct.unpack("<3i", data[:12])
    assert (magic, version) == (20240520, 1), (magic, version)
    ids = array.array("H", data[1024:])
    assert len(ids) == count, (len(ids), count)
    return list(ids)


class PrepareData(unittest.TestCase):
    def test_text_round_trips_and_trains(self):
        with Folder() as folder:
            tokenizer = make_tokenizer(folder / "tokenizer.json", 400)
            (folder / "a.txt").write_text(TEXT)
            (folder / "b.txt").write_text("Grüße — 你好\n\nend without newline")
            out = folder / "tokens.bin"
            done = prepare(folder / "a.txt", folder / "b.txt", "--tokenizer",
                           folder / "tokenizer.json", "--out", out)
            self.assertIn("100.0 %", done.stderr)
            ids = read_bin(out)
            end = tokenizer.token_to_id("<|endoftext|>")
            self.assertEqual(ids.count(end), 2)
            first = ids.index(end)
            self.assertEqual(tokenizer.decode(ids[:first]), TEXT)
            self.assertEqual(tokenizer.decode(ids[first + 1:-1]),
                             "Grüße — 你好\n\nend without newline")
            vocab = int(done.stdout.rsplit(" ", 1)[1])
            self.assertEqual(vocab, 400)
            self.assertIn('"gpt2.bin"', done.stdout)
            run = write_config(folder, config(
                model={"vocab": vocab}, data={"train": [str(out)], "tokenizer": "gpt2.bin"},
                train={"steps": 3}))
            train(run, folder / "run")
            self.assertEqual(sorted(metrics(folder / "run")), [1, 2, 3])

    def test_json_lines_and_wide_ids(self):
        with Folder() as folder:
            tokenizer = make_tokenizer(folder / "tokenizer.json", 300, extra=66_000)
            documents = ["one", "two <extra_65900>", TEXT[:1000]]
            (folder / "a.jsonl").write_text(
                "".join(json.dumps({"body": d}) + "\n" for d in documents))
            out = folder / "wide.bin"
            done = prepare(folder / "a.jsonl", "--field", "body", "--tokenizer",
                           folder / "tokenizer.json", "--out", out)
            self.assertIn('"uint32"', done.stdout)
            ids = array.array("I", out.read_bytes())
            end = tokenizer.token_to_id("<|endoftext|>")
            expected = [t for d in documents
                        for t in [*tokenizer.encode(d, add_special_tokens=False).ids, end]]
            self.assertEqual(list(ids), expected)
            self.assertGreater(max(ids), 65_535)

    def test_bad_input_is_one_line_and_leaves_nothing(self):
        with Folder() as folder:
            make_tokenizer(folder / "tokenizer.json", 300)
            out = folder / "tokens.bin"
            (folder / "good.txt").write_text("text")
            (folder / "latin.txt").write_bytes(b"caf\xe9")
            (folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
            (folder / "field.jsonl").write_text('{"content": "a"}\n')
            (folder / "empty.txt").write_text("")
            (folder / "broken.json").write_text("{}")
            tokenizer = folder / "tokenizer.json"
            for inputs, expected in (
                    (["absent.txt"], "absent.txt: no such file"),
                    (["latin.txt"], "latin.txt: not UTF-8"),
                    (["broken.jsonl"], "broken.jsonl: line 2: not JSON"),
                    (["field.jsonl"], "field.jsonl: line 1: no text in field \"text\""),
                    (["empty.txt"], "the inputs hold no text"),
                    (["good.txt", "--tokenizer", "broken.json"], "broken.json: not a tokenizer.json"),
                    (["good.txt", "--tokenizer", "absent.json"], "absent.json: no such tokenizer"),
                    (["good.txt", "--end-of-text", "<none>"], "the tokenizer has no token")):
                with self.subTest(inputs):
                    paths = [folder / i if "." in i and not i.startswith("-") else i for i in inputs]
                    done = prepare("--tokenizer", tokenizer, "--out", out, *paths, expect=2)
                    self.assertIn(expected, done.stderr)
                    self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                    self.assertEqual([p.name for p in folder.glob("tokens.bin*")], [])
            out.write_bytes(b"kept")
            done = prepare("--tokenizer", tokenizer, "--out", out, folder / "good.txt", expect=2)
            self.assertIn("exists; --force overwrites it", done.stderr)
            self.assertEqual(out.read_bytes(), b"kept")


if __name__ == "__main__":
    unittest.main()
