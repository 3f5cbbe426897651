"""Pairs of a reference and an answer, and whether they are the same: from a table, and by rewriting drawn numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Pair:
    kind: str
    gold: str
    answer: str
    same: bool


def rewritten(seed: int = 0, rounds: int = 12) -> Iterator[Pair]:
    """Drawn answers, written otherwise and changed."""
    rng = Random(seed)
    for _ in range(rounds):
        for kind, draw in DRAWS.items():
            gold, same, different = draw(rng)
            yield from (Pair(kind, gold, answer, True) for answer in same)
            yield from (Pair(kind, gold, answer, False) for answer in different)


Drawn = tuple[str, list[str], list[str]]


def draw_fraction(rng: Random) -> Drawn:
    value = Fraction(rng.choice((-1, 1)) * rng.randint(1, 40), rng.choice((4, 5, 8, 16, 20, 25)))
    p, q, k = value.numerator, value.denominator, rng.randint(2, 9)
    sign = "-" if p < 0 else ""
    same = [rf"{sign}\frac{{{abs(p)}}}{{{q}}}", rf"\dfrac{{{k * p}}}{{{k * q}}}", f"{float(value):.6f}", f"${p}/{q}$"]
    different = [rf"\frac{{{p + 1}}}{{{q}}}", f"{p}/{q + 1}", f"{-float(value):.6f}", f"{float(value) + 0.01:.6f}"]
    return f"{p}/{q}", same, different


def draw_radical(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.choice((2, 3, 5, 6, 7, 10, 11))
    same = [rf"\sqrt{{{a * a * b}}}", rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}", rf"\sqrt{{{b}}} \cdot {a}"]
    same += [rf"\left({a}\right)\sqrt{b}"] * (b < 10)  # \sqrt10 boxes the 1 alone
    different = [rf"\sqrt{{{a * a * b + 1}}}", rf"{a + 1}\sqrt{{{b}}}", rf"-{a}\sqrt{{{b}}}", str(a * b)]
    return rf"{a}\sqrt{{{b}}}", same, different


def draw_polynomial(rng: Random) -> Drawn:
    a, b = rng.sample(range(1, 9), 2)
    same = [rf"(x-{a})(x-{b})", rf"(x-{b})\cdot(x-{a})", rf"{a * b}-{a + b}x+x^{{2}}"]
    return rf"x^2-{a + b}x+{a * b}", same, [rf"(x+{a})(x-{b})", rf"x^2+{a + b}x+{a * b}", rf"x^2-{a + b}x+{a * b + 1}"]


def draw_set(rng: Random) -> Drawn:
    items = rng.sample(range(-20, 21), 4)
    mixed = rng.sample(items, 4)
    text = ", ".join(map(str, mixed))
    other = [*mixed[:3], mixed[3] + 50]
    different = [", ".join(map(str, mixed[:3])), ", ".join(map(str, other)), f"{text}, 99", str(mixed[0])]
    same = [rf"\{{{text}\}}", text, rf"x \in \left\{{{text}\right\}}"]
    return r"\{" + ",".join(map(str, items)) + r"\}", same, different


def draw_interval(rng: Random) -> Drawn:
    a = rng.randint(-9, 3)
    b = a + rng.randint(2, 9)
    same = [rf"\left[{a}, {b}\right)", rf"{a} \le x < {b}", rf"x \in [{a},{b})", f"[{a}.0,{b})"]
    return f"[{a},{b})", same, [f"({a},{b})", f"[{a},{b}]", f"({a},{b}]", f"[{a},{b + 1})", rf"{a} < x < {b}", str(a)]


def draw_tuple(rng: Random) -> Drawn:
    a, b, c = rng.sample(range(-9, 10), 3)
    same = [rf"\left({a}, {b}, {c}\right)", f"({a}.0,{b},{c})", rf"(x,y,z) = ({a},{b},{c})"]
    return f"({a},{b},{c})", same, [f"({b},{a},{c})", f"({a},{b})", f"({a},{b},{c + 1})", rf"\{{{a},{b},{c}\}}"]


def draw_matrix(rng: Random) -> Drawn:
    a, b, c, d = (rng.randint(-9, 9) for _ in range(4))
    c = c if c != b else b + 1

    def matrix(kind: str, entries: tuple[int, ...]) -> str:
        return rf"\begin{{{kind}}}{entries[0]} & {entries[1]} \\ {entries[2]} & {entries[3]}\end{{{kind}}}"

    different = [matrix("pmatrix", (a, c, b, d)), matrix("pmatrix", (a, b, c, d + 1)), str(a)]
    gold = matrix("pmatrix", (a, b, c, d))
    return gold, [matrix("bmatrix", (a, b, c, d)), gold], different


def draw_scientific(rng: Random) -> Drawn:
    a, k = rng.randint(11, 99), rng.randint(3, 7)
    value = a * 10 ** (k - 1)
    same = [str(value), f"{value:,}", rf"{a / 10} \cdot 10^{k}", f"{a / 10}e{k}", rf"{a} \times 10^{{{k - 1}}}"]
    different = [str(value * 10), rf"{a / 10}\times 10^{{{k + 1}}}", rf"{a / 10}\times 10^{{-{k}}}"]
    return rf"{a / 10}\times 10^{{{k}}}", same, different


def draw_measure(rng: Random) -> Drawn:
    value, unit = rng.randint(2, 99), rng.choice(("cm", "km", "kg", "miles", "hours", "degrees"))
    other = {"cm": "mm", "km": "cm", "kg": "g", "miles": "km", "hours": "minutes", "degrees": "radians"}[unit]
    same = [str(value), rf"{value} \text{{ {unit}}}", rf"{value}\,\mathrm{{{unit}}}", f"{value} {unit}"]
    different = [rf"{value}\text{{ {other}}}", rf"{value + 1}\text{{ {unit}}}", str(value + 1)]
    return rf"{value}\text{{ {unit}}}", same, different


def draw_percent(rng: Random) -> Drawn:
    value = rng.randint(2, 98)
    same = [str(value), f"{value}%", f"{value} percent", f"{value / 100}", rf"\frac{{{value}}}{{100}}"]
    return rf"{value}\%", same, [rf"{value + 1}\%", f"{value / 1000}", str(value * 10)]


def draw_list(rng: Random) -> Drawn:
    a, b = rng.sample(range(2, 30), 2)
    same = [f"{b}, {a}", rf"{a} \text{{ and }} {b}", rf"x={b} \text{{ or }} x={a}", rf"\{{{a},{b}\}}"]
    return f"{a},{b}", same, [str(a), str(b), f"{a}, {b + 1}", f"{a}, {b}, 77", str(a + b)]


DRAWS = {
    "drawn fractions": draw_fraction, "drawn radicals": draw_radical, "drawn polynomials": draw_polynomial,
    "drawn sets": draw_set, "drawn intervals": draw_interval, "drawn tuples": draw_tuple, "drawn matrices": draw_matrix,
    "drawn powers of ten": draw_scientific, "drawn measures": draw_measure, "drawn percentages": draw_percent,
    "drawn lists": draw_list,
}  # fmt: skip


def fixed_pairs(table: str = "answer_pairs.tsv") -> list[Pair]:
    """A table beside this file."""
    pairs, kind = [], ""
    for line in Path(__file__).with_name(table).read_text().splitlines():
        if line.startswith("## "):
            kind = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            same, gold, answer = line.split("\t")
            pairs.append(Pair(kind, gold, answer, {"same": True, "different": False}[same]))
    return pairs
