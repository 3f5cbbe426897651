"""One continuation on its way: what was asked, and the futures that coroutines wait on.

Not here: its tokens and position while it is decoded; those are rows of the scheduler's arrays.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fairlen.sampling.extend import Continuation, Sampling, TokenIds

NOBODY = 2**62
"""The position that a sequence has to reach where nobody waits for one."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request of `extend`, from arrival until its future is resolved."""

    prefix: TokenIds
    sampling: Sampling
    future: asyncio.Future[Continuation]
    parent: Sequence | None = None
    """Whose first tokens the prefix is, where it was forked."""
    slot: int = -1
    """Row of the cache in which it is decoded; -1 while it waits and after it has ended."""
    watchers: list[tuple[int, asyncio.Future[Continuation]]] = field(default_factory=list)
    """Who waits for a number of generated tokens, short of the end."""
    told: TokenIds = ()
    """Its generated tokens as far as somebody has been told of them: what may be forked."""
    kept: TokenIds = ()
    """Tokens whose keys and values were kept when it ended."""
    is_released: bool = False
    """Nobody will fork it any more."""

    @property
    def num_cacheable(self) -> int:
        """Prefix tokens whose keys and values are needed before the first step; that step feeds the last one."""
        return len(self.prefix) - 1

    @property
    def end(self) -> int:
        """Number of tokens, prefix included, at which the budget ends it."""
        return len(self.prefix) + self.sampling.max_new_tokens

    @property
    def watched(self) -> int:
        """Index of the newest token at which somebody has to be told."""
        return min((len(self.prefix) + number - 1 for number, _ in self.watchers), default=NOBODY)

    def tell(self, continuation: Continuation) -> None:
        """Gives everybody who waited for no more than these tokens, which need not be all, what they waited for."""
        self.told = continuation.token_ids
        length = len(self.told)
        for number, future in self.watchers:
            if number <= length and not future.done():
                future.set_result(continuation.first(number))
        self.watchers = [(number, future) for number, future in self.watchers if number > length]

    def finish(self, continuation: Continuation) -> None:
        """Gives everybody the whole of it."""
        self.told = continuation.token_ids
        for number, future in self.watchers:
            if not future.done():
                future.set_result(continuation.first(number))
        self.watchers.clear()
        if not self.future.done():
            self.future.set_result(continuation)

    def fail(self, error: BaseException | None) -> None:
        """Raises `error` in everybody who waits; None cancels them."""
        for future in (*(future for _, future in self.watchers), self.future):
            if future.done():
                continue
            if error is None:
                future.cancel()
            else:
                future.set_exception(error)
        self.watchers.clear()


def check_request(prefix: TokenIds, sampling: Sampling, max_length: int, vocab_size: int) -> None:
    """Raises ValueError, naming field, value and remedy, where a request cannot be served."""
    if not prefix:
        raise ValueError("prefix is empty: give at least one token, for example BOS")
    if min(prefix) < 0 or max(prefix) >= vocab_size:
        wrong = next(token for token in prefix if not 0 <= token < vocab_size)
        raise ValueError(f"prefix holds token id {wrong}, outside the model's vocabulary of {vocab_size}")
    if sampling.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={sampling.max_new_tokens}: ask for at least 1")
    if len(prefix) + sampling.max_new_tokens > max_length:
        raise ValueError(
            f"prefix of {len(prefix)} tokens + max_new_tokens={sampling.max_new_tokens} exceeds "
            f"max_length={max_length}: "
            f"ask for at most {max_length - len(prefix)}, or build the Engine with a larger max_length"
        )
    check_sampling(sampling)


def check_sampling(sampling: Sampling) -> None:
    """Raises ValueError where the shape of the sampling distribution makes no sense."""
    if not 0.0 <= sampling.temperature < float("inf"):
        raise ValueError(f"temperature={sampling.temperature}: give 0 for greedy, or a positive number")
    if not 0.0 < sampling.top_p <= 1.0:
        raise ValueError(f"top_p={sampling.top_p}: give a probability in (0, 1]; 1 is off")
    if sampling.top_k < 0:
        raise ValueError(f"top_k={sampling.top_k}: give a number of tokens; 0 is off")
    if not 0.0 <= sampling.min_p <= 1.0:
        raise ValueError(f"min_p={sampling.min_p}: give a share of the highest probability in [0, 1]; 0 is off")
