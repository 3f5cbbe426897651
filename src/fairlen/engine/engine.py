"""The embedded rollout engine: continuous batching around the trainer's own module object, on the caller's event loop.

In: prefixes of token ids, each with a seed. Out: continuations with exact log-probabilities. Coroutines wait; one
driver task serves them all, a step at a time. Not here: threads, a second copy of the weights, text, a reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Ordered
from typing import Literal

import numpy as np
from transformers import PreTrainedModel

from fairlen.batch import Bools, TokenIds
from fairlen.engine.generation import Driver, Generation, Sequence, check_request, generate
from fairlen.engine.runner import Runner
from fairlen.engine.scheduler import Scheduler
from fairlen.sampling.extend import Continuation, EngineStats, Sampling

COMPILE_AFTER_STEPS = 10_000
"""Steps after which `compile="auto"` compiles: about what half a minute of compilation has to save to be worth it."""
MAX_PREFILL_TOKENS = 4096
"""Tokens in one forward of a prefill, padding included."""


class Engine:
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
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs={max_num_seqs}: give at least 1")
        if kept_rows is not None and kept_rows < 1:
            raise ValueError(f"kept_rows={kept_rows}: a prefix is computed into a kept row; give at least 1")
        if max_length < 2:
            raise ValueError(f"max_length={max_length}: a prefix and a generated token need at least 2")
        if compile not in ("auto", True, False):
            raise ValueError(f'compile={compile!r}: give "auto", True or False')
        self.max_length, self.compile = max_length, compile
        self.policy_version = 0
        self._runner = Runner(model, max_num_seqs, kept_rows, max_length, MAX_PREFILL_TOKENS)
        if compile is True:
            self._runner.compile()
        is_eos = eos_table(eos_token_id, self._runner.vocab_size)
        self._scheduler = Scheduler(max_num_seqs, self._runner.num_kept, max_length, is_eos, MAX_PREFILL_TOKENS)
        self._driver = Driver(self._step, self._scheduler, self._recover)
        self._num_steps = self._num_generated = 0

    def extend(self, prefix: TokenIds, sampling: Sampling, parent: Sequence | None = None) -> Generation:
        """Generates after `prefix` until EOS or the budget: await the result. Needs a running event loop.

        Raises ValueError for a request that cannot be served; awaiting raises FloatingPointError where logits are not
        finite, and whatever the model raised.
        """
        check_request(prefix, sampling, self.max_length, self._runner.vocab_size)
        sequence = Sequence(tuple(prefix), sampling, asyncio.get_running_loop().create_future(), parent)
        self._driver.ensure()
        self._scheduler.add(sequence)
        return Generation(sequence, self._scheduler, self.extend)

    def generate(self, prefixes: Ordered[TokenIds], samplings: Ordered[Sampling]) -> list[Continuation]:
        """`extend` for each pair, in order, for callers outside of an event loop."""
        return generate(self.extend, prefixes, samplings)

    def refresh(self, policy_version: int) -> None:
        """The weights are now those of `policy_version`: forgets all keys and values of older ones.

        Raises RuntimeError while sequences are being decoded: half of such a sequence would be of either policy.
        """
        if num_running := self._scheduler.num_running:
            raise RuntimeError(
                f"refresh({policy_version}) with {num_running} sequences in flight: await or cancel them first"
            )
        self.policy_version = policy_version
        self._scheduler.forget()
        self._runner.note_weights()

    def resume(self, num_steps: int) -> None:
        """Goes on counting where the engine of an earlier process was, so that `compile="auto"` compiles when that would have."""
        self._num_steps = num_steps
        if self.compile == "auto" and num_steps >= COMPILE_AFTER_STEPS and self._runner.can_compile:
            self._runner.compile()

    @property
    def stats(self) -> EngineStats:
        """What the engine has done so far."""
        return EngineStats(
            num_slots=self._scheduler.num_slots,
            num_steps=self._num_steps,
            num_generated_tokens=self._num_generated,
            num_prefix_tokens=self._scheduler.num_prefix_tokens,
            num_computed_tokens=self._runner.num_computed_tokens,
        )

    def _step(self) -> None:
        """One barrier and one token for every running sequence."""
        scheduler, runner = self._scheduler, self._runner
        if scheduler.num_waiting:
            self._check_weights()
        with runner.borrowed():
            runner.copy(scheduler.keep())
            runner.admit(scheduler.schedule())
            num_rows = len(scheduler.running)
            if num_rows == 0:
                return
            tokens, logprobs = runner.decode(scheduler.slots, num_rows)
            ended = scheduler.postprocess(tokens, logprobs)
        self._num_steps += 1
        self._num_generated += num_rows
        for sequence, continuation in ended:
            sequence.finish(continuation)
        scheduler.tell_watchers()
        if self.compile == "auto" and self._num_steps == COMPILE_AFTER_STEPS and runner.can_compile:
            runner.compile()

    def _check_weights(self) -> None:
        """Raises RuntimeError where kept keys and values are those of other weights."""
        if self._scheduler.keeps and self._runner.is_stale:
            raise RuntimeError(
                f"the weights have changed since policy_version={self.policy_version}, whose keys and values are kept: "
                "call engine.refresh(policy_version) after every update"
            )

    def _recover(self) -> None:
        """After an error, which may come from the middle of a step, kept rows are forgotten too, and zeroed: a value that
        is not finite would outlive masking.
        """
        self._scheduler.forget()
        self._runner.rows.clear()


def eos_table(eos_token_id: int | tuple[int, ...], vocab_size: int) -> Bools:
    """Whether each token of the vocabulary ends a sequence, [V]. Raises ValueError where none does."""
    ids = eos_token_id if isinstance(eos_token_id, tuple) else (eos_token_id,)
    if not ids or any(not isinstance(token, int) for token in ids):
        raise ValueError(f"eos_token_id={eos_token_id!r}: the engine needs the token id, or ids, that end a sequence")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ValueError(f"eos_token_id={eos_token_id}: outside the model's vocabulary of {vocab_size}")
    table = np.zeros(vocab_size, np.bool_)
    table[list(ids)] = True
    return table
