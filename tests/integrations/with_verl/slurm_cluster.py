"""A cluster of Slurm on this machine, from Debian's packages: two nodes, a controller and munge, which end with the block."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fairlen.integrations.verl.cluster import find_port
from fairlen.integrations.verl.watch import ending

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "srun")
START_LIMIT = 60.0
"""Seconds that Slurm may take to be there."""
SYSTEM = "/usr/sbin:/sbin"
"""Folders of the programs that Debian keeps from users' PATH."""
CONFIGURATION = """
ClusterName=fairlen
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def running_slurm() -> Iterator[dict[str, str]]:
    """Yields the variables with which Slurm's commands find the cluster; needs root, as Slurm's daemons do."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: a socket's path has at most 107 characters
    folder.chmod(0o711)  # munge wants its socket within everybody's reach
    variables = os.environ | {"PATH": f"{os.environ['PATH']}:{SYSTEM}", "SLURM_CONF": str(folder / "slurm.conf")}
    for name in PROGRAMS:
        if not shutil.which(name, path=variables["PATH"]):
            raise RuntimeError(f"{name} is missing: make slurm, or apt-get install munge slurmctld slurmd slurm-client")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("state", "spool-n1", "spool-n2"):
            (folder / name).mkdir()
        write_configuration(folder)

        def start(*command: str) -> None:
            log = stack.enter_context((folder / f"{command[0]}.log").open("a"))
            stack.enter_context(ending(subprocess.Popen(command, env=variables, stdout=log, stderr=log, text=True)))

        munge = [
            f"--{name}={folder}/munge.{name.partition('-')[0]}"
            for name in ("key-file", "pid-file", "log-file", "seed-file")
        ]
        start("munged", "--foreground", *munge, f"--socket={folder}/munge.socket")
        wait_for(lambda: (folder / "munge.socket").exists(), folder)
        start("slurmctld", "-D")
        for node in ("n1", "n2"):
            start("slurmd", "-D", "-N", node)
        wait_for(lambda: count_idle(variables) == 2, folder)
        yield variables


def write_configuration(folder: Path) -> None:
    """slurm.conf, and munge's key."""
    user = getpass.getuser()
    ports = {name: find_port() for name in ("controller", "first", "second")}
    text = CONFIGURATION.format(folder=folder, host=socket.gethostname(), user=user, **ports)
    (folder / "slurm.conf").write_text(text)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)


def count_idle(variables: Mapping[str, str]) -> int:
    """Nodes that wait for a job."""
    found = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"], env=variables, capture_output=True, text=True
    )
    return len(found.stdout.split())


def wait_for(is_there: Callable[[], bool], folder: Path) -> None:
    """Raises RuntimeError, with what was logged, where it takes too long."""
    until = time.monotonic() + START_LIMIT
    while not is_there():
        if time.monotonic() > until:
            said = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-800:]}" for log in folder.glob("*.log"))
            raise RuntimeError(f"Slurm did not start: {said}")
        time.sleep(0.2)
