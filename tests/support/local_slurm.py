"""A real Slurm in a folder: a controller, one node of two processors, and munge, all on free ports
and a socket of their own. Partition `high` pre-empts jobs of `main`, and Slurm queues them again.
There is no accounting, so that `sacct` has nothing to say."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.ports import free_ports

NODE = "node"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # where Debian has the daemons
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its credential has expired, two minutes by default. It must be longer
# than its first start takes to end: a node with both is drained (Duplicate jobid).
AuthInfo=socket={folder}/munge/socket,cred_expire=20
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=5,bf_interval=5
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes={node} MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing():
    """The programs that are not installed."""
    return [program for program in PROGRAMS if not shutil.which(program, path=PATH)]


@contextmanager
def running_slurm(folder: Path):
    """The environment in which commands reach the cluster, which runs in the block."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    values = {"host": socket.gethostname().partition(".")[0], "folder": folder, "node": NODE}
    values["user"] = pwd.getpwuid(os.getuid()).pw_name
    values["controller_port"], values["node_port"] = free_ports(2)
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(**values))
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(configuration)}
    munge = {"key-file": key, "socket": folder / "munge" / "socket"}
    munge |= {f"{name}-file": folder / "munge" / name for name in ("log", "pid", "seed")}
    options = [f"--{name}={path}" for name, path in munge.items()]
    with ExitStack() as stack:
        for command in (
            ["munged", "--foreground", "--force", *options],
            ["slurmctld", "-D", "-f", configuration],
            ["slurmd", "-D", "-N", NODE, "-f", configuration],
        ):
            stack.enter_context(daemon(command, environment, folder))
            time.sleep(1)
        until = time.monotonic() + 60
        while "idle" not in said(environment, "sinfo", "-h", "-o", "%T"):
            if time.monotonic() > until:
                logs = "".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
                raise TimeoutError(f"Slurm has not started:\n{logs}")
            time.sleep(0.5)
        try:
            yield environment
        finally:
            said(environment, "scancel", f"--user={values['user']}")
            until = time.monotonic() + 30
            while said(environment, "squeue", "-h") and time.monotonic() < until:
                time.sleep(0.5)


def said(environment, *command):
    """What a program of Slurm prints, errors included."""
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout


@contextmanager
def daemon(command, environment, folder):
    with (folder / f"{command[0]}.out").open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
