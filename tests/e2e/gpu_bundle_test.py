"""scripts/gpu_bundle.sh: the bundle trains in a root folder that holds nothing else than the C
library (and, of a build with CUDA, the toolkit's libraries); what is missing is named."""
import os
import re
import shutil
import subprocess
import unittest

from e2e.common import ENVIRONMENT, ROOT, TRAIN, Folder

BUNDLE = ROOT / "scripts" / "gpu_bundle.sh"
FROM_THE_MACHINE = r"/(ld-linux|libc\.so|libm\.so|libpthread|libdl\.so|librt\.so|libcuda|libcu|libnv|libnccl)"


def bundle(*arguments, expect=0):
    done = subprocess.run([BUNDLE, *arguments], capture_output=True, text=True, timeout=240, env=ENVIRONMENT)
    if done.returncode != expect:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


class GpuBundle(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.path = self.folder.__enter__()
        self.build = self.path / "build"
        self.build.mkdir()
        os.symlink(TRAIN, self.build / "train")

    def tearDown(self):
        self.folder.__exit__()

    def test_what_is_missing_is_named(self):
        self.assertIn("two folders", bundle(self.build, expect=2))
        self.assertIn("ops_cuda_test is missing", bundle(self.build, self.path / "new", expect=2))
        os.symlink(TRAIN, self.build / "ops_cuda_test")
        self.assertIn("exists already", bundle(self.build, self.path, expect=2))
        self.assertFalse((self.path / "new").exists())

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("chroot", path="/usr/sbin:/usr/bin"),
                         "a root folder of its own needs root")
    def test_it_trains_in_an_empty_root(self):
        os.symlink(TRAIN, self.build / "ops_cuda_test")  # which needs a GPU; its place is what counts
        root = self.path / "root"
        (root / "tmp").mkdir(parents=True)
        bundle(self.build, root / "bundle")
        size = sum(f.stat().st_size for f in (root / "bundle").rglob("*") if f.is_file())
        self.assertLessEqual(size, 60 << 20)
        subprocess.run([root / "bundle/scripts/gpu_unpack.sh", root / "bundle"], check=True)
        listing = subprocess.run(["ldd", TRAIN], capture_output=True, text=True, check=True).stdout
        machine = {line for line in re.findall(r"(/\S+)", listing) if re.search(FROM_THE_MACHINE, line)}
        for library in machine | {"/lib64/ld-linux-x86-64.so.2"}:
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(os.path.realpath(library), target)
            except OSError:  # another file system
                shutil.copy(library, target)
        (root / "dev" / "shm").mkdir(parents=True)
        subprocess.run(["mknod", root / "dev" / "null", "c", "1", "3"], check=True)
        environment = {"SPILLWAY_HOME": "/bundle", "LD_LIBRARY_PATH": "/bundle/lib",
                       "OMPI_MCA_mca_base_component_path": "/bundle/openmpi",
                       "OMPI_MCA_ess_singleton_isolated": "1", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(
            ["chroot", root, "/bundle/train", "--config", "/bundle/configs/runs/quickstart.json", "--set",
             "output=/tmp/out", "--set", 'data.train=["/bundle/data/austen.txt"]', "--set", "train.steps=2",
             "--set", "optimizer.warmup=1", "--set", "train.eval_every=0"],
            capture_output=True, text=True, timeout=120, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len((root / "tmp" / "out" / "metrics.jsonl").read_text().splitlines()), 2)


if __name__ == "__main__":
    unittest.main()
