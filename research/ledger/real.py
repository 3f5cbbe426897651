"""What phase A of the protocol measured on a real language model, in sentences whose words follow from their intervals: a part of
docs/claims.md, and the check of what it stands on."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

from fairlen.audit.statistics.intervals import Estimate
from research.ledger.protocol import CHANGED, PROTOCOL, meaning, shown
from research.ledger.rule import EXCLUDED, Measure, Premise, judge_figure, show
from research.ledger.study import agree
from research.real.evidence import ABOUT, DIGESTS, digest, read_kept
from research.real.figures import FIGURES_FILE, make_figures, name_row
from research.study.intervals import Result, quantile

FOLDER, DATA = "docs/study/real", Path(__file__).parent / "data" / "real.toml"
PLACE = re.compile(r"\{([^{}]+)\}")
"""A row in a sentence, as figure: row, whose number stands in its place."""
WORDS = {"reproduced": "does", "contradicted": "opposite", EXCLUDED: "does_not"}
"""Texts of a sentence by the status that the rule of research/ledger/rule.py gives its interval; of any other `undecided`."""
MEASURING = "research/real/figures.py"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A sentence of the protocol's table in the ways in which it can be said, and the row that decides which."""

    row: str
    predicted: str
    smallest: float
    does: str
    does_not: str
    undecided: str
    opposite: str = ""
    """Where the whole interval lies beyond the smallest effect on the other side; empty: as `does_not`."""
    null: float = 0.0
    """What no effect is."""
    premise: str = ""
    """Row that may be at most `most`: where its whole interval is not, `untestable` is said."""
    most: float = math.inf
    untestable: str = ""

    def word(self, rows: Mapping[str, Row]) -> str:
        """Return which of its texts the intervals allow."""
        if self.premise and not rows[self.premise]["high"] <= self.most:
            return "untestable"
        row = rows[self.row]
        value, low, high = (row[name] - self.null for name in ("value", "low", "high"))
        result = Result(value, low, high, seeds=row.get("prompts") or row["seeds"], runs=1)
        measure = Measure(self.row, self.predicted, self.smallest, "")
        return WORDS.get(judge_figure(measure, (), {self.row: result}, {}).status, "undecided")

    def text(self, rows: Mapping[str, Row]) -> str:
        word = self.word(rows)
        return self.opposite or self.does_not if word == "opposite" else getattr(self, word)


@dataclass(frozen=True)
class Pair:
    """A pair of phase B, and what has to hold for it to be run; without a row it is, unless there is a reason why not."""

    text: str
    row: str = ""
    least: float | None = None
    why: str = ""
    """Said where it is not run."""


@dataclass(frozen=True)
class Told:
    """Sentences in the words that their rows allow."""

    sentences: Mapping[str, Sequence[Sentence]]
    """By their paper, or their world."""
    beside: Mapping[str, str]
    """Said after a paper's sentences."""

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        """Every row by its name."""
        raise NotImplementedError

    @cached_property
    def firm(self) -> dict[str, bool]:
        """Whether each decision stands with intervals that hold for all of them together (Bonferroni), by row."""
        asked = [one for part in self.sentences.values() for one in part]
        wide = {name: widen(row, len(asked)) for name, row in self.rows.items() if row.get("low") is not None}
        return {one.row: one.word(self.rows) == one.word(wide) for one in asked}

    def said(self) -> Iterator[tuple[str, str]]:
        """Yield each paper with what is said of it, rows in the places of numbers."""
        for paper, sentences in self.sentences.items():
            texts = [one.text(self.rows) + ("" if self.firm[one.row] else MARK) for one in sentences]
            yield paper, " ".join([*texts, self.beside.get(paper, "")]).strip()

    def filled(self, text: str) -> str:
        """Return a text with numbers and intervals in place of rows."""
        return PLACE.sub(lambda found: self.number(found[1]), text)

    def number(self, name: str) -> str:
        row = self.rows[name]
        return f"{Estimate(row['value'], row['low'], row['high']):.3g}" if "low" in row else show(row["value"])


@dataclass(frozen=True)
class Real(Told):
    """Figures of phase A with the sentences about them."""

    about: Mapping[str, Any]
    figures: Mapping[str, Sequence[Row]]
    introduction: str
    pairs: Sequence[Pair]
    title: str = "On a real language model"

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Every row by its name, and the first and the last of those that end alike."""
        found = {f"{name}: {name_row(row)}": row for name, rows in self.figures.items() for row in rows}
        for name, rows in self.figures.items():
            for row in rows:
                label = f"{name}: {{}} {name_row(row).split()[-1]}"
                found.setdefault(label.format("first"), row)
                found[label.format("last")] = row
        for row in self.figures["directions"]:  # from the nearest on the others are told apart
            if " less " in name_row(row):
                found.setdefault("directions: lead", row)
        return found

    def bullets(self) -> Iterator[str]:
        """Yield what is said by paper, numbers in their places, and then which pairs phase B leaves out."""
        yield from (self.filled(f"**{paper}.** {text}") for paper, text in self.said())
        listed = [f"{one.text} ({one.why})" for one in self.pairs if not self.is_run(one)]
        yield self.filled(f"**Training.** Not run: {', '.join(listed) or 'no pair of the plan'}.")

    def is_run(self, pair: Pair) -> bool:
        """Whether the whole interval keeps the premise of a pair."""
        if not pair.row:
            return not pair.why
        row = self.rows[pair.row]
        return bool(Premise(pair.row, pair.least).holds(Result(row["value"], row["low"], row["high"])))

    def number(self, name: str) -> str:
        if name == "nearest":
            return name_row(self.rows["directions: lead"]).partition(" less ")[0]
        return super().number(name)


MARK = "\\*"


def widen(row: Row, decisions: int) -> Row:
    """Return a row with an interval that holds for so many decisions together, of seeds by Student's t."""
    of = partial(quantile, freedom=row["seeds"] - 1) if "seeds" in row else NormalDist().inv_cdf
    factor = of(1 - 0.025 / decisions) / of(0.975)
    return {**row, **{end: row["value"] + factor * (row[end] - row["value"]) for end in ("low", "high")}}


def load_real(root: Path, data: Path = DATA) -> Real | None:
    """Return what was measured, or None where nothing is kept. Raises ValueError for a row that there is not."""
    folder = root / FOLDER
    if not (folder / FIGURES_FILE).is_file():
        return None
    about, figures = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (ABOUT, FIGURES_FILE))
    given = tomllib.loads(data.read_text(encoding="utf-8"))
    sentences = {paper: [Sentence(**one) for one in part] for paper, part in given["sentences"].items()}
    found = Real(
        sentences, given["beside"], about, figures, given["introduction"], [Pair(**one) for one in given["pair"]]
    )
    return check_rows(found)


def check_rows(found: Real) -> Real:
    """Return it. Raises ValueError for a sentence about a row that there is not, or a deciding one without its interval."""
    asked = [one for part in found.sentences.values() for one in part]
    texts = [text for one in asked for text in (one.does, one.does_not, one.undecided, one.opposite, one.untestable)]
    named = [
        name
        for text in (*texts, *found.beside.values(), *(one.why for one in found.pairs), found.introduction)
        for name in PLACE.findall(text)
    ]
    rows = [name for one in (*asked, *found.pairs) for name in (one.row, getattr(one, "premise", "")) if name]
    for name in (*rows, *named):
        if name != "nearest" and name not in found.rows:
            raise ValueError(f"{DATA.name}: there is no row {name!r} in {FOLDER}/{FIGURES_FILE}")
    for one in asked:
        if found.rows[one.row].get("low") is None:
            raise ValueError(f"{DATA.name}: {one.row!r} has no interval, by which its words are chosen")
    return found


def check_real(root: Path) -> Iterator[str]:
    """Yield columns that are not those which were kept, figures that they do not give, and a measure that was changed unsaid."""
    folder = root / FOLDER
    if not folder.is_dir():
        return
    found = read_kept(folder)
    for name, value in digest(found).items():
        if found.about[DIGESTS].get(name) != value:
            yield f"{FOLDER}: {name} is not what {ABOUT} has the digest of"
    made, kept = make_figures(found), json.loads((folder / FIGURES_FILE).read_text(encoding="utf-8"))
    for name in sorted({*made, *kept}):
        if not agree(made.get(name), kept.get(name)):
            yield f"{FOLDER}/{FIGURES_FILE}: {name} is not what the tables beside it give"
    commit, named = found.about["commit"], (root / PROTOCOL).read_text(encoding="utf-8").partition(CHANGED)[2]
    before = shown(commit, MEASURING, root)
    if before and meaning(before) != meaning((root / MEASURING).read_text(encoding="utf-8")) and MEASURING not in named:
        yield f"{MEASURING}: not what it was in {commit[:10]}, which drew, and {PROTOCOL} does not say why"
