r"""Reads numbers, units, bases, words, dates and options of mathematical answers. No algebra."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from fairlen.verify.typesetting import MAX_LENGTH, clean, write_fraction

CURRENCIES = {r"\$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
UNITS = {
    "millimeter": "mm", "centimeter": "cm", "decimeter": "dm", "kilometer": "km", "millimetre": "mm", "centimetre": "cm",
    "kilometre": "km", "metre": "m", "meter": "m", "inch": "in", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi",
    "milligram": "mg", "kilogram": "kg", "gram": "g", "pound": "pound", "lb": "pound", "lbs": "pound", "ounce": "oz",
    "milliliter": "ml", "liter": "l", "litre": "l", "gallon": "gal", "second": "s", "sec": "s", "minute": "min",
    "hour": "h", "hr": "h", "day": "day", "week": "week", "month": "month", "year": "year", "yr": "year", "dollar": "dollar",
    "usd": "dollar", "cent": "cent", "euro": "euro", "yuan": "yuan", "degree": "degree", "deg": "degree", "radian": "rad",
    "unit": "unit", "people": "people", "mph": "h^-1·mi", "kmh": "h^-1·km", "inches": "in",
}  # fmt: skip
LETTER_UNITS = "mgshlLNJWVK"  # variables too: units after a number and a space, where the other answer has no letter
RAISED = r"\^\s?(?:\{\s?-?\d\s?\}|-?\d)"
POWER = rf"\s?{RAISED}"
SYMBOL = r"\\(?:mu(?![A-Za-z]) ?(?=\\text|[mgsFAC](?![A-Za-z]))|(?:Omega|AA)(?![A-Za-z])|mathring ?\{? ?A ?\}?)|Å"
BARE_UNIT = r"(?:k?[mgJN]|[cm]m|[sLhWVK]|mol|min|yr)"
TEXT_UNIT = re.compile(
    rf"(?: ?(?:[kM]?(?:{SYMBOL}) ?)?\\text ?\{{(?:[^{{}}0-9]|{RAISED})*\}}"
    rf"(?: ?(?:{SYMBOL}))?(?:{POWER})?(?: ?(?:\\cdot|/)(?= ?\\text))?){{1,8}}$"
)
WORD_UNIT = re.compile(
    r"(?<=[\d}])\s?((?:square |sq\.? |cubic |degrees )?[A-Za-z]{2,}(?:(?:/| per )[a-z]+)?)\.?\s?(\^\s?\{?[23]\}?|[²³])?$"
)
LETTER_UNIT = re.compile(
    rf"(?<=[\d}}])( [{LETTER_UNITS}](?:/[a-z]+)?(?:{POWER})?| ?[kM]?(?:{SYMBOL})[mgsFAC]?"
    + rf"|(?: {BARE_UNIT}(?:{POWER})?){{0,6}} {BARE_UNIT}\s?\^\s?(?:\{{\s?-\d\s?\}}|-\d))$"
)
DEGREES = re.compile(r"\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})(?: ?(?:\\text ?\{ ?)?([CF])(?: ?\})?)?$")
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
COUNT = re.compile(
    r"((?=[-+.\d\\])[+-]?(?:[\d., ]*\d(?:/\d+)?)?(?: ?\\frac ?\{\d+\} ?\{\d+\})?) ((?:[A-Za-z]{3,} ){0,2}[A-Za-z]{3,})"
)
IRREGULAR = {"children", "men", "women", "fish", "sheep", "mice", "geese", "teeth", "dice"}  # plurals without an s
FACTORS = {
    "half", "quarter", "halve", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "pi", "squared", "cubed",
    "factorial", "minus", "minu", "plus", "plu", "th", "negative", "percent", "percentage",
}  # fmt: skip
"""Words, without the s of the plural, that change a number and are neither its unit nor what it counts."""
NUMERAL = re.compile(
    r"[a-z]*(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|teen|tie|hundred|thousand|illion)th|[a-z]*third|first"
    r"|eleven|twelve|[a-z]+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)"
)
"""The factors that go on and on: `7 twelfths` is no 7. Months, paths and cards are none."""
NO_NOUNS = {
    "cos", "abs", "less", "unless", "this", "yes", "more", "fewer", "than", "over", "log", "exp", "sin", "tan", "sqrt", "about",
    "root", "roots",
}  # fmt: skip
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
JOINED = {"and", "or", "to", "by", "with", "if", "for", "when", "where", "not", "no", "mod", "such", "modulo", "i", "e"}


def split_unit(text: str) -> tuple[str, str]:
    r"""`12\text{ cm}^2` -> `12`, `cm^2`. Unknown units stay in place, unless they are text after a value."""
    for sign, name in CURRENCIES.items():
        if text.startswith(sign) or text.endswith(sign):
            return text.removeprefix(sign).removesuffix(sign).strip(), name
    if found := DEGREES.search(text):
        return (text, "") if ANGLE.search(text) else (text[: found.start()], f"degree {found[1] or ''}".strip().lower())
    if (found := COUNT.fullmatch(text)) and (unit := name_counted(found.group(2))):
        return found.group(1), unit
    found = TEXT_UNIT.search(text) or WORD_UNIT.search(text)
    if found is None or not text[: found.start()].strip():
        return text, ""
    unit = name_unit(found.group())
    known = found.re is TEXT_UNIT or {*UNITS.values()} & {*re.findall(r"[^\W\d]+", unit)}
    letters = LETTER_UNITS.lower() + ("cakft" if " " in found.group() else "")
    if (
        not known
        or JOINED & set(unit.split())
        or has_factor(set(unit.split()))
        or (found.re is TEXT_UNIT and len(unit) < 2 and unit not in letters)
    ):
        return text, ""
    return text[: found.start()].strip(), unit


def name_counted(noun: str) -> str:
    """`red balls` -> `red ball`; empty for nouns in the singular, other words and known units."""
    words = noun.lower().split()
    bare = {word.removesuffix("s") for word in words}
    is_plural = words[-1] in IRREGULAR or re.search("[^s]s$", words[-1])
    if not is_plural or (JOINED | NO_NOUNS) & set(words) or has_factor(bare) or bare & UNITS.keys():
        return ""
    return name_unit(noun)


def has_factor(words: set[str]) -> bool:
    return bool(words & (FACTORS | SCALES.keys())) or any(map(NUMERAL.fullmatch, words))


SIGNS = (
    (re.compile(r"\\text|[{}.]"), ""), (re.compile(r"\\mu ?"), "u"), (re.compile(r"\\Omega"), "ohm"),
    (re.compile(r"\\AA|\\mathring ?A|Å"), "angstrom"), (re.compile(r"\\cdot|·|\*"), " "), (re.compile(" per "), "/"),
    (re.compile(r"(?<=[/ ])(?:square|sq) ([a-z]+)"), r"\1^2"), (re.compile(r"(?<=[/ ])cubic ([a-z]+)"), r"\1^3"),
    (re.compile(r"/ ?\(([^()]*)\)"), lambda found: "/" + "/".join(found[1].split())),
)  # fmt: skip
"""One way to write a unit: `\\text{J}/(\\text{kg}\\cdot\\text{K})` is `J/kg/K`."""


def name_unit(text: str) -> str:
    """One spelling for each unit: `square centimeters`, `sq cm` are `cm^2`; `m/s^2` and `m s^{-2}` are `m·s^-2`."""
    text = f" {text}"
    for sign, name in SIGNS:
        text = sign.sub(name, text)
    parts = re.findall(r"(/?) ?([^\s/^]+)(?: ?\^ ?(-?\d))?", text.lower())
    named = [(name_word(word), int(power or 1) * (-1 if under else 1)) for under, word, power in parts]
    if all(power == 1 for _, power in named):
        return " ".join(word for word, _ in named)
    return "·".join(sorted(word if power == 1 else f"{word}^{power}" for word, power in named))


def name_word(word: str) -> str:
    singular = word.removesuffix("s") or word
    return UNITS.get(word) or UNITS.get(singular) or singular


MAX_NUMBER = 400  # characters; longer ones are left to algebra, which has a deadline
MAX_EXPONENT = 300
DIGITS = r"(?:[1-9]\d{0,2}(?:[, ]\d{3})+(?!\d)|\d+)"
DECIMAL = rf"[+-]?\s?(?:{DIGITS}(?:\.\d*)?|\.\d+)"
PLAIN = re.compile(rf"({DECIMAL})(?:[eE]([+-]?\d{{1,3}}))?")
SCIENTIFIC = re.compile(
    rf"(?:({DECIMAL})\s?\\(?:times|cdot)\s?)?([+-]?)10\s?\^\s?(?:(-?\d)|\{{\s?([+-]?\d{{1,3}})\s?\}})"
)
QUOTIENT = re.compile(
    rf"([+-]?)\s?(?:(\d+) ?)?\\frac\s?(?:\{{\s?({DECIMAL})\s?\}}|(\d))\s?(?:\{{\s?({DECIMAL})\s?\}}|(\d))"
)
SLASHED = re.compile(rf"()()({DECIMAL})\s?/\s?({DECIMAL})")
REPEATED = re.compile(r"([+-]?) ?0?\.(\d{0,20})\((\d{1,20})\)")  # `0.1(6)` alone; elsewhere a product
SCALED = re.compile(rf"({DECIMAL}) ?(?:\\text ?\{{ ?)?({'|'.join(SCALES)})s? ?\}}?")
DATE = re.compile(r"(?:(\d{4})([-/])(\d\d?)\2(\d\d?)|(\d\d?)([-/])(\d\d?)\6(\d{4}))")
OPTION = re.compile(r"\\text ?\{ ?\(([A-Z])\) ?\} ?(.+)|\\text ?\{ ?\(([A-Z])\) (.+)\}|\(([A-Z])\) (.+)")
"""An option with its letter, as contests print it; not where more is said than what the option holds."""
MORE_THAN_OPTION = re.compile(
    r"[+*/^=_,;:.|&!)]|-\s|\\(?:cup|cap|times|cdot|pm|to|and|or|cong|sim|approx|in|le|ge|ne)(?![A-Za-z])"
    r"|.*(?<![A-Za-z\\])(?:[A-Z]|or|and)(?![A-Za-z])"
)
BASE = re.compile(r"\(?([0-9][0-9A-Fa-f]*|[A-F]+)\)?\s?_\s?(?:\{\s?(?:\\text\{)?([0-9]{1,2}|[a-z]+)\}?\s?\}|(\d))")
WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-][^\W\d_]+)*")
CHOICE = re.compile(r"\(?([A-Z])\)?")


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    places: int = 0
    percent: bool = False
    product: Fraction | None = None  # of `0.5(3)`: it repeats, 8/15, and as an answer may mean 0.5 times 3


@dataclass(frozen=True, slots=True)
class Reading:
    text: str  # without unit and spaces; equal texts are equal answers, units and bases aside
    body: str  # the same with its spaces, for algebra
    unit: str = ""
    base: str = ""
    number: Number | None = None
    words: str = ""  # lower case, where the answer is words rather than symbols
    choice: str = ""  # a single capital letter, in parentheses or not
    option: str = ""
    date: tuple[int, ...] = ()  # year, month and day in the order in which they were written; empty for everything else


MAX_CACHED = 200  # characters of an answer whose reading is kept: 2,048 readings of any size could take gigabytes


def read(answer: str) -> Reading:
    if len(answer) > MAX_LENGTH:
        return Reading(answer, answer)
    return read_short(answer) if len(answer) <= MAX_CACHED else read_uncached(answer)


def read_uncached(answer: str) -> Reading:
    body, unit = split_unit(split_text(clean(answer)))
    body, base = split_base(body)
    body = write_scaled(body)
    whole = re.fullmatch(r"\\text\s?\{([^{}]*)\}", body)
    plain = whole.group(1).strip() if whole else body
    words = plain.rstrip(".").lower() if whole or WORDS.fullmatch(plain) else ""
    choice = CHOICE.fullmatch(plain)
    number, option = None if base else read_number(plain), read_option(body)
    if number and REPEATED.fullmatch(plain):  # which algebra would multiply
        body = write_fraction(number.value)
    elif number or choice:
        body = plain
    return Reading(
        text=re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", plain),
        body=body,
        unit=unit,
        base=base,
        number=number,
        words="" if number or len(words) < 2 else " ".join(words.split()),
        choice=choice.group(1) if choice else "",
        option=option,
        date=read_date(plain),
    )


read_short = lru_cache(maxsize=2048)(read_uncached)


def split_text(text: str) -> str:
    found = re.fullmatch(r"\\text ?\{ ?([-+.\d][^{}]*)\}", text)
    inner = found.group(1).strip() if found else text
    return inner if found and (split_unit(inner)[1] or SCALED.fullmatch(inner)) else text


def write_scaled(text: str) -> str:
    """`1.5 million` -> `1500000`: such a word is a factor and no unit."""
    found = SCALED.fullmatch(text)
    if found is None or len(text) > MAX_NUMBER:
        return text
    value = read_decimal(found.group(1))[0] * SCALES[found.group(2)]
    return str(value) if value.denominator == 1 else text


def read_date(text: str) -> tuple[int, ...]:
    """`2023-01-02` -> 2023, 1, 2; empty where the text is no date. As a difference it would have been worked out."""
    found = DATE.fullmatch(text)
    parts = tuple(int(part) for part in found.groups() if part and part.isdecimal()) if found else ()
    small = sorted(part for part in parts if part < 100)
    return parts if len(small) == 2 and 1 <= small[0] <= 12 and small[1] <= 31 else ()


def read_option(text: str) -> str:
    """The letter of an option that is given with its text; empty for everything else."""
    if not (found := OPTION.fullmatch(text)):
        return ""
    letter, rest = (part for part in found.groups() if part)
    return "" if MORE_THAN_OPTION.match(rest) else letter


def agree(one: Reading, other: Reading) -> bool:
    """Neither contradicts the other in unit or base. A percentage has no other unit."""
    if one.base and other.base and one.base != other.base:
        return False
    if (one.unit and other.text.endswith("%")) or (other.unit and one.text.endswith("%")):
        return False
    units, others = set(one.unit.split()), set(other.unit.split())
    return units <= others or others <= units


def split_base(text: str) -> tuple[str, str]:
    """`101_2` and `(101)_2` -> `101`, `2`; `3a_2` has a digit that base 2 lacks, and is a product."""
    found = BASE.fullmatch(text)
    if found is None:
        return text, ""
    digits, base = found.group(1).upper(), found.group(2) or found.group(3)
    is_base = not base.isdecimal() or int(max(digits), 16) < int(base)
    return (digits, base) if is_base else (text, "")


def read_number(text: str) -> Number | None:
    """The exact number; None for everything else, and for a text too long to be sure of being quick."""
    if len(text) > MAX_NUMBER:
        return None
    percent = text.endswith("%")
    text = text.rstrip("%").rstrip("\\").strip() if percent else text
    if found := PLAIN.fullmatch(text):
        value, places = read_decimal(found.group(1))
        return scale(value, int(found.group(2) or 0), places, percent)
    if found := REPEATED.fullmatch(text):
        return read_repeated(found, percent)
    if found := SCIENTIFIC.fullmatch(text):
        value, places = read_decimal(found.group(1) or "1")
        sign = -1 if found.group(2) == "-" else 1
        return scale(sign * value, int(found.group(3) or found.group(4)), places, percent)
    if found := QUOTIENT.fullmatch(text) or SLASHED.fullmatch(text):
        sign, whole, *parts = found.groups()
        above, under = (read_decimal(part)[0] for part in parts if part)
        is_proper = above.denominator == under.denominator == 1 and 0 < above < under
        if not under or (whole and not is_proper):
            return None
        value = int(whole or 0) + above / under
        return Number(-value if sign == "-" else value, 0, percent)
    return None


def read_repeated(found: re.Match[str], percent: bool) -> Number:
    """`0.5(3)` is (53 - 5) / 90, and 5/10 times 3; `0.(3)` is no product."""
    sign, fixed, digits = found.groups()
    one, power = (-1 if sign == "-" else 1), 10 ** len(fixed)
    value = Fraction(int(fixed + digits) - int(fixed or 0), (10 ** len(digits) - 1) * power)
    return Number(one * value, 0, percent, Fraction(one * int(fixed) * int(digits), power) if fixed else None)


def read_decimal(text: str) -> tuple[Fraction, int]:
    text = re.sub(r"[, ]", "", text)
    return Fraction(text.rstrip(".")), len(text.partition(".")[2])


def scale(value: Fraction, exponent: int, places: int, percent: bool) -> Number | None:
    if abs(exponent) > MAX_EXPONENT:
        return None
    return Number(value * Fraction(10) ** exponent, max(places - exponent, 0) if places else 0, percent)
