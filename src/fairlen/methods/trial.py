"""A method with stages of the user's own, tried on a small ragged batch before it is used: a broken one fails at start-up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlen.batch import Floats, Responses, Segments, build_responses, build_segments, name_columns, sum_by
from fairlen.methods.method import Method, spread
from fairlen.methods.stages.filters import Everything
from fairlen.methods.stages.micro import Micro, Outputs, TokenLoss, has_state

if TYPE_CHECKING:
    from torch import Tensor

PROMPT = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
LENGTH = np.array([1, 3, 5, 8, 2, 5, 1, 2, 3, 5])
CORRECT = np.array([1, 1, 1, 0, 1, 0, 0, 1, 1, 0])
"""Lengths that differ, a truncated response (the fourth), a prompt that is all correct, a prompt with one response."""
BUDGET = 8
IN_ORDER = np.arange(10)
SHUFFLED = np.array([3, 9, 0, 7, 5, 1, 8, 2, 6, 4])
NAMES = np.array([6, 0, 3, 2])
"""Other numbers of the prompts."""
MORE, IN_MORE = np.append(IN_ORDER, IN_ORDER[:3]), np.arange(13)
"""The batch and three rows of it again, which do not count."""

TOKENS = (3, 1, 5, 2)
"""Lengths of the sequences on which surrogates, terms and corrections are tried."""
ADVANTAGE = (1.0, -0.5, 0.25, -1.0)
WEIGHT = (0.1, 0.2, 0.05, 0.4)
ALL = [0, 1, 2, 3]


def try_method(method: Method, name: str) -> None:
    """Raises ValueError naming the stage and what is wrong with it; does nothing where every stage is fairlen's own."""
    foreign = [
        (path, f"method {name}: {path.partition('.')[0]} {type(stage).__name__}", stage)
        for path, stage in method.stages()
        if not type(stage).__module__.startswith("fairlen.")
    ]
    for path, who, stage in foreign:
        if not callable(stage):
            raise ValueError(f"{who} cannot be called; give it __call__")
        if path == "aggregation" and not callable(getattr(stage, "term_weight", None)):
            raise ValueError(f"{who} has no term_weight(segments); write it")
    if {path.partition(".")[0] for path, _, _ in foreign} - {"sampling"}:
        check(method, name)


def check(method: Method, name: str) -> None:
    """Raise ValueError for the first part of the battery that a method fails, naming the stage and what to do."""
    try_tables(method, name)
    for path, stage in method.stages():
        try_on_tokens(path, f"method {name}: {path.partition('.')[0]} {type(stage).__name__}", stage)
    try_split(method, name)
    if method.with_state(json.loads(json.dumps(method.state))) != method:
        raise ValueError(f"method {name}: its state is another after it was saved: give fields of `state` numbers")


def run(who: str, call: Callable[..., Any], *given: Any) -> Any:
    """The result of a call; its errors as ValueError naming the stage."""
    try:
        return call(*given)
    except Exception as error:
        raise ValueError(f"{who} raised {type(error).__name__}: {error}") from error


def make_tables(order: np.ndarray, reads: Mapping[str, Sequence[Any]] = {}) -> tuple[Responses, Segments]:
    """The batch in an order of its rows, read-only, with examples in the named columns."""
    length, correct = LENGTH[order], CORRECT[order]
    responses = build_responses(PROMPT[order], length, correct, correct, order == 3, BUDGET)
    named = name_columns({name: [values[row % len(values)] for row in order] for name, values in reads.items()})
    responses = replace(responses, named=named)
    segments = replace(build_segments(responses, length), planned=len(order))
    for column in (*responses.columns().values(), *segments.columns().values()):
        column.flags.writeable = False
    return responses, segments


def try_tables(method: Method, name: str) -> None:
    """Filter, rewards, advantages and weights: what they return, and that the order of rows does not matter."""
    responses, segments = make_tables(IN_ORDER, method.reads)
    segments = replace(segments, named=responses.named)

    def call(choice: str, stage: Any, function: Callable[..., Any], *given: Any, **wanted: Any) -> np.ndarray:
        who = f"method {name}: {choice} {type(stage).__name__}"
        return check_values(who, run(who, function, *given), **wanted)

    rewarded = responses.with_reward(responses.outcome)
    unit, size = ("response", 10) if getattr(method.filter, "of_responses", False) else ("prompt", 4)
    wanted = f"one truth value for each {unit}"
    selected = call("filter", method.filter, method.filter, rewarded, wanted=wanted, size=size)
    reward = responses.outcome
    for stage in method.reward:
        reward = call("reward", stage, stage, responses, reward, wanted="one number for each response")
    wanted = "one number for each segment"
    advantage = call("advantage", method.advantage, method.advantage, segments, reward, wanted=wanted)
    weigh = method.aggregation
    for function, given in ((weigh, (segments, advantage)), (weigh.term_weight, (segments,))):
        weight = call("aggregation", weigh, function, *given, wanted="one weight for each segment")
        if (weight < 0).any():
            raise ValueError(
                f"method {name}: aggregation {type(weigh).__name__} returned {weight.min():.3g}: give weights of 0 or more; a "
                "negative one turns the reward around"
            )
    plain = method if selected.any() else replace(method, filter=Everything())
    renamed, more = replace(responses, prompt=NAMES[responses.prompt]), responses.take(MORE)
    changes = {
        "the order of rows: compare rows by prompt or group, never by position": (SHUFFLED, make_tables(SHUFFLED, method.reads)),
        "the numbers of prompts: compare them for equality alone": (
            IN_ORDER, (renamed, replace(segments, group=renamed.prompt))),
        "rows that are not active: count those that a stage is given": (
            MORE, (replace(more, active=np.arange(len(MORE)) < len(IN_ORDER)), replace(segments.take(MORE), response=IN_MORE))),
    }  # fmt: skip
    wanted = run(f"method {name}", weights_of, plain, IN_ORDER, (responses, segments))
    for change, (order, tables) in changes.items():
        found = run(f"method {name}", weights_of, plain, order, tables)
        if not np.allclose(found, wanted, rtol=1e-9, atol=1e-12):
            raise ValueError(f"method {name}: weight * advantage changes with {change}")


def weights_of(method: Method, order: np.ndarray, tables: tuple[Responses, Segments]) -> Floats:
    """weight * advantage of each row of the batch, in its first order; 0 where it does not train."""
    rows = spread(method.plan(method.score_tables(*tables)), len(order))
    return sum_by(order, rows["weight"] * rows["advantage"], len(IN_ORDER))


def check_values(who: str, found: Any, wanted: str, size: int = 10, kind: type = np.ndarray) -> Any:
    """An array, or a tensor, as it is. Raises ValueError where it is not one finite number or truth value for each row."""
    name = "an array" if kind is np.ndarray else "a tensor"
    if not isinstance(found, kind) or found.shape != (size,):
        got = f"{name} of shape {tuple(found.shape)}" if isinstance(found, kind) else f"{found!r:.40}"
        raise ValueError(f"{who} returned {got}: give {wanted}, {name} of shape ({size},)")
    dtype = np.bool_ if "truth" in wanted else np.float64
    if kind is np.ndarray and found.dtype != dtype and not (dtype is np.float64 and found.dtype.kind in "iuf"):
        raise ValueError(f"{who} returned {found.dtype}: give {wanted}, as {np.dtype(dtype)}")
    values = found if kind is np.ndarray else found.detach().double().numpy()
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"{who} returned {values[row]} in row {row}: give finite numbers")
    return found


def make_micro(rows: list[int], on_policy: bool = False) -> tuple[Outputs, Micro]:
    """Some sequences of an update, with log ratios between -0.35 and 0.35."""
    import torch

    tokens = torch.cat([torch.arange(TOKENS[row]) + sum(TOKENS[:row]) for row in rows]).double()
    logprobs = (-0.5 - 0.13 * tokens).requires_grad_()
    old = logprobs.detach() - (0.0 if on_policy else 0.35 * torch.sin(1.7 * tokens + 1.0))
    advantage, weight = torch.tensor([ADVANTAGE, WEIGHT], dtype=torch.float64)[:, rows]
    length, reference = torch.tensor(TOKENS)[rows], logprobs.detach() - 0.1
    micro = Micro.of(length, advantage, weight, weight, old, old + 0.01, reference, on_policy)
    return Outputs(logprobs, 1.0 - 0.3 * logprobs), micro


def try_on_tokens(path: str, who: str, stage: Any) -> None:
    """Tries what a stage makes of the tokens of a micro-batch, and its state. Raises ValueError naming what is wrong."""
    outputs, micro = make_micro(ALL)
    if path == "surrogate":
        try_surrogate(who, stage)
    elif path.startswith("terms."):
        for need in ("needs_ref", "needs_entropy"):
            if not isinstance(getattr(stage, need, None), bool):
                raise ValueError(f"{who} has no {need}; set it to True or False")
        check_tokens(who, run(who, stage, outputs, micro))
    elif path == "correction":
        check_tokens(who, run(who, stage, micro))
    if has_state(stage):
        try_state(who, stage)


def try_surrogate(who: str, stage: Any) -> None:
    """One loss for each token, and the policy gradient at ratio 1."""
    outputs, micro = make_micro(ALL)
    found = run(who, stage, outputs.logprobs, micro)
    if not isinstance(found, TokenLoss):
        raise ValueError(f"{who} returned {type(found).__name__}: give a TokenLoss")
    for part in ("loss", "ratio", "clipped", "inside"):
        check_tokens(f"{who}: its {part}", getattr(found, part))
    outputs, micro = make_micro(ALL, on_policy=True)
    total = run(who, stage, outputs.logprobs, micro).loss.sum()
    if total.requires_grad:
        total.backward()
    slope = np.zeros(sum(TOKENS)) if outputs.logprobs.grad is None else outputs.logprobs.grad.numpy()
    wanted = -micro.per_token(micro.advantage).numpy()
    if not np.allclose(slope, wanted, rtol=1e-6, atol=1e-9):
        raise ValueError(
            f"{who} has slope {slope[0]:.3g} at ratio 1 where the advantage is {-wanted[0]:.3g}: the derivative of the summed "
            "loss by each log-prob is minus the advantage there"
        )


def try_state(who: str, stage: Any) -> None:
    """Raises ValueError unless observations are sums and an update returns a stage of its kind."""
    if not (callable(getattr(stage, "observe", None)) and callable(getattr(stage, "update", None))):
        raise ValueError(
            f"{who} has fields made by `state` and no observe and update; write both, as methods/stages/micro.py says"
        )

    def observe(rows: list[int]) -> dict[str, float]:
        return {key: float(value) for key, value in run(who, stage.observe, *make_micro(rows)).items()}

    whole, parts = observe(ALL), (observe([0, 1]), observe([2, 3]))
    for key, value in whole.items():
        total = sum(part.get(key, math.nan) for part in parts)
        if not math.isclose(value, total, rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError(
                f"{who}: observe gives {key}={value:g}, its parts {total:g}: give sums, under names that never change"
            )
    moved = run(who, stage.update, whole)
    if type(moved) is not type(stage):
        raise ValueError(f"{who}: update returned {moved!r:.40}; return replace(self, …)")


def check_tokens(who: str, found: Any) -> None:
    from torch import Tensor

    check_values(who, found, "one number for each token", sum(TOKENS), Tensor)


def try_split(method: Method, name: str) -> None:
    """Raises ValueError where the gradient of an update depends on its split into micro-batches."""

    def gradient(rows: list[int]) -> Floats:
        outputs, micro = make_micro(rows)
        total: Tensor = run(f"method {name}", method.loss, outputs, micro).total
        total.backward()
        assert outputs.logprobs.grad is not None
        return outputs.logprobs.grad.numpy()

    if not np.allclose(gradient(ALL), np.append(gradient([0, 1]), gradient([2, 3])), rtol=1e-9, atol=1e-12):
        raise ValueError(
            f"method {name}: its gradient changes where an update is split into micro-batches: a loss is one number for each "
            "token, and depends on the sequence of that token alone"
        )
