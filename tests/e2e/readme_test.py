"""The README tells the truth: every option it names exists, its key table matches the schema, its
scripts are there, and every `train` command it shows runs."""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

from e2e.common import ENVIRONMENT, ROOT, TRAIN, Folder, run

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.S)
COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()
            if line.strip() and not line.lstrip().startswith("#")]


def help_of(*arguments):
    return run(*arguments, "--help").stdout


class Readme(unittest.TestCase):
    def test_key_table(self):
        done = subprocess.run([sys.executable, ROOT / "scripts/config_reference.py", "--check",
                               ROOT / "README.md"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_scripts_exist(self):
        for name in set(re.findall(r"scripts/[\w./]+\.(?:sh|py)", README)):
            self.assertTrue((ROOT / name).is_file(), name)

    def test_options_exist(self):
        known = help_of()
        for sub in ("plan", "sample", "inspect", "bench", "calibrate"):
            known += help_of(sub)
        scripts = "".join((ROOT / name).read_text()
                          for name in set(re.findall(r"scripts/[\w./]+\.(?:sh|py)", README)))
        theirs = {"--bind-to", "--oversubscribe", "--hostfile", "--nodes", "--mpi"}  # mpirun, sbatch, srun
        for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) - theirs:
            self.assertTrue(option in known or f'"{option}"' in scripts or f"{option})" in scripts
                            or f"{option} " in scripts, option)

    def test_train_commands_run(self):
        """Each command line of `train` with its steps cut short, in a folder of its own."""
        lines = [c for c in COMMANDS if "build/train" in c]
        self.assertGreater(len(lines), 4)
        with Folder() as folder:
            for line in lines:
                with self.subTest(line=line):
                    words = shlex.split(line)
                    at = next(i for i, w in enumerate(words) if w.endswith("build/train"))
                    words[at] = TRAIN
                    sub = words[at + 1] if at + 1 < len(words) else ""
                    if sub == "bench":
                        continue  # minutes long; test_options_exist covers its options
                    if "--config" in words and sub != "plan":
                        words += ["--set", f"output={folder}/run", "--set", "train.steps=4", "--set",
                                  "train.eval_every=0", "--set", "optimizer.warmup=2", "--set",
                                  "train.batch=4", "--set", "train.micro_batch=2"]
                        if "--stop-at" in words:
                            words[words.index("--stop-at") + 1] = "2"
                    words = [re.sub(r"runs/\w+/checkpoints/step_\d+",
                                    lambda m: str(self.newest(folder)), w) for w in words]
                    done = subprocess.run(words, capture_output=True, text=True, errors="replace", cwd=ROOT,
                                          env=ENVIRONMENT, timeout=300)
                    expected = 75 if "--stop-at" in words else 0
                    self.assertEqual(done.returncode, expected, done.stdout + done.stderr)

    def test_sweep_commands_run(self):
        """Each as it stands, but on a copy of the sweep file with few trials and steps and a folder of its own."""
        lines = [c for c in COMMANDS if "scripts/sweep.py" in c]
        self.assertGreater(len(lines), 2)
        with Folder() as folder:
            for line in lines:
                with self.subTest(line=line):
                    words = shlex.split(line)
                    at = next(i for i, w in enumerate(words) if w.endswith(".json"))
                    sweep = json.loads((ROOT / words[at]).read_text())
                    sweep["output"] = str(folder / "sweep")
                    sweep["set"].update({"train.steps": 2, "train.eval_every": 2, "train.eval_batches": 1,
                                         "optimizer.warmup": 1})
                    sweep["grid"] = {key: values[:2 - i] for i, (key, values) in enumerate(sweep["grid"].items())}
                    words[at] = str(folder / "sweep.json")
                    (folder / "sweep.json").write_text(json.dumps(sweep))
                    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=300)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue((folder / "sweep" / "results.html").is_file())
            self.assertIn("2 of 2 trials finished", done.stdout)

    def newest(self, folder):
        found = sorted((folder / "run" / "checkpoints").glob("step_*"))
        self.assertTrue(found, "a command that makes a checkpoint must come first")
        return found[-1]


if __name__ == "__main__":
    unittest.main()
