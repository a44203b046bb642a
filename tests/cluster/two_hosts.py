"""Two hosts on this machine, for tests: network namespaces h1 and h2 with an sshd each, joined by a
switch in a third namespace, whose links can be cut. Needs root, iproute2, openssh-server and
openssh-client. Nothing outside the namespaces is touched but /etc/netns, and that is cleaned up."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from e2e.common import ENVIRONMENT, ROOT, TRAIN


def sbin(program):
    return shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


def missing():
    """Why there can be no two hosts here, or ''."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "sshd", "ssh", "ssh-keygen", "unshare"):
        if not sbin(program):
            return f"{program} is not installed (scripts/install.sh --tests)"
    name = f"sw{os.getpid() % 1000000}"
    done = subprocess.run([sbin("ip"), "netns", "add", name], capture_output=True, text=True)
    if done.returncode != 0:
        return "this kernel or container allows no network namespaces: " + done.stderr.strip()
    done = subprocess.run([sbin("ip"), "-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"],
                          capture_output=True, text=True)
    subprocess.run([sbin("ip"), "netns", "del", name], capture_output=True)
    return "" if done.returncode == 0 else "no virtual network links here: " + done.stderr.strip()


def run(*line):
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, line))}: {done.stderr.strip()}")
    return done.stdout


class TwoHosts:
    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway-hosts-"))
        tag = f"sw{os.getpid() % 1000000}"
        self.switch, self.names = f"{tag}s", [f"{tag}a", f"{tag}b"]
        self.daemons = []
        try:
            self.up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
            daemon.wait()
        for name in [self.switch, *self.names]:
            for pid in subprocess.run([sbin("ip"), "netns", "pids", name], capture_output=True, text=True).stdout.split():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass
            subprocess.run([sbin("ip"), "netns", "del", name], capture_output=True)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def up(self):
        ip, folder = sbin("ip"), self.folder
        run(ip, "netns", "add", self.switch)
        run(ip, "-n", self.switch, "link", "add", "switch", "type", "bridge")
        run(ip, "-n", self.switch, "link", "set", "switch", "up")
        for kind in ("key", "hostkey"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / kind)
        shutil.copy(folder / "key.pub", folder / "authorized_keys")
        # A home of its own: nothing of root's ssh settings is read or written.
        (folder / "sshd_config").write_text(
            f"Port 2222\nHostKey {folder}/hostkey\nAuthorizedKeysFile {folder}/authorized_keys\nPidFile none\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nStrictModes no\n")
        wrap = folder / "ssh"
        wrap.write_text(f"#!/bin/sh\nexec ssh -F none -p 2222 -i {folder}/key -o StrictHostKeyChecking=no "
                        "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \"$@\"\n")
        wrap.chmod(0o755)
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        for i, name in enumerate(self.names, 1):
            run(ip, "netns", "add", name)
            run(ip, "-n", self.switch, "link", "add", f"to_h{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run(ip, "-n", self.switch, "link", "set", f"to_h{i}", "master", "switch", "up")
            run(ip, "-n", name, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                run(ip, "-n", name, "link", "set", link, "up")
            etc = pathlib.Path("/etc/netns") / name
            etc.mkdir(parents=True)
            (etc / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 h1\n10.77.0.2 h2\n")
            self.daemons.append(subprocess.Popen(self.inside(i, sbin("sshd"), "-D", "-f", folder / "sshd_config", "-E",
                                                             folder / f"sshd{i}.log"), stdin=subprocess.DEVNULL))
        (folder / "hostfile").write_text("h1 slots=1\nh2 slots=1\n")
        deadline = time.monotonic() + 30
        while subprocess.run(self.inside(1, folder / "ssh", "h2", "true"), capture_output=True).returncode != 0:
            if time.monotonic() > deadline:
                raise AssertionError("no ssh from h1 to h2: " + (folder / "sshd2.log").read_text())
            time.sleep(0.2)

    def inside(self, host, *line):
        """The command line that runs `line` on a host (1 or 2)."""
        return [sbin("ip"), "netns", "exec", self.names[host - 1], "unshare", "--uts", "sh", "-c",
                f'hostname h{host}; exec "$@"', "sh", *map(str, line)]

    def mpirun(self, log, *arguments):
        """Starts `train` with a rank on each host, from h1. Into a file: an ssh that waits for a lost
        host would keep a pipe open."""
        line = self.inside(1, "mpirun", "-np", "2", "--hostfile", self.folder / "hostfile", "--bind-to", "none",
                           "--mca", "plm_rsh_agent", self.folder / "ssh", TRAIN, *arguments)
        with open(log, "wb") as file:
            return subprocess.Popen(line, env=ENVIRONMENT, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def link(self, host, state):
        """`down`: a host's cable is pulled; `up`: put back."""
        run(sbin("ip"), "-n", self.switch, "link", "set", f"to_h{host}", state)

    def ranks(self, host):
        """Processes of `train` on a host."""
        pids = subprocess.run([sbin("ip"), "netns", "pids", self.names[host - 1]], capture_output=True, text=True).stdout.split()
        found = []
        for pid in pids:
            try:
                if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "train":
                    found.append(int(pid))
            except OSError:
                pass
        return found
