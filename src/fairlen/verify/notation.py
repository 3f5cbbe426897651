r"""How mathematical answers are written: typesetting taken off, numbers, units, words and lists read. Text only, no algebra."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

LONGEST_NUMBER = 400
"""Characters; longer ones are left to algebra, which has a deadline."""
LARGEST_EXPONENT = 300

CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ", "∪": r"\cup "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "√": r"\sqrt ", "\u00a0": " ", "\u202f": " ", "\u2009": " "}
)

TYPESETTING = [
    (re.compile(r"\s+"), " "),
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:m?left|m?right|[bB]igg?[lrm]?)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|limits|boxed|fbox|boldsymbol|mathbf|bm|ensuremath)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(?<!\\)(?:\\! ?|\$|\\[()\[\]])|\*\*"), ""),
    (re.compile(r"(?<!\\)\\(?:[,;: ]|(?:q?quad|thinspace|enspace)(?![A-Za-z]))|~"), " "),
    (re.compile(r"\{\s*,\s*\}"), ","),
    (re.compile(r"\\(?:textbf|textit|textrm|textnormal|textsf|mbox|mathrm|operatorname)(?![A-Za-z])\s*"), r"\\text"),
    (re.compile(r"\\(?:lbrace)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\text\s*\{\s*(?:percent|percentage|pct)?\s*\}"), lambda m: r"\%" if "p" in m.group()[6:] else ""),
    (re.compile(r"\s*(?<![A-Za-z\\])(?:percentage|percent|pct)\s*$"), r"\\%"),
]  # fmt: skip

DIGITS = r"(?:[1-9]\d{0,2}(?:[, ]\d{3})+(?!\d)|\d+)"
DECIMAL = rf"[+-]?\s?(?:{DIGITS}(?:\.\d*)?|\.\d+)"
PLAIN = re.compile(rf"({DECIMAL})(?:[eE]([+-]?\d{{1,3}}))?")
SCIENTIFIC = re.compile(
    rf"(?:({DECIMAL})\s?\\(?:times|cdot)\s?)?([+-]?)10\s?\^\s?(?:(-?\d)|\{{\s?([+-]?\d{{1,3}})\s?\}})"
)
QUOTIENT = re.compile(rf"([+-]?)\s?\\frac\s?(?:\{{\s?({DECIMAL})\s?\}}|(\d))\s?(?:\{{\s?({DECIMAL})\s?\}}|(\d))")
SLASHED = re.compile(rf"({DECIMAL})\s?/\s?({DECIMAL})")

CURRENCIES = {r"\$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
UNITS = {
    "millimeter": "mm", "centimeter": "cm", "decimeter": "dm", "kilometer": "km", "millimetre": "mm", "centimetre": "cm",
    "kilometre": "km", "metre": "m", "meter": "m", "inch": "in", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi",
    "milligram": "mg", "kilogram": "kg", "gram": "g", "pound": "pound", "lb": "pound", "lbs": "pound", "ounce": "oz",
    "milliliter": "ml", "liter": "l", "litre": "l", "gallon": "gal", "second": "s", "sec": "s", "minute": "min",
    "hour": "h", "hr": "h", "day": "day", "week": "week", "month": "month", "year": "year", "dollar": "dollar",
    "cent": "cent", "euro": "euro", "degree": "degree", "deg": "degree", "radian": "rad", "unit": "unit", "mph": "mi/h",
    "kmh": "km/h", "cc": "cm^3", "newton": "n", "joule": "j", "watt": "w", "volt": "v", "mm": "mm", "cm": "cm", "dm": "dm",
    "km": "km", "kg": "kg", "mg": "mg", "ft": "ft", "in": "in", "ml": "ml", "min": "min", "inches": "in", "yuan": "yuan",
    "usd": "dollar", "rad": "rad", "people": "people",
}  # fmt: skip
LETTER_UNITS = "mgshlLNJWV"
"""A variable as well: a unit only after a number and a space, and only where the other answer has no letter."""

TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}0-9]*)\}\s?(\^\s?\{?[23]\}?|[²³])?$")
WORD_UNIT = re.compile(
    r"(?<=[\d}])\s?((?:square |sq\.? |cubic )?[A-Za-z]{2,}(?:/[a-z]+)?)\.?\s?(\^\s?\{?[23]\}?|[²³])?$"
)
LETTER_UNIT = re.compile(rf"(?<=\d) ([{LETTER_UNITS}])(\^\s?\{{?[23]\}}?)?$")
DEGREES = re.compile(r"\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})$")
BASE = re.compile(r"([0-9A-F]+)\s?_\s?(?:\{\s?(?:\\text\{)?([0-9a-z]+)\}?\s?\}|(\d))")
WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-][^\W\d_]+)*")
CHOICE = re.compile(r"\(?([A-Z])\)?")
JOINED = {"and", "or", "to", "by", "with", "if", "for", "when", "where", "not", "no", "mod", "such", "modulo", "i", "e"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    value: Fraction
    places: int = 0
    """Decimal places, where it is a decimal."""
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer with its typesetting taken off."""

    text: str
    """Without unit and spaces; equal texts are equal answers, units and bases aside."""
    body: str
    """The same with its spaces, for algebra."""
    unit: str = ""
    """Of "cm", "m^2", "degree", ...; "" where none was written."""
    base: str = ""
    number: Number | None = None
    words: str = ""
    """Lower case, where the answer is words rather than symbols."""
    choice: str = ""
    """A single capital letter, in parentheses or not."""


def clean(text: str) -> str:
    """The answer without what changes only how it looks."""
    text = text.translate(CHARACTERS)
    for pattern, replacement in TYPESETTING:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split()).rstrip(" .,;:").rstrip("\\").strip()
    while text.startswith("{") and closes(text) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def closes(text: str) -> int:
    """Where the bracket that `text` starts with is closed; -1 where it is not. Escaped braces are brackets too."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position
    return -1


@lru_cache(maxsize=4096)
def read(answer: str) -> Reading:
    """What is written."""
    body, unit = split_unit(clean(answer))
    body, base = split_base(body)
    whole = re.fullmatch(r"\\text\s?\{([^{}]*)\}", body)
    plain = whole.group(1).strip() if whole else body
    words = plain.rstrip(".").lower() if whole or WORDS.fullmatch(plain) else ""
    choice = CHOICE.fullmatch(plain)
    number = None if base else read_number(plain)
    return Reading(
        text=re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", plain),
        body=plain if number or choice else body,
        unit=unit,
        base=base,
        number=number,
        words="" if number or len(words) < 2 else " ".join(words.split()),
        choice=choice.group(1) if choice else "",
    )


def agree(one: Reading, other: Reading) -> bool:
    """Whether neither contradicts the other in unit or base."""
    if one.base and other.base and one.base != other.base:
        return False
    return not one.unit or not other.unit or set(one.unit.split()) <= set(other.unit.split()) or (
        set(other.unit.split()) <= set(one.unit.split())
    )  # fmt: skip


def split_base(text: str) -> tuple[str, str]:
    """`101_2` -> `101`, `2`."""
    found = BASE.fullmatch(text)
    return (found.group(1), found.group(2) or found.group(3)) if found else (text, "")


def split_unit(text: str) -> tuple[str, str]:
    r"""`12\text{ cm}^2` -> `12`, `cm^2`; what is not known to be a unit stays where it is, unless it is text after a value."""
    for sign, name in CURRENCIES.items():
        if text.startswith(sign) or text.endswith(sign):
            return text.removeprefix(sign).removesuffix(sign).strip(), name
    if found := DEGREES.search(text):
        return text[: found.start()], "degree"
    found = TEXT_UNIT.search(text) or WORD_UNIT.search(text)
    if found is None or not text[: found.start()].strip():
        return text, ""
    unit = name_unit(found.group(1), found.group(2))
    known = found.re is TEXT_UNIT or unit.split("^")[0].split("/")[0] in UNITS.values()
    if (
        not known
        or JOINED & set(unit.split())
        or (found.re is TEXT_UNIT and len(unit) < 2 and unit not in LETTER_UNITS.lower())
    ):
        return text, ""
    return text[: found.start()].strip(), unit


def name_unit(name: str, power: str | None) -> str:
    """One spelling for each unit: `square centimeters`, `cm` and ^2, `sq cm` are all `cm^2`."""
    words = name.strip(" .").lower().split()
    exponent = "".join(re.findall(r"[23]", (power or "").translate(str.maketrans("²³", "23"))))
    if words and words[0].rstrip(".") in ("square", "sq", "cubic"):
        exponent = "3" if words[0] == "cubic" else "2"
        words = words[1:]
    named = [UNITS.get(word) or UNITS.get(word.removesuffix("s")) or word.removesuffix("s") for word in words]
    return " ".join(named) + (f"^{exponent}" if exponent else "")


def read_number(text: str) -> Number | None:
    """The number that the text is, exactly; None where it is something else, or too long to be sure of being quick."""
    if len(text) > LONGEST_NUMBER:
        return None
    percent = text.endswith("%")
    text = text.rstrip("%").rstrip("\\").strip() if percent else text
    if found := PLAIN.fullmatch(text):
        value, places = read_decimal(found.group(1))
        return scale(value, int(found.group(2) or 0), places, percent)
    if found := SCIENTIFIC.fullmatch(text):
        value, places = read_decimal(found.group(1) or "1")
        sign = -1 if found.group(2) == "-" else 1
        return scale(sign * value, int(found.group(3) or found.group(4)), places, percent)
    if found := QUOTIENT.fullmatch(text) or SLASHED.fullmatch(text):
        sign, *parts = ("", *found.groups()) if found.re is SLASHED else found.groups()
        over, under = (read_decimal(part)[0] for part in parts if part)
        return Number((-over if sign == "-" else over) / under, 0, percent) if under else None
    return None


def read_decimal(text: str) -> tuple[Fraction, int]:
    """The value and the decimal places."""
    text = re.sub(r"[, ]", "", text)
    return Fraction(text.rstrip(".")), len(text.partition(".")[2])


def scale(value: Fraction, exponent: int, places: int, percent: bool) -> Number | None:
    """value * 10^exponent, unless that is enormous."""
    if abs(exponent) > LARGEST_EXPONENT:
        return None
    return Number(value * Fraction(10) ** exponent, max(places - exponent, 0) if places else 0, percent)
