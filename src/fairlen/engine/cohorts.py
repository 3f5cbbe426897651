"""Who is decoded together where no cache can be shared: cohorts of sequences that started at the same time.

In: sequences in order of arrival. Out: which of them start now, and what each has generated so far. Not here: the model.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairlen.batch import Bools
from fairlen.engine.sequence import Sequence
from fairlen.sampling.extend import Continuation

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
    def is_hungry(self) -> bool:
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
