"""Dates, times of day and durations in several parts, as answers write them: `14th of July 1990`, `7:20 p.m.`, `2 h 30 min`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fairlen.verify.units import parse_unit

MONTHS = (
    "january jan janvier januar jänner enero", "february feb février februar febrero", "march mar mars märz marzo",
    "april apr avril abril", "may mai mayo", "june jun juin juni junio", "july jul juillet juli julio", "august aug août agosto",
    "september sep sept septembre septiembre", "october oct octobre oktober octubre", "november nov novembre noviembre",
    "december dec décembre dezember diciembre",
)  # fmt: skip
"""Names of each month in English, French, German and Spanish."""
MONTH = {name: number for number, names in enumerate(MONTHS, 1) for name in names.split()}
WEEKDAYS = (
    "monday mon",
    "tuesday tue tues",
    "wednesday wed",
    "thursday thu thurs",
    "friday fri",
    "saturday sat",
    "sunday sun",
)
WEEKDAY = {name: number for number, names in enumerate(WEEKDAYS, 1) for name in names.split()}
MAX_LENGTH = 80  # characters of a date or time

ANY_MONTH, ANY_WEEKDAY = ("|".join(sorted(names, key=len, reverse=True)) for names in (MONTH, WEEKDAY))
BEFORE = rf"(?:(?:on )?(?P<weekday>{ANY_WEEKDAY})\.?,? )?(?:on |the |den |le |el )?"
YEAR = r"(?:,? (?:of |de |del |in )?(?P<year>\d{4}))?"
DATES = (
    re.compile(rf"{BEFORE}(?P<month>{ANY_MONTH})\.? (?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?{YEAR}"),
    re.compile(rf"{BEFORE}(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.|er|º)? ?(?:of |de )?(?P<month>{ANY_MONTH})\.?{YEAR}"),
    re.compile(rf"(?P<month>{ANY_MONTH})\.?,? (?:of |de )?(?P<year>\d{{4}})"),
    re.compile(r"(?:(?P<year>\d{4}) ?年 ?)?(?P<month>\d{1,2}) ?月 ?(?P<day>\d{1,2}) ?[日号]"),
)
NUMERIC = re.compile(r"(?:(\d{4})([-/])(\d\d?)\2(\d\d?)|(\d\d?)([-/])(\d\d?)\6(\d{4}))")
HALF = r"(?P<half>a\.? ?m\.?|p\.? ?m\.?|in the morning|in the afternoon|in the evening|at night|noon)"
TIMES = (
    re.compile(rf"(?P<hour>\d{{1,2}})(?:[:.](?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?)? ?{HALF}"),
    re.compile(rf"(?P<hour>\d{{1,2}}) ?o['’]? ?clock(?: {HALF})?"),
    re.compile(r"(?P<hour>\d{1,2}) ?uhr(?: (?P<minute>[0-5]\d))?"),
    re.compile(r"(?P<hour>\d{1,2}) ?h ?(?P<minute>[0-5]\d)"),
    re.compile(r"(?P<hour>\d{1,2}) ?[点點時时] ?(?:(?P<minute>[0-5]?\d) ?分)?"),
    re.compile(r"(?P<named>noon|midnight)"),
)
CLOCK = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?")
PIECE = re.compile(r"(?:^|,? ?(?:and |et |und |y )?)(\d+(?:\.\d+)?) ?([^\W\d_]+|°|['′]{1,2}|″)\.?")
SCALES = (
    {"week": 7 * 86400, "d": 86400, "h": 3600, "min": 60, "s": 1}, {"year": 12, "month": 1}, {"ft": 12, "in": 1},
    {"lb": 16, "oz": 1}, {"°": 3600, "'": 60, "''": 1},
)  # fmt: skip
"""Units that are written one after the other, each with its size in the smallest."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A date, a time of day or a duration."""

    kind: Literal["date", "time", "duration"]
    value: tuple[int | Fraction, ...]
    weekday: int = 0
    """From 1 for Monday; 0 if it is not said."""
    is_sure: bool = True
    """False for `3:45`, which is also a ratio."""
    is_marked: bool = True
    """Whether the half of the day of a time is known."""


def read_moment(text: str) -> Moment | None:
    """Return the date, time or duration that a cleaned answer states; None for anything else."""
    if len(text) > MAX_LENGTH or (not any(character.isdecimal() for character in text) and "n" not in text):
        return None
    plain = write_plainly(text)
    return read_date(plain) or read_time(plain) or read_duration(plain)


def write_plainly(text: str) -> str:
    text = re.sub(r"\\text ?\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r" ?\^ ?\{? ?(st|nd|rd|th)\b ?\}?", r"\1", text)
    text = re.sub(r"\^ ?(?:\\circ|\{ ?\\circ ?\})", "°", text)
    return " ".join(text.lower().replace(" ,", ",").split()).rstrip(".,")


def read_date(plain: str) -> Moment | None:
    """Return year, month and day, 0 if one is not said. `2/1/2023` keeps the order in which it was written."""
    if numeric := NUMERIC.fullmatch(plain):
        parts = tuple(int(part) for part in numeric.groups() if part and part.isdecimal())
        small = sorted(part for part in parts if part < 100)
        if len(small) == 2 and 1 <= small[0] <= 12 and small[1] <= 31:
            return Moment("date", parts)
        return None
    for pattern in DATES:
        if found := pattern.fullmatch(plain):
            named = found.groupdict()
            month = named["month"]
            number = int(month) if month.isdecimal() else MONTH[month]
            day = int(named.get("day") or 0)
            if not (1 <= number <= 12 and day <= 31 and (day or named["year"])):
                return None
            return Moment("date", (int(named["year"] or 0), number, day), WEEKDAY.get(named.get("weekday") or "", 0))
    return None


def read_time(plain: str) -> Moment | None:
    """Return hour, minute and second, the hour from 0 to 23 if the half of the day is known."""
    for pattern in (*TIMES, CLOCK):
        if not (found := pattern.fullmatch(plain)):
            continue
        named = found.groupdict()
        if named.get("named"):
            return Moment("time", (12 if named["named"] == "noon" else 0, 0, 0))
        hour, minute, second = (int(named.get(name) or 0) for name in ("hour", "minute", "second"))
        half = (named.get("half") or "").replace(".", "").replace(" ", "")
        if hour > 24 or (half and not 1 <= hour <= 12):
            return None
        is_marked = bool(half) or hour > 12 or hour == 0 or found["hour"].startswith("0")
        if half:
            is_later = half in ("pm", "intheafternoon", "intheevening", "noon") or (
                half == "atnight" and hour not in (12, 1, 2, 3)
            )
            hour = hour % 12 + 12 * is_later
        return Moment("time", (hour, minute, second), is_sure=pattern is not CLOCK, is_marked=is_marked)
    return None


def read_duration(plain: str) -> Moment | None:
    """Return the size of `2 hours 30 minutes` in its smallest unit, for two parts or more from large to small."""
    pieces, position = [], 0
    while position < len(plain):
        found = PIECE.match(plain, position)
        if not found or found.end() == position:
            return None
        unit = found[2].replace("″", "''").replace("′", "'")
        pieces.append((Fraction(found[1]), unit if unit in ("'", "''") else parse_unit(unit)))
        position = found.end()
    units = [unit for _, unit in pieces]
    for place, scale in enumerate(SCALES):
        sizes = [scale.get(unit, 0) for unit in units]
        if len(units) > 1 and all(sizes) and sizes == sorted(set(sizes), reverse=True):
            total = sum(number * size for (number, _), size in zip(pieces, sizes, strict=True))
            return Moment("duration", (place, total))
    return None


def moments_agree(one: Moment, other: Moment) -> bool:
    """Return whether two moments are the same. A weekday may be left out; the half of the day may not."""
    if one.kind != other.kind or one.value != other.value or one.is_marked != other.is_marked:
        return False
    return one.weekday == other.weekday or not one.weekday or not other.weekday
