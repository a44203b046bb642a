"""What offload buys, as tests/golden/claims.txt says it, comes out of this planner.

`train bench claims > tests/golden/claims.txt` writes the file. Plans may differ a little where other
processors round logarithms otherwise: figures may, by no more than the tolerances here."""
import os
import pathlib
import subprocess
import unittest

TRAIN = os.environ["SPILLWAY_TRAIN"]
COMMITTED = pathlib.Path(__file__).parents[1] / "golden" / "claims.txt"
LONG = os.environ.get("SPILLWAY_LONG") == "1"


def tables(text):
    """{heading: {(tokens, link, device): words of the row}}"""
    found = {}
    for block in text.strip().split("\n\n"):
        heading, columns, *rows = block.splitlines()
        found[heading] = {tuple(r.split()[:3]): r.split()[3:] for r in rows}
        assert columns.split()[0] == "tokens", columns
    return found


def seconds(words):
    """(step, bound, without offload or None); None where nothing fits."""
    if words[:2] == ["no", "plan"]:
        return None
    plain = None if words[-1] == "-" else float(words[-3])
    return float(words[0]), float(words[2]), plain


class Claims(unittest.TestCase):
    def test_the_committed_tables_come_out_again(self):
        committed = tables(COMMITTED.read_text())
        self.assertEqual(len(committed), 2)
        # All take a quarter of an hour.
        only = [] if LONG else ["--only", "64k 25GB/s"]
        done = subprocess.run([TRAIN, "bench", "claims", *only], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        again = tables(done.stdout)
        self.assertEqual(len(again), 2 if LONG else 1)
        for heading, rows in again.items():
            self.assertEqual(len(rows), len(committed[heading]) if LONG else 4)
            for row, words in rows.items():
                with self.subTest(heading=heading, row=row):
                    now, then = seconds(words), seconds(committed[heading][row])
                    self.assertEqual(now is None, then is None)
                    if now is None:
                        continue
                    self.assertEqual(now[2] is None, then[2] is None)
                    for a, b, much in zip(now, then, (0.02, 0.01, 0.02)):
                        if a is not None:
                            self.assertLess(abs(a / b - 1), much, (now, then))

    def test_what_they_say(self):
        """Bounds hold, and more memory is hardly slower: the search is not exhaustive."""
        for heading, rows in tables(COMMITTED.read_text()).items():
            for row, words in rows.items():
                found = seconds(words)
                if found is not None:
                    self.assertLessEqual(found[1], found[0], (heading, row))
            for (tokens, link, device), words in rows.items():
                for (t, l, other), more in rows.items():
                    if (t, l) == (tokens, link) and float(other[:-2]) > float(device[:-2]):
                        a, b = seconds(words), seconds(more)
                        if a is not None and b is not None:
                            self.assertLessEqual(b[0], 1.03 * a[0], (heading, tokens, link, device, other))


if __name__ == "__main__":
    unittest.main()
