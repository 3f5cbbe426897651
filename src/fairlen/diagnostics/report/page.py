"""The page: everything that a report says, in one file that asks for nothing.

What a model wrote is hostile text: Jinja2 escapes all of it, data for the script are JSON in which no markup can begin, and a
policy of hashes keeps anything else from running.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from fairlen.diagnostics.report.chart import plain, share
from fairlen.diagnostics.report.figure import Section, column, interval
from fairlen.diagnostics.report.load import Run, read_run
from fairlen.diagnostics.report.sample import Shown, show_sample, visible
from fairlen.diagnostics.report.streams import gather_streams
from fairlen.diagnostics.report.training import learning_section, lengths_section
from fairlen.diagnostics.report.updates import pairs_section, weights_section
from fairlen.files.folders import write_file

HERE = Path(__file__).parent
FILE = "report.html"
MAX_LEFT_OUT = 10
"""Sentences about what could not be read."""
SECRET = re.compile(r"(?i)(^|[-_])(token|key|secret|password)$")
AS_ESCAPE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def write_report(run_folder: str | Path, out: str | Path | None = None) -> Path:
    """Writes the report of a run folder, report.html within it by default, and returns its path.

    Raises FileNotFoundError where there is no run and ValueError where it cannot be read.
    """
    folder = Path(run_folder)
    path = Path(out) if out else folder / FILE
    if path.is_dir():
        raise ValueError(f"--out {path}: that is a folder; name a file, such as {path / FILE}")
    return write_page(render(read_run(folder)), path)


def write_page(page: str, path: Path) -> Path:
    """Writes a page that is whole or not there."""
    write_file(path, page)
    return path


def render(run: Run) -> str:
    """The page of a run as text."""
    sample = show_sample(run, run.records) if run.records else []
    return fill(
        head=describe(run),
        facts=headline(run),
        sections=find_sections(run),
        sample=sample,
        streams=gather_streams(sample) if run.records and "streams" in run.records.log.known else [],
        total=len(run.records.log) if run.records else 0,
    )


def fill(
    head: dict[str, Any],
    facts: list[tuple[str, str, str]],
    sections: list[Section],
    sample: list[Shown],
    streams: list[Any],
    total: int,
) -> str:
    """The template with a header, figures, and answers to read out of `total`."""
    style, script = (Markup((HERE / name).read_text(encoding="utf-8")) for name in ("style.css", "app.js"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "share": share, "visible": visible}
    return environment.get_template("template.html.j2").render(
        style=style,
        script=script,
        policy=policy(style, script),
        head=head,
        facts=facts,
        sections=sections,
        sample=sample,
        streams=streams,
        total=total,
        longest=max((s.length for s in sample), default=0),
        data=safe_json(token_data(sample)),
    )


def policy(style: str, script: str) -> str:
    """A content security policy that lets only the page's own style and script act."""
    style_hash, script_hash = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (style, script))
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def safe_json(data: Any) -> Markup:
    """JSON in which no tag, entity or line separator can begin."""
    return Markup(json.dumps(data, separators=(",", ":")).translate(AS_ESCAPE))


def token_data(sample: list[Shown]) -> dict[str, Any]:
    """What the script colours tokens by."""
    return {str(s.number): s.tokens | {"inherited": s.inherited} for s in sample if s.tokens}


def find_sections(run: Run) -> list[Section]:
    """All figures that the run has something for."""
    found = [learning_section(run)]
    if run.records:
        log = run.records.log
        found += [lengths_section(log), weights_section(run, log)]
        if "streams" in log.known:
            found.append(pairs_section(run, log))
    return found


def describe(run: Run) -> dict[str, Any]:
    """The header: names as the run folder has them, control characters written out."""
    given = run.description
    method, config = of_type(given.get("method"), dict), of_type(given.get("config"), dict)
    choices = of_type(method.get("choices"), dict)
    command = [str(word) for word in of_type(given.get("command"), list)]
    return {
        "name": visible(str(method.get("name", "unknown method"))),
        "folder": visible(run.folder.resolve().name),
        "hash": visible(str(method.get("hash", ""))),
        "notes": [visible(str(note)) for note in (*name_left_out(run), *of_type(method.get("notes"), list))],
        "choices": [(visible(k), [stage_text(s) for s in as_list(v)]) for k, v in choices.items()],
        "settings": [(visible(k), visible(show_setting(k, v))) for k, v in config.items()],
        "versions": [(visible(k), visible(str(v))) for k, v in of_type(given.get("versions"), dict).items()],
        "machine": [(visible(k), visible(str(v))) for k, v in of_type(given.get("machine"), dict).items()],
        "command": visible(" ".join(redact([Path(command[0]).name, *command[1:]]))) if command else "",
    }


def name_left_out(run: Run) -> list[str]:
    """What could not be read of the records, the first sentences of it."""
    more = [f"and {len(run.left_out) - MAX_LEFT_OUT} more"] if len(run.left_out) > MAX_LEFT_OUT else []
    return [f"Left out: {sentence}" for sentence in (*run.left_out[:MAX_LEFT_OUT], *more)]


def of_type(value: Any, kind: type) -> Any:
    """The value, or an empty one of the kind where it is something else."""
    return value if isinstance(value, kind) else kind()


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def stage_text(stage: Any) -> tuple[str, str]:
    """A stage's name and its fields."""
    if isinstance(stage, dict):
        fields = ", ".join(f"{k}={v}" for k, v in stage.items() if k != "kind")
        return visible(str(stage.get("kind", ""))), visible(fields)
    return visible(str(stage)), ""


def show_setting(name: str, value: Any) -> str:
    """A setting as text, without what looks like a secret."""
    if SECRET.search(name) and value:
        return "(not shown)"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def redact(words: list[str]) -> list[str]:
    """A command without what looks like a secret."""
    found: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        follows = bool(found) and "=" not in found[-1] and found[-1].startswith("-") and SECRET.search(found[-1])
        found.append("(not shown)" if follows else f"{name}=(not shown)" if equals and SECRET.search(name) else word)
    return found


def headline(run: Run) -> list[tuple[str, str, str]]:
    """(what, number, more) of the numbers that matter most."""
    found: list[tuple[str, str, str]] = []
    if run.evaluations:
        first, last = run.evaluations[0], run.evaluations[-1]
        names = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
        before, after = ([float(column([e], n)[0]) for n in names] for e in (first, last))
        found.append(
            (
                "held-out accuracy",
                share(after[0]),
                f"{interval(before, share)} before, {interval(after, share)} after",
            )
        )
        for name, key in (
            ("length, correct responses", "eval/length_correct"),
            ("length, incorrect responses", "eval/length_incorrect"),
        ):
            old, new = (float(column([e], key)[0]) for e in (first, last))
            found.append((name, plain(new), f"tokens, held out; {plain(old)} before"))
        old, new = (float(column([e], "eval/truncated")[0]) for e in (first, last))
        found.append(("truncated", share(new), f"held out; {share(old)} before"))
    updates = column(run.updates, "update")
    skipped = sum("update/skipped" in e for e in run.updates)
    number = int(np.nanmax(updates)) if np.isfinite(updates).any() else 0
    more = (
        f"{len(np.unique(run.records.log.batch)):,} rollout batches, {skipped:,} without an update"
        if run.records
        else f"{skipped:,} skipped"
    )
    found.append(("updates", f"{number:,}", more))
    return found
