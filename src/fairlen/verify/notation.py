r"""Reads numbers, units, bases, words, dates and options of mathematical answers. No algebra."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from fairlen.verify.dates import Moment, read_moment
from fairlen.verify.typesetting import MAX_LENGTH, clean, write_fraction
from fairlen.verify.units import GLUED, SCALE, SCALES, read_unit, spell, units_agree

CURRENCIES = {r"US\$": "us_dollar", r"\$": "dollar", "€": "euro", "£": "lb", "¥": "yen"}
LETTER_UNITS = "mgshlLNJWVK"  # variables too: units after a number and a space, where the other answer has no letter
RAISED = r"\^\s?(?:\{\s?-?\d\s?\}|-?\d)"
POWER = rf"\s?{RAISED}"
SYMBOL = r"\\(?:mu(?![A-Za-z]) ?(?=\\text|[mgsFAC](?![A-Za-z]))|(?:Omega|AA)(?![A-Za-z])|mathring ?\{? ?A ?\}?)|Å"
BARE_UNIT = r"(?:k?[mgJN]|[cm]m|[sLhWVK]|mol|min|yr)"
TEXT_UNIT = re.compile(
    rf"(?: ?(?:[kM]?(?:{SYMBOL}) ?)?\\text ?\{{(?:[^{{}}0-9]|{RAISED}|\^ ?\\circ|\^ ?\{{ ?\\circ ?\}})*\}}"
    rf"(?: ?(?:{SYMBOL}))?(?:{POWER})?(?: ?(?:\\cdot|/)(?= ?\\text))?){{1,8}}$"
)
LETTER_UNIT = re.compile(
    rf"(?<=[\d}}])( [{LETTER_UNITS}](?:/[a-z]+)?(?:{POWER})?| ?[kM]?(?:{SYMBOL})[mgsFAC]?"
    + rf"|(?: {BARE_UNIT}(?:{POWER})?){{0,6}} {BARE_UNIT}\s?\^\s?(?:\{{\s?-\d\s?\}}|-\d))$"
)
DEGREES = re.compile(r"\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})(?: ?(?:\\text ?\{ ?)?([CF])(?: ?\})?)?$")
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
ONLY_IN_TEXT = {"k", "mil", "mn", "tn", "bn"}
"""Those that are variables outside of a text: `5k`."""
AND_A_HALF = re.compile(r"(?:and a half|et demie?|y medi[oa]|e mezz[oa]|e mei[oa]|einhalb)(?![^\W\d_])", re.IGNORECASE)
CHINESE = r"\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af"
TEXT_AFTER = re.compile(
    rf" ?(?:\\(?:text|Omega|AA|mathring)(?![A-Za-z])|\\mu ?(?=\\text|[mgsFACLlV]$)|[€£¥Åµ°{CHINESE}])"
)
WORD_AFTER = re.compile(rf"{TEXT_AFTER.pattern}| ?[^\W\d_]{{2}}")
"""What begins a unit after a number: a text or a sign, or at least two letters."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What an answer measures, and in which unit."""

    body: str
    """The answer without its unit, scale words worked into the number."""
    unit: str = ""


def split_unit(text: str) -> Measure | None:
    r"""Return `12` and `cm^2` of `12\text{ cm}^2`, `5000000` and `dollar` of `\$5\text{ million}`.

    None if the text is not a value with a unit: then it stays as it is, and is compared as a whole.
    """
    for sign, name in CURRENCIES.items():
        if text.startswith(sign) or text.endswith(sign):
            body = text.removeprefix(sign).removesuffix(sign).strip()
            inner = split_unit(body)
            if inner and inner.unit and inner.unit != name:
                return None
            return Measure(inner.body if inner else body, name)
    head = find_number(text)
    if head and WORD_AFTER.match(text, head):
        return split_after_number(text[:head].strip(), text[head:])
    if found := DEGREES.search(text):
        return None if ANGLE.search(text) else Measure(text[: found.start()], f"°{found[1] or ''}")
    found = TEXT_UNIT.search(text)
    body = text[: found.start()].strip() if found else ""
    if not found or not body or not is_written_as_unit(found.group()):
        return None
    unit = read_unit(found.group())
    return None if unit is None else Measure(body, unit)


def find_number(text: str) -> int:
    """Return where the number that a text begins with ends, 0 if it begins with none."""
    if len(text) > MAX_NUMBER:
        return 0
    matches = (pattern.match(text) for pattern in (PLAIN, SCIENTIFIC, QUOTIENT, SLASHED))
    return max((len(found.group().rstrip()) for found in matches if found), default=0)


MAX_TAIL = 200  # characters of the text after a number


def split_after_number(number: str, tail: str) -> Measure | None:
    """Return the measure of a number and the text after it; None if the text is neither scale, unit, counter nor noun."""
    is_text = bool(TEXT_AFTER.match(tail))
    if len(tail) > MAX_TAIL:
        return None
    exact = read_number(number)
    is_one = exact is not None and abs(exact.value) == 1
    can_be_unit = is_written_as_unit(tail) if is_text else is_word(tail)
    unit = read_unit(tail, is_one) if can_be_unit else None
    if unit is not None:
        return Measure(number, unit)
    if exact is None:
        return None
    value, rest = multiply(exact.value, spell(tail), tail)
    if value is None:
        return None
    unit = read_unit(rest) if rest else ""
    return None if unit is None else Measure(write_value(value), unit)


def multiply(value: Fraction, words: str, tail: str) -> tuple[Fraction | None, str]:
    """Return the value times the scales that words begin with, and the words after them; None if they begin with none."""
    is_text = bool(TEXT_AFTER.match(tail))
    is_changed = False
    if (found := AND_A_HALF.match(words)) and value.denominator == 1 and value > 0:
        value, words, is_changed = value + Fraction(1, 2), words[found.end() :].strip(), True
    while found := SCALE.match(words):
        word = found[1].lower()
        if word == "k" and not re.fullmatch(r"\\text ?\{k\}", tail):
            return None, words
        if word in ONLY_IN_TEXT and not is_text:
            return None, words
        value, words, is_changed = value * SCALES[word], words[found.end() :].strip(), True
    return (value if is_changed else None), words


def is_word(tail: str) -> bool:
    """Return whether letters outside of a text are words, or symbols that nobody multiplies: `2mg` may be 2 times m times g."""
    words = re.findall(r"[^\W\d_]+", tail)
    first = words[0] if words else ""
    if len(words) > 1 and len(words[-1]) > 2 and all(len(word) > 1 for word in words):
        return True
    return first in GLUED or first.lower() in SHORT_WORDS or len(first) > 3


SHORT_WORDS = {
    "per",
    "day",
    "sq",
    "cup",
    "men",
    "pts",
    "yen",
    "amp",
    "ohm",
    "ton",
    "hrs",
    "yrs",
    "lbs",
    "mins",
    "sec",
    "rad",
}
"""Words of two or three letters that are no products."""


def is_written_as_unit(tail: str) -> bool:
    r"""Return False for a single letter right after a number: `5\text{A}` may be five times A."""
    inner = re.fullmatch(r"(?P<space> ?)\\text ?\{(?P<inner>[^{}]*)\}", tail)
    letter = inner["inner"].strip().rstrip(".") if inner else ""
    if len(letter) != 1 or not letter.isascii():
        return True
    is_apart = bool(inner and (inner["space"] or inner["inner"].startswith(" ")))
    return letter in LETTER_UNITS or (is_apart and letter in "CAFTSHM") or not letter.isalpha()


def write_value(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else write_fraction(value)


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
OPTION = re.compile(r"\\text ?\{ ?\(([A-Z])\) ?\} ?(.+)|\\text ?\{ ?\(([A-Z])\) (.+)\}|\(([A-Z])\) (.+)")
"""An option with its letter, as contests print it; not where more is said than what the option holds."""
MORE_THAN_OPTION = re.compile(
    r"[+*/^=_,;:.|&!)]|-\s|\\(?:cup|cap|times|cdot|pm|to|and|or|cong|sim|approx|in|le|ge|ne)(?![A-Za-z])"
    r"|.*(?<![A-Za-z\\])(?:[A-Z]|or|and)(?![A-Za-z])"
)
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
BASE_NAMES = NUMBER_WORDS.split()
OTHER_BASES = {"binary": "2", "octal": "8", "decimal": "10", "hexadecimal": "16", "hex": "16", "ternary": "3"}
DIGITS_OF_BASE = r"(?:\\text ?\{ ?)?\(?([0-9][0-9A-Fa-f]*|[A-F][0-9A-F]*)\)?(?: ?\})?"
BASE = re.compile(
    rf"{DIGITS_OF_BASE}\s?_\s?(?:\{{\s?\(?(?:\\text ?\{{ ?)?\(?([0-9]{{1,2}}|[a-z]+)\)?(?: ?\}})?\)?\s?\}}|(\d))"
)
BASE_IN_WORDS = re.compile(
    rf"{DIGITS_OF_BASE} ?(?:\\text ?\{{ ?)?\(?(?:in )?base[ -]\}}? ?([0-9]{{1,2}}|[a-z]+)\)?(?: ?\}})?\)?"
)
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
    moment: Moment | None = None  # a date, a time or a duration


MAX_CACHED = 200  # characters of an answer whose reading is kept: 2,048 readings of any size could take gigabytes


def read(answer: str) -> Reading:
    if len(answer) > MAX_LENGTH:
        return Reading(answer, answer)
    return read_short(answer) if len(answer) <= MAX_CACHED else read_uncached(answer)


def read_uncached(answer: str) -> Reading:
    cleaned = clean(answer)
    moment = read_moment(cleaned)
    if moment and moment.is_sure:
        whole = " ".join(cleaned.split())
        return Reading(text=whole, body=whole, moment=moment)
    body, base = split_base(cleaned)
    measure = None if base else split_unit(open_text(body))
    unit = measure.unit if measure else ""
    body = measure.body if measure else body
    body, inner_base = (body, base) if base else split_base(body)
    base = base or inner_base
    whole = re.fullmatch(r"\\text\s?\{([^{}]*)\}", body)
    plain = whole.group(1).strip() if whole else body
    words = fold_case(plain.rstrip(".")) if whole or WORDS.fullmatch(plain) else ""
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
        words="" if number or len(words) < 2 else name_words(" ".join(words.split())),
        choice=choice.group(1) if choice else "",
        option=option,
        moment=moment,
    )


SAME_WORDS = {
    "no solution": ("no solutions", "there is no solution", "there are no solutions", "aucune solution", "pas de solution",
                    "keine lösung", "sin solución", "no hay solución", "无解", "nessuna soluzione"),
    "does not exist": ("dne", "doesn't exist", "n'existe pas", "existiert nicht", "no existe", "不存在"),
    "true": ("vrai", "wahr", "verdadero", "真", "正确"), "false": ("faux", "falsch", "falso", "假", "错误"),
    "yes": ("oui", "ja", "sí", "是"), "no": ("non", "nein", "否"),
    "infinitely many": ("infinitely many solutions", "infinite solutions", "infinite number of solutions"),
}  # fmt: skip
"""Answers in words that say the same."""
NAMED_WORDS = {other: words for words, others in SAME_WORDS.items() for other in others}


def fold_case(words: str) -> str:
    """Return words in lower case, but two letters as they are: `Co` is cobalt and `CO` is not."""
    return words if len(words) == 2 and words.lower() not in ("no", "ja", "sí") else words.lower()


WRAPPED = re.compile(r"\\text ?\{((?:[^{}]|\{[^{}]*\})*)\}")


def show_characters(text: str) -> str:
    """Return a cleaned answer as it looks, without the commands around upright letters: `\\text{H}_2\\text{O}` is `H_2O`."""
    return re.sub(r"(?<!\d) | (?!\d)", "", WRAPPED.sub(r"\1", text))


def name_words(words: str) -> str:
    """Return one spelling of an answer in words."""
    return NAMED_WORDS.get(words, words)


def read_glued(reading: Reading, other: Reading) -> Reading:
    """Return the reading of `5mg` with mg as its unit, if the other answer has that unit; otherwise the reading as it is."""
    head = find_number(reading.body)
    tail = reading.body[head:]
    if reading.number or reading.moment or not head or not re.fullmatch(r" ?[A-Za-zµ]{1,5}(?:\^\d)?", tail):
        return reading
    number, unit = read_number(reading.body[:head].strip()), read_unit(tail)
    if number is None or unit != other.unit:
        return reading
    return replace(reading, body=reading.body[:head].strip(), unit=unit, number=number)


read_short = lru_cache(maxsize=2048)(read_uncached)


EUROPEAN = re.compile(r"-?[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
INDIAN = re.compile(r"-?\d{1,2}(?:,\d\d)*,00,\d{3}|-?\d{1,2}(?:,\d\d)*,0\d,\d{3}")
COMMA_BEFORE_UNIT = re.compile(rf"(-?\d+),(\d{{1,2}}|\d{{4,}})(?=(?:{TEXT_AFTER.pattern}))")
MIXED_IN_WORDS = re.compile(r"(\d+) ?\\text ?\{ and \} ?(\\frac ?\{\d+\} ?\{\d+\}|\\frac ?\d\d)")


def read_otherwise(answer: str, reading: Reading) -> Reading:
    r"""Return the reading of `12.345,67`, `1,00,000`, `3,5\text{ km}` and `3\text{ and }\frac25` as one number.

    They are lists as well, so that they are read like this only beside a reference that is a number.
    """
    if reading.number or len(answer) > MAX_CACHED:
        return reading
    text = clean(answer)
    if EUROPEAN.fullmatch(text):
        return read(text.replace(".", "").replace(",", "."))
    if INDIAN.fullmatch(text):
        return read(text.replace(",", ""))
    if found := MIXED_IN_WORDS.fullmatch(text):
        return read(f"{found[1]}{found[2]}")
    if COMMA_BEFORE_UNIT.match(text):
        return read(COMMA_BEFORE_UNIT.sub(r"\1.\2", text, count=1))
    return reading


def open_text(text: str) -> str:
    r"""Return `14 apples` of `\text{14 apples}`, as text: its letters are words."""
    found = re.fullmatch(r"\\text ?\{ ?([-+.\d][^{}]*)\}", text)
    if not found:
        return text
    inner = found.group(1).strip()
    head = find_number(inner)
    tail = inner[head:].strip()
    spaced = f"{inner[:head].strip()} \\text{{ {tail}}}" if head and tail else inner
    return spaced if head and split_unit(spaced) else text


def read_option(text: str) -> str:
    """The letter of an option that is given with its text; empty for everything else."""
    if not (found := OPTION.fullmatch(text)):
        return ""
    letter, rest = (part for part in found.groups() if part)
    return "" if MORE_THAN_OPTION.match(rest) else letter


def agree(one: Reading, other: Reading) -> bool:
    """Return whether neither contradicts the other in unit or base. A percentage has no other unit."""
    if one.base and other.base and one.base != other.base:
        return False
    if (one.unit and other.text.endswith("%")) or (other.unit and one.text.endswith("%")):
        return False
    return units_agree(one.unit, other.unit)


PREFIXED = re.compile(r"(?:\\text ?\{ ?)?0([xob])([0-9A-Fa-f]+)(?: ?\})?")


def split_base(text: str) -> tuple[str, str]:
    """Return the digits and the base of `101_2`, `(101)_2` and `101 (base two)`; `3a_2` has a digit that base 2 lacks."""
    if prefixed := PREFIXED.fullmatch(text):
        return prefixed[2].upper(), {"x": "16", "o": "8", "b": "2"}[prefixed[1]]
    found = BASE.fullmatch(text) or BASE_IN_WORDS.fullmatch(text)
    if not found:
        return text, ""
    groups = found.groups()
    digits = groups[0].upper()
    name = next(group for group in groups[1:] if group)
    base = str(BASE_NAMES.index(name)) if name in BASE_NAMES else OTHER_BASES.get(name, name)
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
