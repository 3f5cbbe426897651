"""Figures: a chart as inline SVG, the same numbers as a table, and words. `Markup.format` escapes every text.

Widths are percentages and heights pixels, so that a chart fills a column of any width while its letters keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from fairlen.audit.statistics.intervals import Bins, Counted, Estimate, Estimates
from fairlen.batch import Floats, Ints

HEIGHT = 210
LINE = 15  # pixels that a line of text needs
MAX_WINDOWS = 40
INTERVAL = "Bands and whiskers are 95% intervals over prompts."
MIN_ROWS = 5  # in a bin of length that is drawn
Tone = Literal["correct", "incorrect", "plain", "third", "fourth"]
TONES: tuple[Tone, ...] = ("plain", "correct", "incorrect", "third", "fourth")
Form = Callable[[float], str]
SIDES: tuple[tuple[Tone, bool], ...] = (("correct", True), ("incorrect", False))
GRID = Markup(
    '<g><line x1="0" x2="100%" y1="{y}" y2="{y}" class="grid"/><text x="-8" y="{base}" class="tick end">{text}</text></g>'
)
TICK = Markup('<text x="{x}" y="{y}" class="tick middle">{text}</text>')
CHART = Markup(
    '<div class="plot {side}"><svg width="100%" height="{height}" role="img" aria-label="{label}">{shapes}'
    '<line x1="0" x2="100%" y1="{base}" y2="{base}" class="base"/></svg></div>'
)
PATHS = Markup(
    '<svg viewBox="0 0 1000 {height}" preserveAspectRatio="none" width="100%" height="{height}" class="paths c-{tone}">'
    "{shapes}</svg>"
)
PATH = Markup('<path d="M{points}" class="{kind}"/>')
WHISKER = Markup('<line x1="{x}" x2="{x}" y1="{low}" y2="{high}" class="whisker"/>')
DOT = Markup('<g class="c-{tone} dots">{whisker}<circle cx="{x}" cy="{y}" r="4"/></g>')
HIT = Markup('<rect x="{x}" width="{width}" y="{y}" height="{height}" class="hit"><title>{title}</title></rect>')
NAME = Markup('<text x="100%" dx="9" y="{y}" class="name c-{tone}">{text}</text>')
LEGEND = Markup('<p class="legend">{names}</p>')
KEY = Markup('<b class="c-{tone}">&#9679;&nbsp;{text}</b> ')
MAX_NAME = 11  # letters of a name beside a chart; longer ones stand above it
UP = Markup('<line x1="{x}" x2="{x}" y1="0" y2="{height}" class="{kind}"/>')
ROW = Markup('<text x="0" y="{y}" class="row-name c-{tone}">{text}</text>')
SPAN = Markup('<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" class="whisker"/>')
SMALL = Markup('<circle cx="{x}" cy="{y}" r="3" class="small c-{tone}"/>')
ROW_HEIGHT, MAX_ROW_NAME = 48, 36  # pixels of a row, and letters of its name that a phone has room for


def percent(value: float) -> str:
    return f"{100 * value:.4g}%"


def share(value: float) -> str:
    """Format 0.125 as 12%, and 0.0125 as 1.2%."""
    return "-" if not np.isfinite(value) else f"{100 * value:.2g}%" if abs(value) < 0.0995 else f"{100 * value:.0f}%"


def plain(value: float) -> str:
    """Format a number with no more digits than it deserves."""
    if not np.isfinite(value):
        return "-"
    if 0 < abs(value) < 1e-3 or abs(value) >= 1e6:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:,.0f}" if value == 0 or abs(value) >= 999.5 else f"{value:.3g}"


def whole(value: float) -> str:
    return f"{value:.0f}"


def interval(estimate: Sequence[float], form: Form) -> str:
    """Format (0.5, 0.4, 0.6) as 0.5 [0.4, 0.6]; no brackets where there is no interval."""
    value, low, high = map(float, estimate)
    if not np.isfinite(value):
        return "-"
    return f"{form(value)} [{form(low)}, {form(high)}]" if np.isfinite(low) else form(value)


def intervals(found: Estimates, form: Form = share) -> list[str]:
    return [interval(values, form) for values in zip(found.value, found.low, found.high, strict=True)]


def counted_rows(names, *found: Counted, form: Form = share) -> list[tuple[str, ...]]:
    """Return rows of a name, the estimates, and how many rows the first of them counted."""
    return list(zip(names, *(intervals(one, form) for one in found), map(str, found[0].count), strict=True))


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: Sequence[float] = ()
    form: Form = plain

    def at(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def nice_step(least: float, whole: bool = False) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    least = max(least, 1.0 if whole else 1e-12)
    power = 10.0 ** np.floor(np.log10(least))
    steps = (power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0))
    return next(float(s) for s in steps if s >= least * (1 - 1e-9) and not (whole and s % 1))


def nice_axis(values: Sequence[Floats], form: Form = plain, zero: bool = False, most: float = np.inf) -> Axis:
    """Return an axis that holds the data, its ends on ticks, none of them beyond `most`."""
    finite = np.concatenate([v[np.isfinite(v)] for v in values] or [np.zeros(0)])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    if high - low < 1e-9:
        low, high = (0.0, high) if zero and high > 0 else (low - abs(low or 1.0) / 2, high + abs(high or 1.0) / 2)
    step = nice_step((high - low) / 4)
    first, last = np.floor(low / step + 1e-9), np.ceil(high / step - 1e-9)
    ticks = [float(step * n) for n in range(int(first), int(last) + 1) if step * n <= most + 1e-9]
    return Axis(ticks[0], max(ticks[-1], min(high, most)), ticks, form)


def span_axis(high: float, low: float = 0.0) -> Axis:
    """Return an axis of whole numbers that ends where the data do, and begins at 0 unless they are all in its second half."""
    low = low if low > high / 2 else 0.0
    step = nice_step(max(high - low, 1.0) / 5, whole=True)
    return Axis(low, high or 1.0, [float(step * n) for n in range(int(np.ceil(low / step)), int(high / step) + 1)])


@dataclass(frozen=True)
class Series:
    label: str
    x: Floats
    y: Floats
    tone: Tone
    low: Floats | None = None
    high: Floats | None = None
    mark: Literal["line", "points", "faint"] = "line"
    """"faint" is a thin line for what is there to compare with, named only under the pointer."""
    form: Form = plain


def as_series(label: str, x: Floats, found: Estimates, tone: Tone, mark: Any = "line", form: Form = share) -> Series:
    return Series(label, x, found.value, tone, found.low, found.high, mark, form)


def ends_of(series: Sequence[Series]) -> list[Floats]:
    return [values for one in series for values in (one.y, one.low, one.high) if values is not None]


@dataclass(frozen=True)
class Frame:
    """The plot area: scales, and what is written around it."""

    x: Axis
    y: Axis
    x_label: str
    x_places: Sequence[tuple[float, str]] = ()  # ticks of an axis that is not linear: (0 to 1, text)
    level: float | None = None  # a value of y that is marked by a line
    names: Callable[[float], str] | None = None  # what a place on x is called; otherwise by its number

    def name(self, x: float) -> str:
        return self.names(x) if self.names else f"{self.x_label} {self.x.form(x)}"

    def down(self, value: float) -> float:
        return round(HEIGHT * (1 - min(max(self.y.at(value), 0.0), 1.0)), 2)


def lines(frame: Frame, series: Sequence[Series], label: str) -> Markup:
    """Draw lines with bands, or points with intervals, each named at its right end."""
    shapes: list[Markup] = []
    for tick in frame.y.ticks:
        shapes.append(GRID.format(y=frame.down(tick), base=frame.down(tick) + 4, text=frame.y.form(tick)))
    for at, text in frame.x_places or [(frame.x.at(t), frame.x.form(t)) for t in frame.x.ticks]:
        shapes.append(TICK.format(x=percent(at), y=HEIGHT + 18, text=text))
    shapes.append(TICK.format(x="50%", y=HEIGHT + 38, text=frame.x_label))
    for one in series:
        if one.mark != "points":
            shapes.append(draw_paths(frame, one))
        if one.mark == "points" or np.isfinite(one.y).sum() == 1:
            shapes += draw_points(frame, one)
    named, above = [one for one in series if one.label and one.mark != "faint"], Markup("")
    if any(len(one.label) > MAX_NAME for one in named):
        keys = (KEY.format(tone=one.tone, text=one.label) for one in named)
        above, named = LEGEND.format(names=Markup("").join(keys)), []
    shapes += [*name_ends(frame, named), *draw_columns(frame, series)]
    base = frame.down(frame.y.low if frame.level is None else frame.level)
    side = "names" if named else "bare"
    return above + CHART.format(side=side, height=HEIGHT + 44, label=label, shapes=Markup("").join(shapes), base=base)


@dataclass(frozen=True)
class ChartRow:
    name: str
    tone: Tone
    mark: Estimate
    says: str  # under the pointer
    points: Sequence[float]


def rows(found: Sequence[ChartRow], axis: Axis, x_label: str, label: str, level: float | None = None) -> Markup:
    height, shapes = ROW_HEIGHT * len(found), []
    for tick in axis.ticks:
        x = percent(axis.at(tick))
        kind = "level" if tick == level else "grid"
        shapes += [UP.format(x=x, height=height, kind=kind), TICK.format(x=x, y=height + 18, text=axis.form(tick))]
    shapes.append(TICK.format(x="50%", y=height + 38, text=x_label))
    for place, one in enumerate(found):
        top = ROW_HEIGHT * place
        y = top + 32
        name = one.name if len(one.name) <= MAX_ROW_NAME else f"{one.name[: MAX_ROW_NAME - 1]}…"
        shapes.append(ROW.format(y=top + 16, tone=one.tone, text=name))
        shapes += [SMALL.format(x=percent(axis.at(at)), y=y, tone=one.tone) for at in one.points]
        value, low, high = map(percent, map(axis.at, one.mark))
        span = SPAN.format(low=low, high=high, y=y)
        shapes.append(DOT.format(tone=one.tone, whisker=span, x=value, y=y))
        title = f"{one.name}\n{one.says}"
        shapes.append(HIT.format(x=0, width="100%", y=top, height=ROW_HEIGHT, title=title))
    return CHART.format(side="rows", height=height + 44, label=label, shapes=Markup("").join(shapes), base=height)


def draw_paths(frame: Frame, one: Series) -> Markup:

    def points(y: Floats, rows: Sequence[int]) -> list[str]:
        return [f"{1000 * frame.x.at(one.x[i]):.1f},{frame.down(float(y[i])):.1f}" for i in rows]

    shapes: list[Markup] = []
    known = np.flatnonzero(np.isfinite(one.y))
    for part in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if len(known) else ():
        rows = part.tolist()
        if one.low is not None and one.high is not None:
            inner = [i for i in rows if np.isfinite(one.low[i]) and np.isfinite(one.high[i])]
            around = points(one.high, inner) + points(one.low, inner[::-1])
            if len(inner) > 1:
                shapes.append(PATH.format(points="L".join(around) + "Z", kind="band"))
        kind = "line" if one.mark == "line" else "line faint"
        shapes.append(PATH.format(points="L".join(points(one.y, rows)), kind=kind))
    return PATHS.format(height=HEIGHT, tone=one.tone, shapes=Markup("").join(shapes))


def draw_points(frame: Frame, one: Series) -> list[Markup]:
    shapes: list[Markup] = []
    for i in np.flatnonzero(np.isfinite(one.y)):
        x, value, whisker = percent(frame.x.at(float(one.x[i]))), float(one.y[i]), ""
        if one.low is not None and one.high is not None and np.isfinite(one.low[i]):
            low, high = float(one.low[i]), float(one.high[i])
            whisker = WHISKER.format(x=x, low=frame.down(low), high=frame.down(high))
        shapes.append(DOT.format(tone=one.tone, whisker=whisker, x=x, y=frame.down(value)))
    return shapes


def draw_columns(frame: Frame, series: Sequence[Series]) -> list[Markup]:
    """Draw a column without colour around each place on x: pointed at, it gives the values of every series there."""
    found: dict[str, tuple[list[float], list[str]]] = {}
    points = [(float(one.x[i]), one, i) for one in series for i in np.flatnonzero(np.isfinite(one.y))]
    for x, one, i in sorted(points, key=lambda point: point[0]):
        ends = [float("nan")] * 2 if one.low is None or one.high is None else [one.low[i], one.high[i]]
        text = interval((one.y[i], *ends), one.form)
        at, texts = found.setdefault(frame.name(x), ([], []))
        at.append(frame.x.at(x))
        texts.append(f"{one.label}: {text}" if one.label else text)
    middle = [sum(at) / len(at) for at, _ in found.values()]
    edges = [0.0, *((one + other) / 2 for one, other in pairwise(middle)), 1.0]
    return [
        HIT.format(x=percent(low), width=percent(high - low), y=0, height=HEIGHT, title="\n".join((name, *texts)))
        for (low, high), (name, (_, texts)) in zip(pairwise(edges), found.items(), strict=bool(found))
    ]


def name_ends(frame: Frame, series: Sequence[Series]) -> list[Markup]:
    """Write names beside the last values, pushed apart where they would overlap."""
    ends = []
    for one in series:
        rows = np.flatnonzero(np.isfinite(one.y))
        if len(rows):
            ends.append([frame.down(float(one.y[rows[-1]])), one])
    ends.sort(key=lambda end: end[0])
    for before, after in pairwise(ends):
        after[0] = max(after[0], before[0] + LINE)
    limit = HEIGHT + 2.0
    for end in reversed(ends):
        end[0] = min(end[0], limit)
        limit = end[0] - LINE
    return [NAME.format(y=y + 4, tone=one.tone, text=one.label) for y, one in ends]


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    title: str  # what is seen
    says: str  # what is drawn, with units
    chart: Markup | None = None
    table: Table | None = None
    note: str = ""  # uncertainty, and what to look for
    id: str = ""
    terms: tuple[str, ...] = ()  # of the page's definitions, those that it shows


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    lead: str
    figures: list[Figure] = field(default_factory=list)
    audit: Any = None  # of the log that it is about: its findings and notes are shown
    facts: Sequence[tuple[str, str, str]] = ()
    rollouts: Sequence[Any] = ()
    notes: Sequence[str] = ()
    groups: Sequence[tuple[str, Sequence[Figure]]] = ()  # more figures, each group closed but the first


def change(name: str, series: Series) -> str:
    """Say "Accuracy rose from 50% to 93%", between the first and last value; a change within the intervals is none."""
    rows, form = np.flatnonzero(np.isfinite(series.y)), series.form
    name = name[:1].upper() + name[1:]
    if len(rows) < 2:
        return f"{name} was {form(float(series.y[rows[0]]))}" if len(rows) else f"{name}: nothing was measured"
    ends = rows[[0, -1]]
    before, after = map(float, series.y[ends])
    overlap = (
        series.low is not None and series.high is not None and np.max(series.low[ends]) <= np.min(series.high[ends])
    )
    if form(before) == form(after) or overlap:
        return f"{name} shows no clear change: {form(before)} at first, {form(after)} in the end"
    return f"{name} {'rose' if after > before else 'fell'} from {form(before)} to {form(after)}"


def middles(size: int) -> Floats:
    """Return the middles of bins of one width, of an axis from 0 to 1."""
    return (np.arange(size) + 0.5) / max(size, 1)


def by_length(bins: Bins, y: Axis, label: str, unit: str) -> Frame:
    """Return the frame of numbers against bins of length; every other bin has its shortest length below it."""
    places, names = list(zip(middles(len(bins)).tolist(), map(whole, bins.low), strict=True)), bins.names()
    return Frame(
        Axis(0, 1), y, f"{label} ({unit})", places[::2], names=lambda x: f"{names[int(x * len(names))]} {unit}"
    )


def windows(batch: Ints) -> tuple[Ints, Floats]:
    """Return the stretch of training of each row, and the middle of each stretch."""
    low, high = (int(batch.min()), int(batch.max())) if len(batch) else (0, 0)
    width = int(np.ceil((high - low + 1) / MAX_WINDOWS))
    starts = low + width * np.arange((high - low) // width + 1)
    return (batch - low) // width, (starts + np.minimum(starts + width, high + 1) - 1) / 2.0
