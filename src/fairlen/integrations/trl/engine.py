"""Streams on fairlen's engine around TRL's own model: forks reuse keys and values, and start when the shorter track has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl.models.utils import unwrap_model_for_generation

from fairlen.engine import Engine
from fairlen.engine.engine import StateError
from fairlen.integrations.trl.generation import Coroutine
from fairlen.rollouts import Response
from fairlen.sampling.extend import Extend, gather


def has_whole_model(trainer: Any) -> bool:
    """Whether this process generates by itself, by transformers and as the model says: nothing is served, sharded or added."""
    is_gathered = trainer.args.ds3_gather_for_generation or not is_deepspeed_zero3_enabled()
    is_plain = not (trainer.use_vllm or trainer.use_transformers_continuous_batching or trainer.args.generation_kwargs)
    return is_plain and is_gathered and not trainer.is_fsdp_enabled


async def run_all(extend: Extend, coroutines: Sequence[Coroutine]) -> list[tuple[Response, ...]]:
    """The responses of all coroutines by one engine, in their order."""

    async def run(coroutine: Coroutine) -> tuple[Response, ...]:
        return await coroutine(extend)

    return await gather(map(run, coroutines))


def run_on_engine(trainer: Any, coroutines: Sequence[Coroutine], prompt_ids: Sequence[Any]) -> list[Response] | None:
    """Return the responses of all coroutines, in their order; None for a model that the engine cannot run.

    `prompt_ids` has a row for every track that starts from its prompt.
    """
    arguments: Any = {
        "eos_token_id": tuple(trainer.eos_token_ids),
        "max_length": max(map(len, prompt_ids)) + trainer.max_completion_length,
        "max_num_seqs": len(prompt_ids),
        "compile": False,  # an engine for each rollout batch: it would not earn its compilation
    }
    with ExitStack() as stack:
        model: Any = stack.enter_context(unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ))  # fmt: skip
        stack.enter_context(torch.no_grad())
        try:
            engine = Engine(model.get_base_model() if hasattr(model, "get_base_model") else model, **arguments)
        except StateError:
            return None
        # on a thread of their own, so that TRL may run in an event loop, as in notebooks
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(lambda: asyncio.run(run_all(engine.extend, coroutines))).result()
    return [response for responses in found for response in responses]
