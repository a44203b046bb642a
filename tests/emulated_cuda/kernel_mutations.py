"""Copies of kernels with one planted bug each, which the checker must find.

    kernel_mutations.py --list             one line a mutation: name;source
    kernel_mutations.py --write NAME DIR   the patched file, under DIR/NAME/kernels/cuda

A patch keeps the number of lines, so that reports name lines of the real file.
"""

import dataclasses
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels/cuda"


@dataclasses.dataclass
class Mutation:
    name: str
    op: str       # whose test launches the kernel
    cases: str    # cases of that test: part of their labels
    source: str   # compiled anew
    found: str    # occurs once in `file`
    planted: str
    kinds: tuple  # of reports, any of which finds it
    file: str = ""  # the patched one, if not `source`

    def __post_init__(self):
        self.file = self.file or self.source


BARRIER = "  __syncthreads();\n"
RACE = ("race", "uninitialised")  # the loser may be the first access of all

MUTATIONS = [
    Mutation("sum_runs_no_barrier", "bias_grad", "T33 n17", "row_runs.cu", BARRIER, "\n", RACE),
    Mutation("sum_runs_one_row_too_far", "bias_grad", "T33 n17", "row_runs.cu",
             "w < kWarps; ++w) sum +=", "w <= kWarps; ++w) sum +=", ("uninitialised", "out of bounds")),
    Mutation("sum_runs_column_too_far", "bias_grad", "T33 n17", "row_runs.cu",
             "if (warp > 0 || column >= width)", "if (warp > 0 || column > width)",
             ("out of bounds",)),
    Mutation("ordered_sum_no_barrier", "norm_finish", "odd", "norm.cu",
             "    __syncthreads();  // the tile is there", "    // the tile is there", RACE),
    Mutation("ordered_sum_tile_reused_early", "norm_finish", "odd", "norm.cu",
             "tiles[1 - slot][i] =", "tiles[slot][i] =", RACE),
    Mutation("ordered_sum_one_value_too_far", "norm_finish", "odd", "norm.cu",
             "if (first + kTile + i < count)", "if (first + kTile + i <= count)",
             ("out of bounds",)),
    Mutation("softmax_no_barrier", "head_loss", "", "head_loss.cu", BARRIER, "\n", RACE),
    Mutation("digest_no_barrier", "digest", "", "digest.cu", BARRIER, "\n", RACE),
    Mutation("block_sum_no_barrier", "rmsnorm", "T17 h1000", "rmsnorm.cu", BARRIER, "\n", RACE,
             "reduce.cuh"),
    Mutation("norm_grad_shared_sums_reused_early", "rmsnorm_grad", "T17 h1000", "rmsnorm.cu",
             "block_sum(sum_gx, sums_gx[turn])", "block_sum(sum_gx, sums_gx[0])", RACE,
             "norm.cuh"),
    Mutation("rope_grad_no_barrier", "rope_grad", "", "rope.cu", BARRIER, "\n", RACE),
    Mutation("attention_tile_not_awaited", "attention", "C129", "attention.cu",
             "cp_async_wait<0>();", "cp_async_wait<1>();", ("unfinished cp.async",)),
    Mutation("attention_no_barrier", "attention", "C129", "attention.cu",
             "    __syncthreads();  // this stage", "    // this stage", RACE),
    Mutation("attention_stage_reused_early", "attention", "C129", "attention.cu",
             "load(stage ^ 1, key + kCols)", "load(stage, key + kCols)",
             ("race", "unfinished cp.async")),
    Mutation("attention_store_no_syncwarp", "attention", "C65", "attention.cu",
             "  __syncwarp();\n", "\n", RACE, "attention_tile.cuh"),
    Mutation("attention_scores_no_syncwarp", "attention_grad", "C65", "attention_grad.cu",
             "    __syncwarp();  // the scores", "    // the scores", RACE,
             "attention_simt.cuh"),
    Mutation("adamw_undeclared_parameter", "adamw", "c5 bf16", "adamw.cu",
             "if (i < live) put(a.param", "put(a.param", ("out of bounds",)),
    Mutation("embedding_grad_order_too_far", "embedding_grad", "", "embedding.cu",
             "while (inside + step < rows", "while (inside + step <= rows", ("out of bounds",)),
    Mutation("embedding_grad_segments_collide", "embedding_grad", "", "embedding.cu",
             "if (first > 0 && a.tokens[a.order[first - 1]] == token) return;", "", ("race",)),
]


def patched(mutation):
    """The file's new text, or None where the patch does not apply."""
    text = (KERNELS / mutation.file).read_text()
    if text.count(mutation.found) != 1:
        return None
    new = text.replace(mutation.found, mutation.planted)
    return new if new.count("\n") == text.count("\n") else None


def main(arguments):
    if arguments == ["--list"]:
        for m in MUTATIONS:
            print(f"{m.name};{m.source}")
        return 0
    if len(arguments) == 3 and arguments[0] == "--write":
        mutation = next(m for m in MUTATIONS if m.name == arguments[1])
        folder = pathlib.Path(arguments[2]) / mutation.name / "kernels/cuda"
        folder.mkdir(parents=True, exist_ok=True)
        # One that does not apply is built as it is; the test tells.
        for file in {mutation.source, mutation.file}:
            text = (KERNELS / file).read_text()
            if file == mutation.file:
                text = patched(mutation) or text
            (folder / file).write_text(text)
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
