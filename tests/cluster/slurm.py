"""A real two-node Slurm on this machine, for tests: slurmctld, two slurmd and munged of its own, in a
throw-away folder and on free ports, without systemd. Needs root and Debian's slurm-wlm and munge."""
import os
import pathlib
import pwd
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time

from e2e.common import ENVIRONMENT, ROOT, TRAIN

CONFIG = """\
ClusterName=spillway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=2,batch_sched_delay=0,sched_min_interval=0,preempt_send_user_signal
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SwitchType=switch/none
KillWait=10
MinJobAge=300
SlurmdTimeout=300
JobRequeue=1
{requeue}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MailProg=/bin/true
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=2 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=1:00:00 State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=1:00:00 State=UP PriorityTier=9 PreemptMode=OFF
"""


def missing():
    """Why there can be no cluster here, or ''."""
    if os.getuid() != 0:
        return "a Slurm cluster of its own needs root"
    for program in ("slurmctld", "slurmd", "munged", "sbatch"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            return f"{program} is not installed (scripts/install.sh --tests)"
    return ""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    """`with Cluster() as cluster`. With requeue_exit=None jobs come back through scontrol alone."""

    def __init__(self, requeue_exit=75):
        self.requeue_exit, self.daemons = requeue_exit, []
        self.pending = {}  # job → since when it waits, with nothing left of its earlier start

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway-slurm-"))
        self.folder.chmod(0o755)
        try:
            self.up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], env=getattr(self, "env", None), capture_output=True)
        for name in reversed(self.daemons):
            name.terminate()
        for name in self.daemons:
            try:
                name.wait(15)
            except subprocess.TimeoutExpired:
                name.kill()
                name.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *line, **options):
        with open(self.folder / f"daemon{len(self.daemons)}.log", "wb") as log:
            self.daemons.append(subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options))

    def up(self):
        folder = self.folder
        for name in ("state", "n1", "n2", "tmp-n1", "tmp-n2", "munge"):
            (folder / name).mkdir()
        owner = pwd.getpwnam("munge")
        key = folder / "munge" / "key"
        key.write_bytes(random.SystemRandom().randbytes(128))
        for path, mode in ((key, 0o400), (folder / "munge", 0o755)):
            os.chown(path, owner.pw_uid, owner.pw_gid)
            path.chmod(mode)
        m = f"{folder}/munge"
        self.start("/usr/sbin/munged", "--foreground", f"--key-file={m}/key", f"--socket={m}/socket", f"--pid-file={m}/pid",
                   f"--log-file={m}/log", f"--seed-file={m}/seed", user="munge", group="munge", extra_groups=[])
        self.wait_for(lambda: (folder / "munge" / "socket").exists(), "munged's socket")
        port, port1, port2 = free_ports(3)
        requeue = f"RequeueExit={self.requeue_exit}" if self.requeue_exit else ""
        (folder / "slurm.conf").write_text(CONFIG.format(host=socket.gethostname().split(".")[0], folder=folder, port=port,
                                                         port1=port1, port2=port2, requeue=requeue))
        # Ranks on one host that Slurm takes for two must not look for each other's shared memory.
        self.env = dict(ENVIRONMENT, SLURM_CONF=str(folder / "slurm.conf"), OMPI_MCA_btl="tcp,self", SPILLWAY_TRAIN=TRAIN,
                        PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        self.start("slurmctld", "-D", "-i", env=self.env)
        for node in ("n1", "n2"):
            self.start("slurmd", "-D", "-N", node, env=self.env)
        self.wait_for(lambda: self.call("sinfo", "-h", "-p", "main", "-o", "%D %T").split() == ["2", "idle"], "two idle nodes")

    def wait_for(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in self.folder.glob("*.log"))
                raise AssertionError(f"no {what} after {seconds} s\n{logs}")
            time.sleep(0.1)

    def call(self, *line, check=False):
        done = subprocess.run(line, env=self.env, cwd=ROOT, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise AssertionError(f"{line}: {done.stderr}")
        return done.stdout

    def submit(self, *arguments, env=()):
        """sbatch; returns the job's number."""
        done = subprocess.run(["sbatch", "--parsable", *map(str, arguments)], env={**self.env, **dict(env)}, cwd=ROOT,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout.strip()

    def job(self, number):
        """What scontrol knows about a job or array task: {"JobState": "RUNNING", …}."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.call("scontrol", "show", "job", "--oneliner", str(number))))

    def hurry(self):
        """Slurm lets a requeued job wait for two minutes; a test waits for the end of what the earlier
        start left, which would else be taken for the end of the next one."""
        steps = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True).stdout
        for line in self.call("squeue", "-h", "-r", "-t", "PENDING", "-o", "%A %i %r").splitlines():
            job, number, reason = line.split(maxsplit=2)
            if "BeginTime" not in reason or f"slurmstepd: [{job}." in steps:
                self.pending.pop(job, None)
            elif time.monotonic() - self.pending.setdefault(job, time.monotonic()) > 2:
                self.call("scontrol", "update", f"jobid={number}", "StartTime=now")

    def wait_state(self, number, *states, seconds=180):
        def there():
            self.hurry()
            found = self.job(number).get("JobState")
            # A job on its way back into the queue shows states of an end too, but is in the queue.
            ending = found not in ("PENDING", "RUNNING")
            return found in states and not (ending and self.call("squeue", "-h", "-j", str(number)))
        self.wait_for(there, f"job {number} in {states}, found {self.job(number).get('JobState')}", seconds)
        return self.job(number)
