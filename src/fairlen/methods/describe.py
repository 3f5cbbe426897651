"""A method as plain data and back, one of its fields by its path, and its shortest text.

Used by run folders, checkpoints, tables and `--set`. A stage is written with its class name under "kind"; state is written only
where asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

from fairlen.methods.method import CHAINED, Method
from fairlen.methods.stages import (
    advantage,
    aggregation,
    fair_band,
    filters,
    reward,
    surrogate,
    terms,
)
from fairlen.methods.stages.micro import is_state
from fairlen.sampling import eqlen
from fairlen.sampling import independent as sampling

KINDS: dict[str, tuple[type, ...]] = {
    "sampling": (sampling.Independent, eqlen.EqLen),
    "filter": get_args(filters.Filter),
    "reward": get_args(reward.Reward),
    "advantage": get_args(advantage.Advantage),
    "surrogate": (
        surrogate.PolicyGradient, surrogate.TokenClip, surrogate.SequenceTokenClip, surrogate.SequenceClip,
        surrogate.SequenceRatioClip, surrogate.PowerClip, fair_band.FairBand, surrogate.GeometricClip,
        surrogate.DetachedClip, surrogate.SoftGate, surrogate.GammaKernel,
    ),
    "aggregation": (
        aggregation.SequenceMean, aggregation.TokenMean, aggregation.TokenSum, aggregation.ConstantBudget,
        aggregation.LengthPower, aggregation.Balanced,
    ),
    "terms": get_args(terms.Term),
    "correction": get_args(terms.Correction),
}  # fmt: skip
"""The stages that each choice can be."""

PLAIN = (bool, int, float, str)
"""What a field can be set to from text."""


def to_dict(method: Method, with_state: bool = False) -> dict[str, Any]:
    """The method as JSON data; infinite bounds are the string "inf"."""
    data: dict[str, Any] = {}
    for choice in fields(method):
        value = getattr(method, choice.name)
        if isinstance(value, tuple):
            data[choice.name] = [stage_to_dict(stage, with_state) for stage in value]
        else:
            data[choice.name] = stage_to_dict(value, with_state) if is_dataclass(value) else value
    return data


def stage_to_dict(stage: Any, with_state: bool) -> dict[str, Any]:
    """One stage as JSON data."""
    named = {f.name: getattr(stage, f.name) for f in fields(stage) if with_state or not is_state(f)}
    return {"kind": type(stage).__name__} | {k: "inf" if v == float("inf") else v for k, v in named.items()}


def from_dict(data: dict[str, Any]) -> Method:
    """The method that `to_dict` wrote."""
    choices: dict[str, Any] = {}
    for name, value in data.items():
        if name in CHAINED:
            choices[name] = tuple(stage_from_dict(name, stage) for stage in value)
        else:
            choices[name] = stage_from_dict(name, value) if isinstance(value, dict) else value
    return Method(**choices)


def stage_from_dict(choice: str, data: dict[str, Any]) -> Any:
    """One stage from JSON data."""
    values = {k: float("inf") if v == "inf" else v for k, v in data.items() if k != "kind"}
    return find_kind(choice, data["kind"])(**values)


def find_kind(choice: str, name: str) -> type:
    """The stage of that class name among those of a choice."""
    known = {kind.__name__: kind for kind in KINDS[choice]}
    if name not in known:
        raise ValueError(f"{choice}={name!r}: {suggest(name, known)}")
    return known[name]


def hash_method(method: Method) -> str:
    """Twelve hex digits of the choices, state left out: equal for equal mathematics."""
    return hashlib.sha256(json.dumps(to_dict(method), sort_keys=True).encode()).hexdigest()[:12]


def set_fields(method: Method, assignments: Sequence[str]) -> Method:
    """The method with fields set, all at once, so that their order does not matter.

    From text such as "surrogate.clip_high=0.3", "reward.0.alpha=0.4" or "filter=SomeCorrect"; rewards and terms are named by
    position or class. Raises ValueError naming the nearest field that exists.
    """
    given = [split_assignment(text) for text in assignments]
    changed: dict[str, Any] = {}
    for choice, path, text, assignment in given:
        if not path:
            changed[choice] = read_choice(getattr(method, choice), choice, text, assignment)
    for choice in dict.fromkeys(choice for choice, path, _, _ in given if path):
        values = [(path, text, assignment) for one, path, text, assignment in given if one == choice and path]
        value = changed.get(choice, getattr(method, choice))
        changed[choice] = set_in_choice(value, values)
    return replace(method, **changed)


def split_assignment(assignment: str) -> tuple[str, list[str], str, str]:
    """(choice, path below it, text, the whole)."""
    path, equals, text = assignment.partition("=")
    choice, *rest = path.strip().split(".")
    if not equals or not text.strip():
        raise ValueError(f"--set {assignment}: write PATH=VALUE, such as surrogate.clip_high=0.3")
    choices = [f.name for f in fields(Method)]
    if choice not in choices:
        raise ValueError(f"--set {assignment}: no choice {choice!r}: {suggest(choice, choices)}")
    return choice, rest, text.strip(), assignment


def read_choice(value: Any, choice: str, text: str, assignment: str) -> Any:
    """A whole choice: a stage by its class, a tuple of them, or a plain value."""
    if isinstance(value, tuple):
        return tuple(find_kind(choice, name.strip())() for name in text.split(",")) if text != "none" else ()
    return find_kind(choice, text)() if is_dataclass(value) else parse(text, type(value), value, assignment)


def set_in_choice(value: Any, given: Sequence[tuple[list[str], str, str]]) -> Any:
    """A stage, or a tuple of stages, with the fields of (path, text, assignment) set."""
    if not isinstance(value, tuple):
        return set_in_stage(value, given)
    places = [find_position(value, path[0], assignment) for path, _, assignment in given]
    stages = list(value)
    for place in dict.fromkeys(places):
        below = [
            (path[1:], text, whole) for (path, text, whole), own in zip(given, places, strict=True) if own == place
        ]
        stages[place] = set_in_stage(value[place], below)
    return tuple(stages)


def set_in_stage(stage: Any, given: Sequence[tuple[list[str], str, str]]) -> Any:
    """One stage with fields set."""
    names = [f.name for f in fields(stage) if not is_state(f)] if is_dataclass(stage) else []
    values: dict[str, Any] = {}
    for path, text, assignment in given:
        name = ".".join(path)
        if name not in names:
            raise ValueError(f"--set {assignment}: {short(stage)} has no field {name!r}: {suggest(name, names)}")
        current = getattr(stage, name)
        values[name] = parse(text, kind_of_field(stage, name, current), current, assignment)
    return replace(stage, **values)  # type: ignore[type-var]  # a dataclass: it has names


def kind_of_field(stage: Any, name: str, current: Any) -> type:
    """What a field takes, by its annotation where that is plain, else by what it holds."""
    try:
        declared = get_type_hints(type(stage)).get(name)
    except (NameError, TypeError):  # of a stage of the user's own, which names what exists for type checkers alone
        declared = None
    return declared if declared in PLAIN else type(current)


def find_position(stages: tuple[Any, ...], name: str, assignment: str) -> int:
    """Which of the stages a position or class name means."""
    names = [type(stage).__name__ for stage in stages]
    if name.isdigit() and int(name) < len(stages):
        return int(name)
    if name in names:
        return names.index(name)
    raise ValueError(f"--set {assignment}: no stage {name!r} here: {suggest(name, names)}")


def parse(text: str, kind: type, current: Any, assignment: str) -> Any:
    """The text as a value of a plain type; `current` is an example of one."""
    if kind not in PLAIN:
        raise ValueError(
            f"--set {assignment}: its value is {current!r}; only texts, numbers and truth values can be set from here"
        )
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"--set {assignment}: {text!r} is not a truth value: give true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"--set {assignment}: {text!r} is not {wanted}, such as {current}") from None


def suggest(name: str, known: Any) -> str:
    """The nearest known name, or all of them."""
    near = difflib.get_close_matches(name, list(known), 2)
    likeness = [difflib.SequenceMatcher(None, one, name).ratio() for one in near]
    best = " or ".join(repr(one) for one, ratio in zip(near, likeness, strict=True) if ratio == likeness[0])
    return f"did you mean {best}?" if near else f"there are {', '.join(known) or 'none'}"


def short(stage: Any) -> str:
    """A stage as the shortest text that makes it: its class and the fields that differ from their defaults."""
    if isinstance(stage, tuple):
        return ", ".join(short(s) for s in stage) or "none"
    if not is_dataclass(stage):
        return str(stage)
    given = []
    for f in fields(stage):
        default = f.default if f.default is not MISSING else None
        if not is_state(f) and getattr(stage, f.name) != default:
            given.append(f"{f.name}={getattr(stage, f.name)!r}")
    return f"{type(stage).__name__}({', '.join(given)})"
