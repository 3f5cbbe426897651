"""The command `fairlen audit`: an audit as text or as JSON.

What files say is hostile: control characters are written as escapes, markup is not interpreted. `to_json` gives one object:
"logs", "unreadable" and "skipped" (sentences). A log has "format", "title", "folder", "files", "unit", "counts" (responses,
prompts, rollout_batches, malformed), "malformed" (the first rows: file, line, reason), "notes", "known", "missing", "lengths",
"by_length", "coupling", "weights", "shares", "acceptance" and "streams" (null where unknown), and "findings" (measure,
estimate, size, text, advice; largest first). Estimates are {"value", "low", "high"}; what does not exist is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairlen.console import complain, log, make_console, plural, visible
from fairlen.diagnostics.readers import Options, Reading
from fairlen.diagnostics.readers.formats import USUAL
from fairlen.diagnostics.report.audit import MIN_PROMPTS, Audit, audit, find_missing
from fairlen.diagnostics.uncertainty import Bins, Estimate
from fairlen.files.formats import Unreadable

MAX_ROWS = 10
"""Malformed rows that are shown."""
MAX_ROWS_JSON = 100
Rows = Iterator[tuple[str, str, str]]


@dataclass(frozen=True)
class AuditConfig:
    """What rollouts say about length: fairlen's records, TRL, verl, prime-rl, lm-eval, or any JSON lines, CSV or Parquet."""

    paths: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders or patterns."""
    columns: str = ""
    """What is what in files of no known format, such as prompt=question,response=answer,reward=score. Sums: reward=a+b."""
    unit: Literal["auto", "tokens", "words", "characters"] = "auto"
    """Of lengths; auto: tokens where every row has them, else words."""
    tokenizer: str = ""
    """Folder with a tokenizer.json: lengths are tokens of the text."""
    max_response_length: int = 0
    """Limit of generation in tokens, to know which responses were truncated where the files do not say."""
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
    """One JSON object instead of text."""

    def options(self) -> Options:
        """Return how to read. Raises ValueError for what cannot be."""
        if not self.paths:
            raise ValueError("name files, folders or patterns with rollouts")
        if self.max_response_length < 0:
            raise ValueError(f"--max-response-length {self.max_response_length}: give a number of tokens above 0")
        if self.tokenizer and self.unit not in ("auto", "tokens"):
            raise ValueError(f"--unit {self.unit} with --tokenizer: leave one of them out")
        unit = None if self.unit == "auto" else self.unit
        return Options(parse_columns(self.columns), unit, self.tokenizer, self.max_response_length)


def parse_columns(text: str) -> dict[str, str]:
    """Return role to column, from prompt=question,reward=score. Raises ValueError for a role that does not exist."""
    chosen: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, equals, name = (part.strip() for part in pair.partition("="))
        if role not in USUAL or not equals or not name:
            near = get_close_matches(role, list(USUAL), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(USUAL)}"
            raise ValueError(f"--columns {pair}: write ROLE=COLUMN; {hint}")
        chosen[role] = name
    return chosen


def run(config: AuditConfig) -> int:
    """Print the audit; 1 where a file could not be read. Raises ValueError for settings that cannot be."""
    options = config.options()
    try:
        audits, reading = audit(list(config.paths), options)
    except Unreadable as error:
        audits, reading = (), Reading((), (str(error),), ())
    if config.as_json:
        log(json.dumps(to_json(audits, reading), allow_nan=False, indent=1))
    else:
        show(audits, reading)
    unreadable = list(reading.unreadable)
    if not audits and not unreadable:
        unreadable = ["no rollouts in these files; name the columns of yours: --columns response=NAME,reward=NAME"]
    for sentence in unreadable:
        complain("audit", sentence)
    return 1 if unreadable else 0


def show(audits: tuple[Audit, ...], reading: Reading, console: Console | None = None) -> None:
    """Print every audit, then what could not be read."""
    console = make_console(130, console.file if console else None)
    for one in audits:
        show_audit(one, console)
    if len(audits) > 1:
        write(console, f"{len(audits)} logs: one for each format and folder, never mixed")
    skipped = reading.skipped[:MAX_ROWS]
    if reading.sources and skipped:
        number = len(reading.skipped)
        skipped = (f"{number} other {plural('file', number)} without rollouts; name one to read why",)
    for sentence in skipped:
        write(console, f"skipped  {sentence}", "dim")


def write(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """Print one paragraph, wrapped under itself."""
    console.print(Padding(Text(visible(text), style=style), (0, 0, 0, indent), expand=False))


def show_audit(one: Audit, console: Console) -> None:
    """Print one log: where from, numbers, what is missing, findings."""
    source, rollouts = one.source, one.log
    head = f"{source.title}  {source.folder}  ({rollouts.num_files} {plural('file', rollouts.num_files)})"
    write(console, head, "bold")
    counts = {"response": len(rollouts), "prompt": rollouts.responses.num_prompts, "step": len(one.lengths.batch)}
    responses, prompts, steps = (f"{count:,} {plural(word, count)}" for word, count in counts.items())
    write(console, f"{responses} to {prompts} in {steps}; lengths in {rollouts.unit}", indent=2)
    for note in source.notes:
        write(console, note, "dim", indent=2)
    if number := len(rollouts.malformed):
        head = f"{number:,} {plural('row', number)} could not be read and {plural('is', number, 'are')} left out:"
        write(console, head, "yellow", indent=2)
        for row in rollouts.malformed[:MAX_ROWS]:
            write(console, f"{row.file}:{row.line}: {row.reason}", indent=4)
        if number > MAX_ROWS:
            write(console, f"and {number - MAX_ROWS:,} more (--json lists {MAX_ROWS_JSON})", indent=4)
    table = Table("", "number", "95% interval", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in (*measured_rows(one), *recorded_rows(one)):
        table.add_row(*(Text(visible(cell)) for cell in row))
    console.print()
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    show_findings(one, console)


def show_findings(one: Audit, console: Console) -> None:
    """Print what is missing, and the findings with what to try, or why there are none."""
    missing, found = find_missing(one), one.findings
    if missing:
        console.print()
        write(console, "not in these files", "bold", indent=2)
    for sentence in missing:
        write(console, sentence, indent=4)
    console.print()
    write(console, "findings, largest effect first" if found else "findings", "bold", indent=2)
    if not one.enough:
        write(console, f"none: fewer than {MIN_PROMPTS} prompts are too few to conclude from", indent=4)
    elif not found:
        write(console, "none: no effect whose 95% interval excludes no effect", indent=4)
    for place, finding in enumerate(found, 1):
        write(console, f"{place}. {finding.text}", indent=4)
        write(console, f"try: {finding.advice}", "dim", indent=7)
    console.print()


def line(name: str, found: Estimate, style: str = ".3g") -> tuple[str, str, str]:
    """Return one row; "unknown" where the number does not exist."""
    if not found.exists:
        return name, "unknown", ""
    interval = "" if math.isnan(found.low + found.high) else f"[{found.low:{style}}, {found.high:{style}}]"
    return name, f"{found.value:{style}}", interval


def measured_rows(one: Audit) -> Rows:
    """Give the rows about outcomes, lengths, signs and aggregations."""
    found, shares, coupling = one.lengths, one.shares, one.coupling
    yield line("accuracy", found.accuracy, ".1%")
    yield line("  in the shortest bin of length", shares.accuracy_short, ".1%")
    yield line("  in the longest bin of length", shares.accuracy_long, ".1%")
    yield line("prompts all correct", shares.all_correct, ".1%")
    yield line("prompts all incorrect", shares.all_incorrect, ".1%")
    yield line("repeated responses", shares.duplicate, ".1%")
    yield line("truncated", found.truncated, ".1%")
    if found.truncated.exists:
        yield line("  of incorrect responses", shares.truncated_incorrect, ".1%")
        yield line("  of correct responses", shares.truncated_correct, ".1%")
    yield line(f"length ({one.log.unit})", found.mean)
    yield line("  of correct responses", found.correct)
    yield line("  of incorrect responses", found.incorrect)
    yield line("  incorrect minus correct", found.difference, "+.3g")
    if len(found.batch) > 1:
        yield line("  change a step", found.trend, "+.3g")
    yield line("gap within prompts, (T- - T+) / mean length", coupling.gap, "+.3f")
    yield line("spread of lengths within a sign, over their mean", coupling.variation_within_sign, ".3f")
    yield line("sign and length, sum A L / sum L", coupling.sign_length, "+.3f")
    yield "weight of negative over positive advantages under", "", ""
    for name, weights in one.weights.items():
        yield line(f"  {name}", weights.negative_to_positive, ".3f")


def recorded_rows(one: Audit) -> Rows:
    """Give the rows that need fairlen's own records."""
    found, streams = one.acceptance, one.streams
    if found and found.undefined:
        yield "acceptance by length", found.undefined, ""
    elif found:
        yield line("accepted by the bound", found.overall, ".1%")
        yield line(f"length reweighting error (noise alone {found.floor:.2g})", found.lre, ".3f")
    if streams:
        yield line("rounds a stream", streams.rounds)
        yield line("optimism of `max` (reward a pair)", streams.optimism, "+.3f")
        yield line("net advantage on EOS (a response)", streams.eos_advantage, "+.3f")


def to_json(audits: tuple[Audit, ...], reading: Reading) -> dict[str, Any]:
    """Return everything as JSON data; see the module's docstring."""
    return {"logs": [log_to_json(one) for one in audits], "unreadable": reading.unreadable, "skipped": reading.skipped}


def log_to_json(one: Audit) -> dict[str, Any]:
    """Return one audit as JSON data."""
    rollouts, source = one.log, one.source
    counts = {
        "responses": len(rollouts), "prompts": rollouts.responses.num_prompts, "rollout_batches": len(np.unique(rollouts.batch)),
        "malformed": len(rollouts.malformed),
    }  # fmt: skip
    return plain({
        "format": rollouts.format, "title": source.title, "folder": source.folder, "files": source.files,
        "unit": rollouts.unit, "counts": counts, "notes": source.notes, "malformed": rollouts.malformed[:MAX_ROWS_JSON],
        "known": sorted(rollouts.known), "missing": find_missing(one), "lengths": one.lengths, "by_length": one.by_length,
        "coupling": one.coupling, "weights": one.weights, "shares": one.shares, "acceptance": one.acceptance,
        "streams": one.streams, "findings": one.findings,
    })  # fmt: skip


def plain(value: Any) -> Any:
    """Return numbers, arrays and estimates as JSON data; numbers that are not finite become null."""
    if isinstance(value, Bins):
        value = {"low": value.low, "high": value.high, "count": value.count}
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
