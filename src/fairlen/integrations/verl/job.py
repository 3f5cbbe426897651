"""The first process of a job: verl's own main, with versions compared before and deaths noticed while it runs.

The launcher starts it as `python -m fairlen.integrations.verl.job SETTINGS`. verl waits without end for a process that has died;
Ray's control store (GCS) knows of deaths and is asked every second.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import hydra.core.utils
import ray
from omegaconf import OmegaConf
from ray._private.state import actors
from ray.core.generated.common_pb2 import ActorDiedErrorContext  # pyright: ignore[reportAttributeAccessIssue]  made from its .proto
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer import main_ppo

from fairlen.console import log
from fairlen.files.folders import find_versions
from fairlen.integrations.verl.session import DEATH, DIED, NODE
from fairlen.secrets import hide_all

PACKAGES = ("verl", "ray", "torch", "fairlen")
ANSWER_LIMIT = 120.0
"""Seconds that a node may take to answer."""
INTERVAL = 1.0
"""Seconds between two looks."""
ENDED = threading.Event()
"""Set when verl's main has come to its end: a Ray that it has started ends with this process, which is no death."""
UNEXPECTED = ("WORKER_DIED", "NODE_DIED")
"""Reasons of Ray's for the end of an actor that nobody has asked for."""


def check_versions() -> None:
    """Compare every node with this one, and log a line a node. Raises RuntimeError where one differs or does not answer."""
    task, mine, faulty = ray.remote(find_versions), find_versions(PACKAGES), 0
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], False) for node in nodes]
    answers = [task.options(num_cpus=0, scheduling_strategy=place).remote(PACKAGES) for place in places]
    ray.wait(answers, num_returns=len(answers), timeout=ANSWER_LIMIT)
    for node, answer in zip(nodes, answers, strict=True):
        fault = describe_fault(answer, mine)
        faulty += bool(fault)
        text = fault or ", ".join(f"{name} {number}" for name, number in mine.items())
        log(f"{NODE}{node['NodeManagerAddress']} ({node['NodeID'][:8]}): {text}")
    if faulty:
        raise RuntimeError(f"{faulty} of {len(nodes)} nodes cannot take part; nothing was started")


def describe_fault(answer: Any, mine: dict[str, str]) -> str:
    """Describe why a node cannot take part, with the remedy; empty where it can."""
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


def watch_deaths() -> None:
    """Look until there is a death, and end the job with it; where Ray's control store dies, Ray ends this process itself."""
    while not ENDED.wait(INTERVAL):
        death = find_death()
        if death and not ENDED.is_set():
            log(f"{DEATH}{death}")
            os._exit(DIED)  # Ray ends what belongs to its job on every machine


def find_death() -> str:
    """Return what has died first of this job's processes, on any machine; nothing where all are well."""
    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    dead = [one for one in actors(job_id=job).values() if is_unexpected(one)]
    return describe_death(min(dead, key=lambda one: one["EndTime"] or one["Timestamp"])) if dead else ""


def is_unexpected(actor: Mapping[str, Any]) -> bool:
    context = actor["DeathCause"].actor_died_error_context
    reason = ActorDiedErrorContext.Reason.Name(context.reason)
    return actor["State"] in ("DEAD", "RESTARTING") and reason in UNEXPECTED


def describe_death(actor: Mapping[str, Any]) -> str:
    name = f" {actor['Name']}" if actor["Name"] else ""
    why = actor["DeathCause"].actor_died_error_context.error_message.split(". Some common causes")[0].replace("\n", " ")
    return f"{actor['ActorClassName']}{name} (process {actor['Pid']} on {actor['Address']['IPAddress']}): {why}"


def main() -> None:
    """Run verl's main, with versions compared as soon as it has started Ray, and without secrets in what hydra saves."""
    start, save = ray.init, hydra.core.utils._save_config

    def start_watched(**given: Any) -> None:
        start(**given)
        check_versions()
        threading.Thread(target=watch_deaths, daemon=True).start()

    def save_hidden(config: Any, *place: Any) -> None:
        hidden: Any = OmegaConf.create(hide_all(OmegaConf.to_container(config)))
        save(hidden, *place)

    ray.init, hydra.core.utils._save_config = start_watched, save_hidden
    try:
        main_ppo.main()
    except (Exception, SystemExit):
        if ray.is_initialized() and (death := find_death()):
            log(f"{DEATH}{death}")  # verl has noticed it first
        raise
    finally:
        ENDED.set()


if __name__ == "__main__":
    main()
