"""Conditions on figures of the study, and what a claim's conditions come to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONDITION = re.compile(
    r"(?P<figure>[a-z0-9-]+) (?P<bound>value|low|high) (?P<relation>[<>]) (?P<threshold>-?\d+(\.\d+)?)"
)


@dataclass(frozen=True)
class Result:
    """A stored figure: a value with its 95% interval."""

    value: float
    low: float
    high: float
    seeds: int
    unit: str
    what: str

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{show(self.value)}{unit} [{show(self.low)}, {show(self.high)}]"


def show(number: float) -> str:
    """Three significant digits, and no exponent within reason."""
    return f"{number:.3g}"


@dataclass(frozen=True)
class Condition:
    """One comparison of a bound of a figure with a number, such as "eqlen-minus-grpo low > 0"."""

    figure: str
    bound: str
    relation: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.figure} {self.bound} {self.relation} {self.threshold:g}"

    def holds(self, results: Mapping[str, Result]) -> bool:
        number = getattr(results[self.figure], self.bound)
        return number > self.threshold if self.relation == ">" else number < self.threshold

    def is_excluded(self, results: Mapping[str, Result]) -> bool:
        """Whether the whole interval lies on the other side, so that more seeds would not change the answer."""
        result = results[self.figure]
        return result.high <= self.threshold if self.relation == ">" else result.low >= self.threshold


def parse_condition(text: str) -> Condition:
    """Raises ValueError where the text is no condition."""
    found = CONDITION.fullmatch(text)
    if not found:
        raise ValueError(f'decide={text!r}: write FIGURE value|low|high <|> NUMBER, such as "eqlen-minus-grpo low > 0"')
    return Condition(found["figure"], found["bound"], found["relation"], float(found["threshold"]))


def judge(conditions: Sequence[Condition], results: Mapping[str, Result]) -> str:
    """open while a figure is missing, reproduced if every condition holds, else not reproduced."""
    if any(condition.figure not in results for condition in conditions):
        return "open"
    return "reproduced" if all(condition.holds(results) for condition in conditions) else "not reproduced"


def explain(conditions: Sequence[Condition], results: Mapping[str, Result]) -> str:
    """Why something was not reproduced: what the intervals exclude, and what they leave undecided."""
    failed = [condition for condition in conditions if not condition.holds(results)]
    excluded = [str(condition) for condition in failed if condition.is_excluded(results)]
    undecided = [str(condition) for condition in failed if not condition.is_excluded(results)]
    parts = [f"excluded: {', '.join(excluded)}"] if excluded else []
    parts += [f"undecided with these seeds: {', '.join(undecided)}"] if undecided else []
    return "; ".join(parts)
