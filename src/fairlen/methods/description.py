"""A method as plain data, its fields set by their paths, and its shortest text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any, get_args

from fairlen.checks import is_described
from fairlen.console import suggest
from fairlen.methods.method import Method
from fairlen.methods.stages import advantage, aggregation, fair_band, filters, reward, surrogate, terms, trust_region
from fairlen.methods.stages.micro import is_state
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.independent import Independent


def stages_of(*modules: ModuleType) -> tuple[type, ...]:
    """The dataclasses of modules whose instances can be called."""
    own = [
        one for module in modules for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__
    ]
    classes = [one for one in own if isinstance(one, type) and is_dataclass(one)]
    return tuple(one for one in classes if any("__call__" in vars(base) for base in one.__mro__))


KINDS: dict[str, tuple[type, ...]] = {
    "sampling": (Independent, EqLen),
    "filter": get_args(filters.Filter),
    "reward": get_args(reward.Reward),
    "advantage": get_args(advantage.Advantage),
    "surrogate": stages_of(surrogate, fair_band, trust_region),
    "aggregation": stages_of(aggregation),
    "terms": get_args(terms.Term),
    "correction": get_args(terms.Correction),
}
"""The stages that each choice can be."""

PLAIN = {"bool": bool, "int": int, "float": float, "str": str}
"""Types that a field can be set to from text."""


def to_dict(method: Method) -> dict[str, Any]:
    """The method as JSON data, without state: a stage with its class name under "kind", an infinite bound as "inf"."""

    def write(value: Any) -> Any:
        if isinstance(value, tuple):
            return [stage_to_dict(stage) for stage in value]
        return stage_to_dict(value) if is_dataclass(value) else value

    return {choice.name: write(getattr(method, choice.name)) for choice in fields(method)}


def stage_to_dict(stage: Any) -> dict[str, Any]:
    named = {f.name: getattr(stage, f.name) for f in fields(stage) if not is_state(f) and is_described(stage, f)}
    return {"kind": type(stage).__name__} | {k: "inf" if v == float("inf") else v for k, v in named.items()}


def find_kind(choice: str, name: str) -> type:
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
    values: dict[str, Any] = {choice.name: getattr(method, choice.name) for choice in fields(method)}
    given = [split_assignment(text, values) for text in assignments]
    for choice, path, text, told in given:
        if not path:
            values[choice] = read_choice(values[choice], choice, text, told)
    changes: dict[tuple[str, int], dict[str, Any]] = {}
    for choice, path, text, told in given:
        if path:
            is_chain = isinstance(values[choice], tuple)
            stages = values[choice] if is_chain else (values[choice],)
            place = find_position(stages, path[0], told) if is_chain else 0
            name = ".".join(path[is_chain:])
            changes.setdefault((choice, place), {})[name] = read_field(stages[place], name, text, told)
    for (choice, place), changed in changes.items():
        value = values[choice]
        if isinstance(value, tuple):
            values[choice] = (*value[:place], replace(value[place], **changed), *value[place + 1 :])
        else:
            values[choice] = replace(value, **changed)
    return replace(method, **values)


def split_assignment(assignment: str, choices: Collection[str]) -> tuple[str, list[str], str, str]:
    """(choice, path below it, text, what errors begin with)."""
    path, equals, text = assignment.partition("=")
    choice, *rest = path.strip().split(".")
    if not equals or not text.strip():
        raise ValueError(f"--set {assignment}: write PATH=VALUE, such as surrogate.clip_high=0.3")
    if choice not in choices:
        raise ValueError(f"--set {assignment}: no choice {choice!r}: {suggest(choice, choices)}")
    return choice, rest, text.strip(), f"--set {assignment}"


def read_choice(value: Any, choice: str, text: str, told: str) -> Any:
    """A whole choice: a stage by its class, a tuple of them, or a plain value."""
    if isinstance(value, tuple):
        return tuple(find_kind(choice, name.strip())() for name in text.split(",")) if text != "none" else ()
    return find_kind(choice, text)() if is_dataclass(value) else parse(text, type(value), value, told)


def find_position(stages: tuple[Any, ...], name: str, told: str) -> int:
    names = [type(stage).__name__ for stage in stages]
    if name.isdigit() and int(name) < len(stages):
        return int(name)
    if name in names:
        return names.index(name)
    raise ValueError(f"{told}: no stage {name!r} here: {suggest(name, names)}")


def read_field(stage: Any, name: str, text: str, told: str) -> Any:
    """A value for a field of a stage: of the type of its annotation where that is plain, else of what it holds."""
    declared = {f.name: f.type for f in fields(stage) if not is_state(f)} if is_dataclass(stage) else {}
    if name not in declared:
        raise ValueError(f"{told}: {short(stage)} has no field {name!r}: {suggest(name, declared)}")
    kind = str(getattr(declared[name], "__name__", declared[name]))  # a type, or its name
    current = getattr(stage, name)
    return parse(text, PLAIN.get(kind, type(current)), current, told)


def parse(text: str, kind: type, current: Any, told: str) -> Any:
    """The text as a value of a plain type; `current` is an example of one."""
    if kind not in PLAIN.values():
        raise ValueError(f"{told}: its value is {current!r}; only texts, numbers and truth values can be set from here")
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{told}: {text!r} is not a truth value: give true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{told}: {text!r} is not {wanted}, such as {current}") from None


def list_stages(method: Method, choices: Collection[str] = ()) -> str:
    """Every stage, or those of some choices, with the fields that differ from their defaults, in one line."""
    stages = ((path.partition(".")[0], stage) for path, stage in method.stages())
    listed = [f"{choice} {short(stage)}" for choice, stage in stages if choice in choices or not choices]
    return ", ".join(listed + ["truncated responses masked"] * (method.mask_truncated and not choices))


def short(stage: Any) -> str:
    """A stage as the shortest text that makes it: its class and the fields that differ from their defaults."""
    if isinstance(stage, tuple):
        return ", ".join(short(s) for s in stage) or "none"
    if not is_dataclass(stage):
        return str(stage)
    values = [(f.name, getattr(stage, f.name), f.default) for f in fields(stage) if not is_state(f)]
    given = [f"{name}={value!r}" for name, value, default in values if value != default]
    return f"{type(stage).__name__}({', '.join(given)})"
