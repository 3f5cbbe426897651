"""A method with stages of the user's own, tried on a small ragged batch before it is used: a broken one fails at start-up.

Every stage is called as in training. It must return what its protocol says, finite and of the right shape, leave what it is given
as it is, and not depend on the order of rows or on how an update is split into micro-batches. The numbers themselves are its
author's affair. Tables without tokens come first; torch is imported only where a surrogate, a term or a correction is foreign.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

from fairlen.batch import Response, Responses, Rollouts, Segments, TokenIds
from fairlen.methods.method import Method, Scored, Update, updates
from fairlen.methods.plugins import is_foreign, run_stage
from fairlen.methods.stages.micro import has_state
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request

TABLE_CHOICES = ("filter", "reward", "advantage", "aggregation")
LOSS_CHOICES = ("surrogate", "terms", "correction")
PROMPT = (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)
LENGTH = (1, 3, 5, 8, 2, 5, 1, 2, 3, 5)
RIGHT = (1, 1, 1, 0, 1, 0, 0, 1, 1, 0)
"""Lengths that differ, a truncated answer (the fourth), a prompt that is all correct, a prompt with one response."""
BUDGET = 8
ORDER = (3, 9, 0, 7, 5, 1, 8, 2, 6, 4)
"""Another order of the same rows."""


def try_method(method: Method, name: str) -> None:
    """Raises ValueError naming the stage and what is wrong with it; does nothing where every stage is fairlen's own."""
    foreign = [(path.partition(".")[0], stage) for path, stage in method.stages() if is_foreign(stage)]
    for choice, stage in foreign:
        if not callable(stage):
            raise ValueError(f"method {name}: {choice} {type(stage).__name__} cannot be called; give it __call__")
    if any(choice in TABLE_CHOICES for choice, _ in foreign):
        try_tables(method, name)
    if any(choice == "sampling" for choice, _ in foreign):
        try_sampling(method, name)
    if any(choice in LOSS_CHOICES or has_state(stage) for choice, stage in foreign):
        from fairlen.methods.trial_loss import try_loss

        try_loss(method, name)


def make_tables(order: tuple[int, ...] = tuple(range(10))) -> tuple[Responses, Segments]:
    """The batch in an order of its rows, read-only."""
    rows = np.array(order)
    prompt, length = np.array(PROMPT)[rows], np.array(LENGTH)[rows]
    right, zeros, ones = np.array(RIGHT, np.bool_)[rows], np.zeros(10, np.int64), np.ones(10, np.bool_)
    responses = Responses(
        prompt=prompt, length=length, outcome=right.astype(np.float64), correct=right, truncated=rows == 3,
        active=ones, stream=zeros, round=zeros, max_response_length=8,
    )  # fmt: skip
    segments = Segments(
        response=np.arange(10), length=length, group=prompt, active=ones, mass=np.ones(10), survivor=~ones, round=zeros,
        max_response_length=8, planned=10,
    )  # fmt: skip
    for column in (*responses.columns().values(), *segments.columns().values()):
        column.flags.writeable = False
    return responses, segments


def try_tables(method: Method, name: str) -> None:
    """Keeps, rewards, advantages and weights: what they return, and that the order of rows does not matter."""
    responses, segments = make_tables()
    keep = run_stage(name, "filter", method.filter, lambda: method.filter(responses.with_reward(responses.outcome)))
    check_array(name, "filter", method.filter, keep, (4,), "one truth value for each prompt", np.bool_)
    reward = responses.outcome
    for stage in method.reward:
        before = reward
        reward = run_stage(name, "reward", stage, lambda stage=stage, before=before: stage(responses, before))
        check_array(name, "reward", stage, reward, (10,), "one number for each response")
    advantage = run_stage(name, "advantage", method.advantage, lambda: method.advantage(segments, reward))
    check_array(name, "advantage", method.advantage, advantage, (10,), "one number for each segment")
    try_weights(method, name, segments, advantage)
    plain = replace(method, filter=type(Method().filter)()) if not keep.any() else method
    if not np.allclose(weights_of(plain, name), weights_of(plain, name, ORDER), rtol=1e-9, atol=1e-12):
        stages = ", ".join(type(stage).__name__ for _, stage in method.stages() if is_foreign(stage))
        raise ValueError(
            f"method {name}: weight * advantage changes with the order of rows ({stages}): compare rows by prompt or group, "
            "never by position"
        )


def try_weights(method: Method, name: str, segments: Segments, advantage: np.ndarray) -> None:
    """The two weights of an aggregation."""
    stage = method.aggregation
    if not callable(getattr(stage, "term_weight", None)):
        raise ValueError(f"method {name}: aggregation {type(stage).__name__} has no term_weight(segments); write it")
    for weigh in (lambda: stage(segments, advantage), lambda: stage.term_weight(segments)):
        weight = run_stage(name, "aggregation", stage, weigh)
        check_array(name, "aggregation", stage, weight, (10,), "one weight for each segment")
        if (weight < 0).any():
            raise ValueError(
                f"method {name}: aggregation {type(stage).__name__} returned {weight.min():.3g}: give weights of 0 or more; "
                "a negative one turns the reward around"
            )


def check_array(
    name: str, choice: str, stage: Any, found: Any, shape: tuple[int, ...], wanted: str, dtype: Any = np.float64
) -> None:
    """Raises ValueError where an array is not what the protocol of its choice says."""
    who = f"method {name}: {choice} {type(stage).__name__} returned"
    if not isinstance(found, np.ndarray) or found.shape != shape:
        got = f"an array of shape {found.shape}" if isinstance(found, np.ndarray) else f"{found!r:.40}"
        raise ValueError(f"{who} {got}: give {wanted}, an array of shape {shape}")
    if found.dtype != dtype and not (dtype is np.float64 and found.dtype.kind in "iuf"):
        raise ValueError(f"{who} {found.dtype}: give {wanted}, as {np.dtype(dtype)}")
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise ValueError(f"{who} {found[row]} in row {row}: give finite numbers")


def scored_update(method: Method, order: tuple[int, ...] = tuple(range(10))) -> tuple[Scored, Update | None]:
    """The batch scored, and its one update where something trains."""
    scored = method.score_tables(*make_tables(order))
    return scored, next(iter(updates(scored)), None)


def weights_of(method: Method, name: str, order: tuple[int, ...] = tuple(range(10))) -> np.ndarray:
    """weight * advantage of each row of the batch, in its first order; 0 where it does not train."""
    found = np.zeros(10)
    _, update = run_stage(name, "method", method, lambda: scored_update(method, order))
    if update is not None:
        plan = method.weigh(update)
        found[np.array(order)[plan.rows]] = plan.weight * plan.advantage
    return found


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
    needed = ("num_tracks", "is_whole", "with_num_tracks", "cut", "value", "trains", "metrics")
    missing = [part for part in needed if not hasattr(stage, part)]
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
