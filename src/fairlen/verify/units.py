r"""What stands behind a number: its unit, or what it counts, `12\text{ cm}^2`, `$5`, `30^\circ`, `14 apples`. Text only."""

from __future__ import annotations

import re

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

TEXT_UNIT = re.compile(r" ?\\text ?\{((?:[^{}0-9]|\^[23])*)\}\s?(\^\s?\{?[23]\}?|[²³])?$")
WORD_UNIT = re.compile(
    r"(?<=[\d}])\s?((?:square |sq\.? |cubic )?[A-Za-z]{2,}(?:(?:/| per )[a-z]+)?)\.?\s?(\^\s?\{?[23]\}?|[²³])?$"
)
LETTER_UNIT = re.compile(rf"(?<=\d) ([{LETTER_UNITS}](?:/[a-z]+)?)(\^\s?\{{?[23]\}}?)?$")
DEGREES = re.compile(r"\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})$")
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
COUNT = re.compile(
    r"((?=[-+.\d\\])[+-]?(?:[\d., ]*\d(?:/\d+)?)?(?: ?\\frac ?\{\d+\} ?\{\d+\})?) ((?:[A-Za-z]{3,} ){0,2}[A-Za-z]{3,})"
)
IRREGULAR = {"children", "men", "women", "fish", "sheep", "mice", "geese", "teeth", "dice"}
"""Nouns in the plural without an s."""
FACTORS = {
    "half", "third", "quarter", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth", "thousandth",
    "halve", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "pi", "squared", "cubed", "factorial",
    "minus", "minu", "plus", "plu", "negative", "percent", "percentage",
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
    r"""`12\text{ cm}^2` -> `12`, `cm^2`; what is not known to be a unit stays where it is, unless it is text after a value."""
    for sign, name in CURRENCIES.items():
        if text.startswith(sign) or text.endswith(sign):
            return text.removeprefix(sign).removesuffix(sign).strip(), name
    if found := DEGREES.search(text):
        return (text, "") if ANGLE.search(text) else (text[: found.start()], "degree")
    if (found := COUNT.fullmatch(text)) and (unit := name_counted(found.group(2))):
        return found.group(1), unit
    found = TEXT_UNIT.search(text) or WORD_UNIT.search(text)
    if found is None or not text[: found.start()].strip():
        return text, ""
    unit = name_unit(found.group(1), found.group(2))
    known = found.re is TEXT_UNIT or unit.split("^")[0].split("/")[0] in UNITS.values()
    if (
        not known
        or JOINED & set(unit.split())
        or has_factor(set(unit.split()))
        or (found.re is TEXT_UNIT and len(unit) < 2 and unit not in LETTER_UNITS.lower())
    ):
        return text, ""
    return text[: found.start()].strip(), unit


def name_counted(noun: str) -> str:
    """`red balls` -> `red ball`; empty for what is no noun in the plural, or a unit that is known."""
    words = noun.lower().split()
    bare = {word.removesuffix("s") for word in words}
    is_plural = words[-1] in IRREGULAR or re.search("[^s]s$", words[-1])
    if not is_plural or (JOINED | NO_NOUNS) & set(words) or has_factor(bare) or bare & UNITS.keys():
        return ""
    return name_unit(noun, "")


def has_factor(words: set[str]) -> bool:
    """Whether one of these words, in the singular, changes the number before them."""
    return bool(words & (FACTORS | SCALES.keys())) or any(map(NUMERAL.fullmatch, words))


def name_unit(name: str, power: str | None) -> str:
    """One spelling for each unit: `square centimeters`, `cm` and ^2, `sq cm` are all `cm^2`."""
    words = name.strip(" .").lower().replace(" per ", "/").split()
    exponent = "".join(re.findall(r"[23]", (power or "").translate(str.maketrans("²³", "23"))))
    if words and words[0].rstrip(".") in ("square", "sq", "cubic"):
        exponent = "3" if words[0] == "cubic" else "2"
        words = words[1:]
    return " ".join("/".join(map(name_word, word.split("/"))) for word in words) + (f"^{exponent}" if exponent else "")


def name_word(word: str) -> str:
    """`miles` -> `mi`; a word that is no unit, in the singular."""
    singular = word.removesuffix("s") or word
    return UNITS.get(word) or UNITS.get(singular) or singular
