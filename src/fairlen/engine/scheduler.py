"""Scheduling of decoding: which sequence is in which row, and what is copied or computed between steps.

Forks start first: a fork takes the slot of a sequence that just ended, while the row that it continues is still there; no prompt
starves, as a stream has few forks. Decisions follow from tokens, seeds and order of arrival, never from time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from fairlen.batch import Floats, Ints
from fairlen.engine.cache import Prefixes
from fairlen.engine.generation import Sequence
from fairlen.engine.sampler import ROW, row_of
from fairlen.rollouts import Finish, TokenIds

MAX_LOOKED_AT = 4096  # waiting requests that are considered for a prefill ahead of their start


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefix to compute into a kept row, from the first token that no row had."""

    row: int
    base: int  # row whose first `num_shared` columns are copied first, if that is not 0
    num_shared: int
    tokens: TokenIds

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - self.num_shared


@dataclass(slots=True)
class Admission:
    """Changes of the cache before the next step: prefills, then all copies at once."""

    prefills: list[Prefill] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    num_columns: list[int] = field(default_factory=list)

    def copy(self, source: int, target: int, num_columns: int) -> None:
        self.sources.append(source)
        self.targets.append(target)
        self.num_columns.append(num_columns)


class Scheduler:
    def __init__(self, num_slots: int, num_kept: int, max_prefill_tokens: int) -> None:
        self.num_slots, self.max_prefill_tokens = num_slots, max_prefill_tokens
        self.forks: deque[Sequence] = deque()
        self.waiting: deque[Sequence] = deque()  # requests that are no forks
        self.running: list[Sequence | None] = []  # by slot; None is a hole
        self.rows = np.zeros(num_slots, ROW)  # by slot, for the next step
        self.prefixes = Prefixes(range(num_slots, num_slots + num_kept))
        self.ended: list[tuple[Sequence, int]] = []  # since the last step, with their slots
        self.max_ahead = num_kept // 4
        self.num_prefix_tokens = 0

    @property
    def num_running(self) -> int:
        return len(self.running) - self.running.count(None)

    @property
    def has_free_slot(self) -> bool:
        # after an end only forks count, whose slot it is
        num_ahead = len(self.forks) + (0 if self.ended else len(self.waiting))
        return self.num_slots - self.num_running > num_ahead

    def queue_of(self, sequence: Sequence) -> deque[Sequence]:
        return self.forks if sequence.parent else self.waiting

    def drop(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, or make its kept row the first to be evicted."""
        if sequence.slot >= 0:
            self.running[sequence.slot] = None
            sequence.slot = -1
        elif sequence.kept:
            self.prefixes.release(sequence.kept)
        elif sequence in self.queue_of(sequence):
            self.queue_of(sequence).remove(sequence)

    def forget(self) -> None:
        self.prefixes.clear()
        self.ended.clear()

    def keep(self) -> Admission:
        """Copies that keep the rows of ended sequences which may still be forked."""
        copies = Admission()
        for sequence, slot in self.ended:
            if sequence.is_released or self.prefixes.find(sequence.kept)[1] == len(sequence.kept):
                continue
            if (row := self.prefixes.take(sequence.kept)) >= 0:
                copies.copy(slot, row, len(sequence.kept))
        self.ended.clear()
        self.prefixes.settle()
        return copies

    def schedule(self) -> Admission:
        """Fill free slots, forks first and in order of arrival, and close the holes that are left."""
        admission = Admission()
        if not self.waiting:
            self.prefixes.reserved.clear()  # their requests were cancelled
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
        """The row that holds the prefix, after a prefill if needed; -1: none needed; None: no room now."""
        tokens = sequence.prefix[:-1]
        if not tokens:
            return -1
        if sequence.parent and sequence.parent.slot >= 0:
            return sequence.parent.slot
        row, num_shared = self.prefixes.find(tokens)
        if num_shared == len(tokens):
            return row
        fresh = self.prefixes.take(tokens)
        if fresh < 0:
            return None
        admission.prefills.append(Prefill(fresh, row, num_shared, tokens))
        return fresh

    def _start(self, sequence: Sequence, slot: int, row: int, admission: Admission) -> None:
        num_tokens = sequence.num_cacheable
        self.running[slot], sequence.slot = sequence, slot
        self.rows[slot] = row_of(sequence.sampling, num_tokens, sequence.prefix[-1])
        self.num_prefix_tokens += num_tokens
        if row >= 0:
            self.prefixes.reserved.discard(row)
            admission.copy(row, slot, num_tokens)

    def _look_ahead(self, admission: Admission) -> None:
        """Prefill waiting prefixes too: one large prefill costs little more than a small one."""
        reserved = self.prefixes.reserved
        for sequence in islice(self.waiting, MAX_LOOKED_AT):
            num_prefills, num_tokens = len(admission.prefills), sum(job.num_missing for job in admission.prefills)
            if len(reserved) >= self.max_ahead or num_tokens >= self.max_prefill_tokens:
                return
            if (row := self._locate(sequence, admission)) is None:
                return
            if len(admission.prefills) > num_prefills:
                reserved.add(row)

    def _close(self, admission: Admission) -> None:
        """Move the last running sequences into the holes, so that rows 0..N-1 run."""
        num_running = self.num_running
        targets = [slot for slot in range(num_running) if self.running[slot] is None]
        for source in range(num_running, len(self.running)):
            if sequence := self.running[source]:
                sequence.slot = target = targets.pop(0)
                self.running[target], self.rows[target] = sequence, self.rows[source]
                admission.copy(source, target, int(self.rows["position"][target]))
        del self.running[num_running:]

    def postprocess(self, tokens: Ints, logprobs: Floats, supports: list[bytes]) -> list[tuple[Sequence, Finish]]:
        """Append a token to each of rows 0..N-1; return the sequences that ended, and why."""
        rows, ended = self.rows[: len(tokens)], []
        rows["token"], rows["position"] = tokens, rows["position"] + 1
        drawn = zip(tokens.tolist(), logprobs.tolist(), supports, strict=True)
        for slot, (sequence, token) in enumerate(zip(self.running, drawn, strict=True)):
            assert sequence is not None
            if finish := sequence.append(*token):
                self.running[slot], sequence.slot = None, -1
                # the last token was never fed: it has no keys and values
                sequence.kept = sequence.prefix + tuple(sequence.token_ids[:-1])
                self.ended.append((sequence, slot))
                ended.append((sequence, finish))
        return ended
