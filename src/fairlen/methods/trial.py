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
ALL, PARTS = [0, 1, 2, 3], ([0, 1], [2, 3])
NUMBER, TRUTH, CLIPPED = "one number for each token", "one truth value for each token", "where it is `clipped`"
CASES = {
    "": ("", math.nan),
    "in a second call": ("let a call change nothing; what moves is a field of `state`", math.nan),
    "on a token that does not train": ("its log-probs are 0; keep it finite, let no other go by it", math.nan, 1),
    "at ratio 1": ("", 0.0),
    "at a log ratio of 800": ("hold log ratios at 20 before exp", 800.0),
    "at a log ratio of -800": ("exp of it is 0, by which nothing can be divided", -800.0),
    CLIPPED: ("name those alone where a bound makes it exactly 0, that of a penalty included", math.nan),
}
"""Micro-batches by what is special: what to do where something is wrong there, and arguments of `make_micro`."""


def try_method(method: Method, name: str) -> None:
    """Raises ValueError naming the stage and what is wrong with it; does nothing where every stage is fairlen's own."""
    foreign = {path: stage for path, stage in method.stages() if not type(stage).__module__.startswith("fairlen.")}
    for path, stage in foreign.items():
        if not callable(stage):
            raise ValueError(f"{name_stage(name, path, stage)} cannot be called; give it __call__")
        if path == "aggregation" and not callable(getattr(stage, "term_weight", None)):
            raise ValueError(f"{name_stage(name, path, stage)} has no term_weight(segments); write it")
    if foreign.keys() - {"sampling"}:
        check(method, name)


def name_stage(method: str, path: str, stage: Any) -> str:
    return f"method {method}: {path.partition('.')[0]} {type(stage).__name__}"


def check(method: Method, name: str) -> None:
    """Raise ValueError for the first part of the battery that a method fails, naming the stage and what to do."""
    try_tables(method, name)
    for path, stage in method.stages():
        who, choice = name_stage(name, path, stage), path.partition(".")[0]
        if choice in ("surrogate", "terms", "correction"):
            try_on_tokens(choice, who, stage)
        try_state(method, path, who, stage)
    try_split(method, name)


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
        who = name_stage(name, choice, stage)
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
                f"{name_stage(name, 'aggregation', weigh)} returned {weight.min():.3g}: give weights of 0 or more; a negative "
                "one turns the reward around"
            )
    plain = method if selected.any() else replace(method, filter=Everything())
    renamed, more = replace(responses, prompt=NAMES[responses.prompt]), responses.take(MORE)
    changes = {
        "a second call: let a call change nothing": (IN_ORDER, (responses, segments)),
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


def check_values(who: str, found: Any, wanted: str, size: int = 10, where: str = "", fix: str = "") -> Any:
    """An array, or a tensor, as it is. Raises ValueError where it is not one finite number or truth value for each row."""
    from torch import Tensor

    kind, name, verb = (Tensor, "a tensor", "is") if "token" in wanted else (np.ndarray, "an array", "returned")
    if not isinstance(found, kind) or found.shape != (size,):
        got = f"{name} of shape {tuple(found.shape)}" if isinstance(found, kind) else f"{found!r:.40}"
        raise ValueError(f"{who} returned {got}: give {wanted}, {name} of shape ({size},)")
    values = np.asarray(found.tolist() if "token" in wanted else found)
    dtype = np.bool_ if "truth" in wanted else np.float64
    if values.dtype != dtype and not (dtype is np.float64 and values.dtype.kind in "iuf"):
        raise ValueError(f"{who} returned {found.dtype}: give {wanted}, as {np.dtype(dtype)}")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"{who} {verb} {values[row]} {where or f'in row {row}'}: {fix or 'give finite numbers'}")
    return found


def make_micro(rows: list[int], log_ratio: float = math.nan, num_pads: int = 0) -> tuple[Outputs, Micro]:
    """Some sequences of an update, with log ratios between -0.35 and 0.35, or one for all, and tokens that do not train."""
    import torch
    from torch.nn.functional import pad

    tokens = torch.cat([torch.arange(TOKENS[row]) + sum(TOKENS[:row]) for row in rows]).double()
    moved = 0.35 * torch.sin(1.7 * tokens + 1.0) if math.isnan(log_ratio) else torch.full_like(tokens, log_ratio)
    logprobs, old = (-0.5 - 0.13 * tokens + each for each in (moved.clamp(max=0.0), -moved.clamp(min=0.0)))
    columns = *torch.tensor([ADVANTAGE, WEIGHT, WEIGHT]).double()[:, rows], logprobs, old, old + 0.01, logprobs - 0.1
    advantage, weight, term_weight, now, *others = (pad(values, (0, num_pads)) for values in columns)
    length = pad(torch.tensor(TOKENS)[rows], (0, num_pads), value=1)
    micro = Micro.of(length, advantage, weight, term_weight, *others, is_on_policy=log_ratio == 0.0)
    now.requires_grad_()
    return Outputs(now, 1.0 - 0.3 * now), replace(micro, mask=micro.per_token(weight) > 0.0) if num_pads else micro


def try_on_tokens(choice: str, who: str, stage: Any) -> None:
    """Tries what a stage makes of the tokens of micro-batches. Raises ValueError naming what is wrong, and where."""
    for need in ("needs_ref", "needs_entropy") if choice == "terms" else ():
        if not isinstance(getattr(stage, need, None), bool):
            raise ValueError(f"{who} has no {need}; set it to True or False")
    plain = None
    for where, (fix, *case) in CASES.items():
        outputs, micro = make_micro(ALL, *case)
        given = {"surrogate": (outputs.logprobs, micro), "terms": (outputs, micro), "correction": (micro,)}[choice]
        found = run(f"{who} {where}".rstrip(), stage, *given)
        found = try_surrogate(who, found, outputs, micro, where, fix) if choice == "surrogate" else found
        values = check_values(who, found, NUMBER, len(micro.sequence), where, fix).detach()[: sum(TOKENS)]
        plain = values if plain is None else plain
        if math.isnan(case[0]) and not np.allclose(values, plain, rtol=1e-9, atol=1e-12):
            raise ValueError(f"{who}: what it gives a token changes {where.replace('on a', 'beside a')}: {fix}")


def try_surrogate(who: str, found: Any, outputs: Outputs, micro: Micro, where: str, fix: str) -> Tensor:
    """The loss of each token, whose gradient is 0 where it is clipped, and the policy gradient at ratio 1."""
    import torch

    if not isinstance(found, TokenLoss):
        raise ValueError(f"{who} returned {type(found).__name__}: give a TokenLoss")
    for part, wanted in {"loss": NUMBER, "ratio": NUMBER, "clipped": TRUTH, "inside": TRUTH}.items():
        check_values(f"{who}: its {part}", getattr(found, part), wanted, len(micro.sequence), where, fix)
    if found.ratio.requires_grad:
        raise ValueError(f"{who}: its ratio carries a gradient, as the loss alone may: give ratio.detach()")
    total, advantage, ratio = found.loss.sum(), micro.per_token(micro.advantage), found.ratio
    gradient = torch.autograd.grad(total + 0.0 * outputs.logprobs.sum(), outputs.logprobs)[0]
    check_values(f"{who}: its gradient", micro.of_trained(gradient), NUMBER, len(gradient), where, fix)
    if where == CLIPPED and (wrong := gradient[found.clipped]).any():
        raise ValueError(f"{who}: its gradient is {wrong[wrong != 0][0]:.3g} {where}: {fix}")
    place = (gradient + advantage).abs().argmax()
    if micro.is_on_policy and not torch.allclose(gradient, -advantage, rtol=1e-6):
        raise ValueError(
            f"{who} has slope {gradient[place]:.9g} at ratio 1 where the advantage is {advantage[place]:.9g}: the derivative of "
            "the summed loss by each log-prob is minus the advantage there"
        )
    if micro.is_on_policy and (ratio != 1).any():
        raise ValueError(f"{who}: its ratio is {ratio[ratio != 1][0]:.17g} {where}: make it exactly 1, as exp(0) is")
    return found.loss


def try_state(method: Method, path: str, who: str, stage: Any) -> None:
    """Raises ValueError unless observations are sums, and a stage that is restored is the one that two updates made."""
    parts = [name for name in ("observe", "update") if callable(getattr(stage, name, None))]
    if not (parts or has_state(stage)):
        return
    if len(parts) < 2 or not has_state(stage):
        raise ValueError(
            f"{who} has {' and '.join(parts) or 'fields'} alone, so that no state moves: give it observe, update "
            "and a field such as width: float = state(0.2), of fairlen.methods.stages.micro"
        )
    try_sums(who, stage)

    def update(one: Any) -> Any:
        moved = run(who, one.update, observe(who, one, ALL))
        if type(moved) is not type(stage):
            raise ValueError(f"{who}: update returned {moved!r:.40}; return replace(self, …)")
        return moved

    def measure(one: Any) -> list[float]:
        """All that a stage changes: the loss, weights, its next state."""
        tried, later = (method.with_stages({path: each}) for each in (one, update(one)))
        weights = weights_of(tried, IN_ORDER, make_tables(IN_ORDER, method.reads))
        return [float(tried.loss(*make_micro(ALL)).total.detach()), *weights, *later.state.values()]

    before, moved = run(who, measure, stage), update(update(stage))
    saved = json.loads(json.dumps(method.with_stages({path: moved}).state))
    restored = dict(run(who, method.with_state, saved).stages())[path]
    if restored != moved:
        raise ValueError(
            f"{who}: after two updates it is {moved!r:.80}, and {restored!r:.80} in a run that is resumed: make what moves a "
            "field of `state`, which is a number and stays as it is given"
        )
    if before != run(who, measure, stage) or run(who, measure, moved) != run(who, measure, restored):
        raise ValueError(f"{who}: update changes more than the stage that it returns: move fields of `state` alone")


def observe(who: str, stage: Any, *given: Any) -> dict[str, float]:
    return {key: float(value) for key, value in run(who, stage.observe, *make_micro(*given)).items()}


def try_sums(who: str, stage: Any) -> None:
    """Raises ValueError unless observations are sums over the tokens and sequences that train."""
    padded, *parts = observe(who, stage, ALL, math.nan, 1), *(observe(who, stage, part) for part in PARTS)
    for key, value in observe(who, stage, ALL).items():
        for fix, other in (
            ("in parts: give sums, under names that never change", sum(part.get(key, math.nan) for part in parts)),
            ("with a token that does not train: count by of_trained, total_of_sequences", padded.get(key, math.nan)),
        ):
            if not math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12):
                raise ValueError(f"{who}: observe gives {key}={value:g}, and {other:g} {fix}")


def try_split(method: Method, name: str) -> None:
    """Raises ValueError where the gradient of an update depends on its split into micro-batches."""

    def gradient(rows: list[int]) -> Floats:
        outputs, micro = make_micro(rows)
        total: Tensor = run(f"method {name}", method.loss, outputs, micro).total
        total.backward()
        assert outputs.logprobs.grad is not None
        return outputs.logprobs.grad.numpy()

    if not np.allclose(gradient(ALL), np.concatenate([gradient(part) for part in PARTS]), rtol=1e-9, atol=1e-12):
        raise ValueError(
            f"method {name}: its gradient changes where an update is split into micro-batches: a loss is one number for each "
            "token, and depends on the sequence of that token alone"
        )
