"""The command `fairlen audit`: an audit as text, a page, or JSON, whose fields docs/audit.md lists. What files say is hostile."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairlen.audit import numbers
from fairlen.audit.audit import Audit, audit, find_missing
from fairlen.audit.comparison import Against, compare_logs
from fairlen.audit.conclusion import Margins
from fairlen.audit.log import Unit
from fairlen.audit.method_in_use import InUse, parse_method
from fairlen.audit.numbers import MAX_ROWS_JSON, to_json
from fairlen.audit.readers import LogReading, Options
from fairlen.audit.readers.columns import ROLES
from fairlen.audit.readers.context import Choices
from fairlen.console import complain, log, make_console, plural, suggest, visible
from fairlen.files.folders import refuse_foreign
from fairlen.files.formats import Unreadable
from fairlen.settings import Flag, Positional

MEANINGS = ("read", "written", "truncated", "ended", "failed")
MAX_ROWS = 10  # malformed rows that are shown


@dataclass(frozen=True)
class AuditConfig:
    """Audit rollouts in any of the formats of docs/rollouts for effects of length: a verdict first, then why."""

    paths: Annotated[tuple[str, ...], Positional]
    """Files, folders or patterns."""
    columns: str = ""
    """Columns of files of no known format, such as prompt=question,response=answer,reward=score. Sums: reward=a+b."""
    unit: Literal["auto", "tokens", "words", "characters"] = "auto"
    """Of lengths; auto: tokens where every row has them, else words, of texts without spaces characters."""
    tokenizer: str = ""
    """Folder with a tokenizer.json, or hub id in the local cache: lengths are tokens of the text."""
    means: str = ""
    """What names in the files mean, such as interpreter=read,plan=written for blocks in texts, budget_spent=truncated (ended,
    failed) for finish words."""
    against: tuple[str, ...] = ()
    """Other rollouts, B, that the first ones, A, are compared with over the prompts that both have: B minus A."""
    max_response_length: int = 0
    """Limit of generation in tokens, to know which responses were truncated where the files do not say."""
    pool: bool = False
    """Read files of one format as one log whatever their folders, as those of runs that differ in their seed alone."""
    group_by: str = ""
    """Columns, joined by commas, that were fixed before a response was sampled, such as a checkpoint: responses are compared only
    within each value. `file`, `folder` and `order` (of the rows) count as columns."""
    ignore_columns: str = ""
    """Columns, joined by commas, that follow from a response, such as a label: they never decide what is compared."""
    method: str = ""
    """Method that made the rollouts, such as grpo+balanced, or its aggregation, such as token_mean; by default looked for beside
    the files."""
    smallest_length: float = 0.10
    """Smallest difference of length that matters, relatively: `none` excludes it."""
    smallest_share: float = 0.05
    """Smallest difference of accuracy, or of pairs, that matters, in shares of 1: `none` excludes it."""
    out: str = ""
    """File to write the audit to as one page, such as page.html, with pictures, rollouts behind the findings and definitions."""
    as_json: Annotated[bool, Flag("json")] = False
    """One JSON object instead of text."""

    def options(self) -> Options:
        """Return how to read. Raises ValueError for what cannot be."""
        options = make_options(self.columns, self.unit, self.tokenizer, self.max_response_length, self.pool, self.means)
        groups = parse_groups(self.group_by, self.ignore_columns)
        processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        return replace(options, groups=groups, processes=processes)


def make_options(
    columns: str,
    unit: Unit | Literal["auto"],
    tokenizer: str,
    max_response_length: int,
    pool: bool = False,
    means: str = "",
) -> Options:
    """Return how to read, from flags. Raises ValueError for what cannot be."""
    if max_response_length < 0:
        raise ValueError(f"--max-response-length {max_response_length}: give a number of tokens above 0")
    if tokenizer and unit not in ("auto", "tokens"):
        raise ValueError(f"--unit {unit} with --tokenizer: leave one of them out")
    return Options(
        parse_columns(columns),
        None if unit == "auto" else unit,
        tokenizer,
        max_response_length,
        pool,
        meanings=parse_meanings(means),
    )


def parse_meanings(text: str) -> dict[str, str]:
    """Return name to meaning, from interpreter=read,timeup=truncated. Raises ValueError for another meaning."""
    meanings: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        name, _, meaning = (part.strip().lower() for part in pair.rpartition("="))
        if not name or meaning not in MEANINGS:
            raise ValueError(f"--means {pair}: write NAME=MEANING; {suggest(meaning, MEANINGS)}")
        meanings[name] = meaning
    return meanings


def parse_groups(group_by: str, ignore_columns: str) -> Choices:
    """Return which columns form groups and which do not, from names joined by commas."""
    grouped, ignored = (
        tuple(name.strip() for name in text.split(",") if name.strip()) for text in (group_by, ignore_columns)
    )
    return Choices(grouped, ignored)


def parse_columns(text: str) -> dict[str, str]:
    """Return role to column, from prompt=question,reward=score. Raises ValueError for a role that does not exist."""
    chosen: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, equals, name = (part.strip() for part in pair.partition("="))
        if role not in ROLES or not equals or not name:
            raise ValueError(f"--columns {pair}: write ROLE=COLUMN; {suggest(role, ROLES)}")
        chosen[role] = name
    return chosen


def run(config: AuditConfig, write_page: Callable[[Path, Sequence[Audit], LogReading, Against | None], Path]) -> int:
    """Print the audit; `write_page` writes the page of --out. Return 1 where a file could not be read. Raises ValueError."""
    refuse_foreign("out", config.out)
    gc.freeze()  # of the modules: collections of rows need not walk through them
    options, margins = config.options(), Margins(config.smallest_length, config.smallest_share)
    method = parse_method(config.method) if config.method else None
    audits, reading = read_audits(config.paths, options, method, margins)
    against = None
    if config.against:
        others, other_reading = read_audits(config.against, options, method, margins)
        against = compare_audits(audits, others)
        audits += others
        reading = LogReading(*(getattr(reading, name) + getattr(other_reading, name) for name in vars(reading)))
    if config.out:  # first: printing ends at `| head`
        write_page(Path(config.out), audits, reading, against)
    if config.as_json:
        log(json.dumps(to_json(audits, reading, against), allow_nan=False, indent=1))
    else:
        show(audits, reading, against=against)
    if config.out:
        log(f"page: {config.out}", sys.stderr if config.as_json else None)
    unreadable = list(reading.unreadable)
    if not audits and not unreadable:
        unreadable = ["no rollouts in these files; name the columns of yours: --columns response=NAME,reward=NAME"]
    for sentence in unreadable:
        complain("audit", sentence)
    return 1 if unreadable else 0


def read_audits(
    paths: Sequence[str], options: Options, method: InUse | None, margins: Margins
) -> tuple[tuple[Audit, ...], LogReading]:
    """Return the audits of some paths, and what could not be read, a path where nothing is among it."""
    try:
        return audit(list(paths), options, method, margins)
    except Unreadable as error:
        return (), LogReading((), (str(error),), ())


def compare_audits(audits: tuple[Audit, ...], others: tuple[Audit, ...]) -> Against | None:
    """Return one log against another, None where nothing could be read. Raises ValueError for more logs on either side."""
    if len(audits) > 1 or len(others) > 1:
        raise ValueError(
            f"--against compares one log with one other, not {len(audits)} with {len(others)}: a log is the files of one format "
            "in one folder, so name a folder or files of one format on each side"
        )
    return compare_logs(audits[0].log, others[0].log) if audits and others else None


def show(
    audits: tuple[Audit, ...], reading: LogReading, console: Console | None = None, against: Against | None = None
) -> None:
    console = make_console(130, console.file if console else None)
    for one in audits:
        show_audit(one, console)
    if against:
        show_against(against, console)
    elif len(audits) > 1:
        write(console, f"{len(audits)} logs: one for each format and folder, never mixed without --pool")
    for sentence in reading.not_rollouts[:MAX_ROWS]:
        write(console, f"skipped  {sentence}", "dim")


def write(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    console.print(Padding(Text(visible(text), style=style), (0, 0, 0, indent), expand=False))


def show_audit(one: Audit, console: Console) -> None:
    source, rollouts = one.source, one.log
    head = f"{source.format.title}  {source.folder}  ({len(source.files)} {plural('file', len(source.files))})"
    write(console, head, "bold")
    for status, sentence in dict.fromkeys((found.status, found.sentence) for found in one.conclusions):
        write(console, f"{status}: {sentence}", "bold", indent=2)
    write(console, f"{numbers.count_rollouts(one)}; lengths in {rollouts.unit}", indent=2)
    write(console, f"method: {numbers.describe_method(one)}", indent=2)
    if budget := numbers.describe_budgets(one.budgets, rollouts.unit):
        write(console, budget, indent=2)
    for note in source.notes:
        write(console, note, "dim", indent=2)
    show_malformed(one, console)
    show_findings(one, console)
    show_table(console, ("effects within prompts", "number", "95% interval"), numbers.within_rows(one))
    show_table(console, numbers.CHANNELS_HEAD, numbers.channel_rows(one))
    show_table(console, ("which responses are there", "share", "95% interval"), numbers.selection_rows(one))
    show_table(console, numbers.aggregation_head(one), numbers.aggregation_rows(one))
    head = (f"budget ({rollouts.unit})", "correct within it", "95% interval")
    show_table(console, head, numbers.main_budgets(one.budgets))
    show_table(console, numbers.untrained_head(one), numbers.untrained_rows(one))
    show_table(console, ("description, no finding", "number", "95% interval"), numbers.measured_rows(one))
    show_table(console, ("of the records", "number", "95% interval"), numbers.recorded_rows(one))
    if missing := find_missing(one):
        write(console, "not in these files", "bold", indent=2)
    for sentence in missing:
        write(console, sentence, indent=4)
    console.print()


def show_against(found: Against, console: Console) -> None:
    prompts = f"{found.num_common:,} {plural('prompt', found.num_common)} in both"
    alone = f"{found.num_first:,} in A alone, {found.num_second:,} in B alone"
    write(console, f"B, the second log, against A, the first: {prompts}, {alone}", "bold")
    for sentence in (found.sentence, *found.notes):
        write(console, sentence, indent=2)
    console.print()
    show_table(console, ("", "A", "B", "B minus A", "95% interval"), (one.row() for one in found.contrasts))


def show_malformed(one: Audit, console: Console) -> None:
    malformed = one.log.malformed
    if number := len(malformed):
        head = f"{number:,} {plural('row', number)} could not be read and {plural('is', number, 'are')} left out:"
        write(console, head, "yellow", indent=2)
    for row in malformed[:MAX_ROWS]:
        write(console, f"{row.file}:{row.line}: {row.reason}", indent=4)
    if number > MAX_ROWS:
        write(console, f"and {number - MAX_ROWS:,} more (--json lists {MAX_ROWS_JSON})", indent=4)


def show_findings(one: Audit, console: Console) -> None:
    console.print()
    none = "" if one.findings else ": none yet" if one.conclusion.status == "unknown" else ": none"
    write(console, f"findings{none}", "bold", indent=2)
    for place, finding in enumerate(one.findings, 1):
        write(console, f"{place}. {finding.text}", indent=4)
        for sentence in finding.more:
            write(console, sentence, "dim", indent=7)
        if finding.advice:
            with_method = f"with {one.method.name}: " if finding.advice.evidence and one.method else ""
            write(console, f"{with_method}{finding.advice.text}", indent=7)
            for evidence in finding.advice.evidence:
                write(console, f"evidence: {evidence}", "dim", indent=9)
    console.print()


def show_table(console: Console, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*head, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    if table.row_count:
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
