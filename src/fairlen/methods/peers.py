"""Methods of other libraries by their own words: trl:dapo, verl:opo+seq-mean-token-sum, nemo-rl:grpo+ratio_clip_max=0.28.

A prefix stands for the library's settings by default; the words after it, joined by +, are values of its settings, or numbers as
NAME=VALUE. What each is here, what differs and what is refused is data, in peers.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from fairlen.console import suggest
from fairlen.methods.description import find_kind, set_fields
from fairlen.methods.method import CHAINED, Method
from fairlen.methods.modifiers import add
from fairlen.methods.stages.surrogate import DetachedClip

PEERS = ("trl", "verl", "prime-rl", "nemo-rl")
"""Prefixes, which win over a file of that name."""


@dataclass(frozen=True)
class Word:
    """A word of a library."""

    sets: str
    """Settings of the library that it decides, of which a name has each once."""
    ours: str = ""
    """The same as `--set` has it; nothing where it is the default there."""
    differs: str = ""
    """What is not the same here."""
    refused: str = ""
    """Why there is no such method here; empty where there is."""


@dataclass(frozen=True)
class Peer:
    """A library whose words are known."""

    name: str
    program: str
    version: str
    default: str
    words: dict[str, Word]
    numbers: dict[str, list[str]]
    """By setting: fields that take its value, of which the first that the method has, and choices that are made for it."""
    notes: dict[str, str] = field(default_factory=dict)
    """By setting that takes a number: what is not the same here."""

    def knows(self, word: str) -> bool:
        return word in self.words or word.partition("=")[0] in self.numbers

    def read(self, word: str) -> Word:
        """Raises ValueError for an unknown word, and for one that is refused."""
        name, _, value = word.partition("=")
        found = self.words.get(word)
        if found is None and value and name in self.numbers:
            return Word(name, differs=self.notes.get(name, ""))
        if found is None:
            near = f"give it as {name}=VALUE" if name in self.numbers else suggest(word, [*self.words, *self.numbers])
            raise ValueError(f"{self.name}:{word}: {near}; of {self.program} {self.version}")
        if found.refused:
            raise ValueError(f"{self.name}:{word}: {found.refused}")
        return found

    def apply(self, words: Sequence[str]) -> Method:
        """The method of its settings by default and these words. Raises ValueError as `read` does, and for two of one setting."""
        found, owner = {word: self.read(word) for word in words}, dict[str, str]()
        for word, one in found.items():
            for setting in one.sets.split():
                if owner.setdefault(setting, word) != word:
                    raise ValueError(
                        f"{self.name}:{'+'.join(words)}: {owner[setting]} and {word} both set {setting}: keep one"
                    )
        method, order = put(Method(), self.default.split()), [*self.words, *self.numbers]
        # in the order of the tables: what a word makes comes before its fields, and one side after both
        for word in sorted(found, key=lambda one: order.index(one if one in self.words else one.partition("=")[0])):
            method = put(method, found[word].ours.split()) if word in self.words else self.set_number(method, word)
        return method

    def set_number(self, method: Method, word: str) -> Method:
        name, _, value = word.partition("=")
        if self.name == "trl" and isinstance(method.surrogate, DetachedClip) and name.startswith("epsilon"):
            raise ValueError(
                f"trl:{word} with cispo: TRL holds the ratio itself at epsilon_high, without a lower bound; "
                "--set surrogate.clip_high=4 is its epsilon_high=5"
            )
        for entry in self.numbers[name]:
            is_made = "=" in entry
            method = put(method, [entry]) if is_made else set_first(method, entry.split(), value, f"{self.name}:{word}")
        return method


def put(method: Method, assignments: Sequence[str]) -> Method:
    """The method with choices and fields set one after the other; a reward or a term is added to those that it has."""
    for text in assignments:
        choice, _, kind = text.partition("=")
        is_added = choice in CHAINED
        method = add(method, choice, find_kind(choice, kind)()) if is_added else set_fields(method, [text])
    return method


def set_first(method: Method, paths: Sequence[str], value: str, place: str) -> Method:
    """The method with the first of these fields set that it has. Raises ValueError where it has none, or takes no such value."""
    for path in paths:
        try:
            return set_fields(method, [f"{path}={value}"])
        except ValueError as error:
            if "no field" not in str(error) and "no stage" not in str(error):
                raise ValueError(f"{place}: {error}") from error
    kind = type(getattr(method, paths[0].partition(".")[0])).__name__
    raise ValueError(f"{place}: {kind} has no such number; leave it out, or name the word that it belongs to")


@cache
def read_peers() -> dict[str, Peer]:
    data = tomllib.loads(files("fairlen.methods").joinpath("peers.toml").read_text())
    words = {name: {word: Word(**fields) for word, fields in one["words"].items()} for name, one in data.items()}
    return {name: Peer(name, **one | {"words": words[name]}) for name, one in data.items()}


def find_peer(name: str) -> Peer | None:
    """The library whose prefix a name begins with."""
    prefix, colon, _ = name.partition(":")
    return read_peers().get(prefix.strip().lower()) if colon else None


def suggest_number(name: str) -> str:
    """The numbers of the libraries that are nearest to a name, as a question."""
    return suggest(name.partition("=")[0], {number for peer in read_peers().values() for number in peer.numbers})


def split_names(names: str) -> list[tuple[str, list[str]]]:
    """The names of a composition, and for one with a library's prefix the words of it that follow."""
    found: list[tuple[str, list[str]]] = []
    for name in (one.strip() for one in names.split("+")):
        if peer := find_peer(name):
            words = [name.partition(":")[2].strip()]
            found.append((f"{peer.name}:", [word for word in words if word]))
        elif found and (peer := find_peer(found[-1][0])) and peer.knows(name):
            found[-1][1].append(name)
        else:
            found.append((name, []))
    return found


def list_words(peers: Sequence[str] = PEERS) -> Iterator[dict[str, Any]]:
    """Every word of the libraries: what it sets there, what it is here, and what differs, as rows."""
    for peer in (read_peers()[name] for name in peers):
        yield {"name": f"{peer.name}:", "sets": f"{peer.program} {peer.version}", "here": peer.default, "differs": ""}
        for word, one in peer.words.items():
            here = f"refused: {one.refused}" if one.refused else one.ours or "its default"
            yield {"name": f"{peer.name}:{word}", "sets": one.sets, "here": here, "differs": one.differs}
        for number, entries in peer.numbers.items():
            here, name = ", ".join(entry.replace(" ", " or ") for entry in entries), f"{peer.name}:…+{number}="
            yield {"name": name, "sets": number, "here": here, "differs": peer.notes.get(number, "")}
