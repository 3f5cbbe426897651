"""What is asked of vLLM: one request for each sequence, in its words, and what it has answered so far."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

from fairlen.engine.sequence import Sequence
from fairlen.sampling.extend import Continuation, Finish, Sampling

LOWEST_TEMPERATURE = 0.01
"""vLLM replaces lower ones by this, with a warning only."""


def to_vllm(sampling: Sampling, eos_token_ids: tuple[int, ...]) -> Any:
    """Its SamplingParams. Raises ValueError for a temperature that it would replace."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    if 0.0 < sampling.temperature < LOWEST_TEMPERATURE:
        raise ValueError(
            f"temperature={sampling.temperature}: vLLM takes 0 for greedy, or {LOWEST_TEMPERATURE} and more"
        )
    return SamplingParams(
        max_tokens=sampling.max_new_tokens,
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        logprobs=0,  # of the sampled token and no other
        flat_logprobs=True,
        stop_token_ids=list(eos_token_ids),
        ignore_eos=True,  # the ids above are all that ends a sequence, whatever the model's files say
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


@dataclass(slots=True, eq=False)
class Request:
    """A sequence in vLLM, and what it has got so far."""

    sequence: Sequence
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def grow(self, added: Any) -> None:
        """Takes what one step added, a CompletionOutput. Raises FloatingPointError where log-probabilities are not numbers."""
        self.token_ids += added.token_ids
        self.logprobs += added.logprobs.logprobs
        if not all(map(math.isfinite, added.logprobs.logprobs)):
            number = len(self.sequence.prefix) + len(self.token_ids) - 1
            raise FloatingPointError(f"log-probabilities by vLLM are not finite after {number} tokens")

    def tell(self) -> None:
        """Gives everybody who waits for no more than is there what they wait for; not for sequences that have ended."""
        if any(number <= len(self.token_ids) for number, _ in self.sequence.watchers):
            self.sequence.tell(self.so_far("length"))

    def so_far(self, finish: Finish) -> Continuation:
        """What it has got, as if it ended here."""
        return Continuation(tuple(self.token_ids), tuple(self.logprobs), finish)


class Requests:
    """The sequences in vLLM, by the names that it knows them by."""

    def __init__(self, llm: Any, num_slots: int) -> None:
        self.llm, self.num_slots = llm, num_slots
        self.running: dict[str, Request] = {}
        self.names: dict[Sequence, str] = {}
        self.num_asked = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    @property
    def is_hungry(self) -> bool:
        return sum(bool(request.token_ids) for request in self.running.values()) < self.num_slots

    def add(self, sequence: Sequence, parameters: Any) -> None:
        """Hands a sequence over; vLLM starts forks first, while what they continue is in its cache, and in order of arrival."""
        name, prompt = str(self.num_asked), {"type": "token", "prompt_token_ids": list(sequence.prefix)}
        priority = -1 if sequence.parent else 0
        self.llm.add_request(name, prompt, parameters, arrival_time=float(self.num_asked), priority=priority)
        self.num_asked += 1
        self.running[name], self.names[sequence] = Request(sequence), name

    def watch(self, sequence: Sequence, num_tokens: int, future: asyncio.Future[Continuation]) -> None:
        """Will tell `future` of the first `num_tokens` generated tokens of a sequence that has not ended."""
        sequence.watchers.append((num_tokens, future))
        if name := self.names.get(sequence):
            self.running[name].tell()

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence that nobody waits for any more."""
        if name := self.names.get(sequence):
            self.llm.abort_request([name])
            self.remove(name)

    def clear(self) -> list[Sequence]:
        """Forgets all sequences; returns who was there."""
        dropped = list(self.names)
        for sequence in dropped:
            self.drop(sequence)
        return dropped

    def remove(self, name: str) -> Request:
        """Forgets a sequence that has ended, or nobody waits for."""
        request = self.running.pop(name)
        del self.names[request.sequence]
        return request
