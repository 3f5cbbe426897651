r"""Units of measurement, currencies and counted things after a number: one table, read with case and compared as a whole.

`5\text{ mV}` is not `5\text{ MV}`, `3\text{ N m}` is not `3\text{ N}`, and a text that is neither a known unit nor a plural noun
is no unit at all: `17\text{ at most}` is not 17. Units are not converted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

# ------------------------------------------------------------------------------------------------------------------- the table

PREFIXES = {
    "Y": "yotta", "Z": "zetta", "E": "exa", "P": "peta", "T": "tera", "G": "giga", "M": "mega", "k": "kilo",
    "h": "hecto", "da": "deca", "d": "deci", "c": "centi", "m": "milli", "µ": "micro", "n": "nano", "p": "pico",
    "f": "femto", "a": "atto", "z": "zepto", "y": "yocto",
}  # fmt: skip
OTHER_SPELLINGS = {"u": "µ", "K": "k"}
"""Prefixes that are often written otherwise: um, Kg."""
WITH_PREFIXES = {
    "m": "meter metre", "g": "gram gramme", "s": "second", "A": "ampere amp", "K": "kelvin", "mol": "mole",
    "cd": "candela", "Hz": "hertz", "N": "newton", "Pa": "pascal", "J": "joule", "W": "watt", "C": "coulomb",
    "V": "volt", "F": "farad", "Ω": "ohm", "S": "siemens", "Wb": "weber", "T": "tesla", "H": "henry henries",
    "lm": "lumen", "lx": "lux", "Bq": "becquerel", "Gy": "gray", "Sv": "sievert", "L": "liter litre",
    "eV": "electronvolt", "M": "molar", "bar": "bar", "cal": "calorie", "B": "byte", "bit": "bit", "Wh": "watthour",
    "Ah": "amperehour", "pc": "parsec", "Da": "dalton", "yr": "", "t": "tonne", "G": "gauss", "dyn": "dyne",
    "erg": "erg", "Ci": "curie", "VA": "voltampere", "sr": "steradian", "kat": "katal", "var": "",
}  # fmt: skip
"""Units that take prefixes: symbol and names."""
WITHOUT_PREFIXES = {
    "min": "minute mins", "h": "hour hr hrs", "sec": "secs", "d": "day", "week": "week wk wks", "month": "month mo",
    "year": "year yrs annum", "decade": "decade", "century": "century centuries", "in": "inch inches",
    "ft": "foot feet", "yd": "yard yds", "mi": "mile", "lb": "pound lbs", "oz": "ounce", "gal": "gallon",
    "qt": "quart", "pt": "pint", "cup": "cup", "rad": "radian", "mrad": "milliradian", "tbsp": "tablespoon",
    "tsp": "teaspoon", "acre": "acre", "ha": "hectare", "kn": "knot", "atm": "atmosphere", "mmHg": "",
    "Torr": "torr", "psi": "", "hp": "horsepower", "dB": "decibel", "rpm": "", "rev": "revolution", "AU": "",
    "ly": "lightyear", "°": "degree deg degs", "°C": "degC", "°F": "degF", "Å": "angstrom ångström",
    "nmi": "nauticalmile", "ton": "ton", "fl_oz": "fluidounce", "amu": "dalton", "u": "", "lbf": "poundforce",
    "BTU": "btu", "D": "diopter dioptre", "dollar": "dollar usd", "us_dollar": "", "cent": "cent ¢",
    "euro": "euro eur", "gbp": "gbp", "yuan": "yuan rmb cny", "yen": "yen jpy", "rupee": "rupee rs inr",
    "peso": "peso", "ruble": "ruble rouble", "won": "krw", "franc": "franc", "unit": "unit", "mph": "",
    "arcmin": "arcminute", "arcsec": "arcsecond", "ppm": "", "ppb": "", "ppt": "",
}  # fmt: skip
"""Units without prefixes: the canonical symbol, and names."""
ALIKE = {
    "l": "L", "sec": "s", "hr": "h", "ohm": "Ω", "yr": "year", "y": "year", "tonne": "t", "oC": "°C", "cc": "cm^3",
    "mL": "cm^3", "ml": "cm^3", "dm^3": "L", "ccm": "cm^3", "mph": "mi·h^-1", "kph": "km·h^-1", "kmh": "km·h^-1",
    "kmph": "km·h^-1", "fps": "ft·s^-1", "Nm": "N·m", "Js": "J·s", "Ns": "N·s", "kWh": "kW·h", "MWh": "MW·h",
    "GWh": "GW·h", "Wh": "W·h", "mAh": "mA·h", "Ah": "A·h", "sqft": "ft^2", "gm": "g", "gms": "g", "kgs": "kg",
    "kms": "km", "cms": "cm", "lightyear": "ly", "degC": "°C", "degF": "°F", "amu": "Da", "u": "Da",
    "rpm": "rev·min^-1", "nauticalmile": "nmi", "hz": "Hz", "khz": "kHz", "kpa": "kPa", "kj": "kJ", "kw": "kW",
    "kwh": "kW·h", "ev": "eV", "mm.": "mm", "metric_ton": "t", "$": "dollar", "€": "euro", "£": "lb", "¥": "yen",
    "₹": "rupee",
}  # fmt: skip
"""Other symbols of units, and units that are products of others."""
PHRASES = (
    (r"degrees? (?:of )?(?:celsius|centigrade)", "°C"), (r"degrees? (?:of )?fahrenheit", "°F"), (r"degrees? kelvin", "K"),
    ("celsius|centigrade", "°C"), ("fahrenheit", "°F"), ("light[- ]years?", "ly"), ("nautical[- ]miles?", "nmi"),
    (r"fluid ounces?|fl\.? ?oz", "fl_oz"), (r"u\.? ?s\.? dollars?|american dollars?", "us_dollar"), ("metric tons?|tonnes?", "t"),
    ("electron[- ]volts?", "eV"), ("astronomical units?", "AU"), ("watt[- ]hours?", "Wh"), ("miles per hour", "mph"),
    ("kilowatt[- ]hours?", "kWh"), ("revolutions? per minute", "rpm"), ("parts per million", "ppm"), ("parts per billion", "ppb"),
    ("pounds? sterling", "gbp"), (r"mm ?hg", "mmHg"),
)  # fmt: skip
"""Names of several words."""
OTHER_LANGUAGES = {
    "°": "grad grados grado degrés degré gradi 度",
    "h": "heure heures stunde stunden std hora horas ora ore 小时 小時 时 時 时间 시간",
    "min": "minuten minuto minutos minuti 分钟 分鐘 분",
    "s": "sekunde sekunden seconde secondes segundo segundos secondi 秒 초",
    "d": "tag tage jour jours día días dia dias giorni giorno 天 日",
    "week": "woche wochen semaine semaines semana semanas 周 星期",
    "month": "monat monate mois mes meses mesi 个月 月",
    "year": "jahr jahre an ans année années año años anni anno 年 岁 歳",
    "m": "mètre mètres metro metros metri 米 公尺",
    "km": "kilomètre kilomètres kilómetro kilómetros kilometri 千米 公里 千公尺",
    "cm": "zentimeter centimètre centimètres centímetro centímetros centimetri 厘米 公分",
    "mm": "millimètre millimètres milímetros 毫米", "dm": "分米",
    "kg": "kilogramm kilogrammes kilo kilos kilogramos kilogramo chilogrammi 千克 公斤",
    "g": "gramm gramo gramos grammi 克", "mg": "毫克", "t": "tonnen tonelada toneladas 吨",
    "L": "litro litros litri 升", "cm^3": "毫升 立方厘米", "m^2": "平方米", "cm^2": "平方厘米",
    "km^2": "平方千米 平方公里", "m^3": "立方米", "dollar": "dólares dólar 美元", "euro": "euros", "yuan": "元 块",
    "yen": "円 日元", "won": "원", "N": "牛 牛顿", "J": "焦 焦耳", "W": "瓦 瓦特", "V": "伏 伏特", "A": "安 安培",
    "Pa": "帕 帕斯卡", "m·s^-1": "米/秒 米每秒", "km·h^-1": "千米/时 千米/小时 公里/小时",
}  # fmt: skip
COUNTERS_TEXT = (
    "人 명 个 個 种 種 次 条 條 只 隻 本 张 張 件 辆 輛 位 名 支 枝 头 頭 匹 棵 座 间 間 套 组 組 项 項 步 倍 道 题 "
    "面 枚 颗 粒 台 艘 架 篇 袋 箱 盒 瓶 杯 把 根 块 片 层 排 行 列 册 期 개 mal fois veces volte vez"
)
COUNTERS = set(COUNTERS_TEXT.split())
"""Words that count and say nothing of what is counted."""
OF_COUNTER = re.compile(r"(?:(?![半多余餘以不左右上下约約或和及与])[\u3400-\u9fff]){1,6}")
"""What is counted, after a counter."""
NEVER_LEFT_OUT = {"ppm", "ppb", "ppt", "M"}
"""Units that a reference without one does not mean: parts of a million are a factor, and M may be a million."""
COVERS = {"us_dollar": "dollar", "fl_oz": "oz", "°C": "°", "°F": "°", "gbp": "lb", "M": "L^-1·mol"}
"""Units whose shorter name says the same, where the question has told which."""


def list_symbols() -> dict[str, str]:
    """Return the canonical unit of every symbol, with case."""
    found: dict[str, str] = {}
    for symbol in WITH_PREFIXES:
        for prefix in (*PREFIXES, *OTHER_SPELLINGS):
            found[f"{prefix}{symbol}"] = f"{OTHER_SPELLINGS.get(prefix, prefix)}{symbol}"
        found[symbol] = symbol
    found |= {symbol: symbol for symbol in WITHOUT_PREFIXES}
    litres = {
        name.removesuffix("L") + "l": unit for name, unit in found.items() if name.endswith("L") and len(name) > 1
    }
    found = litres | found
    return found | {name: found.get(unit, unit) for name, unit in ALIKE.items()}


def list_names() -> dict[str, str]:
    """Return the canonical unit of every name, in lower case and without the s of the plural."""
    found: dict[str, str] = {}
    for symbol, names in WITH_PREFIXES.items():
        for name in names.split():
            found[name] = symbol
            found |= {f"{spelled}{name}": f"{prefix}{symbol}" for prefix, spelled in PREFIXES.items()}
    found |= {"kilohm": "kΩ", "megohm": "MΩ", "deka": "da", "micron": "µm"}
    for symbol, names in WITHOUT_PREFIXES.items():
        found |= {name.lower(): symbol for name in names.split()}
    for symbol, names in OTHER_LANGUAGES.items():
        found |= dict.fromkeys(names.split(), symbol)
    return found


SYMBOLS = list_symbols()
NAMES = list_names()
GLUED = {
    "cm", "mm", "km", "kg", "Hz", "kHz", "MHz", "GHz", "kPa", "MPa", "hPa", "mL", "eV", "keV", "MeV", "GeV", "mol",
    "kWh", "lb", "lbs", "oz", "yd", "mph", "kmh", "dB", "deg", "min", "mins", "hr", "hrs", "sec", "rpm", "psi",
}  # fmt: skip
"""Symbols that are units without `\\text` and nobody's product; `2mg` may be 2 times m times g."""

# ----------------------------------------------------------------------------------------------------------------------- parsing

SPELLINGS = (
    (re.compile(r"\^ ?\{ ?(-? ?\d) ?\}"), r"^\1"), (re.compile(r"\\text ?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\^ ?(?:\\circ|\{ ?\\circ ?\}) ?"), " °"),
    (re.compile(r"\\mu(?![A-Za-z]) *|[μ]"), "µ"), (re.compile(r"\\Omega(?![A-Za-z])"), "Ω"),
    (re.compile(r"\\AA(?![A-Za-z])|\\mathring ?\{? ?A ?\}?"), "Å"),
    (re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])|[·⋅*]"), " * "), (re.compile(r"\\\$"), "$"), (re.compile(r"[{}~]|\\ "), " "),
    (re.compile(r"° +(?=[CF](?![A-Za-z]))"), "°"), (re.compile(r"µ +"), "µ"), (re.compile(r"(?<![A-Za-z])([kM]) +Ω"), r"\1Ω"),
    (re.compile(r"(?<=[A-Za-z])\.(?![A-Za-z])"), ""), (re.compile(r"(?<=[A-Za-z])\.(?=[A-Za-z])"), " "), (re.compile(" +"), " "),
)  # fmt: skip
"""From LaTeX to plain text."""
TOKEN = re.compile(
    r" *(?:(?P<over>/|per(?![A-Za-z]))|(?P<times>[*-])|(?P<open>\()|(?P<close>\))|\^ ?(?P<power>-? ?\d)"
    r"|(?P<word>°[CF]?|[$€£¥₹¢%]|[^\W\d]+)) *"
)
MAX_LENGTH = 200  # characters of a unit
AHEAD = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
BEHIND = {"squared": 2, "cubed": 3}


@lru_cache(maxsize=4096)
def parse_unit(text: str) -> str:
    r"""Return one spelling of a unit: `\text{ m/s}^2` and `meters per second squared` are `m·s^-2`. Empty if it is not a unit."""
    if len(text) > MAX_LENGTH:
        return ""
    plain = spell(text)
    reader = UnitReader()
    position = 0
    while position < len(plain):
        token = TOKEN.match(plain, position)
        if token is None or not reader.take(str(token.lastgroup), token[token.lastgroup or 0]):
            return ""
        position = token.end()
    return write_powers(reader.powers) if reader.is_complete else ""


class UnitReader:
    """Adds up the powers of a unit's factors, token by token."""

    def __init__(self) -> None:
        self.powers: Counter[str] = Counter()
        self.sign = 1  # -1 right after a slash: only the next factor is below it
        self.inner_sign = 0  # sign of the factors within brackets; 0 outside of them
        self.next_power = 1  # 2 after `square`
        self.last: tuple[tuple[str, int], ...] = ()  # the factor that a power would raise
        self.expects_word = True

    @property
    def is_complete(self) -> bool:
        return not (self.inner_sign or self.expects_word or self.next_power != 1)

    def take(self, kind: str, token: str) -> bool:
        """Read one token; return False if no unit continues like this."""
        match kind:
            case "over" if not self.inner_sign:
                self.sign, self.expects_word = -1, True
            case "times":
                self.expects_word = True
            case "open" if not self.inner_sign:
                self.inner_sign = self.sign
            case "close" if self.inner_sign:
                self.sign, self.inner_sign = 1, 0
            case "power" if self.last:
                self.raise_last(int(token.replace(" ", "")))
            case "word" if token.lower() in AHEAD:
                self.next_power = AHEAD[token.lower()]
            case "word" if token.lower() in BEHIND and self.last:
                self.raise_last(BEHIND[token.lower()])
            case "word":
                return self.multiply(find_atoms(token))
            case _:
                return False
        return True

    def multiply(self, atoms: tuple[tuple[str, int], ...]) -> bool:
        factor = self.next_power * (self.inner_sign or self.sign)
        self.last = tuple((atom, power * factor) for atom, power in atoms)
        for atom, power in self.last:
            self.powers[atom] += power
        self.next_power, self.expects_word = 1, False
        if not self.inner_sign:
            self.sign = 1
        return bool(atoms)

    def raise_last(self, power: int) -> None:
        for atom, number in self.last:
            self.powers[atom] += number * (power - 1)
        self.last = ()


def spell(text: str) -> str:
    """Return the text of a unit without LaTeX, names of several words as one symbol."""
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".")
    for pattern, symbol in PHRASE_PATTERNS:
        text = pattern.sub(symbol, text)
    return text


PHRASE_PATTERNS = tuple(
    (re.compile(rf"(?<![A-Za-z])(?:{phrase})(?![A-Za-z])", re.I), symbol) for phrase, symbol in PHRASES
)


def find_atoms(word: str) -> tuple[tuple[str, int], ...]:
    """Return the units that a word stands for, each with its power; empty for a word that is none."""
    lower = word.lower()
    singular = lower.removesuffix("s") if len(lower) > 3 else lower
    unit = SYMBOLS.get(word) or NAMES.get(lower) or NAMES.get(singular) or SYMBOLS.get(NAMES.get(lower, ""), "")
    unit = SYMBOLS.get(unit, unit) if unit else ""
    if not unit:
        return ()
    return tuple(split_atoms(unit))


def split_atoms(unit: str) -> Iterator[tuple[str, int]]:
    for part in unit.split("·"):
        atom, _, power = part.partition("^")
        yield atom, int(power or 1)


def write_powers(powers: Counter[str]) -> str:
    named = sorted((atom, power) for atom, power in powers.items() if power)
    unit = "·".join(atom if power == 1 else f"{atom}^{power}" for atom, power in named)
    return ALIKE.get(unit, unit)


# --------------------------------------------------------------------------------------------------------------- counted things

NOUN = "#"
"""Begins a unit that is a counted thing: `#red apple`."""
PEOPLE = {"people", "persons", "personnes", "personas", "personen", "persone"}
IRREGULAR = {
    "people", "children", "men", "women", "fish", "sheep", "mice", "geese", "teeth", "dice", "vertices", "indices",
    "matrices", "data", "series", "species", "vertice", "polyhedra", "radii", "loci", "foci",
}  # fmt: skip
"""Plurals without the s of the plural."""
NO_NOUNS_TEXT = (
    "cos abs less unless this yes more fewer than over log exp sin tan sqrt about root roots perhaps always "
    "sometimes besides thus plus minus is was has does as its his us thirds halves quarters tens ones units pluses "
    "minuses plusses tiers quarts demis moins tercios cuartos medios quintos octavos menos más mas miles cientos "
    "docenas decenas centenas decenios dutzend dizaines centaines milliers mil millares terços meios mais dozens "
    "scores grosses powers exponents logs sines cosines tangents mods remainders reciprocals negatives positives "
    "inverses opposites factorials percents percentages multiples"
)
NO_NOUNS = set(NO_NOUNS_TEXT.split())
"""Words that look like plural nouns and change a number, or compare it."""
HEDGES_TEXT = (
    "and or to by with if for when where not no mod such modulo i e at least most about approximately approx almost "
    "nearly under below above around up only non negative positive too very few fewer more less maybe probably short "
    "is are was equals equal wrong right correct incorrect false true half quarter third off up down between from "
    "minus plus over et ou und oder y o u e ni mindestens höchstens moins plus más menos oder mehr weniger weder "
    "mais either neither another other than except without nor if iff unless but cannot never none all both any "
    "every double triple twice thrice rest"
)
HEDGES = set(HEDGES_TEXT.split())
"""Words of a phrase that does not name what is counted."""
FACTORS = {
    "half", "quarter", "halve", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "pi",
    "squared", "cubed", "factorial", "minus", "minu", "plus", "plu", "th", "negative", "percent", "percentage", "one",
    "zero", "first", "double", "triple", "score", "gross", "tenth", "hundredth", "thousandth", "power",
}  # fmt: skip
"""Words, without the s of the plural, that change a number and are neither its unit nor what it counts."""
NUMERAL = re.compile(
    r"[a-z]*(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|teen|tie|hundred|thousand|illion)th|[a-z]*third|first"
    r"|eleven|twelve|[a-z]+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)"
    r"|[a-z]*(?:milli?[oó]n|billi?[oó]n|trilli?[oó]n|milliard|milliarde|hundert|tausend|crore|lakh)(?:e|en|es)?"
)
"""The factors that go on and on: `7 twelfths` is no 7. Months, paths and cards are none."""
SCALES = {
    "dozen": 12, "gross": 144, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "bn": 10**9, "tn": 10**12, "mn": 10**6, "lakh": 10**5, "crore": 10**7, "k": 10**3,
    "tausend": 10**3, "mio": 10**6, "milliard": 10**9, "milliarde": 10**9, "mrd": 10**9, "mille": 10**3, "mil": 10**3,
    "millionen": 10**6, "milliarden": 10**9, "billionen": 10**12, "millón": 10**6, "millon": 10**6, "millones": 10**6,
    "billones": 10**12, "milhões": 10**6, "milioni": 10**6, "miliardi": 10**9, "十": 10, "百": 100, "千": 10**3, "万": 10**4,
    "萬": 10**4, "亿": 10**8, "億": 10**8,
}  # fmt: skip
"""Words that multiply the number before them, without the s of the plural."""
SCALE = re.compile(
    rf"({'|'.join(sorted(SCALES, key=len, reverse=True))})(?:s(?![^\W\d_]))?\.?(?![A-Za-zÀ-ÿ])", re.IGNORECASE
)
PHRASE = re.compile(r"(?:[^\W\d_]+(?:['’-][^\W\d_]+)* ){0,3}[^\W\d_]+(?:['’-][^\W\d_]+)*")
ADJECTIVES = re.compile(
    r" (?:in total|in all|total|altogether|each|long|tall|high|wide|deep|old|away|in length|in area)$"
)
"""Words after a unit that do not change it."""


def name_counted(text: str, number_is_one: bool = False) -> str:
    """Return one spelling of a counted thing: `red balls` is `#red ball`. Empty if the text names none.

    Only a plural counts, or a singular after the number 1, so that `17 negative` and `17 at most` are no numbers.
    """
    plain = ADJECTIVES.sub("", spell(text))
    if not PHRASE.fullmatch(plain):
        return ""
    words = plain.lower().split()
    head = words[-1]
    is_plural = head in IRREGULAR | PEOPLE or re.search(r"[^\Ws]s$", head) or number_is_one
    pieces = {piece for word in words for piece in re.split(r"['’-]", word)}
    if words[1:] and head == "roots":  # `3 real roots`; `3 roots` may be a square root
        pieces.discard("roots")
    if not is_plural or len(head) < 3 or pieces & (HEDGES | NO_NOUNS) or has_factor(pieces):
        return ""
    singular = "person" if head in PEOPLE else head.removesuffix("s")
    return NOUN + " ".join([*words[:-1], singular])


def has_factor(words: set[str]) -> bool:
    """Return whether one of these words changes a number."""
    bare = words | {word.removesuffix("s") for word in words}
    return bool(bare & (FACTORS | SCALES.keys())) or any(NUMERAL.fullmatch(word) for word in bare)


def read_unit(text: str, number_is_one: bool = False) -> str | None:
    """Return one spelling of what stands after a number.

    Args:
        text: The text after the number, as a cleaned answer has it.
        number_is_one: Whether the number is 1, after which a noun may be singular.

    Returns:
        A unit such as `m·s^-1`, or a counted thing such as `#apple`; `#` for a counter, which says nothing of what is
        counted. None for a text that is neither.
    """
    if len(text) > MAX_LENGTH:
        return None
    plain = ADJECTIVES.sub("", spell(text))
    if plain in COUNTERS or (plain[:1] in COUNTERS and OF_COUNTER.fullmatch(plain[1:])):
        return NOUN
    if whole := parse_unit(plain):
        return whole
    noun, per, measure = plain.partition(" per ")
    if per and (counted := name_counted(noun, number_is_one)) and (unit := parse_unit(measure)):
        return f"{counted}/{unit}"
    head, of, rest = plain.partition(" of ")
    if of and (has_factor(set(rest.lower().split())) or not re.fullmatch(r"[^\W\d_]+(?: [^\W\d_]+){0,2}", rest)):
        return None
    return parse_unit(head) or name_counted(head, number_is_one) or None


DERIVED = {
    "W": "J·s^-1", "Hz": "s^-1", "Pa": "N·m^-2", "N": "kg·m·s^-2", "C": "A·s", "V": "J·C^-1", "Ω": "V·A^-1", "M": "mol·L^-1",
}  # fmt: skip
"""Units that are products of others, without a factor. J and N·m stay apart: one is an energy, the other may be a torque."""


@lru_cache(maxsize=4096)
def expand_unit(unit: str) -> tuple[tuple[str, int], ...]:
    """Return a unit as powers of units that are products of no others."""
    powers: Counter[str] = Counter()
    waiting = list(split_atoms(unit))
    while waiting:
        atom, power = waiting.pop()
        if atom in DERIVED:
            waiting += [(inner, number * power) for inner, number in split_atoms(DERIVED[atom])]
        else:
            powers[atom] += power
    return tuple(sorted((atom, power) for atom, power in powers.items() if power))


def units_agree(one: str, other: str) -> bool:
    """Return whether two units may be the same. A unit may be left out, unless it is a factor."""
    if one == other:
        return True
    if not one or not other:
        return (one or other) not in NEVER_LEFT_OUT
    if COVERS.get(one) == other or COVERS.get(other) == one:
        return True
    if one.startswith(NOUN) and other.startswith(NOUN):
        words, others = set(one[1:].split()), set(other[1:].split())
        measures = any(parse_unit(word) for word in words | others)
        return not measures and (words <= others or others <= words)
    if NOUN in one + other:
        return False
    return expand_unit(one) == expand_unit(other)
