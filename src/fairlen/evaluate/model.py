"""The model of an evaluation and its engine: loaded once, for all sets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.display import Display
from fairlen.evaluate.facts import describe_model
from fairlen.evaluate.generate import Drawing, sample_set
from fairlen.evaluate.samples import sample_path
from fairlen.evaluate.sets import open_sets
from fairlen.policy.engines import build_engine
from fairlen.policy.model import Policy, choose_device, load_policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.load import ProblemSet


@dataclass(frozen=True)
class Model:
    """A policy with its engine, and the sets as it reads them."""

    config: EvalConfig
    policy: Policy
    sets: tuple[ProblemSet, ...]
    facts: dict[str, Any]
    """What it is, for the summary."""

    def sample(self, sets: Sequence[ProblemSet], folder: Path, display: Display) -> None:
        """Draws, grades and writes the samples of some sets."""
        config = self.config
        sampling = Sampling(config.max_response_length, 0, config.temperature, config.top_p, config.top_k, config.min_p)
        engine = build_engine(config, self.policy, find_max_length(self.sets, config, self.policy))
        drawing = Drawing(engine.extend, self.policy.decode, sampling, config.samples, config.seed)

        async def sample_each() -> None:
            for found in sets:
                display.begin(found.name, len(found.problems))
                await sample_set(drawing, found, sample_path(folder, found.name), display.advance)

        asyncio.run(sample_each())


def open_model(config: EvalConfig) -> Model:
    """Loads the model and the sets. Raises ValueError where one of them cannot be, or they do not fit together."""
    disable_progress_bar()
    torch.manual_seed(config.seed)
    if config.threads:
        torch.set_num_threads(config.threads)
    place = config.place
    policy = load_policy(
        place, config.dtype, choose_device(config), False, revision=config.revision, random_init=config.random_init
    )
    policy.model.eval()
    sets = open_sets(config, policy.tokenizer)
    find_max_length(sets, config, policy)
    return Model(config, policy, sets, describe_model(place, config, policy.model.config))


def find_max_length(sets: Sequence[ProblemSet], config: EvalConfig, policy: Policy) -> int:
    """Positions that the engine makes room for. Raises ValueError naming the problem that does not fit with the budget."""
    positions = getattr(policy.model.config, "max_position_embeddings", None) or math.inf
    length, name = max((len(p.token_ids), f"{found.name}, {p.id}") for found in sets for p in found.problems)
    if length + config.max_response_length > positions:
        raise ValueError(
            f"--max-response-length {config.max_response_length}: the model has {positions} positions, and the longest prompt ({name}) takes {length}; "
            f"give at most {int(positions) - length}"
        )
    return length + config.max_response_length
