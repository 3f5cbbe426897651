"""Names joined by `+`, in any order, become a method.

Exactly one base (presets.py; `grpo` if none is named), any number of modifiers (modifiers.py) of different choices. What a
modifier replaces that its base had chosen is said in the notes. A name may also be one of the user's own, FILE.py:NAME or an
entry point (extensions/); its stages are tried before the method is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass

from fairlen.methods.conflicts import warn_of_pairs
from fairlen.methods.describe import set_fields, short, suggest
from fairlen.methods.kinds import Base, find_extension, is_extension
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS, Modifier
from fairlen.methods.plugins import normalize
from fairlen.methods.presets import BASES
from fairlen.methods.trial import try_method

DEFAULT_METHOD = "grpo+balanced"
"""What our trainer, TRL and verl train with where no method is named."""


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
                f"{names!r}: {other} drops prompts that are all right, which toplambda selects first: leave {other} out; "
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
