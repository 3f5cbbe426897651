"""The table of methods, and what one is made of: every choice and field, its value, how to set it and what it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

from fairlen.console import make_console, print_table
from fairlen.flags import field_meanings
from fairlen.methods.compose import explain, summarize
from fairlen.methods.description import hash_method, short, stage_to_dict, to_dict
from fairlen.methods.method import CHAINED, Method
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.settings import Positional

CHOICES = ("sampling", "filter", "reward", "advantage", "surrogate", "aggregation")
"""Columns of the table; terms and correction are the same for every base."""


@dataclass(frozen=True)
class MethodsConfig:
    """Settings of `fairlen methods`."""

    name: Annotated[str, Positional] = ""
    """One method, its names joined by +, such as dapo+balanced or verl:opo; or peers, verl, …: the words of other libraries."""
    compare: tuple[str, ...] = ()
    """Methods whose weights, advantages and bounds are measured on the same made rollouts."""
    rollouts: str = ""
    """Files or a folder of your own rollouts, as for fairlen audit, that --compare weighs instead."""
    tokenizer: str = ""
    """Folder with a tokenizer.json, or hub id in the local cache: lengths of --rollouts are tokens of the text."""
    out: str = ""
    """A page to write with the picture of --compare."""
    json: bool = False
    """Print data for machines."""


def list_methods() -> dict[str, Any]:
    """Bases with all of their choices, and modifiers with what they set, as JSON data."""
    return {
        "bases": {name: {"summary": summarize(make), "choices": to_dict(make())} for name, make in BASES.items()},
        "modifiers": {name: {"sets": part.sets, "summary": part.summary} for name, part in MODIFIERS.items()},
    }


def print_methods(data: dict[str, Any]) -> None:
    """The tables of `list_methods` on the terminal."""
    console, plain, bases = make_console(160), Method(), []
    for name, make in BASES.items():
        pairs = [(getattr(make(), choice), getattr(plain, choice)) for choice in CHOICES]
        bases.append([name, *("" if own == other and name != "grpo" else short(own) for own, other in pairs)])
    print_table(console, "bases (empty: as in grpo)", ("method", *CHOICES), bases)
    modifiers = [[name, *one.values()] for name, one in data["modifiers"].items()]
    print_table(console, "modifiers, added with + in any order", ("modifier", "sets", "what it does"), modifiers)
    console.print("fairlen methods NAME[+NAME…] shows what one method is made of, and how to set it")


def print_words(data: dict[str, Any]) -> None:
    """The words of other libraries on the terminal."""
    cells = [[one[key] for key in ("name", "sets", "here", "differs")] for one in data["words"]]
    headings = ("name", "sets there", "--set here", "what differs")
    print_table(make_console(160), "words of other libraries", headings, cells)


def describe_method(names: str) -> dict[str, Any]:
    """A composition as JSON data. Raises ValueError as `compose` does."""
    made = explain(names)
    return {
        "name": made.name,
        "hash": hash_method(made.method),
        "parts": [{key: getattr(part, key) for key in ("name", "sets", "summary", "source")} for part in made.parts],
        "notes": list(made.notes),
        "choices": {choice: list(describe_choice(choice, made.method)) for choice in (f.name for f in fields(Method))},
    }


def describe_choice(choice: str, method: Method) -> Iterator[dict[str, Any]]:
    """The stages of a choice, each with its fields; a choice that is a plain value is one field."""
    value = getattr(method, choice)
    if not isinstance(value, tuple) and not is_dataclass(value):
        meaning = field_meanings(Method).get(choice, "")
        yield {"stage": "", "summary": "", "fields": [{"set": choice, "value": value, "meaning": meaning}]}
        return
    for stage in value if isinstance(value, tuple) else (value,):
        kind = type(stage).__name__
        path = f"{choice}.{kind}" if choice in CHAINED else choice
        meanings = field_meanings(type(stage))
        values = {name: one for name, one in stage_to_dict(stage).items() if name != "kind"}
        found = [{"set": f"{path}.{k}", "value": v, "meaning": meanings.get(k, "")} for k, v in values.items()]
        yield {"stage": kind, "summary": summarize(type(stage)), "fields": found}


def print_method(data: dict[str, Any]) -> None:
    """The same on the terminal."""
    console = make_console(160)
    console.print(f"{data['name']} ({data['hash']})")
    parts = [list(part.values()) for part in data["parts"]]
    print_table(console, "", ("name", "sets", "what it does", "source"), parts)
    for note in data["notes"]:
        console.print(note)
    rows = []
    for choice, stages in data["choices"].items():
        for stage in stages or [{"stage": "none", "summary": "", "fields": []}]:
            own = [[one["set"], str(one["value"]), one["meaning"]] for one in stage["fields"]]
            shown = [[choice, stage["stage"], stage["summary"]], *own] if stage["stage"] else own
            rows += [["" if position else choice, *row] for position, row in enumerate(shown)]
    print_table(console, "", ("choice", "--set", "value", "what it means"), rows)
