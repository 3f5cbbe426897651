"""The schedule of decoding: forks admitted before all others, rows kept dense, prefixes reused, ends noticed.

A fork takes the slot of the sequence whose end it follows, while the row that it continues is still there. Behind all prompts it
would come after that row is given up, and its prefix would be computed again. No prompt starves, since a stream has few forks.

A barrier lies between any two decoding steps: free slots are refilled, and holes that stay are closed with the last rows, so
that a step always works on rows 0..N-1. All decisions follow from tokens, seeds and order of arrival, never from time. Not here:
tensors and the event loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from fairlen.batch import Bools, Floats, Ints, TokenIds
from fairlen.engine.cache import Prefixes
from fairlen.engine.generation import NOBODY, Sequence
from fairlen.engine.sampler import SHAPE, shape_of
from fairlen.sampling.extend import Continuation

MAX_LOOKED_AT = 4096
"""Waiting requests whose prefixes a prefill may take along."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefix to compute into a kept row, from the first token that no row had."""

    row: int
    base: int
    """Row whose first `num_shared` columns are copied before; meaningless where that is 0."""
    num_shared: int
    tokens: TokenIds

    @property
    def num_missing(self) -> int:
        """Tokens to compute."""
        return len(self.tokens) - self.num_shared


@dataclass(slots=True)
class Admission:
    """The changes to make in the cache before the next step: prefills, then all copies at once."""

    prefills: list[Prefill] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    num_columns: int = 0
    """Columns to copy; rows of `sources` may have fewer."""

    def copy(self, source: int, target: int, num_columns: int) -> None:
        """Add a copy of the first `num_columns` columns of one row."""
        self.sources.append(source)
        self.targets.append(target)
        self.num_columns = max(self.num_columns, num_columns)


class Slots:
    """The state of every row being decoded: numpy arrays [slots] or [slots, max_length]."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.tokens = np.zeros((num_slots, max_length), np.int64)
        self.logprobs = np.zeros((num_slots, max_length), np.float64)
        self.position = np.zeros(num_slots, np.int64)
        """Index of the newest token, which the next step feeds."""
        self.end = np.zeros(num_slots, np.int64)
        self.watched = np.full(num_slots, NOBODY, np.int64)
        """Index of the newest token at which somebody is notified."""
        self.shape = np.zeros(num_slots, SHAPE)

    def put(self, slot: int, sequence: Sequence) -> None:
        """Start `sequence` in `slot`."""
        self.tokens[slot, : len(sequence.prefix)] = sequence.prefix
        self.position[slot] = sequence.num_cacheable
        self.end[slot], self.watched[slot] = sequence.end, sequence.watched
        self.shape[slot] = shape_of(sequence.sampling)

    def move(self, source: int, target: int) -> None:
        """Copy everything known of one slot to another."""
        for array in vars(self).values():
            array[target] = array[source]


class Scheduler:
    """The queue, the slots and the kept rows."""

    def __init__(self, num_slots: int, num_kept: int, max_length: int, is_eos: Bools, max_prefill_tokens: int) -> None:
        self.num_slots, self.is_eos, self.max_prefill_tokens = num_slots, is_eos, max_prefill_tokens
        self.forks: deque[Sequence] = deque()
        self.waiting: deque[Sequence] = deque()
        """Whoever is no fork."""
        self.running: list[Sequence | None] = []
        """By slot; None is a hole, closed at the next barrier."""
        self.slots = Slots(num_slots, max_length)
        self.prefixes = Prefixes(range(num_slots, num_slots + num_kept))
        self.ended: list[tuple[Sequence, int]] = []
        """Since the last barrier, with the slots that they were in."""
        self.max_ahead = num_kept // 4
        self.num_prefix_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self.running) - self.running.count(None)

    @property
    def num_waiting(self) -> int:
        return len(self.forks) + len(self.waiting)

    @property
    def has_work(self) -> bool:
        return self.num_waiting + self.num_running > 0

    @property
    def has_free_slot(self) -> bool:
        """Return whether more requests could start at the next barrier than wait. Forks of those who have just ended count alone:
        nobody else must take their slots.
        """
        num_ahead = len(self.forks) if self.ended else self.num_waiting
        return self.num_slots - self.num_running > num_ahead

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence`."""
        (self.forks if sequence.parent else self.waiting).append(sequence)

    def watch(self, sequence: Sequence) -> None:
        """Notify the watchers of a sequence, now as far as it has got, and whenever it has what they wait for."""
        if sequence.slot >= 0:
            self._notify(sequence)

    def notify_watchers(self) -> None:
        """Notify whoever waits for a running sequence to get to where it now is."""
        num_rows = len(self.running)
        for slot in np.flatnonzero(self.slots.position[:num_rows] >= self.slots.watched[:num_rows]).tolist():
            if sequence := self.running[slot]:
                self._notify(sequence)

    def _notify(self, sequence: Sequence) -> None:
        sequence.notify(self._continuation(sequence, sequence.slot, is_stop=False))
        self.slots.watched[sequence.slot] = sequence.watched

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that nobody waits for, or forks, any more: its slot is free from the next barrier on."""
        queue = self.forks if sequence.parent else self.waiting
        if sequence.slot >= 0:
            self.running[sequence.slot] = None
            sequence.slot = -1
        elif sequence.kept:
            self.prefixes.release(sequence.row, sequence.kept)
        elif sequence in queue:
            queue.remove(sequence)

    def clear(self) -> list[Sequence]:
        """Empty queue and slots and return who was there. Kept rows stay."""
        dropped = [sequence for sequence in (*self.running, *self.forks, *self.waiting) if sequence is not None]
        for sequence in dropped:
            sequence.slot = -1
        self.running.clear()
        self.forks.clear()
        self.waiting.clear()
        return dropped

    @property
    def keeps(self) -> bool:
        """Return whether keys and values of anything are kept."""
        return bool(self.prefixes.tokens or self.ended)

    def forget(self) -> None:
        """Keep nothing any more."""
        self.prefixes.clear()
        self.ended.clear()

    def keep(self) -> Admission:
        """Copy of the rows of those who have ended, but for those whom nobody will fork."""
        copies = Admission()
        for sequence, slot in self.ended:
            if sequence.is_released:
                continue
            row, num_shared = self.prefixes.find(sequence.kept)
            if num_shared == len(sequence.kept):
                held = self.prefixes.tokens[row]
                sequence.row, sequence.kept = (row, held) if len(held) == num_shared else (-1, sequence.kept)
            elif (row := self.prefixes.take(sequence.kept)) >= 0:
                sequence.row = row
                copies.copy(slot, row, len(sequence.kept))
        self.ended.clear()
        self.prefixes.settle()
        return copies

    def schedule(self) -> Admission:
        """Fill free slots, with forks first and in order of arrival, and close the holes that are left."""
        admission = Admission()
        if not self.waiting:
            self.prefixes.reserved.clear()  # whoever they were computed for is gone
        holes = deque(slot for slot, sequence in enumerate(self.running) if sequence is None)
        while (queue := self.forks or self.waiting) and (holes or len(self.running) < self.num_slots):
            row = self._locate(queue[0], admission)
            if row is None:
                break
            if not holes:
                holes.append(len(self.running))
                self.running.append(None)
            self._start(queue.popleft(), holes.popleft(), row, admission)
        if admission.prefills:
            self._look_ahead(admission)
        if holes:
            self._close(admission)
        self.prefixes.settle()
        return admission

    def _locate(self, sequence: Sequence, admission: Admission) -> int | None:
        """The row that holds the prefix, its prefill ordered if need be; -1: none needed; None: no room now."""
        if sequence.num_cacheable == 0:
            return -1
        if parent := sequence.parent:
            if parent.slot >= 0:
                return parent.slot
            if self.prefixes.hold(parent.row, parent.kept):
                return parent.row
        tokens = sequence.prefix[:-1]
        row, num_shared = self.prefixes.find(tokens)
        if num_shared == len(tokens):
            return row
        fresh = self.prefixes.take(tokens)
        if fresh < 0:
            return None
        admission.prefills.append(Prefill(fresh, row, num_shared, tokens))
        return fresh

    def _start(self, sequence: Sequence, slot: int, row: int, admission: Admission) -> None:
        self.running[slot], sequence.slot = sequence, slot
        self.slots.put(slot, sequence)
        self.num_prefix_tokens += sequence.num_cacheable
        if row >= 0:
            self.prefixes.reserved.discard(row)
            admission.copy(row, slot, sequence.num_cacheable)

    def _look_ahead(self, admission: Admission) -> None:
        """Add prefixes that will be needed soon: one large prefill costs little more than a small one."""
        reserved = self.prefixes.reserved
        for sequence in islice(self.waiting, MAX_LOOKED_AT):
            num_tokens = sum(job.num_missing for job in admission.prefills)
            if len(reserved) >= self.max_ahead or num_tokens >= self.max_prefill_tokens:
                return
            num_prefills = len(admission.prefills)
            row = self._locate(sequence, admission)
            if row is None:
                return
            if len(admission.prefills) > num_prefills:
                reserved.add(row)

    def _close(self, admission: Admission) -> None:
        """Move the last running sequences into the holes, so that rows 0..N-1 run."""
        num_running = self.num_running
        targets = [slot for slot in range(num_running) if self.running[slot] is None]
        sources = [slot for slot in range(num_running, len(self.running)) if self.running[slot] is not None]
        for source, target in zip(sources, targets, strict=True):
            sequence = self.running[source]
            assert sequence is not None
            self.running[target], sequence.slot = sequence, target
            self.slots.move(source, target)
            admission.copy(source, target, int(self.slots.position[target]))
        del self.running[num_running:]

    def postprocess(self, tokens: Ints, logprobs: Floats) -> list[tuple[Sequence, Continuation]]:
        """Append a token to each of rows 0..N-1. Returns who ended, with results."""
        slots, num_rows = self.slots, len(tokens)
        position = slots.position[:num_rows]
        position += 1
        rows = np.arange(num_rows)
        slots.tokens[rows, position] = tokens
        slots.logprobs[rows, position] = logprobs
        is_stop = self.is_eos[tokens]
        ended = []
        for slot in np.flatnonzero(is_stop | (position + 1 >= slots.end[:num_rows])).tolist():
            sequence = self.running[slot]
            assert sequence is not None
            self.running[slot], sequence.slot = None, -1
            continuation = self._continuation(sequence, slot, bool(is_stop[slot]))
            ended.append((sequence, continuation))
            # the last token was never fed: it has no keys and values
            sequence.kept = sequence.prefix + continuation.token_ids[:-1]
            self.ended.append((sequence, slot))
        return ended

    def _continuation(self, sequence: Sequence, slot: int, is_stop: bool) -> Continuation:
        span = slice(len(sequence.prefix), int(self.slots.position[slot]) + 1)
        return Continuation(
            token_ids=tuple(self.slots.tokens[slot, span].tolist()),
            logprobs=tuple(self.slots.logprobs[slot, span].tolist()),
            finish="stop" if is_stop else "length",
        )
