r"""Removes typesetting from answers: fonts, sizes, colours, spaces, and characters that stand for commands.

`clean` takes all of it off, in time linear in the text. Tables of patterns; a command that is missing is a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from unicodedata import decomposition, normalize

MAX_LENGTH = 10_000  # characters of an answer; no reference is nearly as long, and a longer answer is incorrect
MAX_LAYERS = 10  # braces around an answer that are taken off; each takes a walk through all of it
SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "∞": r"\infty ", "°": r"^\circ ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∨": r"\lor ", "∧": r"\land ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ",
    "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∅": r"\emptyset ", "±": r"\pm ", "∓": r"\mp ", "∣": "|", "⁄": "/",
    "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "→": r"\to ", "…": r"\ldots ", "′": "'", "\u00a0": " ", "\u202f": " ",
    "\u2009": " ", "\u2062": "", "\u200b": "", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "∖": r"\setminus ",
    "\u2010": "-", "\u2011": "-", "\ufe63": "-", "∕": "/", "\u2060": "", "\ufeff": "", "\u212b": "Å", "\u2126": r"\Omega ",
    "℃": r"^\circ C", "℉": r"^\circ F",
}  # fmt: skip
GREEK_NAMES = (
    "alpha beta gamma delta epsilon epsilon zeta eta theta iota kappa lambda mu mu nu xi pi rho sigma tau upsilon phi phi chi "
    "psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
GREEK = dict(zip("αβγδεϵζηθικλµμνξπρστυφϕχψωΓΔΘΛΞΠΣΥΦΨΩ", GREEK_NAMES.split(), strict=True))
STYLED = (*range(0xFF01, 0xFF5F), *range(0x1D400, 0x1D800))
"""Full-width characters and mathematical alphabets: letters, digits and signs in another form."""
SCRIPTS = range(0xB2, 0x2190)  # code points of superscripts, subscripts and fractions of one character


def find_scripts(kind: str) -> dict[int, str]:
    """Characters that Unicode describes as `kind` of others, and those others."""
    found = {code: decomposition(chr(code)).split() for code in SCRIPTS}
    return {
        code: "".join(chr(int(part, 16)) for part in parts[1:]).replace("−", "-")
        for code, parts in found.items()
        if parts[:1] == [kind]
    }


SUPERSCRIPTS, SUBSCRIPTS = find_scripts("<super>"), find_scripts("<sub>")
FRACTIONS = {
    code: r"\frac{{{}}}{{{}}}".format(*parts.split("⁄"))
    for code, parts in find_scripts("<fraction>").items()
    if parts[-1:] != "⁄"
}
COMMANDS = str.maketrans(SYMBOLS | {letter: rf"\{command} " for letter, command in GREEK.items()})
CHARACTERS = {code: normalize("NFKC", chr(code)).translate(COMMANDS) for code in STYLED} | FRACTIONS | COMMANDS
RAISED, LOWERED = (
    re.compile("[" + "".join(map(re.escape, map(chr, table))) + "]+") for table in (SUPERSCRIPTS, SUBSCRIPTS)
)


def words(names: str) -> str:
    return rf"\\(?:{'|'.join(names.split())})(?![A-Za-z])"


BRACES = r"\s*\{[^{}]{0,40}\}"
SIZES = "tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge"
FONTS = (
    "bf it rm sf tt sl sc em cal bfseries itshape rmfamily sffamily ttfamily mdseries upshape slshape scshape normalfont "
    "boldmath displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits strut mathstrut centering nonumber notag"
)
AROUND = (
    "boxed fbox mathbf mathsf mathtt mathit mathnormal mathbfit boldsymbol bm pmb bold emph underline underbar uline smash "
    "ensuremath mathord mathclose mathopen hat vec widehat overrightarrow"
)
"""Commands around what they change the look of, vectors and unit vectors among them: a bold **v** is a v as well."""
TEXTS = "textbf textit textrm textnormal textsf texttt textsc textsl textup textmd mbox hbox mathrm operatorname"
FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|csc|exp|ln|log|lg|lim|det"
"""Names in upright letters that are commands as well; those that are units too, such as min, are none."""
RENAMED = {
    "leqslant": r"\le", "leqq": r"\le", "geqslant": r"\ge", "geqq": r"\ge", "vee": r"\lor", "wedge": r"\land", "imath": "i",
    "jmath": "j", "lbrace": r"\{", "rbrace": r"\}",
}  # fmt: skip
ARGUMENT = (
    r"\([^()]{1,60}\)|\\frac ?\{[^{}]{1,40}\} ?\{[^{}]{1,40}\}|\\?[A-Za-z]+"
    r"|\d+(?:\.\d+)?(?: ?\^ ?(?:\\circ|\{ ?\\circ ?\}))?"
)
"""What a function such as cis is taken of."""
TYPESETTING: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(rf"\\(?:text)?color(?:\s*\[[^][]{{0,40}}\])?{BRACES}|\\colorbox{BRACES}|\\fcolorbox{BRACES}{BRACES}"), ""),
    (re.compile(rf"\\bbox(?:\s*\[[^][]{{0,40}}\])?|\\(?:label|tag|phantom){BRACES}"), ""),
    (re.compile(rf"\\[hv]space\*?{BRACES}"), " "),
    (re.compile(r"\\(?:left|right)\s*\.|\\(?:m?left|m?right|middle|[bB]igg?[lrm]?)(?![A-Za-z])"), ""),
    (re.compile(rf"(?<![A-Za-z]){words(AROUND)} ?\{{ ?([A-Za-z]) ?\}}"), r"\1"),
    (re.compile(words(f"{SIZES} {FONTS} {AROUND}")), ""),
    (re.compile(words("dfrac tfrac cfrac nicefrac sfrac xfrac flatfrac")), r"\\frac"),
    (re.compile(words("varnothing") + r"|\\\{\s?\\\}"), r"\\emptyset "),
    (re.compile(r"\^?\s?\\degree(?![A-Za-z])"), r"^\\circ"),
    (re.compile(r"(?<!\\)(?:\\! ?|\$|\\[()\[\]])|\*\*"), ""),
    (re.compile(r"(?<!\\)\\(?:[,;:>/ ]|(?:q?quad|thinspace|enspace|medspace|thickspace)(?![A-Za-z]))|~|\s+"), " "),
    (re.compile(r" {2,}"), " "),
    (re.compile(r"(?<![\d.,}])(0\{ ?, ?\}\d+|\d+\{ ?, ?\}(?!\d{3}(?!\d))\d+)(?![\d{,])"),
     lambda found: re.sub(r"\{ ?, ?\}", ".", found[0])),
    (re.compile(r"\{ ?, ?\}"), ","),
    (re.compile(words(TEXTS) + r" ([A-Za-z])(?![A-Za-z])"), r"\\text{\1}"),
    (re.compile(words(TEXTS) + r"\*? ?"), r"\\text"),
    (re.compile(r"\\text ?\{ ?(\d[\d.,]{0,40}) ?\}"), r"\1"),
    (re.compile(r"\\text ?\{ ?(e|i|\\pi) ?\}|\\text ?\{ ?(d) ?\}(?= ?(?:[a-z]|\}|\\[A-Za-z]))"), r"\1\2"),
    (re.compile(rf"\\text ?\{{ ?({FUNCTIONS}) ?\}}(?= ?[\w\\({{^])"), r"\\\1 "),
    (re.compile(r"\\log ?_ ?(?:e(?![A-Za-z])|\{ ?e ?\})"), r"\\ln "),
    (re.compile(words("lg")), r"\\log_{10}"),
    (re.compile(r"(\\mathbb ?(?:\{ ?[A-Z] ?\}|[A-Z])) ?(?:-|\\backslash(?![A-Za-z])) ?(?=\\\{)"), r"\1 \\setminus "),
    (re.compile(r"\\(sin|cos|tan) ?\^ ?\{ ?-1 ?\}"), r"\\arc\1 "),
    (re.compile(r"_ ?(\{ ?)?(?:\\text ?\{ ?(\w+) ?\}|\\(max|min)(?![A-Za-z]))(?(1) ?\})"), r"_{\2\3}"),
    (re.compile(r"_ ?\{ ?(\w) ?\}(?!\w)"), r"_\1"),
    (re.compile(r"(\( ?)?(?:\\text ?\{ ?mod ?\}|(?<![A-Za-z])\\?[bp]?mod(?![A-Za-z])) ?(?:(\w+)|\{ ?(\w+) ?\}) ?(?(1)\))"),
     r"\\pmod \2\3"),
    (re.compile(words(" ".join(RENAMED))), lambda found: RENAMED[found[0][1:]]),
    (re.compile(r"\\text ?\{ ,? ?(?:et|und|y) \}|\\text ?\{ ?(?:和|与|及|以及|且) ?\}|(?<=\d) ?(?:和|与|及|以及) ?(?=\d)"),
     r"\\text{ and }"),
    (re.compile(r"\\text ?\{ ,? ?(?:ou|oder|o) \}|\\text ?\{ ?(?:或|或者) ?\}| ?(?:或者|或) ?"), r"\\text{ or }"),
    (re.compile("、"), ","),
    (re.compile(r"\\ce ?(?=\{)"), r"\\text"),
    (re.compile(r"\\text ?\{ ?([€£¥]|\\\$) ?\}"), r"\1"),
    (re.compile(r"^\\approx ?"), ""),
    (re.compile(r"(?<!\\)\{ ?([^{}\\]{1,40}?) ?\\choose ?([^{}\\]{1,40}?) ?(?<!\\)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"^(\w{1,9}) ?(?:\\choose|\\text ?\{ ?choose ?\}|choose) ?(\w{1,9})$"), r"\\binom{\1}{\2}"),
    (re.compile(rf"\\(?:cis(?![A-Za-z])|text ?\{{ ?cis ?\}}) ?({ARGUMENT})"), r"(\\cos \1 + i\\sin \1)"),
    (re.compile(r" ?\\text ?\{ ?\((?:since|because) .*\) ?\}?$"), ""),
    (re.compile(r"^\\text ?\{ ?([A-Z](?: ?, ?[A-Z](?![A-Za-z]))+) ?\}$"), r"\1"),
    (re.compile(r"\\text ?\{ ?(percent(?:age)? points?|percent|percentage|pct)? ?\}"),
     lambda found: r"\%" if found.group(1) else ""),
    (re.compile(r" ?(?<![A-Za-z\\])(?:percentage|percent|pct) ?$"), r"\\%"),
    (re.compile(r"(\\text ?\{[^{}]*)\} ?/ ?\\text ?\{"), r"\1/"),
    (re.compile(r"(?<![\d.])(\d{0,20}\.\d{0,20}?)(?:(\d{1,6}?)\2{2,8}|(\d{3,6}?)\3{1,8})(?: ?\\[lc]?dots(?![A-Za-z])|\.{3})"),
     r"\1\\overline{\2\3}"),
    (re.compile(words("[lcd]?dots[bcmio]?") + r"|(?<=[,+]) ?\.{3}"), r"\\ldots "),
]  # fmt: skip
"""In this order: spaces are one after " {2,}", so that patterns behind it need not look for more."""
NUMBER = r"\d{1,20}"
ROOT = {"√": "", "∛": "[3]", "∜": "[4]"}
OPERATORS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"([√∛∜]) ?(?:(\d+(?:\.\d+)?)|\(([^()]*)\)|([A-Za-z]))"),
     lambda found: rf"\sqrt{ROOT[found.group(1)]}{{{found.group(2) or found.group(3) or found.group(4)}}}"),
    (re.compile(r"[√∛∜]"), lambda found: rf"\sqrt{ROOT[found.group()]} "),
    (re.compile(r"(?<![A-Za-z\\])\\?sqrt ?\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\root ?(\w|\{[^{}]{1,20}\}) ?\\of ?"), lambda found: rf"\sqrt[{found.group(1).strip('{}')}]"),
    (re.compile(r"\\sqrt ?\[ ?(\w{1,20}) ?\] ?(\w)"), r"\\sqrt[\1]{\2}"),
    (re.compile(r"\{([^{}\\]*)\\over(?![A-Za-z])([^{}\\]*)\}|^([^{}\\]*)\\over(?![A-Za-z])([^{}\\]*)$"),
     lambda found: rf"\frac{{{found.group(1) or found.group(3)}}}{{{found.group(2) or found.group(4)}}}"),
    (re.compile(rf"(?<![\d.,/^_{{])({NUMBER}) ({NUMBER}) ?/ ?({NUMBER})(?![\d/.])"),
     lambda found: write_mixed(*found.groups())),
    (re.compile(rf"^({NUMBER}) ?(?:to|\\text ?\{{ ?to ?\}}) ?({NUMBER})$"), r"\1:\2"),
    (re.compile(r"(?<![\w.,([{])[1-9]\d{0,2}(?:,\d{3})+(?![\d)\]}]|,\d)"),
     lambda found: found[0] if found[0] == found.string else found[0].replace(",", "")),
]  # fmt: skip
"""One spelling of roots, mixed numbers and ratios in words."""
REPEATING = re.compile(
    r"(?<![\d.])(\d{1,50}|[1-9]\d{0,2}(?:[, ]\d{3}){1,5})?\.(\d{0,50}) ?"
    r"\\(?:overline|bar|dot)(?: ?\{ ?(\d{1,50}) ?\}| ?(\d))(?! ?(?:\d|\\(?:overline|bar|dot)))"
)
"""`0.1\\overline{6}`; digits beyond those bounds are left to algebra, which refuses them."""
FORMULA = re.compile(
    r"\\text ?\{ ?((?!\d{4}-)(?=[^{}]*[\d=])(?=[^{}]*[-+*/^=(])(?![^{}]*[A-Za-z]{2})[-+*/^=()|\w., ]+)\}"
)
ORDINAL = re.compile(r"(?:\\text ?\{ ?)?(\d{1,20}) ?(?:\^ ?)?\{? ?(?:\\text ?\{ ?)?(?:st|nd|rd|th)[} ]*")


def clean(text: str) -> str:
    """Remove everything that changes only the look of an answer; above `MAX_LENGTH` the text stays as it is."""
    if len(text) > MAX_LENGTH:
        return text
    if not text.isascii():
        text = write_commands(text)
    for pattern, replacement in TYPESETTING:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split()).rstrip(" .,;:").rstrip("\\").strip()
    for _ in range(MAX_LAYERS):
        if not (text.startswith("{") and closes(text) == len(text) - 1):
            break
        text = text[1:-1].strip()
    text = FORMULA.sub(r"\1", text) if FORMULA.fullmatch(text) else text
    if ordinal := ORDINAL.fullmatch(text):
        return ordinal[1]
    for pattern, replacement in OPERATORS:
        text = pattern.sub(replacement, text)
    return REPEATING.sub(write_repeating, text) if "." in text else text


def write_commands(text: str) -> str:
    """Characters as the commands that they stand for: `x²` -> `x^2`, `½` -> `\\frac{1}{2}`, `α` -> `\\alpha`."""
    text = RAISED.sub(lambda found: write_script("^", found.group().translate(SUPERSCRIPTS)), text)
    text = LOWERED.sub(lambda found: write_script("_", found.group().translate(SUBSCRIPTS)), text)
    return text.translate(CHARACTERS)


def write_script(mark: str, script: str) -> str:
    return f"{mark}{script}" if len(script) == 1 else f"{mark}{{{script}}}"


def write_mixed(whole: str, above: str, under: str) -> str:
    """`3 1/2` -> `3\\frac{1}{2}`; other numbers side by side stay as they are."""
    is_mixed = 0 < int(above) < int(under)
    return rf"{whole}\frac{{{above}}}{{{under}}}" if is_mixed else f"{whole} {above}/{under}"


def write_repeating(found: re.Match[str]) -> str:
    r"""`0.1\overline{6}` -> `\frac{1}{6}`: (16 - 1) / 90."""
    whole, fixed = re.sub("[, ]", "", found.group(1) or "0"), found.group(2)
    repeated = found.group(3) or found.group(4)
    above = int(whole + fixed + repeated) - int(whole + fixed)
    return write_fraction(Fraction(above, (10 ** len(repeated) - 1) * 10 ** len(fixed)))


def write_fraction(value: Fraction) -> str:
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def closes(text: str) -> int:
    """Place of the bracket that closes the first one; -1 where none does. Escaped braces are brackets too."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position
    return -1
