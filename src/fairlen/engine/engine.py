"""The embedded rollout engine: continuous batching around the trainer's own module object, on the caller's event loop.

In: prefixes of token ids, each with a seed. Out: continuations with exact log-probabilities. Coroutines wait; one
driver task serves them all, a step at a time. There is no second copy of the weights.
"""

from __future__ import annotations

from typing import Literal

from transformers import PreTrainedModel

from fairlen.engine.generation import Sequence, SteppedEngine
from fairlen.engine.runner import Runner, embeddings_of
from fairlen.engine.scheduler import Scheduler
from fairlen.sampling.extend import EngineStats

COMPILE_AFTER_STEPS = 10_000
"""Steps after which `compile="auto"` compiles: about what half a minute of compilation has to save to be worth it."""
MAX_PREFILL_TOKENS = 4096
"""Tokens in one forward of a prefill, padding included."""


class Engine(SteppedEngine):
    """Continues prefixes with `model`, as many at a time as `max_num_seqs`.

    `max_length` bounds prefix and generated tokens together. `kept_rows` prefixes (prompts, ended sequences) stay ready
    to be continued without computing them again, the least recently used given up first; by default as many as fit into
    1 GiB, at least one a slot. Memory: max_num_seqs + kept_rows rows of max_length positions. `compile`: "auto" compiles once
    an engine has worked long enough to earn it, True at the first step, False never.

    A result depends on weights, prefix and sampling alone: greedy results exactly, sampled ones but for near ties
    within rounding. The model may be in either mode, and forward and backward passes may run between steps; after
    every change of its weights call `refresh`. Raises ValueError for models whose state is not attention alone and for
    parameters out of range.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_id: int | tuple[int, ...],
        max_length: int,
        max_num_seqs: int = 128,
        kept_rows: int | None = None,
        compile: Literal["auto"] | bool = "auto",
    ) -> None:
        super().__init__(embeddings_of(model).shape[0], eos_token_id, max_length, max_num_seqs)
        if kept_rows is not None and kept_rows < 1:
            raise ValueError(f"kept_rows={kept_rows}: a prefix is computed into a kept row; give at least 1")
        if compile not in ("auto", True, False):
            raise ValueError(f'compile={compile!r}: give "auto", True or False')
        self.compile = compile
        self._runner = Runner(model, max_num_seqs, kept_rows, max_length, MAX_PREFILL_TOKENS)
        self._noted_writes = self._runner.num_writes
        if compile is True:
            self._runner.compile()
        self.scheduler = Scheduler(max_num_seqs, self._runner.num_kept, MAX_PREFILL_TOKENS)

    def resume(self, num_steps: int) -> None:
        """Count on from an earlier process's engine, so that `compile="auto"` compiles when that would have."""
        self._num_steps = num_steps
        if self.compile == "auto" and num_steps >= COMPILE_AFTER_STEPS and self._runner.can_compile:
            self._runner.compile()

    @property
    def stats(self) -> EngineStats:
        num_prefix, num_computed = self.scheduler.num_prefix_tokens, self._runner.num_computed_tokens
        return EngineStats(self.max_num_seqs, self._num_steps, self._num_generated, num_prefix, num_computed)

    @property
    def has_free_slot(self) -> bool:
        return self.scheduler.has_free_slot

    def _add(self, sequence: Sequence) -> None:
        self.scheduler.queue_of(sequence).append(sequence)

    def _drop(self, sequence: Sequence) -> None:
        self.scheduler.drop(sequence)

    def _step(self) -> None:
        """One barrier and one token for every running sequence."""
        scheduler, runner = self.scheduler, self._runner
        is_asked = scheduler.forks or scheduler.waiting
        if is_asked and (scheduler.prefixes.tokens or scheduler.ended) and runner.num_writes != self._noted_writes:
            raise RuntimeError(
                f"the weights have changed since policy_version={self.policy_version}, whose keys and values are kept: "
                "call engine.refresh(policy_version) after every update"
            )
        with runner.borrowed():
            runner.admit(scheduler.keep())
            runner.admit(scheduler.schedule())
            num_rows = len(scheduler.running)
            if num_rows == 0:
                return
            ended = scheduler.postprocess(*runner.decode(scheduler.rows, num_rows))
        self._num_steps += 1
        self._num_generated += num_rows
        for sequence, finish in ended:
            sequence.finish(finish)
        for sequence in scheduler.running:
            if sequence and sequence.watchers:
                sequence.notify()
        if self.compile == "auto" and self._num_steps == COMPILE_AFTER_STEPS and runner.can_compile:
            runner.compile()

    def _forget(self) -> None:
        self.scheduler.forget()
        self._noted_writes = self._runner.num_writes

    def _recover(self) -> None:
        """Forget and zero kept rows: a value that is not finite would outlive masking."""
        self.scheduler.forget()
        for tensor in self._runner.rows.tensors:
            tensor.zero_()
