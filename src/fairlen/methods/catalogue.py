"""The table of methods, made from the presets and modifiers themselves, so that it cannot be out of date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fairlen.console import make_console
from fairlen.methods.describe import short, to_dict
from fairlen.methods.kinds import read_extension, summarize
from fairlen.methods.method import Method
from fairlen.methods.modifiers import MODIFIERS, Modifier
from fairlen.methods.plugins import find_plugin, installed
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
