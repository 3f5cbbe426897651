"""Versions on every node of a cluster of Ray, compared before a job trains there."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fairlen.console import log
from fairlen.integrations.verl.summary import NODE

PACKAGES = ("verl", "ray", "torch", "fairlen")
LIMIT = 120.0
"""Seconds that a node may take to answer."""


def find_versions() -> dict[str, str]:
    """Find the versions on this machine."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def check_versions() -> None:
    """Compare every node with this one, and log a line a node. Raises RuntimeError where one differs or does not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task, mine, faulty = ray.remote(find_versions), find_versions(), 0
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], False) for node in nodes]
    answers = [task.options(num_cpus=0, scheduling_strategy=place).remote() for place in places]
    ray.wait(answers, num_returns=len(answers), timeout=LIMIT)
    for node, answer in zip(nodes, answers, strict=True):
        fault = describe_fault(answer, mine)
        faulty += bool(fault)
        text = fault or ", ".join(f"{name} {number}" for name, number in mine.items())
        log(f"{NODE}{node['NodeManagerAddress']} ({node['NodeID'][:8]}): {text}")
    if faulty:
        raise RuntimeError(f"{faulty} of {len(nodes)} nodes cannot take part; nothing was started")


def describe_fault(answer: Any, mine: dict[str, str]) -> str:
    """Describe why a node cannot take part, with the remedy; empty where it can."""
    import ray

    try:
        theirs: dict[str, str] = ray.get(answer, timeout=0.1)  # pyright: ignore[reportAssignmentType]
    except Exception as error:  # fairlen cannot be imported there, or the node does not answer
        said = str(error).strip().split("\n")[-1]
        return f"{type(error).__name__}: {said}; pip install 'fairlen[verl]=={mine['fairlen']}' there"
    differ = [
        f"{name} {theirs[name]} where the job was started with {mine[name]}"
        for name in mine
        if theirs[name] != mine[name]
    ]
    return f"{'; '.join(differ)}: install the same on every node" if differ else ""
