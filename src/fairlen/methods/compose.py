"""Names joined by `+`, in any order, become a method.

Exactly one base (presets.py; `grpo` if none is named), any number of modifiers (modifiers.py) of different choices. What a
modifier replaces that its base had chosen is said in the notes. A name may also be one of the user's own, FILE.py:NAME or an
entry point of `fairlen.methods`; its stages are tried (trial.py) before the method is used. What it stands for is seen from it:

- a Method, or a function without arguments that returns one: a base;
- a function from a Method to a Method: a modifier; what it sets is what it changes of the plain method;
- a frozen dataclass with `choice`, such as `choice: ClassVar = "aggregation"`: a stage. It takes the place of the method's own;
  rewards and terms are added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from fairlen.methods.conflicts import warn_of_pairs
from fairlen.methods.describe import set_fields, short, suggest
from fairlen.methods.method import CHAINED, Method
from fairlen.methods.modifiers import MODIFIERS, Modifier
from fairlen.methods.plugins import Plugin, find_plugin, installed, is_file_place, normalize
from fairlen.methods.presets import BASES
from fairlen.methods.trial import try_method

DEFAULT_METHOD = "grpo+balanced"
"""What our trainer, TRL and verl train with where no method is named."""


CHOICES = tuple(f.name for f in fields(Method) if f.name != "mask_truncated")


@dataclass(frozen=True)
class Base:
    """A whole method of the user's own."""

    name: str
    summary: str
    make: Callable[[], Method]


@dataclass(frozen=True)
class Composition:
    """A method and what to tell its user."""

    name: str
    """The names in a fixed order: the base, then modifiers as they are applied."""
    method: Method
    notes: tuple[str, ...]
    """What was replaced, and warnings of the table of pairs."""


def compose(names: str, overrides: Sequence[str] = ()) -> Method:
    """The method of names such as "dapo+balanced", with fields set such as "surrogate.clip_high=0.3".

    Raises ValueError for unknown names (with the nearest known one), two bases, and choices that contradict each other.
    """
    return explain(names, overrides).method


def explain(names: str, overrides: Sequence[str] = ()) -> Composition:
    """The same, with its notes."""
    base, modifiers = split_names(names)
    method, notes = base.make(), []
    for modifier in modifiers:
        before, method = method, modifier.apply(method)
        notes += [f"{modifier.name} {text}" for text in describe_replaced(before, method, modifier.stage)]
    method = set_fields(method, overrides)
    name = "+".join([base.name, *(modifier.name for modifier in modifiers)])
    if base.name not in BASES or any(modifier.name not in MODIFIERS for modifier in modifiers):
        try_method(method, name)
    return Composition(name, method, (*notes, *warn_of_pairs(method)))


def split_names(names: str) -> tuple[Base, list[Modifier]]:
    """The base and the modifiers in the order in which they are applied."""
    given = [normalize(name.strip()) for name in names.split("+")]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice:
        raise ValueError(f"{names!r} has {twice} twice: name it once")
    found = [find_name(name) for name in given]
    bases = [one for one in found if isinstance(one, Base)]
    if len(bases) > 1:
        raise ValueError(
            f"{names!r} has two bases, {bases[0].name} and {bases[1].name}: keep one; a modifier changes one choice of it"
        )
    order = list(MODIFIERS)
    modifiers = [one for one in found if isinstance(one, Modifier)]
    modifiers.sort(key=lambda one: order.index(one.name) if one.name in order else len(order))
    refuse_same_choice(names, modifiers, given)
    return (bases or [find_name("grpo")])[0], modifiers  # type: ignore[return-value]


def find_name(name: str) -> Base | Modifier:
    """What a name stands for: fairlen's own first. Raises ValueError for an unknown one."""
    if name in BASES:
        return Base(name, "", BASES[name])
    if name in MODIFIERS:
        return MODIFIERS[name]
    if is_extension(name):
        return find_extension(name)
    raise ValueError(
        f"unknown method {name!r}: {suggest(name, [*BASES, *MODIFIERS])} (`fairlen methods` lists all; one of your own is "
        "FILE.py:NAME)"
    )


def refuse_same_choice(names: str, modifiers: list[Modifier], given: list[str]) -> None:
    """Raises ValueError where two names set one choice."""
    setters: dict[str, str] = {}
    for modifier in modifiers:
        first = setters.setdefault(modifier.choice, modifier.name)
        if first != modifier.name:
            raise ValueError(f"{names!r}: {first} and {modifier.name} both set {modifier.choice}: keep one of them")
    for other in ("dynamic", "gr3"):
        if other in given and "toplambda" in given:
            raise ValueError(
                f"{names!r}: {other} drops prompts that are all correct, which toplambda selects first: leave {other} out; "
                "toplambda keeps prompts with some right answer"
            )


def describe_replaced(before: Method, after: Method, own: str) -> list[str]:
    """Choices that a base had made for itself, or that nobody asked to set (`own` was), and that are now others."""
    plain = Method()
    replaced = []
    for choice in (f.name for f in fields(Method)):
        old, new = getattr(before, choice), getattr(after, choice)
        if old == new:
            continue
        extended = isinstance(old, tuple) and set(old) <= set(new)
        if type(old) is type(new) and is_dataclass(old):
            replaced += describe_fields(choice, old, new, is_own=choice == own)
        elif old != getattr(plain, choice) and not extended:
            replaced.append(f"replaces {choice} {short(old)} with {short(new)}")
        elif choice == "filter":
            replaced.append(f"sets filter to {short(new)}")
    return replaced


def describe_fields(choice: str, old: object, new: object, is_own: bool) -> list[str]:
    """Fields of one stage that are now others; of a choice that was to be set, those that were not at their default."""
    pairs = [(f, getattr(old, f.name), getattr(new, f.name)) for f in fields(old)]  # type: ignore[arg-type]
    changed = [(f, a, b) for f, a, b in pairs if a != b and (a != f.default or not is_own)]
    return [f"replaces {choice}.{f.name} {a} with {b}" for f, a, b in changed]


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
