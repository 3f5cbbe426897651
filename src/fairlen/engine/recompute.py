"""The engine for models with a recurrent state, which cannot be cut at a fork."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairlen.engine.engine import check_logits, distance, embeddings_of, in_evaluation, tolerance
from fairlen.engine.generation import Sequence, SteppedEngine
from fairlen.engine.sampler import ROW, draw, row_of
from fairlen.rollouts import Finish
from fairlen.sampling.extend import EngineStats, Sampling

MAX_COHORTS = 4  # each needs a forward pass of its own for every token
MAX_PREFILL_TOKENS = 16384  # tokens in the prefill of a cohort of several, padding included


@dataclass(slots=True, eq=False)
class Cohort:
    """Sequences that were prefilled together, one row each, and the model's own cache of them."""

    rows: list[Sequence | None]  # None: ended or cancelled
    padding: Tensor  # columns before the first token, [N]
    cache: Any = None
    num_columns: int = 0  # of the cache, padding included

    @property
    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.rows if sequence]

    def shrink(self) -> None:
        """Drop rows of ended sequences once they are half of all."""
        kept = [row for row, sequence in enumerate(self.rows) if sequence]
        if kept and 2 * len(kept) <= len(self.rows):
            rows = torch.tensor(kept, device=self.padding.device)
            self.cache.reorder_cache(rows)
            self.rows, self.padding = [self.rows[row] for row in kept], self.padding[rows]


class RecomputingEngine(SteppedEngine):
    """Continues prefixes with `model`, at most `max_num_seqs` at a time, and computes every prefix from its start.

    Waiting requests are prefilled together, padded on the left where that leaves the model's logits as they are, else those of
    one length; `reason` says which. Log-probs, seeds and errors are those of `Engine`. Raises ValueError for models whose cache
    does not give the logits of a plain forward, and for parameters out of range.
    """

    def __init__(
        self, model: PreTrainedModel, *, eos_token_id: int | tuple[int, ...], max_length: int, max_num_seqs: int = 128
    ) -> None:
        super().__init__(embeddings_of(model).shape[0], eos_token_id, max_length, max_num_seqs)
        self.model, self._modules, self._device = model, tuple(model.modules()), embeddings_of(model).device
        self._waiting: deque[Sequence] = deque()
        self._cohorts: list[Cohort] = []
        self._num_prefix = 0
        self._cache_name = "past_key_values"
        with in_evaluation(self._modules):
            self.pads = self._check_arithmetic()

    @property
    def reason(self) -> str:
        together = "prompts of any length together" if self.pads else "prompts of one length together"
        return f"the state of {type(self.model).__name__} cannot be forked: every fork computes its prefix anew, {together}"

    @property
    def stats(self) -> EngineStats:
        return EngineStats(self.max_num_seqs, self._num_steps, self._num_generated, self._num_prefix, self._num_prefix)

    @property
    def has_free_slot(self) -> bool:
        return self._num_free > len(self._waiting)

    @property
    def _num_free(self) -> int:
        """Sequences that may start now: none while others run and their cohort would be small."""
        free = self.max_num_seqs - sum(len(cohort.running) for cohort in self._cohorts)
        is_worth_it = not self._cohorts or free >= -(-self.max_num_seqs // MAX_COHORTS)
        return free if is_worth_it and len(self._cohorts) < MAX_COHORTS else 0

    def _add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def _drop(self, sequence: Sequence) -> None:
        for cohort in self._cohorts:
            cohort.rows = [None if other is sequence else other for other in cohort.rows]
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def _step(self) -> None:
        ended: list[tuple[Sequence, Finish]] = []
        with in_evaluation(self._modules):
            for cohort in self._cohorts:
                ended += self._extend(cohort, [[one.token_ids[-1] if one else 0] for one in cohort.rows])
            self._settle()
            while cohort := self._start():
                padded = zip(cohort.running, cohort.padding.tolist(), strict=True)  # by any token, which a mask hides
                ended += self._extend(cohort, [one.prefix[:1] * count + one.prefix for one, count in padded])
            self._settle()
        self._num_steps += 1
        for sequence, finish in ended:
            sequence.finish(finish)

    def _start(self) -> Cohort | None:
        """The next cohort, in order of arrival: as many as fit, of one length where the model takes no padding."""
        free, longest, chosen = self._num_free, 0, []
        for sequence in self._waiting:
            length = len(sequence.prefix)
            if not self.pads and chosen and length != longest:
                continue
            widest = max(longest, length)
            if len(chosen) == free or (chosen and widest * (len(chosen) + 1) > MAX_PREFILL_TOKENS):
                break
            longest = widest
            chosen.append(sequence)
        if not chosen:
            return None
        for sequence in chosen:
            self._waiting.remove(sequence)
        padding = torch.tensor([longest - len(sequence.prefix) for sequence in chosen], device=self._device)
        self._num_prefix += sum(sequence.num_cacheable for sequence in chosen)
        self._cohorts.append(Cohort(list(chosen), padding))
        return self._cohorts[-1]

    def _settle(self) -> None:
        self._cohorts = [cohort for cohort in self._cohorts if cohort.running]
        for cohort in self._cohorts:
            cohort.shrink()

    def _extend(self, cohort: Cohort, fed: Ordered[Ordered[int]]) -> list[tuple[Sequence, Finish]]:
        """Feed tokens [N][T] to the rows and draw the next of each; return the sequences that ended, and why."""
        logits = self._read(cohort, torch.tensor(fed, device=self._device))
        positions = (cohort.num_columns - 1 - cohort.padding).tolist()
        unused = Sampling(1, seed=0)  # of rows that have ended, for the shape alone
        samplings = [sequence.sampling if sequence else unused for sequence in cohort.rows]
        drawn = np.array([row_of(*pair, token=0) for pair in zip(samplings, positions, strict=True)], ROW)
        tokens, logprobs, supports = draw(self.model, logits, drawn)
        ended = []
        for row, found in enumerate(zip(tokens.tolist(), logprobs.tolist(), supports, strict=True)):
            if not (sequence := cohort.rows[row]):
                continue
            self._num_generated += 1
            if finish := sequence.append(*found):
                cohort.rows[row] = None
                ended.append((sequence, finish))
            else:
                sequence.notify()
        return ended

    def _read(self, cohort: Cohort, tokens: Tensor) -> Tensor:
        """Append `tokens` [N, T] to the cache; return logits [N, V] after the last ones."""
        stop = cohort.num_columns + tokens.shape[1]
        positions = torch.arange(stop, device=self._device) - cohort.padding[:, None]
        output = self.model(
            input_ids=tokens,
            attention_mask=(positions >= 0).long() if cohort.padding.any() else None,
            position_ids=positions[:, cohort.num_columns :].clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **({} if cohort.cache is None else {self._cache_name: cohort.cache}),
        )
        cohort.num_columns, cohort.cache = stop, getattr(output, self._cache_name)
        return output.logits[:, -1]

    def _check_arithmetic(self) -> bool:
        """Whether padding on the left changes no logits. Raises ValueError where the cache does."""
        tokens = torch.linspace(0, self.vocab_size - 1, min(6, self.max_length), device=self._device).long()
        plain = self.model(input_ids=tokens[None], use_cache=True)
        if getattr(plain, "past_key_values", None) is None:
            self._cache_name = "cache_params"
        if getattr(plain, self._cache_name, None) is None:
            raise ValueError(f"{type(self.model).__name__} returns no cache: this engine cannot run it")
        expected, start = plain.logits[0], len(tokens) // 2
        alone = Cohort([], torch.zeros(1, dtype=torch.long, device=self._device))
        made = [self._read(alone, piece[None])[0] for piece in (tokens[:start], *tokens[start:].split(1))]
        check_logits(self.model, torch.stack(made), expected[start - 1 :], "its own cache")
        padded = Cohort([], torch.tensor([0, start - 1], device=self._device))
        pieces = (torch.stack([tokens[:start], tokens[:1].expand(start)]), tokens[[start, 1]][:, None])
        try:
            with_padding = torch.cat([self._read(padded, piece) for piece in pieces])
        except (ValueError, TypeError, RuntimeError, IndexError):  # some layers take no mask for cached tokens
            return False
        return distance(with_padding, expected[[start - 1, 0, start, 1]]) <= tolerance(self.model)
