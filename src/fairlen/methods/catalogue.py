"""The table of methods, and what one is made of: every choice and field, its value, how to set it and what it means.

Made from presets, modifiers, stages and their docstrings, so that it cannot be out of date.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

from fairlen.console import make_console
from fairlen.methods.compose import Base, explain, find_name, read_extension, summarize
from fairlen.methods.describe import hash_method, short, stage_to_dict, to_dict
from fairlen.methods.method import CHAINED, Method
from fairlen.methods.modifiers import MODIFIERS, Modifier
from fairlen.methods.plugins import find_plugin, installed, normalize
from fairlen.methods.presets import BASES

CHOICES = ("sampling", "filter", "reward", "advantage", "surrogate", "aggregation")
"""Columns of the table; terms and correction are the same for every base."""


def list_methods() -> dict[str, Any]:
    """Bases with all of their choices, modifiers with what they set, and extensions with their source, as JSON data."""
    bases = {name: {"summary": summarize(make), "choices": to_dict(make())} for name, make in BASES.items()}
    modifiers = {name: {"sets": m.choice, "summary": m.summary} for name, m in MODIFIERS.items()}
    return {
        "bases": bases,
        "modifiers": modifiers,
        "extensions": [describe_extension(point.name) for point in installed("method")],
    }


def describe_extension(place: str) -> dict[str, str]:
    """What a name of the user's own sets and does; one that is broken says why."""
    try:
        plugin = find_plugin("method", place)
        found = read_extension(plugin)
    except ValueError as error:
        return {"name": place, "sets": "broken", "summary": str(error), "source": ""}
    sets = found.choice if isinstance(found, Modifier) else "everything"
    return {"name": place, "sets": sets, "summary": found.summary, "source": plugin.source}


def table_rows() -> list[list[str]]:
    """One row a base: its name and its choices, empty where they are those of grpo."""
    plain = Method()
    rows = [["grpo", *(short(getattr(plain, choice)) for choice in CHOICES)]]
    for name, make in BASES.items():
        if name == "grpo":
            continue
        method = make()
        same = {f.name for f in fields(Method) if getattr(method, f.name) == getattr(plain, f.name)}
        rows.append([name, *("" if choice in same else short(getattr(method, choice)) for choice in CHOICES)])
    return rows


def markdown_table() -> str:
    """The table of bases for README.md."""
    head = ["method", *CHOICES]
    lines = [
        head,
        ["---"] * len(head),
        *([f"`{row[0]}`", *(f"`{cell}`" if cell else "" for cell in row[1:])] for row in table_rows()),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_modifiers() -> str:
    """The table of modifiers for README.md."""
    rows = [f"| `{m.name}` | {m.choice} | {m.summary} |" for m in MODIFIERS.values()]
    return "\n".join(["| modifier | sets | what it does |", "| --- | --- | --- |", *rows])


def print_methods(data: dict[str, Any]) -> None:
    """The tables of `list_methods` on the terminal."""
    console = make_console(160)
    print_table(console, "bases (empty: as in grpo)", ("method", *CHOICES), table_rows())
    modifiers = [[m.name, m.choice, m.summary] for m in MODIFIERS.values()]
    print_table(console, "modifiers, added with + in any order", ("modifier", "sets", "what it does"), modifiers)
    if data["extensions"]:
        extensions = [list(one.values()) for one in data["extensions"]]
        print_table(console, "of your own", ("name", "sets", "what it does", "source"), extensions)
    console.print("fairlen methods NAME[+NAME…] shows what one method is made of, and how to set it")


def print_table(console: Any, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One table whose first column is never broken."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for position, heading in enumerate(headings):
        table.add_column(heading, no_wrap=position == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def describe_method(names: str) -> dict[str, Any]:
    """A composition as JSON data. Raises ValueError as `compose` does."""
    made = explain(names)
    return {
        "name": made.name,
        "hash": hash_method(made.method),
        "parts": list(describe_parts(names)),
        "notes": list(made.notes),
        "choices": {choice: list(describe_choice(choice, made.method)) for choice in choice_names()},
    }


def choice_names() -> list[str]:
    """Every choice, in the order in which a batch meets them."""
    return [f.name for f in fields(Method)]


def describe_parts(names: str) -> Iterator[dict[str, str]]:
    """The names as they were given, the base first, `grpo` if none is."""
    given = [normalize(name.strip()) for name in names.split("+")]
    bases = [name for name in given if isinstance(find_name(name), Base)] or ["grpo"]
    yield from map(describe_part, [*bases, *(name for name in given if name not in bases)])


def describe_part(name: str) -> dict[str, str]:
    """What a name of a composition sets and does."""
    if name in BASES:
        return {"name": name, "sets": "everything", "summary": summarize(BASES[name]), "source": "fairlen"}
    if name in MODIFIERS:
        return {
            "name": name, "sets": MODIFIERS[name].choice, "summary": MODIFIERS[name].summary, "source": "fairlen",
        }  # fmt: skip
    return describe_extension(name)


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
        values = {name: one for name, one in stage_to_dict(stage, with_state=False).items() if name != "kind"}
        found = [{"set": f"{path}.{k}", "value": v, "meaning": meanings.get(k, "")} for k, v in values.items()]
        yield {"stage": kind, "summary": summarize(type(stage)), "fields": found}


def field_meanings(kind: type) -> dict[str, str]:
    """The text under each field of a class and of those it inherits from; empty where the source is not at hand."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except (OSError, TypeError):
            continue
        found |= dict(read_meanings(body.body))  # type: ignore[attr-defined]
    return found


def read_meanings(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(field, text) of fields that are followed by a string."""
    for one, after in pairwise(body):
        is_field = isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if is_field and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield one.target.id, " ".join(str(after.value.value).split())  # type: ignore[union-attr]


def print_method(data: dict[str, Any]) -> None:
    """The same on the terminal."""
    console = make_console(160)
    console.print(f"{data['name']} ({data['hash']})")
    print_table(
        console, "", ("name", "sets", "what it does", "source"), [list(part.values()) for part in data["parts"]]
    )
    for note in data["notes"]:
        console.print(note)
    rows = [row for choice, stages in data["choices"].items() for row in choice_rows(choice, stages)]
    print_table(console, "", ("choice", "--set", "value", "what it means"), rows)


def choice_rows(choice: str, stages: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The rows of one choice: each stage, and its fields below it."""
    if not stages:
        yield [choice, choice, "none", ""]
    for stage in stages:
        if stage["stage"]:
            yield [choice, choice, stage["stage"], stage["summary"]]
        for one in stage["fields"]:
            yield ["" if stage["stage"] else choice, one["set"], str(one["value"]), one["meaning"]]
