"""`train doctor` finds what breaks runs, each broken here for real, and says how to mend it."""
import ctypes
import json
import os
import resource
import subprocess
import time
import unittest

from e2e.common import ENVIRONMENT, ROOT, TRAIN, Folder, config, write_config

MPIRUN = ["mpirun", "--oversubscribe"]
PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14
MIB = 1 << 20


def doctor(*arguments, launch=(), expect=0, cwd=ROOT, environment=None, before=None):
    """The findings by check (a list each), from --json."""
    start = time.time()
    done = subprocess.run([*launch, TRAIN, "doctor", "--json", *map(str, arguments)], cwd=cwd,
                          capture_output=True, text=True, timeout=120, preexec_fn=before,
                          env=dict(ENVIRONMENT, **(environment or {})))
    seconds = time.time() - start
    if done.returncode != expect:
        raise AssertionError(f"exit code {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}")
    report = json.loads(done.stdout)
    assert report["ok"] == (expect == 0), report
    assert seconds < 60, seconds  # 20 s on a machine that nothing else uses
    checks = {}
    for row in report["checks"]:
        assert row["status"] in ("ok", "warning", "error"), row
        assert bool(row["mend"]) == (row["status"] != "ok"), row
        checks.setdefault(row["check"], []).append(row)
    return checks


def run_config(folder, **changes):
    return write_config(folder, config(output=str(folder / "out"), **changes))


class Doctor(unittest.TestCase):
    def only(self, checks, name, status):
        self.assertIn(status, [row["status"] for row in checks[name]], checks[name])
        return next(row for row in checks[name] if row["status"] == status)

    def test_alone_and_under_mpirun(self):
        alone = doctor()
        self.assertIn("alone: 1 rank", alone["launch"][0]["found"])
        with Folder() as folder:
            both = doctor("--config", run_config(folder),
                          launch=[*MPIRUN, "-np", "2", "--bind-to", "none"])
            self.assertIn("2 ranks on 1 node", both["launch"][0]["found"])
            for name in ("plan", "output folder", "write bandwidth", "MPI in the node", "program"):
                self.assertEqual(both[name][0]["status"], "ok", both[name])
            self.assertFalse((folder / "out").exists())  # nothing is left

    def test_table(self):
        done = subprocess.run([TRAIN, "doctor"], capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^(ok|warning) +cores +\d+ of \d+ cores")

    @unittest.skipIf(os.cpu_count() < 2, "needs two cores")
    def test_bound_to_one_core(self):
        row = self.only(doctor(launch=["taskset", "-c", "0"]), "cores", "warning")
        self.assertIn("bound to 1 of", row["found"])
        self.assertIn("--bind-to none", row["mend"])
        checks = doctor(launch=[*MPIRUN, "-np", "2", "--bind-to", "none", "taskset", "-c", "0"], expect=2)
        row = self.only(checks, "binding", "error")
        self.assertRegex(row["found"], r"ranks 0, 1 are all bound to the same 1 of")

    def test_memory_limit_below_the_plan(self):
        with Folder() as folder:
            path = run_config(folder, train={"batch": 4096, "micro_batch": 4096},
                              memory={"device": "8GiB", "host": "64MiB"}, recompute="off", offload="off")
            allowed = doctor("--config", path)
            self.assertEqual(allowed["memory limit"][0]["status"], "ok")
            limit = 1536 * MIB
            checks = doctor("--config", path, expect=2,
                            before=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            row = self.only(checks, "memory limit", "error")
            self.assertRegex(row["found"], r"the plan needs [\d.]+ GiB a rank, ulimit -v or -d allows 1.50 GiB")
            # A plan that the machine cannot hold at all.
            row = self.only(doctor("--config", path, "--set", "memory.device=4TiB",
                                   "--set", "train.batch=524288", "--set", "train.micro_batch=65536",
                                   "--set", "model.context=512", expect=2), "memory limit", "error")
            self.assertRegex(row["found"], r"the plan needs .* on this node")

    def test_does_not_fit(self):
        with Folder() as folder:
            row = self.only(doctor("--config", run_config(folder), "--set", "memory.device=64KiB", expect=2),
                            "plan", "error")
            self.assertIn("device", row["found"])

    def test_output_folder_is_not_shared(self):
        with Folder() as folder:
            path = run_config(folder)
            for name in ("a", "b"):
                (folder / name).mkdir()
            line = [TRAIN, "doctor", "--json", "--config", str(path), "--set", "output=relative"]
            done = subprocess.run(
                [*MPIRUN, "--bind-to", "none", "--wdir", str(folder / "a"), "-np", "1", *line, ":",
                 "--wdir", str(folder / "b"), "-np", "1", *line],
                capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
            self.assertEqual(done.returncode, 2, done.stderr)
            rows = [r for r in json.loads(done.stdout)["checks"] if r["check"] == "output folder"]
            self.assertEqual({r["status"] for r in rows}, {"error"})
            self.assertTrue(any("is not the folder that rank 0 has" in r["found"] for r in rows), rows)

    def test_output_folder_cannot_be_written(self):
        with Folder() as folder:
            (folder / "file").write_text("")
            checks = doctor("--config", run_config(folder), "--set", f"output={folder}/file/out", expect=2)
            self.assertIn("cannot be made", self.only(checks, "output folder", "error")["found"])

    @unittest.skipIf(os.geteuid() != 0, "drops a capability")
    def test_not_enough_locked_memory(self):
        def lower():
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

        with Folder() as folder:
            path = run_config(folder)
            cuda = ("--set", "hardware.backend=cuda", "--set", "hardware.profile=h100-80")
            # A root without CAP_IPC_LOCK in its bounding set loses it at exec.
            row = self.only(doctor("--config", path, *cuda, expect=2, before=lower), "locked memory", "error")
            self.assertIn("ulimit -l is 64.00 KiB", row["found"])
            self.assertIn("ulimit -l unlimited", row["mend"])
            row = doctor("--config", path, before=lower)["locked memory"][0]  # the CPU pins nothing
            self.assertEqual(row["status"], "ok")

    def test_a_rank_that_thinks_it_is_alone(self):
        for variables in ({"PMI_SIZE": "2", "PMI_RANK": "1"}, {"MV2_COMM_WORLD_SIZE": "4"},
                          {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}):
            row = self.only(doctor(environment=variables, expect=2), "launch", "error")
            self.assertIn("cannot find each other", row["found"])
            self.assertIn("srun --mpi=pmix", row["mend"])
            done = subprocess.run([TRAIN, "--config", "none.json"], env=dict(ENVIRONMENT, **variables),
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("cannot find each other", done.stderr)

    def test_open_files(self):
        checks = doctor(expect=2, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)))
        self.assertIn("ulimit -n 100", self.only(checks, "open files", "error")["found"])


if __name__ == "__main__":
    unittest.main()
