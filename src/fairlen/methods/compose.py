"""Names joined by `+`, in any order, become a method: one base (`grpo` if none is named) and modifiers of different choices.

A name may be one of the user's own, FILE.py:NAME, which is tried before it is used:

- a Method, or a function without arguments that returns one: a base;
- a function from a Method to a Method: a modifier; what it sets is what it changes of the plain method;
- a frozen dataclass with `choice`, such as `choice: ClassVar = "aggregation"`: a stage. It takes the place of the method's own;
  rewards and terms are added.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from fairlen.console import suggest
from fairlen.methods.conflicts import warn_of_pairs
from fairlen.methods.description import KINDS, set_fields, short
from fairlen.methods.method import CHAINED, Method
from fairlen.methods.modifiers import EVERYTHING, MODIFIERS, Component, add
from fairlen.methods.peers import PEERS, find_peer, split_names, suggest_number
from fairlen.methods.presets import BASES
from fairlen.methods.trial import try_method
from fairlen.plugins import Plugin, find_plugin, is_file_place, normalize

DEFAULT_METHOD = "dr_grpo"
"""Default method of our trainer, TRL and verl."""


@dataclass(frozen=True)
class Composition:
    """A method, and the messages to its user."""

    name: str
    """The names in a fixed order: the base, then modifiers as they are applied."""
    method: Method
    notes: tuple[str, ...]
    """Choices that were replaced, and warnings of the table of pairs."""
    parts: tuple[Component, ...] = field(default=(), compare=False, repr=False)

    @property
    def papers(self) -> list[str]:
        return sorted({paper for part in self.parts for paper in part.papers})


def compose(names: str, overrides: Sequence[str] = ()) -> Method:
    """Return the method of names such as "dapo+balanced", with fields set such as "surrogate.clip_high=0.3".

    Raises ValueError for unknown names (with the nearest known one), two bases, and choices that contradict each other.
    """
    return explain(names, overrides).method


def explain(names: str, overrides: Sequence[str] = ()) -> Composition:
    """The same, with its name, parts and notes."""
    if not isinstance(names, str):
        raise TypeError(f"names={names!r:.60}: give names joined by +, such as 'dapo+balanced'")
    parts = find_components(names)
    method, notes = parts[0].apply(Method()), list(parts[0].notes)
    for part in parts[1:]:
        before, method = method, part.apply(method)
        notes += [f"{part.name} {text}" for text in describe_replaced(before, method, own=part.sets)]
    method = set_fields(method, [overrides] if isinstance(overrides, str) else overrides)
    name = "+".join(part.name for part in parts)
    if any(part.source != "fairlen" for part in parts):
        try_method(method, name)
    return Composition(name, method, (*notes, *warn_of_pairs(method)), parts)


def find_components(names: str) -> tuple[Component, ...]:
    """The base, and the modifiers in the order in which they are applied."""
    split = split_names(names)
    given = [name if words or name.endswith(":") else normalize(name) for name, words in split]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice:
        raise ValueError(f"{names!r} has {twice} twice: name it once")
    found = [find_component(name, words) for name, (_, words) in zip(given, split, strict=True)]
    bases = [part for part in found if part.sets == EVERYTHING] or [find_component("grpo")]
    if len(bases) > 1:
        raise ValueError(
            f"{names!r} has two bases, {bases[0].name} and {bases[1].name}: keep one; a modifier changes one choice of it"
        )
    order = list(MODIFIERS)
    modifiers = [part for part in found if part.sets != EVERYTHING]
    modifiers.sort(key=lambda part: order.index(part.name) if part.name in order else len(order))
    setters: dict[str, str] = {}
    for part in modifiers:
        first = setters.setdefault(part.sets, part.name)
        if first != part.name:
            raise ValueError(f"{names!r}: {first} and {part.name} both set {part.sets}: keep one of them")
    if {"dynamic", "toplambda"} <= set(given):
        raise ValueError(
            f"{names!r}: dynamic drops prompts that are all correct, which toplambda selects first: leave dynamic out; toplambda "
            "keeps prompts with some correct response"
        )
    return (*bases, *modifiers)


def find_component(name: str, words: Sequence[str] = ()) -> Component:
    """Find the part that a name stands for: fairlen's own first. Raises ValueError for an unknown one.

    `words` are those after the prefix of another library.
    """
    if peer := find_peer(name):
        words = words or [word for word in name.partition(":")[2].split("+") if word]
        notes = [f"{peer.name}:{word}: {note}" for word in words if (note := peer.read(word).differs)]
        method = peer.apply(words)
        summary = f"The settings of {peer.program} {peer.version} by their names there."
        return Component(peer.name + ":" + "+".join(words), EVERYTHING, summary, lambda _: method, notes=tuple(notes))
    if name in BASES:
        return Component(name, EVERYTHING, summarize(BASES[name]), lambda method: BASES[name]())
    if name in MODIFIERS:
        return MODIFIERS[name]
    if is_file_place(name):
        return read_component(find_plugin("method", name))
    raise ValueError(
        f"unknown method {name!r}: {suggest_names(name)} (`fairlen methods` lists all; one of your own is FILE.py:NAME)"
    )


def suggest_names(name: str) -> str:
    """Return what the writer of an unknown name probably meant.

    Args:
        name: The name, such as "grpo,dapo", "clip_high", "tlr:" or "epsilon_high=0.28".
    """
    if "=" in name:
        return f"a number of another library's follows its words, such as trl:dapo+epsilon_high=0.28; {suggest_number(name)}"
    prefix, colon, rest = name.partition(":")
    if colon and (prefix in BASES or prefix in MODIFIERS):
        remedy = f"leave the colon out: {prefix}" if not rest else f"write {prefix} --set {rest}=VALUE"
        return f"{prefix} is a method of fairlen's, and {remedy}"
    if colon and prefix:
        return f"no library {prefix!r}: {suggest(prefix, PEERS)}, as in trl:dapo"
    parts = [normalize(part) for part in re.split(r"[,;/\s]+", name) if part]
    bases = [part for part in parts if part in BASES]
    if len(bases) > 1:
        return f"these are several methods, of which a run has one; `fairlen compare {' '.join(bases)}` compares them"
    if len(parts) > 1:
        return f"names are joined by +: {'+'.join(parts)}"
    paths = find_fields(name)
    if paths:
        near = difflib.get_close_matches(name, [*BASES, *MODIFIERS], 1)
        modifier = f", or {near[0]!r}" if near else ""
        return f"it is a setting: --set {paths[0]}=VALUE{modifier}"
    return suggest(name, [*BASES, *MODIFIERS])


def find_fields(name: str) -> list[str]:
    """Return the paths of the stages' fields that have a name, such as "surrogate.clip_high"."""
    owners = [choice for choice, kinds in KINDS.items() if any(name in kind.__dataclass_fields__ for kind in kinds)]
    return [f"{choice}.{name}" for choice in owners]


def describe_replaced(before: Method, after: Method, own: str) -> list[str]:
    """Choices, or fields of one, that a base had made for itself and that are others now; a filter that nobody asked to set."""
    plain, replaced = Method(), []
    for choice in (f.name for f in fields(Method)):
        old, new = getattr(before, choice), getattr(after, choice)
        is_own = own.startswith(choice)
        if old == new or (isinstance(old, tuple) and set(old) <= set(new)):
            continue
        if type(old) is type(new) and is_dataclass(old):
            pairs = [(f, getattr(old, f.name), getattr(new, f.name)) for f in fields(old)]
            changed = [(f, a, b) for f, a, b in pairs if a != b and (a != f.default or not is_own)]
            replaced += [f"replaces {choice}.{f.name} {a} with {b}" for f, a, b in changed]
        elif old != getattr(plain, choice):
            replaced.append(f"replaces {choice} {short(old)} with {short(new)}")
        elif choice == "filter" and not is_own:
            replaced.append(f"sets filter to {short(new)}")
    return replaced


def read_component(plugin: Plugin) -> Component:
    """Read an object by the rules above. Raises ValueError where it is none of them."""
    value, place, summary = plugin.value, f"--method {plugin.place}: {plugin.name}", summarize(plugin.value)
    if isinstance(value, Method):
        return Component(plugin.name, EVERYTHING, f"a method of {plugin.source}", lambda method: value, plugin.source)
    if hasattr(value, "choice"):
        return read_stage(plugin)
    if not callable(value) or isinstance(value, type):
        raise ValueError(
            f"{place} is {value!r:.60}, which is no method; give a function that returns a Method, or a frozen dataclass with a "
            "field-free attribute `choice`"
        )
    needed = [one for one in inspect.signature(value).parameters.values() if one.default is one.empty]
    number = sum(one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed)
    if number > 1:
        raise ValueError(
            f"{place} needs {number} arguments; a base is a function of none, a modifier of one, the method, and both return a "
            f"Method; a reward function is named by --rewards {plugin.place}, and tried when a run starts"
        )
    if not number:
        return Component(plugin.name, EVERYTHING, summary, lambda method: call(plugin), plugin.source)
    sets = getattr(value, "sets", "") or find_changed(plugin, call(plugin, Method()))
    return Component(plugin.name, sets, summary, lambda method: call(plugin, method), plugin.source)


def read_stage(plugin: Plugin) -> Component:
    value, choice, place = plugin.value, plugin.value.choice, f"--method {plugin.place}"
    choices = [f.name for f in fields(Method) if f.name != "mask_truncated"]
    if choice not in choices:
        raise ValueError(f"{place}: choice={choice!r}: give one of {', '.join(choices)}")
    kind = value if isinstance(value, type) else type(value)
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ValueError(f"{place}: {kind.__name__} can change; write @dataclass(frozen=True) over it")
    try:
        stage = value() if isinstance(value, type) else value
    except TypeError as error:
        raise ValueError(
            f"{place}: {kind.__name__} cannot be made without values ({error}); give every field a default, "
            f"--set {choice}.FIELD=VALUE sets it"
        ) from error

    def put(method: Method) -> Method:
        return add(method, choice, stage) if choice in CHAINED else replace(method, **{choice: stage})

    sets = f"{choice}:{plugin.name}" if choice in CHAINED else choice
    return Component(plugin.name, sets, summarize(value), put, plugin.source)


def call(plugin: Plugin, *given: Method) -> Method:
    """Call a function of the user's own. Raises ValueError where it raises, or returns something else."""
    place = f"--method {plugin.place}: {plugin.name}"
    try:
        made = plugin.value(*given)
    except ValueError:
        raise  # says what does not go together, as modifiers do
    except Exception as error:
        raise ValueError(f"{place} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, Method):
        raise ValueError(f"{place} returned {made!r:.60}; return a fairlen.Method")
    return made


def find_changed(plugin: Plugin, changed: Method) -> str:
    """Find the choice that a modifier sets, as modifiers.py names it."""
    first = next((f.name for f in fields(Method) if getattr(changed, f.name) != getattr(Method(), f.name)), None)
    if first is None:
        raise ValueError(
            f"--method {plugin.place}: {plugin.name} changes nothing of the plain method; return replace(method, …), and "
            f'where it acts on some methods alone say what it sets: {plugin.name}.sets = "surrogate"'
        )
    return f"{first}:{plugin.name}" if first in CHAINED else first


def summarize(value: Any) -> str:
    """The first line of a docstring: of a preset, a modifier or a stage."""
    return (inspect.getdoc(value) or "").partition("\n")[0]
