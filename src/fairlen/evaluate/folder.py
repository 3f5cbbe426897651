"""The folder of an evaluation: eval.json says what its numbers were made with, and whether the same evaluation goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlen.evaluate.config import EvalConfig, find_suite
from fairlen.files.folders import describe_program, refuse_links, refuse_occupied, write_json
from fairlen.files.foreign import open_regular_file, read_file_bytes
from fairlen.files.limits import NotJSONError, parse_json
from fairlen.flags import convert
from fairlen.secrets import hide_all
from fairlen.settings import flatten, list_settings, names_of
from fairlen.tasks.load import ProblemSet

RECORDED = "eval.json"
NOT_KEPT = ("verify_workers", "unsafe_exec_on_host", "out", "from_samples")
"""Settings that an evaluation which is rescored does not bring: where programs run, for the folder may be a stranger's."""


def describe(config: EvalConfig, sets: Mapping[str, ProblemSet], model: dict[str, Any] | None) -> dict[str, Any]:
    """Return everything that decides the numbers; `model` is None where responses were read."""
    facts = ("fingerprint", "revision", "details")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "config": asdict(config),
        "suite": describe_suite(config) if config.run.suite else None,
        "model": model,
        "sets": {n: {"problems": len(s.problems)} | {f: getattr(s, f) for f in facts} for n, s in sets.items()},
    } | describe_program()


def describe_suite(config: EvalConfig) -> dict[str, Any]:
    """Return the paper, and where this evaluation departs from its suite."""
    suite = find_suite(config.run.suite)
    given = flatten(asdict(config))
    changed = {name: given[name] for name, value in suite.values.items() if given[name] != value}
    return {"name": config.run.suite, "paper": suite.paper, "changed": changed}


def describe_model(place: str, config: EvalConfig, model_config: Any) -> dict[str, Any]:
    """Return which weights: the hub's commit, or the hash and sizes of a folder's files."""
    folder = Path(place)
    return {
        "place": config.model.name,
        "commit": getattr(model_config, "_commit_hash", None),
        "config_sha256": hashlib.sha256(model_config.to_json_string(use_diff=False).encode()).hexdigest(),
        "weights": describe_weights(sorted(folder.glob("*.safetensors"))) if folder.is_dir() else None,
    }


def describe_weights(files: Sequence[Path]) -> dict[str, Any]:
    """Return name to bytes of each file of weights, and one sha256 of all of them: about a second for a gigabyte."""
    digest = hashlib.sha256()
    for path in files:
        with open_regular_file(path) as stream:
            hashlib.file_digest(stream, lambda: digest)
    sizes = {path.name: path.stat().st_size for path in files}
    return {"files": sizes, "sha256": digest.hexdigest() if files else None}


def read_recorded(place: str | Path) -> dict[str, Any] | None:
    """Return what an evaluation's folder says of itself; None for other places. Raises ValueError for a damaged file."""
    path, reason = Path(place) / RECORDED, "it lacks settings, model or sets"
    if not path.is_file():
        return None
    try:
        facts = parse_json(read_file_bytes(path))
        has_settings = "model" in facts and {"data", "task"} <= flatten(facts["config"]).keys()
        if has_settings and all("fingerprint" in found for found in facts["sets"].values()):
            return facts
    except NotJSONError as error:
        reason = str(error)
    except (AttributeError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: {reason}: the file is damaged, fetch it again or choose another folder")


def rescore_settings(place: str, **changes: Any) -> EvalConfig:
    """Return the settings that an evaluation's samples were graded with, or the usual ones for a file of responses.

    Raises:
        ValueError: For a place that is neither.
    """
    if Path(place).is_file():
        return EvalConfig.of(**({"from_samples": place} | changes))
    recorded = read_recorded(place)
    if recorded is None:
        raise ValueError(
            f"--from-samples {place}: no {RECORDED} there; give the folder of an evaluation, or a file with the columns "
            "problem (or id), text and gold"
        )
    known = names_of(EvalConfig)
    kept = {
        name: convert(f"{place}: {name}", value, known[name].default)
        for name, value in flatten(recorded["config"]).items()
        if name in known and name not in NOT_KEPT
    }
    own = {"data": kept["data"] or (kept["task"],), "from_samples": place}
    return EvalConfig.of(**(kept | own | changes))


def refuse_unused(config: EvalConfig) -> None:
    """Raise ValueError for a setting of how responses are drawn, which a rescoring would record without using it."""
    given, kept = (flatten(asdict(one)) for one in (config, rescore_settings(config.run.from_samples)))
    for one in list_settings(EvalConfig):
        is_unused = one.group in ("model", "sampling") or one.name in ("samples", "seed", "shots", "budgets", "ask")
        if is_unused and given[one.name] != kept[one.name]:
            raise ValueError(
                f"--{one.spelling} {given[one.name]} with --from-samples {config.run.from_samples}: the responses are there "
                "already, however they were drawn; leave it out"
            )


def refuse_others(folder: Path) -> None:
    """Raise FileExistsError for a folder that holds something else."""
    if not (folder / RECORDED).exists():
        refuse_occupied(folder, "evaluation")


def open_folder(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Make the folder, or check that it holds the same evaluation, and return its facts.

    Those of the first time stay; `resumed` has what was different later. Raises FileExistsError and ValueError for other content.
    """
    refuse_others(folder)
    refuse_links(folder)
    facts = hide_all(json.loads(json.dumps(facts)))
    if before := read_recorded(folder):
        refuse_changes(before, facts, folder)
        facts = merge_facts(before, facts)
    write_json(folder / RECORDED, facts, allow_nan=False)
    return facts


def merge_facts(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of an evaluation that goes on, perhaps with other versions than it started with."""
    later = {name: now[name] for name in ("versions", "machine")}
    resumed = before.get("resumed", [])
    last = (before, *resumed)[-1]
    if later == {name: last.get(name) for name in later}:
        return before
    return before | {"resumed": [*resumed, {"date": now["date"], **later}]}


def refuse_changes(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise ValueError naming what differs between the evaluation that is there and the one asked for."""
    old, new, settings = flatten(before["config"]), flatten(now["config"]), names_of(EvalConfig)
    changed = [f"{k}: {old.get(k)} -> {v}" for k, v in new.items() if not settings[k].effect and old.get(k) != v]
    if before["model"] != now["model"]:
        changed.append("the weights of the model")
    for name, found in now["sets"].items():
        if before["sets"].get(name, found)["fingerprint"] != found["fingerprint"]:
            changed.append(f"the problems of {name}")
    if old.get("from_samples") or new.get("from_samples"):
        changed.append("samples that were rescored")
    if changed:
        raise ValueError(f"--out {folder}: another evaluation is there ({'; '.join(changed)}); choose another folder")
