"""From settings to a summary: samples what is missing or reads what is given, grades, scores, writes, prints.

OUT/eval.json      what was asked, of which model and which problems; written before anything is sampled
OUT/samples/       one Parquet file a set, see samples.py
OUT/summary.json   "sets": {name: {"scores", "problems", "fingerprint", "revision", "details"}}, "overall", and what eval.json has
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fairlen.console import plural
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.display import Display, show_summary
from fairlen.evaluate.facts import describe, describe_set
from fairlen.evaluate.rescore import RECORDED, find_sets, read_facts, read_given, read_recorded
from fairlen.evaluate.samples import Sample, file_name, read_samples, sample_path, write_samples
from fairlen.evaluate.scores import overall, score
from fairlen.evaluate.sets import check_places
from fairlen.files.folders import choose_folder, going_on_in, refuse_links, write_file
from fairlen.tasks.load import ProblemSet

MAY_CHANGE = {"out", "data_root", "device", "max_num_seqs", "compile", "threads", "verify_workers", "from_samples"}
"""Settings that an evaluation which goes on may change."""


def start_evaluation(config: EvalConfig, console: Console | None = None) -> dict[str, Any]:
    """Runs the whole job and returns the summary. Raises ValueError for what does not fit together before it samples."""
    with Display(console) as display:
        if config.from_samples:
            folder, facts, samples = rescore_given(config, display)
        else:
            folder, facts, samples = sample_all(config, display)
    summary = summarize(config, facts, samples)
    write_json(summary, folder / "summary.json")
    show_summary(display.console, summary, str(folder))
    return summary


def sample_all(config: EvalConfig, display: Display) -> tuple[Path, dict[str, Any], dict[str, tuple[Sample, ...]]]:
    """Draws and grades what is not done yet."""
    check_places(config)
    folder = Path(config.out) if config.out else choose_folder(file_name(Path(config.model).name), "eval")
    refuse_others(folder)
    from fairlen.evaluate.model import open_model  # needs torch

    model = open_model(config)
    sets = model.sets
    facts = open_folder(folder, describe(config, sets, model.facts))
    missing = [found for found in sets if not sample_path(folder, found.name).exists()]
    for found in sets:
        done, count = "" if found in missing else ", done before", len(found.problems)
        if found.line:
            display.tell(found.line)
        display.tell(f"{found.name}: {count} {plural('problem', count)} x {config.samples}{done}")
    if missing:
        with going_on_in(folder):
            model.sample(missing, folder, display)
    close_all(sets)
    return folder, facts, {found.name: read_samples(sample_path(folder, found.name)) for found in sets}


def rescore_given(config: EvalConfig, display: Display) -> tuple[Path, dict[str, Any], dict[str, tuple[Sample, ...]]]:
    """Verifies what is given, each file a set of its own."""
    given = read_given(config.from_samples)
    sets = find_sets(config, given)
    folder = Path(config.out) if config.out else choose_folder("again", "eval")
    told = {
        "sampled": read_recorded(config.from_samples),
        "sets": {name: describe_set(found) for name, found in sets.items()},
    }
    facts = open_folder(folder, describe(config, [], None) | told)
    samples = asyncio.run(verify_given({name: one.samples for name, one in given.items()}, sets, display))
    close_all(sets.values())
    for name, graded in samples.items():
        write_samples(graded, sample_path(folder, name), given[name].tokens())
    return folder, facts, samples


def close_all(sets: Iterable[ProblemSet]) -> None:
    """Ends the verifiers' workers."""
    for found in sets:
        found.close()


async def verify_given(
    given: Mapping[str, Sequence[Sample]], sets: Mapping[str, ProblemSet], display: Display
) -> dict[str, tuple[Sample, ...]]:
    """One set after the other."""
    from fairlen.evaluate.verdicts import rescore

    found = {}
    for name, samples in given.items():
        if sets[name].line:
            display.tell(sets[name].line)
        display.tell(f"{name}: {len(samples)} {plural('sample', len(samples))}, graded again")
        display.begin(name, len(samples))
        found[name] = await rescore(sets[name], samples, display.advance)
    return found


def summarize(config: EvalConfig, facts: dict[str, Any], samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """The numbers of every set and over sets, with all facts."""
    scored = {name: score(rows, config.without_verdict) for name, rows in samples.items()}
    return {
        "sets": {name: {"scores": found} | facts["sets"][name] for name, (found, _) in scored.items()},
        "overall": overall([each for _, each in scored.values()]) if len(scored) > 1 else None,
        **{name: value for name, value in facts.items() if name != "sets"},
    }


def open_folder(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Makes the folder, or checks that it holds the same evaluation, and returns its facts.

    Those of the first time stay; `resumed` has what was different later. Raises FileExistsError and ValueError for other content.
    """
    path = folder / RECORDED
    refuse_others(folder)
    refuse_links(folder)
    if path.exists():
        before, now = read_facts(path), json.loads(json.dumps(facts))
        refuse_changes(before, now, folder)
        facts = going_on(before, now)
    write_json(facts, path)
    return facts


def going_on(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The facts of an evaluation that goes on, perhaps with other versions than it began with."""
    later = {name: now[name] for name in ("engine", "verifier", "versions", "machine")}
    told = before.get("resumed", [])
    known = [{name: old.get(name) for name in later} for old in (before, *told)]
    return before if later == known[-1] else before | {"resumed": [*told, {"date": now["date"], **later}]}


def refuse_others(folder: Path) -> None:
    """Raises FileExistsError for a folder that holds something else."""
    if folder.exists() and any(folder.iterdir()) and not (folder / RECORDED).exists():
        raise FileExistsError(f"--out {folder}: the folder is not empty and holds no evaluation; choose another one")


def refuse_changes(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raises ValueError naming what differs between the evaluation that is there and the one asked for."""
    old, new = before["config"], now["config"]
    changed = [f"{k}: {old.get(k)} -> {v}" for k, v in new.items() if k not in MAY_CHANGE and old.get(k) != v]
    if before["model"] != now["model"]:
        changed.append("the weights of the model")
    for name, found in now["sets"].items():
        if before["sets"].get(name, found)["fingerprint"] != found["fingerprint"]:
            changed.append(f"the problems of {name}")
    if bool(old.get("from_samples")) or bool(new.get("from_samples")):
        changed.append("samples that were graded again")
    if changed:
        raise ValueError(f"--out {folder}: another evaluation is there ({'; '.join(changed)}); choose another folder")


def write_json(value: Mapping[str, Any], path: Path) -> None:
    """Writes a file that is whole or not there."""
    write_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
