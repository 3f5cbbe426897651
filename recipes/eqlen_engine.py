"""EqLen on an engine of your own: whatever continues token ids, and says whether EOS or the limit ended it.

python recipes/eqlen_engine.py

An engine that returns `Growing` (fairlen/sampling/extend.py) lets forks start at once.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from fairlen import Method, compose, updates
from fairlen.rollouts import Response, Rollouts, TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request

EOS, MAX_RESPONSE_LENGTH = 0, 30


async def extend(prefix: TokenIds, sampling: Sampling) -> Continuation:
    """A policy that stops with probability 0.1: yours asks a model. The seed is different for every track."""
    draw, tokens = random.Random(sampling.seed), list[int]()
    while len(tokens) < sampling.max_new_tokens and tokens[-1:] != [EOS]:
        tokens.append(EOS if draw.random() < 0.1 else draw.randint(1, 9))
    return Continuation(tuple(tokens), (-2.0,) * len(tokens), "stop" if tokens[-1] == EOS else "length")


async def grade(response: Response) -> Response:
    """Correct if it ends on an even number."""
    is_correct = response.finish == "stop" and response.length > 1 and response.token_ids[-2] % 2 == 0
    return replace(response, outcome=float(is_correct), status="correct" if is_correct else "incorrect")


async def collect(method: Method) -> Rollouts:
    """Streams of four prompts, cut into the segments of their pairs."""
    sampling = Sampling(MAX_RESPONSE_LENGTH, seed=0)
    requests = [Request(i, (7, 8), sampling, policy_version=0, seed=(0, 0, i, 0)) for i in range(4)]
    answers = await asyncio.gather(*(method.sampling(extend, grade, request) for request in requests))
    responses = tuple(response for tracks in answers for response in tracks)
    return Rollouts(responses, method.sampling.cut(responses), MAX_RESPONSE_LENGTH)


def main() -> None:
    method = compose("eqlen+grpo")
    rollouts = asyncio.run(collect(method))
    (update,) = updates(method.score(rollouts))
    plan = method.weigh(update)  # which spans train, with which advantage and weight
    print(f"{len(rollouts.responses)} responses, {len(rollouts.segments) // 2} pairs, {len(plan) // 2} of which train")


if __name__ == "__main__":
    main()
