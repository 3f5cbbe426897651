"""One file that asks for nothing. What it shows is hostile: all is escaped, and a policy of hashes keeps it from running."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from fairlen.audit.audit import Audit, audit_source
from fairlen.audit.log import Log
from fairlen.audit.numbers import describe_method
from fairlen.audit.statistics.intervals import ratio
from fairlen.console import first_of, plural
from fairlen.files.folders import write_file
from fairlen.report.figure import Section, interval, plain, share
from fairlen.report.run import RecordedRun, Shown, column, read_run, show_sample, visible
from fairlen.report.sections import OF_TURNS, VERDICTS, define, find_sections, plain_rows
from fairlen.report.streams import Stream, gather_streams
from fairlen.secrets import hide_all
from fairlen.settings import flatten
from fairlen.tasks.task import NO_FAILURES, Failures

HERE = Path(__file__).parent
FILE = "report.html"
MAX_NOTES = 10  # sentences of a kind that are shown, such as those about what could not be read
EMPTY: dict[str, Any] = {name: [] for name in ("audits", "notes", "choices", "settings", "versions", "machine")}
EMPTY |= {"kind": "report", "hash": "", "command": ""}
EMPTY |= {"words": VERDICTS, "turns": OF_TURNS, "describe": describe_method}


def write_report(run_folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run folder, report.html within it by default, and return its path.

    Raises FileNotFoundError where there is no run and ValueError where it cannot be read.
    """
    run = read_run(Path(run_folder))
    return write_page(run, audit_run(run), Path(out) if out else run.folder / FILE)


def write_page(run: RecordedRun, found: Audit | None, path: Path) -> Path:
    sample = show_sample(run.folder, run.records) if run.records else []
    streams = gather_streams(sample) if run.records and "streams" in run.records.log.known else []
    total = len(run.records.log) if run.records else 0
    head = describe_run(run) | {"audits": [found] if found else []}
    head["notes"] = [*filter(None, [explain(run, sample)]), *head["notes"]]
    page = render_page(head, headline(run), find_sections(run, found), sample, streams, total, define())
    write_file(path, page.encode())
    return path


def explain(run: RecordedRun, sample: Sequence[Shown]) -> str:
    """Return why hardly any of the shown responses is correct; empty where enough are."""
    takes_form = "prompt" in of_type(run.description, "data", dict)
    texts = ("".join(passage.text for passage in one.passages) for one in sample)
    each = zip(sample, texts, strict=True)
    return sum((Failures.of(s.status, s.truncated, t, s.answer, takes_form) for s, t in each), NO_FAILURES).explain()


def audit_run(run: RecordedRun) -> Audit | None:
    return audit_source(run.records) if run.records else None


def render_page(
    head: dict[str, Any],
    facts: list[tuple[str, str, str]],
    sections: list[Section],
    sample: Sequence[Shown] = (),
    streams: Sequence[Stream] = (),
    total: int = 0,
    terms: Sequence[tuple[str, str, list[str]]] = (),
) -> str:
    """Return a page; the head has "name" and "folder", and may have all of `describe_run`; `terms` are id, name, texts."""
    style, script = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("style.css", "app.js"))
    return read_template().render(
        style=style, script=script, policy=policy(style, script), head=EMPTY | hide_all(head), facts=facts, sections=sections,
        sample=sample, streams=streams, total=total, terms=terms,
        data={str(s.number): s.tokens for s in sample if s.tokens},
    )  # fmt: skip


@cache
def read_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=show,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {"plain": plain}
    return environment.get_template("template.html.j2")


def show(value: Any) -> Any:
    """Return what a template writes: of texts that are no markup yet, control characters written out."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def policy(style: str, script: str) -> str:
    """Return a content security policy that lets only the page's own style and script act."""
    style_hash, script_hash = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (style, script))
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def describe_run(run: RecordedRun) -> dict[str, Any]:
    given = hide_all(run.description)
    method, config = of_type(given, "method", dict), flatten(of_type(given, "config", dict))
    command = [str(word) for word in of_type(given, "command", list)]
    notes = [f"Left out: {sentence}" for sentence in first_of(run.left_out, MAX_NOTES)]
    if run.records is None:
        notes.append("No rollout batch was recorded, so that there are no lengths, weights or responses to show.")
    choices = {
        name: [stage_text(stage) for stage in (stages if isinstance(stages, list) else [stages])]
        for name, stages in of_type(method, "choices", dict).items()
    }
    return {
        "name": str(method.get("name", "unknown method")),
        "folder": run.folder.resolve().name,
        "hash": str(method.get("hash", "")),
        "notes": [str(note) for note in (*notes, *of_type(method, "notes", list))],
        "choices": list(choices.items()),
        "settings": [(k, ", ".join(map(str, v)) if isinstance(v, list) else str(v)) for k, v in config.items()],
        "command": " ".join([Path(command[0]).name, *command[1:]]) if command else "",
    } | {name: [(k, str(v)) for k, v in of_type(given, name, dict).items()] for name in ("versions", "machine")}


def of_type(given: dict[str, Any], name: str, kind: type) -> Any:
    """Return a field, or an empty one of the kind where it is something else."""
    value = given.get(name)
    return value if isinstance(value, kind) else kind()


def stage_text(stage: Any) -> tuple[str, str]:
    if not isinstance(stage, dict):
        return str(stage), ""
    return str(stage.get("kind", "")), ", ".join(f"{k}={v}" for k, v in stage.items() if k != "kind")


def describe_rollouts(log: Log) -> list[tuple[str, str, str]]:
    """Return accuracy, length and truncation of the last quarter of steps, beside those of the first."""
    found = list[tuple[str, str, str]]()
    measures = (("accuracy", "correct", share), ("length", "length", plain), ("truncated", "truncated", share))
    for name, of, form in measures:
        responses, step, _ = plain_rows(log)
        steps, place = np.unique(step, return_inverse=True)
        quarter = place * 4 // max(len(steps), 1)
        means = ratio(np.bincount(quarter, getattr(responses, of), minlength=1), np.bincount(quarter, minlength=1))
        found.append((name, form(means[-1]), f"in training; {form(means[0])} at first"))
    return found


def headline(run: RecordedRun) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if run.evaluations:
        names = ("accuracy", "accuracy_low", "accuracy_high", "length_correct", "length_incorrect", "truncated")
        columns = [column(run.evaluations, f"eval/{name}")[[0, -1]].tolist() for name in names]
        before, after = (interval([column[place] for column in columns[:3]], share) for place in (0, 1))
        correct, incorrect, truncated = columns[3:]
        was = [plain(correct[0]), plain(incorrect[0]), share(truncated[0])]
        was = [f"; {one} before" if len(run.evaluations) > 1 else "" for one in was]
        found = [
            ("held-out accuracy", share(columns[0][1]), f"{before} before, {after} after" if was[0] else after),
            ("length, correct responses", plain(correct[1]), f"tokens, held out{was[0]}"),
            ("length, incorrect responses", plain(incorrect[1]), f"tokens, held out{was[1]}"),
            ("truncated", share(truncated[1]), f"held out{was[2]}"),
        ]
    elif run.records:
        found = describe_rollouts(run.records.log)
    number = int(np.max(column(run.updates, "update"), initial=0))
    size = len(np.unique(run.records.log.batch)) if run.records else 0
    batches = f"{size:,} rollout {plural('batch', size, 'batches')}, " if size else ""
    skipped = sum("update/skipped" in entry for entry in run.updates)
    return [*found, ("updates", f"{number:,}", f"{batches}{skipped:,} skipped")]
