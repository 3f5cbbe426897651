"""A sampler of the user's own, tried on two prompts with an engine that counts instead of thinking."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from fairlen.batch import Response, Rollouts, TokenIds
from fairlen.methods.method import Method
from fairlen.methods.trial import check_array, run_stage
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request

BUDGET = 8


async def extend(prefix: TokenIds, sampling: Sampling) -> Continuation:
    """1 to 8 tokens, as many as the seed says; those over the budget are cut off."""
    length = min(sampling.seed % BUDGET + 1, sampling.max_new_tokens)
    finish = "stop" if sampling.seed % BUDGET + 1 <= sampling.max_new_tokens else "length"
    return Continuation((3,) * length, (-1.0,) * length, finish)


async def grade(response: Response) -> Response:
    """Odd lengths are right."""
    is_correct = response.length % 2 == 1
    return replace(response, outcome=float(is_correct), status="correct" if is_correct else "incorrect")


def try_sampling(method: Method, name: str) -> None:
    """Raises ValueError naming what is wrong with the sampler."""
    stage = method.sampling
    who = f"method {name}: sampling {type(stage).__name__}"
    missing = [part for part in ("num_tracks", "cut", "value", "trains") if not hasattr(stage, part)]
    if missing:
        raise ValueError(f"{who} has no {missing[0]}; write it, as sampling/independent.py does")
    found: list[Response] = []
    for prompt in (0, 1):
        request = Request(prompt, (5, 6, 7), Sampling(BUDGET, seed=0), 0, (0, 0, prompt, 0))
        made = run_stage(name, "sampling", stage, lambda request=request: asyncio.run(stage(extend, grade, request)))
        for one in made if isinstance(made, tuple) else ():
            if not isinstance(one, Response) or one.prompt != prompt or one.token_ids[:3] != request.token_ids:
                raise ValueError(f"{who} returned {one!r:.60} for prompt {prompt}: give responses to that prompt")
        if not isinstance(made, tuple) or not made:
            raise ValueError(f"{who} returned {made!r:.60}: give a tuple of every ended response")
        found += made
    segments = run_stage(name, "sampling", stage, lambda: stage.cut(tuple(found)))
    for one in segments:
        if not 0 <= one.response < len(found):
            raise ValueError(f"{who} cut a segment of response {one.response}, of {len(found)}")
        response = found[one.response]
        if not response.num_prompt <= one.start < one.stop <= len(response.token_ids):
            raise ValueError(
                f"{who} cut positions {one.start} to {one.stop} of a response whose generated tokens are "
                f"{response.num_prompt} to {len(response.token_ids)}"
            )
    rollouts = Rollouts(tuple(found), tuple(segments), BUDGET)
    tables = rollouts.response_table, rollouts.segment_table
    value = run_stage(name, "sampling", stage, lambda: stage.value(*tables, tables[0].outcome))
    check_array(name, "sampling", stage, value, (len(segments),), "what each segment is worth")
    trains = run_stage(name, "sampling", stage, lambda: stage.trains(*tables, value))
    check_array(name, "sampling", stage, trains, (len(segments),), "which segments train", np.bool_)
