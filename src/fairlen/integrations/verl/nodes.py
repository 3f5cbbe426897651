"""Every node of a cluster before a job trains on it: versions, plug-in, model, data, reward function; one line a node."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairlen.console import log
from fairlen.integrations.verl.summary import NODE

PACKAGES = ("verl", "ray", "torch", "fairlen")
LIMIT = 120.0
"""Seconds that a node may take to answer."""
WAIT = 30.0
"""Seconds that nodes may take to join, where a job may run on fewer."""
MIN_NODES = "FAIRLEN_MIN_NODES"
"""Variable of the job's first process: on how many nodes it may run, where not all are there."""


@dataclass(frozen=True)
class Needs:
    """What a job reads on every node."""

    trainer: str
    model: str
    files: tuple[str, ...]
    reward: str
    """File with the reward function, empty where there is none of its own; pkg:// names a module."""

    @staticmethod
    def of(config: Any) -> Needs:
        """Return the needs of a job of verl's."""
        paths = (config.data.get(name) or () for name in ("train_files", "val_files"))
        files = tuple(str(path) for found in paths for path in ((found,) if isinstance(found, str) else found))
        reward = (config.get("reward") or {}).get("custom_reward_function") or {}
        trainer, model = config.trainer.v1.trainer_mode, config.actor_rollout_ref.model.path
        return Needs(str(trainer), str(model), files, str(reward.get("path") or ""))


def describe_versions() -> dict[str, str]:
    """Return the versions of this machine."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def find_faults(needs: Needs) -> list[str]:
    """Return what a job lacks on this machine, each with its remedy."""
    return [*find_plugin_faults(needs.trainer), *find_file_faults(needs), *find_reward_faults(needs.reward)]


def find_plugin_faults(trainer: str) -> list[str]:
    """Return why verl does not know the trainer on this machine; nothing where it does."""
    remedy = f"pip install 'fairlen[verl]=={describe_versions()['fairlen']}' there"
    try:
        from verl.trainer.ppo.v1 import get_trainer_cls

        get_trainer_cls(trainer)
    except Exception as error:
        return [f"the plug-in is not registered ({type(error).__name__}: {error}); {remedy}"]
    return []


def find_file_faults(needs: Needs) -> list[str]:
    """Return which files cannot be read on this machine; addresses (hdfs://) and hub ids are verl's to fetch."""
    faults = []
    if os.path.isabs(needs.model) or os.path.exists(needs.model):
        folder = Path(needs.model)
        if not os.access(folder / "config.json", os.R_OK):
            faults.append(f"model {folder}: no config.json that can be read; put it on storage that every node has")
    for path in needs.files:
        if "://" not in path and not os.access(os.path.expanduser(path), os.R_OK):
            faults.append(f"data {path}: cannot be read; put it (and --out) on storage that every node has")
    return faults


def find_reward_faults(path: str) -> list[str]:
    """Return why the reward function's file cannot be imported on this machine; nothing where it can."""
    try:
        if path.startswith("pkg://"):
            importlib.import_module(path.removeprefix("pkg://"))
        elif path:
            found = importlib.util.spec_from_file_location("fairlen_checked_reward", path)
            assert found and found.loader, "no file of Python's"
            found.loader.exec_module(importlib.util.module_from_spec(found))
    except Exception as error:
        return [f"reward function {path}: {type(error).__name__}: {error}; install or copy there what it needs"]
    return []


def look(needs: Needs) -> tuple[dict[str, str], list[str]]:
    """Return the versions of this machine and what a job lacks there."""
    return describe_versions(), find_faults(needs)


def check_nodes(config: Any) -> None:
    """Ask every node of the cluster and print a line on each; a job on fewer nodes than it named is told so many.

    Raises RuntimeError, with the remedy, where a node lacks something or too few are there.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    settle_nodes(config)
    task, needs, mine = ray.remote(look), Needs.of(config), describe_versions()
    asked = {
        node["NodeID"]: (
            node,
            task.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], False)).remote(
                needs
            ),
        )
        for node in live_nodes()
    }
    ray.wait([answer for _, answer in asked.values()], num_returns=len(asked), timeout=LIMIT)
    faulty = 0
    for name, (node, answer) in asked.items():
        try:
            versions, faults = ray.get(answer, timeout=0.1)
        except Exception as error:  # what could not be imported there, or a node that does not answer
            said = str(error).strip().split("\n")[-1]
            versions, faults = (
                {},
                [f"{type(error).__name__}: {said}; pip install 'fairlen[verl]=={mine['fairlen']}' there"],
            )
        faults += [
            f"{key} {found} where the job was started with {mine[key]}: install the same on every node"
            for key, found in versions.items()
            if found != mine[key]
        ]
        faulty += bool(faults)
        log(f"{NODE}{node['NodeManagerAddress']} ({name[:8]}): {describe(node, versions, faults)}")
    if faulty:
        raise RuntimeError(f"{faulty} of {len(asked)} nodes cannot take part; nothing was started")


def describe(node: Any, versions: dict[str, str], faults: Sequence[str]) -> str:
    """Return a node's line."""
    if faults:
        return "; ".join(faults)
    found = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{node['Resources'].get('GPU', 0):g} devices, {found}; plug-in, model, data and reward function are there"


def live_nodes() -> list[Any]:
    """Return Ray's nodes that are up."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def settle_nodes(config: Any) -> None:
    """Wait for the nodes that a job names; where fewer come and it may run on them, set that many.

    Raises RuntimeError where there are too few.
    """
    from omegaconf import open_dict

    wanted, devices = int(config.trainer.nnodes), float(config.trainer.n_gpus_per_node)
    least = int(os.environ.get(MIN_NODES, wanted))
    since = time.monotonic()
    while True:
        there = sum(node["Resources"].get("GPU", 0) >= devices for node in live_nodes())
        if there >= wanted or time.monotonic() - since > WAIT:
            break
        time.sleep(1.0)
    if there < least:
        text = f"{there} of {wanted} nodes with {devices:g} devices are in the cluster"
        raise RuntimeError(f"{text}; start Ray on the others (`ray start --address=…`), or give trainer.nnodes={there}")
    if there < wanted:
        log(f"{NODE}count: {there} of {wanted} are there, the job runs on {there}")
        with open_dict(config):
            config.trainer.nnodes = there
