"""Charts as inline SVG, drawn here so that they need no script, no library and no request.

Widths are percentages and heights pixels, so that a chart fills a column of any width while its letters keep their size. Colours
are classes of style.css. Every text goes through `tag`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from markupsafe import Markup, escape

from fairlen.batch import Floats

HEIGHT = 210
LINE = 15
"""Pixels that a line of text needs."""

Tone = Literal["correct", "incorrect", "plain", "third", "fourth"]
Form = Callable[[float], str]


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """An element; everything given is escaped unless it is markup. Underscores in names become hyphens, at the end nothing."""
    written = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{escape(v)}"' for k, v in attributes.items() if v is not None
    )
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def percent(value: float) -> str:
    return f"{100 * value:.4g}%"


def share(value: float) -> str:
    """0.125 -> 12.5%"""
    return "-" if not np.isfinite(value) else f"{100 * value:.2g}%" if abs(value) < 0.0995 else f"{100 * value:.0f}%"


def plain(value: float) -> str:
    """A number with no more digits than it deserves."""
    if not np.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Axis:
    """A linear scale."""

    low: float
    high: float
    ticks: Sequence[float]
    form: Form = plain

    def at(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def nice_step(least: float, whole: bool = False) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** np.floor(np.log10(max(least, 1e-12)))
    steps = [power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0)]
    good = [s for s in steps if s >= least * (1 - 1e-9) and not (whole and (s < 1 or s % 1))]
    return max(float(good[0]), 1.0) if whole else float(good[0])


def nice_axis(
    values: Sequence[Floats], form: Form = plain, zero: bool = False, number: int = 4, most: float = np.inf
) -> Axis:
    """An axis from the data, its ends on ticks."""
    finite = np.concatenate([v[np.isfinite(v)] for v in values] or [np.zeros(0)])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    if high - low < 1e-9:
        low, high = (0.0, high) if zero and high > 0 else (low - abs(low or 1.0) / 2, high + abs(high or 1.0) / 2)
    step = nice_step((high - low) / number)
    first, last = np.floor(low / step + 1e-9), np.ceil(high / step - 1e-9)
    ticks = [float(step * n) for n in range(int(first), int(last) + 1) if step * n <= most + 1e-9]
    return Axis(ticks[0], max(ticks[-1], min(high, most)), ticks, form)


def span_axis(low: float, high: float, number: int = 5) -> Axis:
    """An axis of whole numbers that ends where the data do."""
    step = nice_step(max(high - low, 1.0) / number, whole=True)
    ticks = [float(step * n) for n in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]
    return Axis(low, high if high > low else low + 1, ticks)


@dataclass(frozen=True)
class Series:
    """Numbers along x."""

    label: str
    x: Floats
    y: Floats
    tone: Tone
    low: Floats | None = None
    high: Floats | None = None
    mark: Literal["line", "points", "faint"] = "line"
    """"faint" is a thin line for what is there to compare with."""
    form: Form = plain


@dataclass(frozen=True)
class Frame:
    """The plot area: scales, and what is written around it."""

    x: Axis
    y: Axis
    x_label: str
    x_places: Sequence[tuple[float, str]] = field(default_factory=tuple)
    """Ticks of an axis that is not linear: (0 to 1, text)."""
    level: float | None = None
    """A value of y that is marked by a line."""

    def down(self, value: float) -> float:
        """Pixels from the top."""
        return round(HEIGHT * (1 - self.y.at(value)), 2)

    def draw(self, *shapes: Markup, label: str, side: Literal["names", "bare"] = "bare") -> Markup:
        """The chart, with axes."""
        places = self.x_places or [(self.x.at(t), self.x.form(t)) for t in self.x.ticks]
        rows = [
            tag("g", tag("line", x1=0, x2="100%", y1=self.down(t), y2=self.down(t), class_="grid"),
                tag("text", self.y.form(t), x=-8, y=self.down(t) + 4, class_="tick end"))
            for t in self.y.ticks
        ]  # fmt: skip
        marks = [tag("text", text, x=percent(at), y=HEIGHT + 18, class_="tick middle") for at, text in places]
        base = self.y.low if self.level is None else self.level
        axis = tag("line", x1=0, x2="100%", y1=self.down(base), y2=self.down(base), class_="base")
        name = tag("text", self.x_label, x="50%", y=HEIGHT + 38, class_="tick middle")
        svg = tag(
            "svg", *rows, *marks, name, *shapes, axis, width="100%", height=HEIGHT + 44, role="img", aria_label=label
        )
        return tag("div", svg, class_=f"plot {side}")


def lines(frame: Frame, series: Sequence[Series], label: str) -> Markup:
    """Lines with bands, or points with intervals, each named at its right end."""
    shapes: list[Markup] = []
    for one in series:
        if one.mark != "points":
            shapes.append(draw_paths(frame, one))
        if one.mark == "points" or np.isfinite(one.y).sum() == 1:
            shapes.append(draw_points(frame, one))
    return frame.draw(
        *shapes, *name_ends(frame, series), label=label, side="names" if any(s.label for s in series) else "bare"
    )


def draw_paths(frame: Frame, one: Series) -> Markup:
    """The band and the line; gaps where there is nothing."""

    def points(y: Floats, rows: Sequence[int]) -> list[str]:
        return [f"{1000 * frame.x.at(one.x[i]):.1f},{frame.down(float(y[i])):.1f}" for i in rows]

    parts: list[Markup] = []
    for rows in runs(np.isfinite(one.y)):
        if one.low is not None and one.high is not None:
            inner = [i for i in rows if np.isfinite(one.low[i]) and np.isfinite(one.high[i])]
            around = points(clip(frame, one.high), inner) + points(clip(frame, one.low), inner[::-1])
            if len(inner) > 1:
                parts.append(tag("path", d=f"M{'L'.join(around)}Z", class_="band"))
        if len(rows) > 1:
            parts.append(
                tag(
                    "path", d=f"M{'L'.join(points(one.y, rows))}", class_="line" if one.mark == "line" else "line faint"
                )
            )
    return tag("svg", *parts, viewBox=f"0 0 1000 {HEIGHT}", preserveAspectRatio="none", width="100%", height=HEIGHT,
               class_=f"paths c-{one.tone}")  # fmt: skip


def clip(frame: Frame, values: Floats) -> Floats:
    """Values held within the plot."""
    return np.clip(values, frame.y.low, frame.y.high)


def runs(present: np.ndarray) -> list[list[int]]:
    """Rows of consecutive True."""
    rows = np.flatnonzero(present)
    return [part.tolist() for part in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)] if len(rows) else []


def draw_points(frame: Frame, one: Series) -> Markup:
    """A dot each, with a whisker for its interval and its numbers when pointed at."""
    found: list[Markup] = []
    for i in np.flatnonzero(np.isfinite(one.y)):
        at, text = percent(frame.x.at(float(one.x[i]))), f"{one.label}: {one.form(float(one.y[i]))}"
        parts: list[Markup] = []
        if one.low is not None and one.high is not None and np.isfinite(one.low[i]):
            low, high = clip(frame, one.low)[i], clip(frame, one.high)[i]
            parts.append(
                tag("line", x1=at, x2=at, y1=frame.down(float(low)), y2=frame.down(float(high)), class_="whisker")
            )
            text += f" [{one.form(float(one.low[i]))}, {one.form(float(one.high[i]))}]"
        parts.append(tag("circle", cx=at, cy=frame.down(float(one.y[i])), r=4))
        found.append(tag("g", tag("title", text), *parts))
    return tag("g", *found, class_=f"c-{one.tone} dots")


def name_ends(frame: Frame, series: Sequence[Series]) -> list[Markup]:
    """Names beside the last values, pushed apart where they would overlap."""
    ends = []
    for one in series:
        rows = np.flatnonzero(np.isfinite(one.y))
        if one.label and len(rows):
            ends.append([frame.down(float(clip(frame, one.y)[rows[-1]])), one])
    ends.sort(key=lambda end: end[0])
    for before, after in pairwise(ends):
        after[0] = max(after[0], before[0] + LINE)
    limit = HEIGHT + 2.0
    for end in reversed(ends):
        end[0] = min(end[0], limit)
        limit = end[0] - LINE
    return [tag("text", one.label, x="100%", dx=9, y=y + 4, class_=f"name c-{one.tone}") for y, one in ends]


@dataclass(frozen=True)
class Bars:
    """One bar a bin, upwards or, where `down`, downwards from zero."""

    label: str
    height: Floats
    """[N], at least 0."""
    tone: Tone
    down: bool = False
    marks: Floats | None = None
    """Something to compare with, [N]: a short line across each bar."""


def bars(edges: Floats, names: Sequence[str], series: Sequence[Bars], x_label: str, label: str) -> Markup:
    """Bars over bins of length; the edges of bins are written below."""
    signed = [s * (-1.0 if b.down else 1.0) for b in series for s in (b.height, b.marks) if s is not None]
    y = nice_axis(signed, lambda v: share(abs(v)), zero=True)
    number = len(names)
    every = int(np.ceil((number + 1) / 7))
    single = bool((np.diff(edges) == 1).all())  # a bar for one number: named below its middle, not at its edges
    at = range(0, number if single else number + 1, every)
    places = [((i + 0.5 * single) / number, f"{edges[i]:.0f}") for i in at]
    frame = Frame(Axis(0, 1, ()), y, x_label, places, 0.0)
    shapes = [shape for one in series for shape in draw_bars(frame, names, one)]
    return frame.draw(*shapes, *name_sides(series), label=label)


def draw_bars(frame: Frame, names: Sequence[str], one: Bars) -> list[Markup]:
    """The bars of one series."""
    sign, width = (-1.0 if one.down else 1.0), 1 / len(names)
    found: list[Markup] = []
    for i, (height, name) in enumerate(zip(one.height.tolist(), names, strict=True)):
        ends = sorted((frame.down(0.0), frame.down(sign * height)))
        text = f"{one.label}, {name}: {share(height)}"
        parts = [tag("title", text), tag("rect", x=percent((i + 0.08) * width), width=percent(0.84 * width), y=ends[0],
                                         height=round(ends[1] - ends[0], 2))]  # fmt: skip
        if one.marks is not None and one.marks[i] > 0:
            y = frame.down(sign * float(one.marks[i]))
            parts.append(
                tag("line", x1=percent((i + 0.08) * width), x2=percent((i + 0.92) * width), y1=y, y2=y, class_="mark")
            )
        found.append(tag("g", *parts))
    return [tag("g", *found, class_=f"c-{one.tone} bars")]


def name_sides(series: Sequence[Bars]) -> list[Markup]:
    """Names in the corners: upward bars above, downward ones below."""
    return [
        tag("text", one.label, x="100%", y=HEIGHT - 6 if one.down else 10, class_=f"name end c-{one.tone}")
        for one in series
        if one.label
    ]
