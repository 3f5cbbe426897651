"""Bases, modifiers and stages of the user's own, as names of a method: FILE.py:NAME, or an entry point of `fairlen.methods`.

What a name stands for is seen from the object:

- a Method, or a function without arguments that returns one: a base;
- a function from a Method to a Method: a modifier; what it sets is what it changes of the plain method;
- a frozen dataclass with `choice`, such as `choice: ClassVar = "aggregation"`: a stage. It takes the place of the method's own;
  rewards and terms are added.

Not here: finding the object (plugins.py), and trying it (trial.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from fairlen.methods.describe import CHAINED
from fairlen.methods.method import Method
from fairlen.methods.micro import is_state
from fairlen.methods.modifiers import Modifier
from fairlen.methods.plugins import Plugin, find_plugin, installed, is_file_place

CHOICES = tuple(f.name for f in fields(Method) if f.name != "mask_truncated")


@dataclass(frozen=True)
class Base:
    """A whole method of the user's own."""

    name: str
    summary: str
    make: Callable[[], Method]


def is_extension(name: str) -> bool:
    """Whether a name of a method is one of a file or of an installed package."""
    return is_file_place(name) or any(point.name == name for point in installed("method"))


def find_extension(place: str) -> Base | Modifier:
    """The base or modifier that a name stands for. Raises ValueError where it is neither."""
    return read_extension(find_plugin("method", place))


def read_extension(plugin: Plugin) -> Base | Modifier:
    """What an object is, by the rules above."""
    value, summary = plugin.value, summarize(plugin.value)
    if isinstance(value, Method):
        return Base(plugin.name, f"a method of {plugin.source}", lambda: value)
    if hasattr(value, "choice"):
        return read_stage(plugin, summary)
    arguments = required_arguments(plugin)
    if arguments == 0:
        return Base(plugin.name, summary, lambda: call(plugin, value))
    if arguments == 1:
        choice = getattr(value, "sets", "") or find_changed(plugin, call(plugin, value, Method()))
        return Modifier(plugin.name, choice, summary, lambda method: call(plugin, value, method))
    raise ValueError(
        f"--method {plugin.place}: {plugin.name} needs {arguments} arguments; a base is a function of none, a modifier of one, "
        "the method, and both return a Method"
    )


def read_stage(plugin: Plugin, summary: str) -> Modifier:
    """A stage as the modifier that puts it into a method."""
    value, choice = plugin.value, plugin.value.choice
    if choice not in CHOICES:
        raise ValueError(f"--method {plugin.place}: choice={choice!r}: give one of {', '.join(CHOICES)}")
    kind = value if isinstance(value, type) else type(value)
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ValueError(f"--method {plugin.place}: {kind.__name__} can change; write @dataclass(frozen=True) over it")
    moving = [f.name for f in fields(kind) if is_state(f)]
    if moving:
        raise ValueError(
            f"--method {plugin.place}: {kind.__name__} has state ({', '.join(moving)}), which only stages of fairlen may have"
        )
    try:
        stage = value() if isinstance(value, type) else value
    except TypeError as error:
        raise ValueError(
            f"--method {plugin.place}: {kind.__name__} cannot be made without values ({error}); give every field a default, "
            f"--set {choice}.FIELD=VALUE sets it"
        ) from error
    if choice in CHAINED:

        def add(method: Method) -> Method:
            others = tuple(one for one in getattr(method, choice) if type(one) is not kind)
            return replace(method, **{choice: (*others, stage)})

        return Modifier(plugin.name, f"{choice}:{plugin.name}", summary, add)
    return Modifier(plugin.name, choice, summary, lambda method: replace(method, **{choice: stage}))


def required_arguments(plugin: Plugin) -> int:
    """Arguments that a function cannot do without. Raises ValueError for what is not a function."""
    if not callable(plugin.value) or isinstance(plugin.value, type):
        raise ValueError(
            f"--method {plugin.place}: {plugin.name} is {plugin.value!r:.60}, which is no method; give a function that returns a "
            "Method, or a frozen dataclass with a field-free attribute `choice`"
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = inspect.signature(plugin.value).parameters.values()
    return sum(one.default is inspect.Parameter.empty and one.kind in kinds for one in given)


def call(plugin: Plugin, function: Callable[..., Any], *arguments: Method) -> Method:
    """What a function of the user's own returns. Raises ValueError where it raises, or returns something else."""
    try:
        made = function(*arguments)
    except ValueError:
        raise  # says what does not go together, as modifiers do
    except Exception as error:
        raise ValueError(f"--method {plugin.place}: {plugin.name} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, Method):
        raise ValueError(f"--method {plugin.place}: {plugin.name} returned {made!r:.60}; return a fairlen.Method")
    return made


def find_changed(plugin: Plugin, changed: Method) -> str:
    """What a modifier sets, as modifiers.py names it."""
    plain = Method()
    first = next((f.name for f in fields(Method) if getattr(changed, f.name) != getattr(plain, f.name)), None)
    if first is None:
        raise ValueError(
            f"--method {plugin.place}: {plugin.name} changes nothing of the plain method; return replace(method, …), and "
            f'where it acts on some methods alone say what it sets: {plugin.name}.sets = "surrogate"'
        )
    return f"{first}:{plugin.name}" if first in CHAINED else first


def summarize(value: Any) -> str:
    """The first line of a docstring: of a preset, a modifier or a stage."""
    text = inspect.getdoc(value) or ""
    return text.splitlines()[0] if text else ""
