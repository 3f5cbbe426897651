"""An audit on the terminal. What files say is hostile: control characters are written as escapes, markup is not interpreted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairlen.console import complain, log, make_console, plural, visible
from fairlen.diagnostics.audit import MIN_PROMPTS, Audit, audit, to_json
from fairlen.diagnostics.readers import Options, Reading
from fairlen.diagnostics.readers.generic import USUAL
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.files.formats import Unreadable

MAX_ROWS = 10
"""Malformed rows that are shown; --json lists more."""
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
    """Generation budget in tokens, to tell which answers were cut off where the files do not say."""
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
    """One JSON object instead of text."""

    def options(self) -> Options:
        """Raises ValueError for what cannot be."""
        if not self.paths:
            raise ValueError("name files, folders or patterns with rollouts")
        if self.max_response_length < 0:
            raise ValueError(f"--max-response-length {self.max_response_length}: give a number of tokens above 0")
        if self.tokenizer and self.unit not in ("auto", "tokens"):
            raise ValueError(f"--unit {self.unit} with --tokenizer: leave one of them out")
        unit = None if self.unit == "auto" else self.unit
        return Options(parse_columns(self.columns), unit, self.tokenizer, self.max_response_length)


def parse_columns(text: str) -> dict[str, str]:
    """Role to column, from prompt=question,reward=score. Raises ValueError for a role that does not exist."""
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
    """Prints the audit; 1 where a file could not be read. Raises ValueError for settings that cannot be."""
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
    """Prints every audit, then what could not be read."""
    console = make_console(130, console.file if console else None)
    for one in audits:
        show_audit(one, console)
    if len(audits) > 1:
        say(console, f"{len(audits)} logs: one for each format and folder, never mixed")
    if reading.sources and reading.skipped:
        files = f"{len(reading.skipped)} other {plural('file', len(reading.skipped))} without rollouts"
        say(console, f"skipped  {files}; name one to read why", "dim")
    elif reading.skipped:
        for sentence in reading.skipped[:MAX_ROWS]:
            say(console, f"skipped  {sentence}", "dim")


def say(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """One paragraph, wrapped under itself."""
    console.print(Padding(Text(visible(text), style=style), (0, 0, 0, indent), expand=False))


def show_audit(one: Audit, console: Console) -> None:
    """One log: where from, numbers, what is missing, findings."""
    log, source = one.log, one.source
    steps = len(one.lengths.batch)
    head = f"{source.title}  {source.folder}  ({log.num_files} {plural('file', log.num_files)})"
    say(console, head, "bold")
    counted = {"answer": len(log), "prompt": log.responses.num_prompts, "step": steps}
    answers, prompts, times = (f"{number:,} {plural(word, number)}" for word, number in counted.items())
    say(console, f"{answers} to {prompts} in {times}; lengths in {log.unit}", indent=2)
    for note in source.notes:
        say(console, note, "dim", indent=2)
    show_malformed(one, console)
    console.print()
    table = Table("", "number", "95% interval", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in (*outcome_rows(one), *length_rows(one), *weight_rows(one), *recorded_rows(one)):
        table.add_row(*(Text(visible(cell)) for cell in row))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    if one.missing:
        console.print()
        say(console, "not in these files", "bold", indent=2)
        for sentence in one.missing:
            say(console, sentence, indent=4)
    show_findings(one, console)
    console.print()


def show_malformed(one: Audit, console: Console) -> None:
    """Rows that could not be read, by file and line."""
    rows = one.log.malformed
    if not rows:
        return
    say(console, f"{len(rows):,} {plural('row', len(rows))} could not be read and {'is' if len(rows) == 1 else 'are'} left out:",
        "yellow", indent=2)  # fmt: skip
    for row in rows[:MAX_ROWS]:
        say(console, f"{row.file}:{row.line}: {row.reason}", indent=4)
    if len(rows) > MAX_ROWS:
        say(console, f"and {len(rows) - MAX_ROWS:,} more (--json lists 100)", indent=4)


def show_findings(one: Audit, console: Console) -> None:
    console.print()
    say(console, "findings, largest effect first" if one.findings else "findings", "bold", indent=2)
    for place, finding in enumerate(one.findings, 1):
        say(console, f"{place}. {finding.text}", indent=4)
        say(console, f"try: {finding.advice}", "dim", indent=7)
    if one.findings:
        return
    if one.enough:
        say(console, "none: no effect whose 95% interval excludes no effect", indent=4)
    else:
        say(console, f"none: fewer than {MIN_PROMPTS} prompts are too few to conclude from", indent=4)


def line(name: str, found: Estimate, style: str = ".3g") -> tuple[str, str, str]:
    """One row; "unknown" where the number does not exist."""
    if not found.exists:
        return name, "unknown", ""
    told = found.low == found.low and found.high == found.high
    return name, f"{found.value:{style}}", f"[{found.low:{style}}, {found.high:{style}}]" if told else ""


def outcome_rows(one: Audit) -> Rows:
    found, shares = one.lengths, one.shares
    yield line("accuracy", found.accuracy, ".1%")
    yield line("  in the shortest bin of length", shares.accuracy_short, ".1%")
    yield line("  in the longest bin of length", shares.accuracy_long, ".1%")
    yield line("prompts all right", shares.all_correct, ".1%")
    yield line("prompts all wrong", shares.all_incorrect, ".1%")
    yield line("repeated answers", shares.duplicate, ".1%")
    yield line("truncated", found.truncated, ".1%")
    if found.truncated.exists:
        yield line("  of wrong answers", shares.truncated_incorrect, ".1%")
        yield line("  of right answers", shares.truncated_correct, ".1%")


def length_rows(one: Audit) -> Rows:
    found, unit = one.lengths, one.log.unit
    yield line(f"length ({unit})", found.mean)
    yield line("  of right answers", found.right)
    yield line("  of wrong answers", found.wrong)
    yield line("  wrong minus right", found.difference, "+.3g")
    if len(found.batch) > 1:
        yield line("  change a step", found.trend, "+.3g")
    yield line("gap within prompts, (T- - T+) / mean length", one.coupling.gap, "+.3f")
    yield line("spread of lengths within a sign, over their mean", one.coupling.variation_within_sign, ".3f")
    yield line("sign and length, sum A L / sum L", one.coupling.sign_length, "+.3f")


def weight_rows(one: Audit) -> Rows:
    yield "weight of negative over positive advantages under", "", ""
    for mass in one.masses:
        yield line(f"  {mass.aggregation}", mass.negative_to_positive, ".3f")


def recorded_rows(one: Audit) -> Rows:
    """What only fairlen's own records tell."""
    found, streams = one.acceptance, one.streams
    if found is not None and found.undefined:
        yield "acceptance by length", found.undefined, ""
    elif found is not None:
        yield line("accepted by the bound", found.overall, ".1%")
        yield line(f"length reweighting error (noise alone {found.floor:.2g})", found.lre, ".3f")
    if streams is not None:
        yield line("rounds a stream", streams.rounds)
        yield line("optimism of `max` (reward a pair)", streams.optimism, "+.3f")
        yield line("advantage at ends (an answer)", streams.pressure, "+.3f")
