#!/usr/bin/env python3
"""Turn text or JSON lines into a token file that `train` reads in place.

    scripts/prepare_data.py corpus.txt --tokenizer tokenizer.json --out corpus.bin
    scripts/prepare_data.py a.jsonl b.jsonl --field text --tokenizer tokenizer.json --out corpus.bin

The tokenizer is a Hugging Face tokenizer.json (pip install tokenizers). A vocabulary of at most
65,535 gives llm.c's format (magic 20240520, uint16 ids): set data.tokenizer to "gpt2.bin". A larger
one gives raw little-endian uint32 ids: set it to "uint32". Set model.vocab to the size printed.
A document is a file of text, or a line of JSON; each ends with the end-of-text token if there is one.
"""

import argparse
import array
import json
import os
import struct
import sys
import time

MAGIC, VERSION, HEADER_INTS = 20240520, 1, 256
MAX_TOKENS = 2**31 - 1  # the header's count is an int32
END_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>"]
TEXT_PIECE = 1 << 20  # characters encoded at once
BATCH = 64


class InputError(Exception):
    pass


class Progress:
    """A bar on a terminal, nothing elsewhere but the last line."""

    def __init__(self, total):
        self.total, self.done, self.tokens = max(total, 1), 0, 0
        self.start = self.shown = time.monotonic()
        self.live = sys.stderr.isatty()

    def add(self, size, tokens):
        self.done += size
        self.tokens += tokens
        now = time.monotonic()
        if self.live and now - self.shown > 0.1:
            self.shown = now
            self.show("\r", "")

    def show(self, before, after):
        part = min(self.done / self.total, 1.0)
        seconds = max(time.monotonic() - self.start, 1e-9)
        left = seconds * (1 - part) / part if part > 0 else 0
        sys.stderr.write(
            f"{before}[{'#' * int(30 * part):<30}] {100 * part:5.1f} %  "
            f"{self.tokens:,} tokens  {self.done / seconds / 1e6:.1f} MB/s  {left:.0f} s left  {after}"
        )
        sys.stderr.flush()

    def finish(self):
        self.done = self.total
        self.show("\r" if self.live else "", "\n")


def read_text(path):
    """Yields (text, bytes, is the document's end), cut at a line's end, or at the size limit."""
    with open(path, "r", encoding="utf-8", newline="") as file:
        rest = ""
        while True:
            piece = file.read(TEXT_PIECE)
            if not piece:
                yield rest, len(rest.encode()), True
                return
            rest += piece
            # Before a run of white space with a newline in it: tokenizers that split text first
            # never join a word to what follows it there, but do join such runs.
            cut = len(rest[: rest.rfind("\n") + 1].rstrip())
            if cut <= 0:
                if len(rest) < 16 * TEXT_PIECE:
                    continue
                cut = len(rest)
            yield rest[:cut], len(rest[:cut].encode()), False
            rest = rest[cut:]


def read_json_lines(path, field):
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}: line {number}: not JSON: {error}")
            if not isinstance(record, dict) or not isinstance(record.get(field), str):
                found = sorted(record) if isinstance(record, dict) else type(record).__name__
                raise InputError(
                    f'{path}: line {number}: no text in field "{field}", found {found}; see --field'
                )
            yield record[field], len(line), True


def load_tokenizer(path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("the Python library `tokenizers` is missing: pip install tokenizers")
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such tokenizer file")
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{path}: not a tokenizer.json: {error}")


def find_end(tokenizer, wanted):
    if wanted is not None:
        token = tokenizer.token_to_id(wanted)
        if token is None:
            raise InputError(f'--end-of-text: the tokenizer has no token "{wanted}"')
        return token
    for name in END_OF_TEXT:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    return None


def vocabulary(tokenizer):
    """One more than the largest id: ids may have gaps, and added tokens may lie beyond the size."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def encode_all(args, tokenizer, end, out, typecode, progress):
    """Returns how many ids were written, and how many of them stand for text."""
    count = of_text = 0
    for path in args.inputs:
        json_lines = args.field is not None or path.endswith((".jsonl", ".ndjson"))
        pieces = read_json_lines(path, args.field or "text") if json_lines else read_text(path)
        batch = []

        def flush():
            nonlocal count, of_text
            encoded = tokenizer.encode_batch([p[0] for p in batch], add_special_tokens=False)
            for (_, size, is_end), encoding in zip(batch, encoded):
                ids = array.array(typecode, encoding.ids)
                of_text += len(ids)
                if is_end and end is not None:
                    ids.append(end)
                if sys.byteorder == "big":
                    ids.byteswap()
                ids.tofile(out)
                count += len(ids)
                progress.add(size, len(ids))
            batch.clear()

        try:
            for piece in pieces:
                batch.append(piece)
                if len(batch) == BATCH or len(piece[0]) >= TEXT_PIECE:
                    flush()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8: {error.reason}")
        flush()
    return count, of_text


def run(args):
    tokenizer = load_tokenizer(args.tokenizer)
    for path in args.inputs:
        if not os.path.isfile(path):
            raise InputError(f"{path}: no such file")
        if os.path.exists(args.out) and os.path.samefile(path, args.out):
            raise InputError(f"{path}: is an input and --out")
    if os.path.exists(args.out) and not args.force:
        raise InputError(f"{args.out}: exists; --force overwrites it")
    end = find_end(tokenizer, args.end_of_text)
    vocab = vocabulary(tokenizer)
    narrow = vocab <= 65535
    progress = Progress(sum(os.path.getsize(path) for path in args.inputs))
    partial = args.out + ".partial"
    try:
        with open(partial, "wb") as out:
            if narrow:
                out.write(bytes(HEADER_INTS * 4))
            count, of_text = encode_all(args, tokenizer, end, out, "H" if narrow else "I", progress)
            if of_text == 0:
                raise InputError("the inputs hold no text")
            if narrow:
                if count > MAX_TOKENS:
                    raise InputError(f"{count:,} tokens, a file holds {MAX_TOKENS:,}; split the input")
                out.seek(0)
                out.write(struct.pack("<3i", MAGIC, VERSION, count))
        os.replace(partial, args.out)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
    progress.finish()
    print(
        f'{args.out}: {count:,} tokens; set data.tokenizer to "{"gpt2.bin" if narrow else "uint32"}" '
        f"and model.vocab to {vocab}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", nargs="+", metavar="FILE", help="text, or JSON lines (.jsonl)")
    parser.add_argument("--tokenizer", required=True, metavar="JSON", help="a tokenizer.json")
    parser.add_argument("--out", required=True, metavar="BIN", help="the token file to write")
    parser.add_argument(
        "--field", metavar="NAME",
        help='read every input as JSON lines, text in this field (default for .jsonl: "text")',
    )
    parser.add_argument(
        "--end-of-text", metavar="TOKEN",
        help=f"token after each document (default: the first there is of {', '.join(END_OF_TEXT)})",
    )
    parser.add_argument("--force", action="store_true", help="overwrite --out")
    args = parser.parse_args()
    try:
        run(args)
    except InputError as error:
        print(f"prepare_data.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prepare_data.py: {error.filename or args.out}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
