"""From settings to a summary: samples what is missing or rescores what is given, scores, writes, prints.

OUT/summary.json has "sets": {name: {"scores", "reasons", "problems", "fingerprint", "revision", "details"}}, "overall", and what
eval.json has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from fairlen.audit.audit import audit
from fairlen.console import make_console, plural, print_table, visible
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.folder import describe, open_folder, read_recorded, refuse_others, refuse_unused
from fairlen.evaluate.responses_file import (
    describe_file,
    is_responses_file,
    match_problems,
    name_of,
    read_responses,
    set_of_golds,
)
from fairlen.evaluate.samples import (
    Sample,
    file_name,
    find_files,
    read_samples,
    read_tokens,
    sample_path,
    write_samples,
)
from fairlen.evaluate.scores import overall, score
from fairlen.evaluate.sets import check_places, find_sets, rescore
from fairlen.files.folders import choose_folder, going_on_in, locked, refuse_links, write_json
from fairlen.files.foreign import read_file_bytes
from fairlen.files.limits import parse_json
from fairlen.hangs import run_async
from fairlen.report.audit_page import write_audit_page
from fairlen.report.figure import Figure, Section, Table
from fairlen.tasks.load import ProblemSet
from fairlen.tasks.task import NO_FAILURES, Failures

FEW = 100
"""Number of problems below which the reader is told that intervals are wide: docs/evaluation.md has the numbers."""
HEADINGS = (
    "set", "problems", "accuracy, 95% interval", "pass@n", "best@n", "maj@n", "length", "correct", "incorrect", "truncated",
    "no verdict",
)  # fmt: skip
BUDGET_HEADINGS = ("set", "budget", "ended within it", "ended and correct", "correct once asked", "forced gain, points")
Graded = tuple[Path, dict[str, Any], dict[str, tuple[Sample, ...]]]
"""The folder, its facts, and the samples of each set."""


def start_evaluation(config: EvalConfig, console: Console | None = None) -> dict[str, Any]:
    """Run the whole job and return the summary. Raises ValueError for what does not fit together before it samples."""
    console = console or make_console()
    grade = rescore_given if config.run.from_samples else sample_all
    with ExitStack() as locks:
        folder, facts, samples = grade(config, console, locks)
        summary = summarize(config, facts, samples)
        write_json(folder / "summary.json", summary, allow_nan=False)
    show_summary(console, summary, str(folder))
    return summary


def sample_all(config: EvalConfig, console: Console, locks: ExitStack) -> Graded:
    """Draw and grade what is not done yet. `locks` keeps the folder to this process until it is closed."""
    check_places(config)
    folder = choose_folder(config.run.out, file_name(Path(config.model.name).name), "eval")
    refuse_others(folder)
    from fairlen.evaluate.generate import open_model, sample_sets  # needs torch

    model = open_model(config)
    asked, config = config.sampling, model.config
    lock_folder(folder, locks)
    facts = open_folder(folder, describe(config, {found.name: found for found in model.sets}, model.facts))
    missing = [found for found in model.sets if not sample_path(folder, found.name).exists()]
    if not (asked.max_response_length and asked.max_num_seqs):
        chosen = (
            f"responses up to {config.sampling.max_response_length:,} tokens, {config.sampling.max_num_seqs} at a time"
        )
        console.print(f"eval: {chosen}; each has a flag", soft_wrap=True)
    for found in model.sets:
        done, count = "" if found in missing else ", done before", len(found.problems)
        log_set(console, found, f"{found.name}: {count} {plural('problem', count)} x {config.run.samples}{done}")
    if missing:
        with going_on_in(folder):
            sample_sets(model, missing, folder, console)
    for found in model.sets:
        found.close()
    return folder, facts, {found.name: read_samples(sample_path(folder, found.name)) for found in model.sets}


def lock_folder(folder: Path, locks: ExitStack) -> None:
    """Make the folder of an evaluation and lock it, until `locks` is closed.

    Raises:
        ValueError: Another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder)  # the lock may be one
    locks.enter_context(locked(folder))


def rescore_given(config: EvalConfig, console: Console, locks: ExitStack) -> Graded:
    """Grade the responses of a file, or those that an evaluation drew, again.

    `locks` keeps the folder to this process until it is closed.
    """
    refuse_unused(config)
    if is_responses_file(config.run.from_samples):
        return grade_file(config, console, locks)
    recorded = read_recorded(config.run.from_samples)
    files = {path.stem: path for path in find_files(Path(config.run.from_samples))}
    given = {name: read_samples(path) for name, path in files.items()}
    sets = find_sets(config, list(given))
    folder = choose_folder(config.run.out, "rescored", "eval")
    refuse_others(folder)
    lock_folder(folder, locks)
    facts = open_folder(folder, describe(config, sets, None) | {"sampled": recorded})

    async def rescore_each() -> dict[str, tuple[Sample, ...]]:
        graded = {}
        for name, samples in given.items():
            log_set(console, sets[name], f"{name}: {len(samples)} {plural('sample', len(samples))}, rescored")
            graded[name] = await rescore(sets[name], samples, console)
        return graded

    graded = run_async(rescore_each())
    for name, samples in graded.items():
        sets[name].close()
        write_samples(samples, sample_path(folder, name), read_tokens(files[name]))
    return folder, facts, graded


def grade_file(config: EvalConfig, console: Console, locks: ExitStack) -> Graded:
    """Grade a file of responses by the references in it, or by those of `--data`."""
    path = Path(config.run.from_samples)
    samples = read_responses(path, has_data=bool(config.data.places))
    if len(config.data.places) > 1:
        raise ValueError(f"--from-samples {path} with {len(config.data.places)} data sets: name the one that was asked")
    if config.data.places:
        (found,) = find_sets(config).values()
        samples = match_problems(found, samples, path)
    else:
        found = set_of_golds(config, name_of(path), samples)
    folder = choose_folder(config.run.out, "rescored", "eval")
    refuse_others(folder)
    lock_folder(folder, locks)
    facts = open_folder(folder, describe(config, {found.name: found}, None) | {"sampled": describe_file(path)})
    log_set(console, found, f"{found.name}: {len(samples)} {plural('response', len(samples))} of {path}")
    graded = run_async(rescore(found, samples, console))
    found.close()
    write_samples(graded, sample_path(folder, found.name))
    return folder, facts, {found.name: graded}


def summarize(config: EvalConfig, facts: dict[str, Any], samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """Return the numbers of every set and over sets, with all facts."""
    scored = {name: score(rows, config.verifier.without_verdict, config.run.cuts) for name, rows in samples.items()}
    sets = {name: {"scores": found} | facts["sets"][name] for name, (found, _) in scored.items()}
    for name, rows in samples.items():
        form = bool({"verifier", "prompt"} & sets[name]["details"].keys())
        each = (Failures.of(s.status, s.finish == "length", s.text, s.answer, form, s.starts_inside) for s in rows)
        sets[name]["reasons"] = sum(each, NO_FAILURES).explain()
    means = overall([each for _, each in scored.values()]) if len(scored) > 1 else None
    return facts | {"sets": sets, "overall": means}


def log_set(console: Console, found: ProblemSet, message: str) -> None:
    """Show what was read of a set, and a message on it, as lines that stay."""
    for line in filter(None, (found.line, message)):
        console.print(f"eval: {visible(line)}", soft_wrap=True)


def show_summary(console: Console, summary: Mapping[str, Any], folder: str) -> None:
    """Print one line a set."""
    rows = [cells_of(name, found["scores"]) for name, found in summary["sets"].items()]
    print_table(make_console(200, console.file), "held-out problems", HEADINGS, rows, left=(0, 2))
    if budgets := [row for name, found in summary["sets"].items() for row in budget_cells(name, found["scores"])]:
        print_table(make_console(200, console.file), "", BUDGET_HEADINGS, budgets, left=(0,))
    for name, estimate in (summary["overall"] or {}).items():
        if name.startswith("avg@"):
            console.print(f"mean over sets, {name}: {show_share(estimate, with_interval=True)}")
    for note in notes_of(summary):
        console.print(f"note: {note}", soft_wrap=True)
    console.print(f"folder: {folder}; all numbers: summary.json", soft_wrap=True)


def cells_of(name: str, scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line of the table; pass, best and maj are of all n samples, and of all problems that accuracy is of."""
    average = next((key for key in scores if key.startswith("avg@")), "")
    most = average.partition("@")[2]
    whole = {name: one for name, one in scores.items() if "@" in name and one["problems"] == scores["scored"]}
    lengths = (scores["length"][side]["value"] for side in ("all", "correct", "incorrect"))
    return (
        visible(name),
        f"{scores['problems']} x {most}" if most else str(scores["problems"]),
        show_share(scores.get(average), with_interval=True),
        *(show_share(whole.get(f"{rule}@{most}")) for rule in ("pass", "best", "maj")),
        *("-" if value is None else f"{value:.1f}" for value in lengths),
        show_share(scores["truncated"]),
        show_share(scores["without_verdict"]["share"]),
    )


def budget_cells(name: str, scores: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a line for each budget of a set; none where there are no budgets."""
    found = []
    for row in scores.get("budgets", ()):
        shares = (show_share(row[key], with_interval=key != "ended") for key in ("ended", "correct", "forced"))
        value, low, high = (100 * row["gain"][key] for key in ("value", "low", "high"))
        found.append((visible(name), f"{row['budget']:,}", *shares, f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"))
    return found


def show_share(estimate: Mapping[str, Any] | None, with_interval: bool = False) -> str:
    """Return a share, or a dash for what does not exist."""
    if not estimate or estimate["value"] is None:
        return "-"
    has_interval = with_interval and estimate["low"] is not None
    return f"{estimate['value']:.1%}" + (f" [{estimate['low']:.1%}, {estimate['high']:.1%}]" if has_interval else "")


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the table must know."""
    scores = {name: found["scores"] for name, found in summary["sets"].items()}
    notes = []
    if few := [name for name, found in scores.items() if found["problems"] < FEW]:
        notes.append(
            f"fewer than {FEW} problems in {', '.join(few)}: intervals are wide, and only more problems narrow them much "
            "(docs/evaluation.md)"
        )
    if words := [name for name, found in scores.items() if found["unit"] == "words"]:
        notes.append(f"lengths of {', '.join(words)} are words: the file does not hold the tokens")
    notes += [f"{name}: {why}" for name, found in summary["sets"].items() if (why := found.get("reasons"))]
    for name, found in scores.items():
        missing = found["without_verdict"]
        if missing["kinds"]:
            kinds = ", ".join(f"{count} {kind}" for kind, count in missing["kinds"].items())
            how = "left out" if missing["counted"] == "inactive" else "counted as incorrect"
            low, high = (f"{missing[bound]:.1%}" for bound in ("if_incorrect", "if_correct"))
            bounds = f"the accuracy is {low} if all are incorrect, {high} if correct"
            notes.append(f"{name}: no verdict on {kinds}, {how}; {bounds}")
    return notes


def report_evaluation(folder: Path, path: Path) -> Path:
    """Write the page of an evaluation that ended. Raises ValueError where its summary.json is damaged."""
    place = folder / "summary.json"
    content = read_file_bytes(place)
    try:
        summary = parse_json(content)
        sets, notes = {name: found["scores"] for name, found in summary["sets"].items()}, notes_of(summary)
        cells, budgets = (
            [cells_of(*one) for one in sets.items()],
            [row for one in sets.items() for row in budget_cells(*one)],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{place}: {error!r}: the file is damaged; the evaluation's command writes it again") from None
    says = "Over problems; pass, best and maj are of all n samples. More numbers are in summary.json."
    shown = [Figure("Held-out problems", says, table=Table(HEADINGS, cells), note=" ".join(notes), terms=("samples",))]
    if budgets:
        says = "What has not ended within a budget is cut there and asked for its answer; what that adds is the forced gain."
        shown.append(Figure("Accuracy within a budget", says, table=Table(BUDGET_HEADINGS, budgets)))
    first, name = (Section("scores", "Scores", "", shown),), f"Evaluation {folder.resolve().name}"
    return write_audit_page(path, *audit([str(folder / "samples")]), first=first, name=name)
