"""The engine for models whose state is more than keys and values of attention: see `RecomputingEngine`.

In and out as for `Engine`, from the trainer's own module object and its own cache. A state that is a summary of all tokens
before cannot be cut off at a fork, so that every prefix is computed anew. Not here: who is decoded together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairlen.batch import Bools, TokenIds
from fairlen.engine.engine import eos_table
from fairlen.engine.generation import Driver, Generation, Sequence, check_request, generate
from fairlen.engine.runner import check_finite, in_evaluation
from fairlen.engine.sampler import Truncation, sample, uniforms
from fairlen.sampling.extend import Continuation, EngineStats, Sampling

MAX_COHORTS = 4
"""Cohorts at a time. Each is a forward of its own for every token, so that requests gather while these run."""


@dataclass(slots=True, eq=False)
class Member:
    """One sequence of a cohort, and what it has generated."""

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    has_ended: bool = False
    """Also where nobody waits for it any more."""

    @property
    def length(self) -> int:
        """Tokens, prefix included."""
        return len(self.sequence.prefix) + len(self.tokens)

    def continuation(self, is_stop: bool = False) -> Continuation:
        """What there is so far."""
        return Continuation(tuple(self.tokens), tuple(self.logprobs), "stop" if is_stop else "length")


@dataclass(slots=True, eq=False)
class Cohort:
    """Sequences that were prefilled together, one row each, and the model's own cache of them."""

    members: list[Member]
    """By row."""
    padding: Tensor
    """Columns before each row's first token, [N]."""
    cache: Any = None
    num_columns: int = 0
    """Columns that the cache holds, padding included."""

    @property
    def num_running(self) -> int:
        return sum(not member.has_ended for member in self.members)

    def mask(self, num_columns: int) -> Tensor | None:
        """1 where a row has a token [N, columns]; None where all have one everywhere."""
        if not self.padding.any():
            return None
        columns = torch.arange(num_columns, device=self.padding.device)
        return (columns >= self.padding[:, None]).long()

    def shrink(self) -> None:
        """Gives up the rows of those who have ended, once they are half of the rows."""
        kept = [row for row, member in enumerate(self.members) if not member.has_ended]
        if kept and 2 * len(kept) <= len(self.members):
            rows = torch.tensor(kept, device=self.padding.device)
            self.cache.reorder_cache(rows)
            self.members, self.padding = [self.members[row] for row in kept], self.padding[rows]

    def add(self, tokens: list[int], logprobs: list[float], is_eos: Bools) -> list[tuple[Sequence, Continuation]]:
        """Appends a token to each row, and tells whoever waits for it. Returns who ended, with results."""
        ended = []
        for member, token, logprob in zip(self.members, tokens, logprobs, strict=True):
            if member.has_ended:
                continue
            member.tokens.append(token)
            member.logprobs.append(logprob)
            member.has_ended = bool(is_eos[token]) or member.length >= member.sequence.end
            if member.has_ended:
                ended.append((member.sequence, member.continuation(is_stop=bool(is_eos[token]))))
            elif member.sequence.watchers:
                member.sequence.tell(member.continuation())
        return ended


class Cohorts:
    """The queue, and the cohorts that are decoded."""

    def __init__(self, num_slots: int, max_prefill_tokens: int) -> None:
        self.num_slots, self.max_prefill_tokens = num_slots, max_prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Cohort] = []
        self.num_prefix_tokens = 0

    @property
    def num_running(self) -> int:
        return sum(cohort.num_running for cohort in self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self.num_running > 0

    @property
    def has_free_slot(self) -> bool:
        """Whether more requests could start at the next step than wait."""
        return self._num_free > len(self.waiting)

    @property
    def _num_free(self) -> int:
        """Sequences that may start now: none while a cohort of them would be small and others run."""
        free = self.num_slots - self.num_running
        is_worth_it = not self.running or free >= -(-self.num_slots // MAX_COHORTS)
        return free if is_worth_it and len(self.running) < MAX_COHORTS else 0

    def add(self, sequence: Sequence) -> None:
        """Queues `sequence`."""
        self.waiting.append(sequence)

    def start(self, pads: bool, device: torch.device) -> Cohort | None:
        """The next cohort, out of the queue in order of arrival: as many as fit, of one length where it `pads` not."""
        free, longest, chosen = self._num_free, 0, []
        for sequence in self.waiting:
            length = len(sequence.prefix)
            if not pads and chosen and length != longest:
                continue
            widest = max(longest, length)
            if len(chosen) == free or (chosen and widest * (len(chosen) + 1) > self.max_prefill_tokens):
                break
            longest = widest
            chosen.append(sequence)
        if not chosen:
            return None
        taken = set(map(id, chosen))
        self.waiting = deque(sequence for sequence in self.waiting if id(sequence) not in taken)
        padding = torch.tensor([longest - len(sequence.prefix) for sequence in chosen], device=device)
        self.num_prefix_tokens += sum(sequence.num_cacheable for sequence in chosen)
        self.running.append(Cohort([Member(sequence) for sequence in chosen], padding))
        return self.running[-1]

    def settle(self) -> None:
        """Forgets cohorts and rows in which nothing runs any more."""
        self.running = [cohort for cohort in self.running if cohort.num_running]
        for cohort in self.running:
            cohort.shrink()

    def watch(self, sequence: Sequence, num_tokens: int, future: asyncio.Future[Continuation]) -> None:
        """Will tell `future` of the first `num_tokens` generated tokens of a sequence that has not ended."""
        sequence.watchers.append((num_tokens, future))
        if member := self._find(sequence):
            sequence.tell(member.continuation())

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence that nobody waits for any more."""
        if member := self._find(sequence):
            member.has_ended = True
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def clear(self) -> list[Sequence]:
        """Empties queue and cohorts; returns who was there."""
        running = [m.sequence for cohort in self.running for m in cohort.members if not m.has_ended]
        dropped = [*running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        return dropped

    def _find(self, sequence: Sequence) -> Member | None:
        members = (member for cohort in self.running for member in cohort.members)
        return next((member for member in members if member.sequence is sequence), None)


MAX_PREFILL_TOKENS = 16384
"""Tokens in the prefill of a cohort of several, padding included."""
PROBE_LENGTH = 6


class RecomputingEngine:
    """Continues prefixes with `model`, as many at a time as `max_num_seqs`, and computes every prefix from its start.

    Requests that wait are prefilled together, with padding on the left where the model gives the same logits with it, else
    prefixes of one length together; `reason` says which. Log-probabilities, seeds and errors are those of `Engine`.
    Raises ValueError for models whose cache does not give the logits of a plain forward, and for parameters out of range.
    """

    def __init__(
        self, model: PreTrainedModel, *, eos_token_id: int | tuple[int, ...], max_length: int, max_num_seqs: int = 128
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}: give at least 1")
        if max_length < 2:
            raise ValueError(f"max_length={max_length}: a prefix and a generated token need at least 2")
        embeddings = cast(Tensor, model.get_input_embeddings().weight)
        self.model, self.max_length, self.policy_version = model, max_length, 0
        self._modules = tuple(model.modules())
        self._vocab_size, self._device = embeddings.shape[0], embeddings.device
        self._is_eos = eos_table(eos_token_id, self._vocab_size)
        self._cohorts = Cohorts(max_num_seqs, MAX_PREFILL_TOKENS)
        self._driver = Driver(self._step, self._cohorts, recover=lambda: None)
        self._num_steps = self._num_generated = 0
        self._cache_name = "past_key_values"
        with in_evaluation(self._modules):
            self.pads = self._check_arithmetic()

    @property
    def reason(self) -> str:
        """How forks and prompts are computed, for whoever reads of a run."""
        together = "prompts of any length together" if self.pads else "prompts of one length together"
        return f"the state of {type(self.model).__name__} cannot be forked: every fork computes its prefix anew, {together}"

    def extend(self, prefix: TokenIds, sampling: Sampling, parent: Sequence | None = None) -> Generation:
        """Generates after `prefix` until EOS or the budget: await the result. Needs a running event loop.

        Raises ValueError for a request that cannot be served; awaiting raises FloatingPointError where logits are not
        finite, and whatever the model raised.
        """
        check_request(prefix, sampling, self.max_length, self._vocab_size)
        sequence = Sequence(tuple(prefix), sampling, asyncio.get_running_loop().create_future(), parent)
        self._driver.ensure()
        self._cohorts.add(sequence)
        return Generation(sequence, self._cohorts, self.extend)

    def generate(self, prefixes: Ordered[TokenIds], samplings: Ordered[Sampling]) -> list[Continuation]:
        """`extend` for each pair, in order, for callers outside of an event loop."""
        return generate(self.extend, prefixes, samplings)

    def refresh(self, policy_version: int) -> None:
        """The weights are now those of `policy_version`. Raises RuntimeError while sequences are being decoded."""
        if num_running := self._cohorts.num_running:
            raise RuntimeError(
                f"refresh({policy_version}) with {num_running} sequences in flight: await or cancel them first"
            )
        self.policy_version = policy_version

    @property
    def stats(self) -> EngineStats:
        """What the engine has done so far."""
        num_prefix = self._cohorts.num_prefix_tokens
        return EngineStats(self._cohorts.num_slots, self._num_steps, self._num_generated, num_prefix, num_prefix)

    def _step(self) -> None:
        """One token for every running sequence, the first one for those who start."""
        cohorts, ended = self._cohorts, []
        with in_evaluation(self._modules):
            for cohort in cohorts.running:
                ended += self._decode(cohort)
            cohorts.settle()
            while cohort := cohorts.start(self.pads, self._device):
                ended += self._prefill(cohort)
            cohorts.settle()
        self._num_steps += 1
        for sequence, continuation in ended:
            sequence.finish(continuation)

    def _prefill(self, cohort: Cohort) -> list[tuple[Sequence, Continuation]]:
        """Computes the prefixes of a cohort, and its first tokens."""
        prefixes = [member.sequence.prefix for member in cohort.members]
        return self._sample(cohort, self._read(cohort, left_padded(prefixes).to(self._device)))

    def _decode(self, cohort: Cohort) -> list[tuple[Sequence, Continuation]]:
        """Feeds the newest token of every row, and draws the next."""
        fed = torch.tensor([member.tokens[-1:] for member in cohort.members], device=self._device)
        return self._sample(cohort, self._read(cohort, fed))

    def _read(self, cohort: Cohort, tokens: Tensor) -> Tensor:
        """Logits [N, V] after the last of `tokens` [N, T], which are appended to what the cohort's cache holds."""
        stop = cohort.num_columns + tokens.shape[1]
        positions = torch.arange(cohort.num_columns, stop, device=self._device) - cohort.padding[:, None]
        output = self.model(
            input_ids=tokens,
            attention_mask=cohort.mask(stop),
            position_ids=positions.clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **({} if cohort.cache is None else {self._cache_name: cohort.cache}),
        )
        cohort.num_columns, cohort.cache = stop, getattr(output, self._cache_name)
        return output.logits[:, -1]

    def _sample(self, cohort: Cohort, logits: Tensor) -> list[tuple[Sequence, Continuation]]:
        """Draws a token for every row from `logits` [N, V]; returns who ended."""
        lengths = np.array([member.length for member in cohort.members])
        samplings = [member.sequence.sampling for member in cohort.members]
        seeds = np.array([sampling.seed % 2**64 for sampling in samplings], np.uint64)
        chance = torch.from_numpy(uniforms(seeds, lengths)).to(self._device)
        tokens, logprobs = sample(logits, chance, *self._shape(samplings))
        chosen = logprobs.double().cpu().numpy()
        check_finite(self.model, chosen, lengths)
        self._num_generated += cohort.num_running
        return cohort.add(tokens.tolist(), chosen.tolist(), self._is_eos)

    def _shape(self, samplings: list[Sampling]) -> tuple[Tensor | None, Truncation | None]:
        """Temperatures and truncation, one row a sampling; None where they would change nothing."""

        def column(name: str) -> Tensor:
            return torch.tensor([[getattr(sampling, name)] for sampling in samplings], device=self._device)

        temperatures = None if all(s.temperature == 1.0 for s in samplings) else column("temperature")[:, 0]
        if not any(sampling.is_truncated for sampling in samplings):
            return temperatures, None
        return temperatures, Truncation(column("top_p"), column("top_k"), column("min_p"))

    def _check_arithmetic(self) -> bool:
        """Whether padding on the left changes nothing. Raises ValueError unless the cache gives the logits of a plain forward."""
        name, length = type(self.model).__name__, min(PROBE_LENGTH, self.max_length)
        tokens = torch.linspace(0, self._vocab_size - 1, length, device=self._device).long()
        plain = self.model(input_ids=tokens[None], use_cache=True)
        if getattr(plain, "past_key_values", None) is None:
            self._cache_name = "cache_params"
        if getattr(plain, self._cache_name, None) is None:
            raise ValueError(f"{name} returns no cache: no engine here can run it")
        expected, start = plain.logits[0], length // 2
        alone = Cohort([], torch.zeros(1, dtype=torch.long, device=self._device))
        made = [self._read(alone, piece[None])[0] for piece in (tokens[:start], *tokens[start:].split(1))]
        error = distance(torch.stack(made), expected[start - 1 :])
        tolerance = 2 * max(torch.finfo(self.model.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
        if not error <= tolerance:
            raise ValueError(
                f"{name} decoded from its own cache differs from its plain forward by {error:.1e} of the logits' spread "
                f"(tolerance {tolerance:.1e}): no engine here can run it"
            )
        return self._reads_padding(tokens, start, expected, tolerance)

    def _reads_padding(self, tokens: Tensor, start: int, expected: Tensor, tolerance: float) -> bool:
        """Whether a row with padding on its left has the logits `expected` [T, V] of its `tokens` [T]."""
        padded = Cohort([], torch.tensor([0, start - 1], device=self._device))
        pieces = (torch.stack([tokens[:start], tokens[:1].expand(start)]), tokens[[start, 1]][:, None])
        try:
            made = torch.cat([self._read(padded, piece) for piece in pieces])
        except (ValueError, TypeError, RuntimeError, IndexError):  # some layers take no mask for what is in the cache
            return False
        return distance(made, expected[[start - 1, 0, start, 1]]) <= tolerance


def left_padded(prefixes: list[TokenIds]) -> Tensor:
    """The prefixes [N, T], each with its first token repeated before it; a mask hides the repeats."""
    longest = max(map(len, prefixes))
    return torch.tensor([(prefix[0],) * (longest - len(prefix)) + prefix for prefix in prefixes])


def distance(made: Tensor, expected: Tensor) -> float:
    """Mean difference of logits [N, V], relative to their spread."""
    return float((made - expected).double().abs().mean() / expected.double().std())
