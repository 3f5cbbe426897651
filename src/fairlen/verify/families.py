r"""Answers that state many values at once: congruences, general solutions with an integer in them, and functions by cases.

    x \equiv 4 \pmod 9        is  x \equiv 13 \pmod 9  and  x = 9k + 4
    x = \frac{\pi}{6} + 2k\pi  is  x = 2n\pi - \frac{11\pi}{6}
    \begin{cases} ... \end{cases} with its rows in any order

Text only; algebra is asked through the function that is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlen.verify.structure import split, strip_name, write_range
from fairlen.verify.typesetting import clean

Same = Callable[[str, str], bool]
"""Compares a reference and an answer."""

# ------------------------------------------------------------------------------------------------------------------- congruences

MODULUS = re.compile(r"[,(]? ?\(?\\pmod ?(?:\{ ?(\d{1,9}) ?\}|(\d{1,9})) ?\)?$")
NAMED = re.compile(r"([A-Za-z]) ?(?:\\equiv(?![A-Za-z])|=|≡) ?")
RESIDUE = re.compile(r"(?:(\\pm) ?)?(-? ?\d{1,18})")
LINEAR = re.compile(r"([+-]? ?\d*) ?([a-z])(?: ?([+-] ?\d+))?|(-?\d+) ?([+-] ?\d*) ?([a-z])")
INTEGER = r"\\in ?\\mathbb ?\{? ?(?P<domain>[ZN])(?: ?\^ ?\+| ?_ ?\{?[^{}]*\}?)? ?\}?"


@dataclass(frozen=True)
class Congruence:
    name: str
    """The variable; empty if there is none."""
    residues: frozenset[int]
    modulus: int


def read_congruence(text: str) -> Congruence | None:
    """Return the residues that a cleaned answer states; None if it is not a congruence."""
    ending = MODULUS.search(text)
    modulus = int(ending[1] or ending[2]) if ending else 0
    if not ending or not modulus:
        return None
    body = text[: ending.start()].strip()
    named = NAMED.match(body)
    residues: set[int] = set()
    for part in split(body[named.end() :] if named else body):
        found = RESIDUE.fullmatch(strip_congruence(part))
        if not found:
            return None
        number = int(found[2].replace(" ", ""))
        residues |= {number % modulus, -number % modulus} if found[1] else {number % modulus}
    return Congruence(named[1] if named else "", frozenset(residues), modulus)


def strip_congruence(part: str) -> str:
    named = NAMED.match(part)
    return part[named.end() :] if named else part


def read_progression(text: str) -> Congruence | None:
    """Return `x = 9k + 4` as a congruence; None for anything else."""
    body, _, domain = split_parameter(text)
    named = NAMED.match(body)
    found = LINEAR.fullmatch(body[named.end() :] if named else body)
    if not found or domain == "N":
        return None
    step, offset = (found[1], found[3]) if found[2] else (found[5], found[4])
    step = step.replace(" ", "")
    size = abs(int(step + "1" if step in ("", "+", "-") else step))
    if size < 2:
        return None
    name = named[1] if named else ""
    return Congruence(name, frozenset({int((offset or "0").replace(" ", "")) % size}), size)


def same_congruence(gold: str, answer: str) -> bool | None:
    """Return whether two answers state the same residues; None unless the reference is a congruence."""
    wanted = read_congruence(gold)
    if wanted is None and read_congruence(answer):
        wanted = read_progression(gold)
    if wanted is None:
        return None
    given = read_congruence(answer) or read_progression(answer)
    if given is None:
        stated = STATED.search(gold)
        return stated is not None and len(wanted.residues) == 1 and answer == stated[1].replace(" ", "")
    is_named_alike = not wanted.name or not given.name or wanted.name == given.name
    return is_named_alike and (wanted.residues, wanted.modulus) == (given.residues, given.modulus)


STATED = re.compile(r"(-? ?\d+) ?[,(]? ?\(?\\pmod")
"""The residue as it is written."""

# ------------------------------------------------------------------------------------------------------------ general solutions

PARAMETER = re.compile(
    rf"(?:,|\\text ?\{{ ?,? ?(?:where|for|with|and|pour|mit|con) ?\}}|;|\\mid(?![A-Za-z])|[|:])?"
    rf" ?\(? ?(?P<name>[a-z]) ?{INTEGER} ?\)?$"
    r"|,? ?\\text ?\{ ?,? ?\(?(?:where|for(?: (?:any|all|every|some))?|with) ?\}? ?(?:integers? )?"
    r"(?P<named>[a-z]) ?(?:\\text ?\{ ?)?(?:is|are)? ?(?:an |any |all )?(?:integers?)?\)? ?\}?$"
    r"|,? ?\\text ?\{ ?,? ?\(?(?:where|for(?: (?:any|all|every|some))?|with) integers? ?\} ?(?P<after>[a-z])$"
    r"|,? ?\(?(?P<last>[a-z]) ?\\text ?\{ ?(?:is )?(?:an |any )?integers? ?\} ?\)?$"
)
BUILT = re.compile(r"\\\{ ?(?:(?P<variable>[a-z]) ?(?:\\mid(?![A-Za-z])|[|:]) ?)?(?P<body>.+?) ?\\\}")
PARAMETERS = "knmlj"
"""Letters that an undeclared general solution may count with."""


def split_parameter(text: str) -> tuple[str, str, str]:
    r"""Return the text before `, k \in \mathbb{Z}`, the letter and the letter of the domain; both empty without one."""
    built = BUILT.fullmatch(text)
    inner = built["body"] if built and re.search(r"\\mathbb", text) else text
    found = PARAMETER.search(inner)
    if not found:
        return text, "", ""
    name = found["name"] or found["named"] or found["after"] or found["last"]
    return inner[: found.start()].strip().rstrip(",").strip(), name, found["domain"] or "Z"


@dataclass(frozen=True)
class Family:
    items: tuple[str, ...]
    """Expressions with the parameter in them."""
    parameter: str
    domain: str = ""
    """Z or N; empty if it is not said."""


def read_family(text: str) -> Family | None:
    """Return the general solution that a cleaned answer states; None for anything else."""
    body, parameter, domain = split_parameter(text)
    parts = split(body) if "\\begin" not in body else ()
    items = tuple(strip_name(part) for part in parts)
    if not parameter:
        letters = {
            letter for item in items for letter in re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])|(?<=\d)[a-z]\b", item)
        }
        counting = letters & set(PARAMETERS)
        if len(letters) != 1 or len(counting) != 1 or r"\pi" not in body:
            return None
        (parameter,) = counting
    if not items or not all(re.search(rf"(?<![A-Za-z\\]){parameter}(?![A-Za-z])", item) for item in items):
        return None
    return Family(items, parameter, domain)


def same_family(gold: str, answer: str, same_progression: Callable[[str, str, str, bool], bool]) -> bool | None:
    """Return whether two general solutions have the same values; None unless both are general solutions.

    Without a declared integer in the reference only the letter may differ: the `k` of `k\\pi` may be the question's.
    """
    wanted = read_family(gold)
    given = read_family(answer) if wanted else None
    if wanted is None or given is None:
        return None
    is_undeclared = not wanted.domain and not given.domain and wanted.parameter == given.parameter
    if is_undeclared or (not wanted.domain and strip_name(gold) == gold):
        return None
    domains = {wanted.domain or "Z", given.domain or "Z"}
    if len(domains) > 1 or len(wanted.items) != len(given.items):
        return False
    items = [rename(item, given.parameter, wanted.parameter) for item in given.items]
    free = list(items)
    for item in wanted.items:
        is_two_sided = wanted.domain == "Z" and domains == {"Z"}
        match = next((one for one in free if same_progression(item, one, wanted.parameter, is_two_sided)), None)
        if match is None:
            return False
        free.remove(match)
    return True


def rename(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![A-Za-z\\]){old}(?![A-Za-z])", new, text)


# ------------------------------------------------------------------------------------------------------------------------- cases

CASES = re.compile(r"\\begin ?\{[dr]?cases\}(.*)\\end ?\{[dr]?cases\}", re.DOTALL)
CONDITION = re.compile(
    r"\\text ?\{ ?(?:,? ?(?:if|when|for|where|si|wenn|falls|für|para|当|若)) ?\} ?|(?<![A-Za-z\\])(?:if|when|for) "
)
OTHERWISE = re.compile(r"\\text ?\{ ?(?:otherwise|else|sonst|sinon|其他|其它)\.? ?\}|otherwise|else")


def read_cases(text: str) -> list[tuple[str, str]] | None:
    r"""Return value and condition of each row of `\begin{cases}`; None for anything else."""
    found = CASES.fullmatch(strip_name(text).strip())
    if not found:
        return None
    rows = [row.strip().rstrip(",;.").strip() for row in re.split(r"\\\\(?: ?\[[^\]]*\])?", found[1])]
    pairs = []
    for row in filter(None, rows):
        value, _, condition = row.partition("&")
        if not condition and (joint := CONDITION.search(value)):
            value, condition = value[: joint.start()], value[joint.end() :]
        condition = CONDITION.sub("", condition.strip().rstrip(",;.")).strip()
        if OTHERWISE.fullmatch(condition):
            condition = "otherwise"
        pairs.append((value.strip().rstrip(",;").strip(), condition))
    return pairs


def write_system(text: str) -> str:
    r"""Return a system of equations in `\begin{cases}` as a list of equations; any other text as it is."""
    rows = read_cases(text)
    if not rows or any(condition for _, condition in rows):
        return text
    return ", ".join(value for value, _ in rows)


def same_cases(gold: str, answer: str, same: Same) -> bool | None:
    """Return whether two functions by cases are the same; None unless one of the two answers is by cases."""
    wanted, given = read_cases(gold), read_cases(answer)
    if wanted is None and given is None:
        return None
    if wanted is None or given is None or len(wanted) != len(given):
        return False
    return match_rows(wanted, given, same)


def match_rows(wanted: Sequence[tuple[str, str]], given: Sequence[tuple[str, str]], same: Same) -> bool:
    free = list(given)
    for value, condition in wanted:
        fitting = [row for row in free if same_condition(condition, row[1], same) and same(value, row[0])]
        if not fitting:
            return False
        free.remove(fitting[0])
    return True


def same_condition(gold: str, answer: str, same: Same) -> bool:
    if "otherwise" in (gold, answer):
        return gold == answer
    left, right = write_range(clean(gold)), write_range(clean(answer))
    return left == right or same(left, right)
