"""The tasks that come with a model: one table of how to make each, where its model lies and how it is meant to be run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fairlen.playground
from fairlen.settings import ProblemSettings
from fairlen.tasks import guess
from fairlen.tasks.playground import FAMILIES, Playground
from fairlen.tasks.task import Synthetic

RESPONSE_LENGTH = 512


@dataclass(frozen=True)
class Shipped:
    path: Path
    max_response_length: int
    memory: str  # memory that training it takes with default settings, as measured
    make: Callable[..., Synthetic]  # called with the names of parts, or with nothing for all of it
    parts: tuple[str, ...] = ()  # names after a colon, such as sums in playground:sums


SHIPPED: dict[str, Shipped] = {
    "playground": Shipped(
        fairlen.playground.PATH, 160, "2 GiB",
        lambda *parts: Playground(parts) if parts else Playground(), tuple(FAMILIES),
    ),
    "guess": Shipped(fairlen.playground.GUESS, guess.MAX_RESPONSE_LENGTH, "2 GiB", guess.Guess),
}  # fmt: skip


def is_shipped(place: str) -> bool:
    """The name of a shipped task, with or without a part, and no existing path."""
    return place.partition(":")[0] in SHIPPED and not Path(place).exists()


def make_shipped(place: str) -> Synthetic:
    """Make the task of "guess" or "playground:sums". Raises ValueError listing the known ones."""
    name, _, part = place.partition(":")
    if name not in SHIPPED or (part and part not in SHIPPED[name].parts):
        known = (f"{name}:{part}".rstrip(":") for name, one in SHIPPED.items() for part in ("", *one.parts))
        others = "data sets are named with --data, a task of your own as FILE.py:NAME"
        raise ValueError(f"--task {place}: there are {', '.join(known)}; {others}")
    return SHIPPED[name].make(*([part] if part else []))


def shipped_settings(place: str) -> dict[str, Any]:
    name = place.partition(":")[0]
    return {"model": name, "max_response_length": SHIPPED[name].max_response_length} if name in SHIPPED else {}


def choose_response_length(data: ProblemSettings, room: int) -> int:
    """Return the limit of a shipped task, else 512 or as many as there is room for."""
    place = data.task if not data.places else data.places[0] if is_shipped(data.places[0]) else ""
    return shipped_settings(place).get("max_response_length") or max(min(RESPONSE_LENGTH, room), 1)


def place_model(model: str, revision: str = "", random_init: bool = False) -> str:
    if model not in SHIPPED:
        return model
    if revision or random_init:
        raise ValueError(f"model={model} with revision or random_init: name a model folder or hub id with --model")
    return str(SHIPPED[model].path)
