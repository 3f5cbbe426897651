"""Decoding with the engine and with transformers' `generate`: the same prompts, lengths and weights, in turn.

The time of a rollout of one token, the prefill, is taken off, so that rates are those of decoding alone.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _device import Rates, Turn, run
from _shapes import NEVER, build_model, count, forbid
from transformers import GenerationConfig, PreTrainedModel

from fairlen.engine import Engine
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Sampling

RESPONSES_A_PROMPT = 16

Rollout = Callable[[int], int]
"""From a budget to the number of tokens made."""


@dataclass(frozen=True)
class Workload:
    """The workload of every side."""

    batch: int
    """Sequences at a time."""
    prompt: int
    """Tokens of each prompt."""
    max_response_length: int
    """Tokens that each sequence generates."""
    repeats: int

    def prompts(self, vocabulary: int) -> tuple[TokenIds, ...]:
        """Random prompts, each for several responses as in training."""
        generator = torch.Generator().manual_seed(0)
        num_prompts = -(-self.batch // RESPONSES_A_PROMPT)
        drawn = torch.randint(2, vocabulary, (num_prompts, self.prompt), generator=generator).tolist()
        return tuple(tuple(drawn[row // RESPONSES_A_PROMPT]) for row in range(self.batch))


@dataclass(frozen=True)
class Pair:
    """One turn of a side."""

    first: Turn
    """With a budget of one token."""
    whole: Turn


@dataclass(frozen=True)
class Decoded:
    """The rates of one side, medians over turns."""

    side: str
    dtype: str
    tokens_per_second: float
    bound: float
    """Tokens a second if each step did no more than read the weights and the keys and values, at the copy's bandwidth."""
    share: float
    prefill_seconds: float
    peak_bytes: int
    """Of the whole process, what other sides hold included."""


def compare_decoding(
    shape: str, work: Workload, rates: Rates, device: torch.device, dtype: torch.dtype, sides: tuple[str, ...]
) -> list[Decoded]:
    """Rates of the named sides of `make_sides`, in turn."""
    model = build_model(shape, dtype, device)
    forbid(model, NEVER)
    builders = make_sides(model, work.prompts(model.config.vocab_size), work.max_response_length)
    rollouts = {name: builders[name]() for name in sides}
    for rollout in rollouts.values():
        for length in (1, work.max_response_length):
            assert rollout(length) == work.batch * length, "every sequence takes its budget"
    turns = {name: [] for name in rollouts}
    for _ in range(work.repeats):
        for name, rollout in rollouts.items():
            pair = (
                run(lambda made=rollout, length=length: made(length), device)
                for length in (1, work.max_response_length)
            )
            turns[name].append(Pair(*pair))
    bytes_a_step = count(model).decode_bytes(work.batch, work.prompt + work.max_response_length / 2, dtype.itemsize)
    bound = work.batch * rates.bandwidth / bytes_a_step
    found = [summarize(name, str(dtype), turns[name], work, bound) for name in rollouts]
    rollouts.clear()
    builders.clear()
    del model, rollout
    free(device)
    return found


def summarize(side: str, dtype: str, pairs: list[Pair], work: Workload, bound: float) -> Decoded:
    """Medians over turns; of one whose prefill took longer than the whole, since another process ran meanwhile, the whole."""
    both = [(pair.whole.seconds, pair.first.seconds) for pair in pairs]
    seconds = statistics.median(whole - first if first < whole else whole for whole, first in both)
    speed = work.batch * (work.max_response_length - 1) / seconds
    prefill = statistics.median(pair.first.seconds for pair in pairs)
    peak = max(pair.whole.peak for pair in pairs)
    return Decoded(side, dtype.removeprefix("torch."), speed, bound, speed / bound, prefill, peak)


def make_sides(
    model: PreTrainedModel, prompts: tuple[TokenIds, ...], max_response_length: int
) -> dict[str, Callable[[], Rollout]]:
    """The constructor of each side."""

    def with_engine(compile: bool) -> Rollout:
        longest = len(prompts[0]) + max_response_length
        kept = 2 * len(set(prompts))
        engine = Engine(
            model, eos_token_id=NEVER, max_length=longest, max_num_seqs=len(prompts), kept_rows=kept, compile=compile
        )
        return lambda length: extend(engine, prompts, length)

    return {
        "generate": lambda: lambda length: generate(model, prompts, length),
        "engine": lambda: with_engine(False),
        "engine compiled": lambda: with_engine(True),
    }


def extend(engine: Engine, prompts: tuple[TokenIds, ...], length: int) -> int:
    """Our way, from nothing: keys and values of earlier repetitions are forgotten."""
    engine.refresh(engine.policy_version)
    made = engine.generate(prompts, [Sampling(length, seed=seed) for seed in range(len(prompts))])
    return sum(len(one.token_ids) for one in made)


def generate(model: PreTrainedModel, prompts: tuple[TokenIds, ...], length: int) -> int:
    """transformers' way, with a static cache, which it compiles for on CUDA by itself."""
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=length, pad_token_id=0, cache_implementation="static"
    )
    ids = torch.tensor(prompts, device=model.device)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return made[:, ids.shape[1] :].numel()


def free(device: torch.device) -> None:
    """Gives memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
