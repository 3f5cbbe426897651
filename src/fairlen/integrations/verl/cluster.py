"""A cluster of Ray on this machine, for a rehearsal of several nodes: a raylet each, in processes that end with it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlen.files.folders import open_to_append
from fairlen.integrations.verl.watch import ending

HOST = "127.0.0.1"
JOIN_LIMIT = 90.0
"""Seconds that Ray may take to start on a node."""
PORTS = (
    "node-manager",
    "object-manager",
    "runtime-env-agent",
    "dashboard-agent-grpc",
    "dashboard-agent-listen",
    "metrics-export",
)
"""What nodes of one machine must not share."""
FAST = {
    "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000", "RAY_health_check_failure_threshold": "3",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # else no second node joins 127.0.0.1
}  # fmt: skip
"""A node that does not answer is given up after some seconds."""


@contextlib.contextmanager
def starting_cluster(nodes: int, devices: int, scratch: Path, env: Mapping[str, str]) -> Iterator[Cluster]:
    """Yield a cluster of so many nodes, each with so many devices; its processes end with the block."""
    address = f"{HOST}:{find_port()}"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    cluster = Cluster(address, dict(env) | FAST | token | {"RAY_ADDRESS": address})
    with contextlib.ExitStack() as stack:
        for number in range(nodes):
            stack.enter_context(ending(cluster.start_node(number, devices, scratch)))
            cluster.check_joined(number, scratch)
        yield cluster


class Cluster:
    """Nodes of one machine, and where they are found."""

    def __init__(self, address: str, variables: dict[str, str]) -> None:
        self.address, self.variables = address, variables
        self.nodes: list[subprocess.Popen[str]] = []

    def start_node(self, number: int, devices: int, scratch: Path) -> subprocess.Popen[str]:
        """Start a node, the first one with Ray's control store."""
        role = [
            "--head",
            f"--port={self.address.rpartition(':')[2]}",
            f"--temp-dir={scratch}",
            "--include-dashboard=false",
        ]
        ports = [f"--{name}-port={find_port()}" for name in PORTS]
        command = [
            sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block",
            *(role if number == 0 else [f"--address={self.address}"]), *ports, f"--node-ip-address={HOST}",
            "--min-worker-port=0", "--max-worker-port=0", "--num-cpus=16", f"--num-gpus={devices}",
            "--object-store-memory=250000000", "--disable-usage-stats",
        ]  # fmt: skip
        log = scratch / f"node-{number}.log"
        with open_to_append(log) as file:
            node = subprocess.Popen(
                command, env=self.variables, stdout=file, stderr=file, text=True, start_new_session=True
            )
        self.nodes.append(node)
        return node

    def check_joined(self, number: int, scratch: Path) -> None:
        """Wait for a node. Raises RuntimeError where it does not come up."""
        node, log = self.nodes[number], scratch / f"node-{number}.log"
        until = time.monotonic() + JOIN_LIMIT
        while "Ray runtime started" not in (said := log.read_text(errors="replace")):
            if node.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"Ray did not start on node {number} of the rehearsal: {' '.join(said.split())[-600:]}"
                )
            time.sleep(0.2)

    @property
    def dead(self) -> list[int]:
        """Nodes that have ended."""
        return [number for number, node in enumerate(self.nodes) if node.poll() is not None]

    def find_death(self) -> str:
        """Return which node has ended; nothing where all are there."""
        return f"the raylet of node {self.dead[0]} of the rehearsal" if self.dead else ""


def find_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]
