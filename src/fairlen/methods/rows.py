"""The plan of a rollout batch that any training loop has: from a few numbers a response to an advantage and a weight for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fairlen.batch import Ints, build_responses, build_segments, name_columns, number_keys
from fairlen.channels import CHANNELS, OBSERVATION
from fairlen.console import suggest
from fairlen.methods.conflicts import refuse_turn_rewards, refuse_turns
from fairlen.methods.description import list_stages
from fairlen.methods.method import Method, Scored, spread
from fairlen.precision import precision_of, settle

if TYPE_CHECKING:
    import torch

MAX_REWARD = float(np.finfo(np.float32).max)
"""Largest size of a reward; the plan becomes tensors of float32."""
UNGRADED = "a finite number that float32 holds; what has no verdict has nan in `correct`"
REMEDIES = {
    "lengths": "a whole number of tokens",
    "rewards": UNGRADED,
    "correct": "0 or 1, or nan where there is no verdict",
    "truncated": "0 or 1",
}
"""Contents of each column."""


@dataclass(frozen=True)
class RowPlan:
    """The plan of some responses as columns, [N]: numpy arrays, or tensors after `to`."""

    trains: Any
    """Bool: the response counts; where it is False the other columns are 0."""
    advantage: Any
    weight: Any
    """Of each trained token; the loss is the plain sum of weight * token loss over all rows of the update and all ranks."""
    term_weight: Any
    """The same for terms (KL, entropy)."""
    bounded: Any = None
    """Tokens that the surrogate's bound goes by; None in a plan that was made by hand."""
    length: Any = None
    """Tokens that train, which a micro-batch must have of a row; None in a plan that was made by hand: any number."""
    method: Method | None = None
    """The method that planned, whose loss the rows are for; None in a plan that was made by hand: any method."""

    def __len__(self) -> int:
        return len(self.trains)

    def __getitem__(self, rows: Any) -> RowPlan:
        """Return chosen rows, by a slice, positions or a mask: those of a rank, of a micro-batch."""
        if not isinstance(rows, slice) and (isinstance(rows, tuple) or not np.ndim(rows)):
            raise ValueError(f"plan[{brief(rows)}]: give several rows, as a slice, a list of positions or a mask")
        return self.map(lambda _, column: column[rows])

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> RowPlan:
        """Return the columns as tensors on a device, those of numbers in `dtype`: torch.float32 unless another is named."""
        import torch

        kinds: dict[str, Any] = dict.fromkeys(("advantage", "weight", "term_weight"), dtype or torch.float32)
        return self.map(lambda name, column: torch.as_tensor(column, dtype=kinds.get(name), device=device))

    def map(self, change: Callable[[str, Any], Any]) -> RowPlan:
        """Return the plan with `change(name, column)` in place of each column that it has."""
        columns = ((one.name, getattr(self, one.name)) for one in fields(self) if one.name != "method")
        return replace(self, **{name: change(name, column) for name, column in columns if column is not None})


def plan_rows(
    method: Method,
    *,
    groups: Any,
    lengths: Any,
    rewards: Any,
    max_response_length: int,
    correct: Any = None,
    truncated: Any = None,
    channels: Mapping[str, Any] | None = None,
    num_updates: int = 1,
    columns: Mapping[str, Any] | None = None,
) -> RowPlan:
    """Return an advantage and a weight for every response of a rollout batch, of all ranks together, [N] each.

    Arguments are lists, numpy arrays, or arrays and tensors that numpy reads, [N]. `groups`: responses with the same key are to
    the same prompt. `lengths`: generated tokens that train, EOS included; 0 for padding. `rewards`: what a response is worth.
    `correct`: the verifier's verdict, 0 or 1, nan where it has none; without it a response is correct where its reward is above
    0.5. `truncated`: stopped by the limit; without it those of `max_response_length` tokens. `channels`: tokens by channel, [N]
    each, for methods with `of=`: "thinking", "answer" and "tool_call" sum to `lengths`, "observation" is beside them.
    `num_updates`: the optimizer steps that the rollout batch is split into, each of about as many prompts. `columns`: what the
    method's stages read by name, [N] each, of the data or of several reward functions.
    Rewards to one prompt that differ by the rounding of the type that they came in are the same.
    Warns where no response trains. Raises ValueError for columns of unequal length or another shape than [N], what is no number
    or out of range, more updates than prompts, methods that cut responses while they are generated (EqLen), and choices
    about turns.
    """
    check_method(method)
    refuse_unplanned(method)
    check_whole("num_updates", num_updates, "the optimizer steps of the rollout batch")
    limit = "the limit in tokens that the responses were generated with"
    check_whole("max_response_length", max_response_length, limit)
    given = {"lengths": lengths, "rewards": rewards, "correct": correct, "truncated": truncated}
    given |= name_channels(channels, method)
    scored = score_rows(method, number_groups(groups), given, int(max_response_length), columns or {})
    if num_updates > max(scored.responses.num_prompts, 1):
        raise ValueError(
            f"num_updates={num_updates}: the rollout batch has {scored.responses.num_prompts} prompts (groups), and an update at "
            "least one; give the number of optimizer steps that it is split into"
        )
    plan = spread(method.plan(scored), len(scored.segments))
    refuse_broken(method, scored.reward, plan)
    if len(plan["trains"]) and not plan["trains"].any():
        warnings.warn(
            f"no response trains: the filter {type(method.filter).__name__} keeps none of {len(scored.selected)} prompts; "
            "what is correct is what `correct` says, and without it rewards above 0.5",
            stacklevel=2,
        )
    length = np.where(plan["trains"], scored.segments.length, 0)
    weight, term_weight = (num_updates * plan[name] for name in ("weight", "term_weight"))
    return RowPlan(plan["trains"], plan["advantage"], weight, term_weight, plan["bounded"], length, method)


def refuse_unplanned(method: Method) -> None:
    """Raise ValueError for a method whose plan needs more than numbers of whole responses."""
    if not method.sampling.is_whole:
        raise ValueError(
            f"{type(method.sampling).__name__.lower()} chooses what is generated, so that it cannot plan rollouts that exist: "
            "leave it out, or train with `fairlen train`, TRL or verl"
        )
    refuse_turns(method, "plan_rows")
    refuse_turn_rewards(method, "plan_rows")
    if method.recounts:
        raise ValueError(
            "correction.recount=True: plan_rows is called before log-probs are known; leave it out, or train with `fairlen "
            "train`, TRL or verl"
        )


def refuse_broken(method: Method, reward: np.ndarray, plan: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError for a number that is not finite, naming the stages that made it, and the row."""
    weight = plan["weight"] + plan["term_weight"]
    for choice, column in ("reward", reward), ("advantage", plan["advantage"]), ("aggregation", weight):
        refuse(~np.isfinite(column), column, list_stages(method, [choice]), "finite numbers")


def score_rows(
    method: Method, keys: Ints, given: Mapping[str, Any], max_response_length: int, named: Mapping[str, Any]
) -> Scored:
    """Score responses by columns as they were `given`, whose values are checked here."""
    optional = ("correct", "truncated")
    columns = {name: read_column(name, v) for name, v in given.items() if v is not None or name not in optional}
    shapes = {"groups": (len(keys),)} | {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or len(shapes["rewards"]) != 1:
        raise ValueError(f"{shapes}: give each column one number for every response, [N]")
    length, reward = columns["lengths"], columns["rewards"].astype(np.float64)
    refuse(~(np.abs(reward) <= MAX_REWARD), reward, "rewards", UNGRADED)
    whole = f"0 to max_response_length={max_response_length}, a whole number of tokens"
    is_mask = np.full(len(length), length.dtype == np.bool_)
    is_length = (length >= 0) & (length <= max_response_length) & (length == np.trunc(length))
    refuse(is_mask | ~is_length, length, "lengths", whole)
    for name in columns.keys() & optional:
        marks = columns[name].astype(np.float64)
        refuse(~(np.isin(marks, (0.0, 1.0)) | (np.isnan(marks) & (name == "correct"))), marks, name, REMEDIES[name])
    reward = settle(keys, reward, precision_of(given["rewards"]))
    correct, truncated = columns.get("correct", reward), columns.get("truncated", length >= max_response_length)
    spent = read_channels(columns, length)
    responses = build_responses(keys, length, reward, correct, truncated, max_response_length, channels=spent)
    if set(named) != set(method.reads) or any(len(values) != len(keys) for values in named.values()):
        sizes = ", ".join(f"{name} of {len(values)}" for name, values in named.items()) or "none"
        raise ValueError(
            f"columns={sizes}: give {', '.join(method.reads) or 'none'}, of one value a response, {len(keys)}"
        )
    responses = replace(responses, named=name_columns(named))
    return method.score_tables(responses, build_segments(responses, length))


def name_channels(channels: Mapping[str, Any] | None, method: Method | None = None) -> dict[str, Any]:
    """Return tokens by channel as columns. Raises ValueError for an unknown channel, and where a stage needs one."""
    for path, of in method.channels.items() if method and not channels else ():
        raise ValueError(
            f"channels={channels}: {path}.of={of} goes by tokens of a channel; give channels={{{of!r}: [N], …}}"
        )
    for name in channels or {}:
        if name not in CHANNELS:
            raise ValueError(f"channels[{name!r}]: {suggest(str(name), CHANNELS)}; there are {', '.join(CHANNELS)}")
    return {f"channels[{name!r}]": column for name, column in (channels or {}).items()}


def read_channels(columns: Mapping[str, np.ndarray], length: np.ndarray) -> dict[str, Ints]:
    """Return the columns of channels, [N] each. Raises ValueError where they are not whole numbers that sum to lengths."""
    found = {name: columns[key] for name in CHANNELS if (key := f"channels[{name!r}]") in columns}
    if not found:
        return {}
    for name, column in found.items():
        refuse(~((column >= 0) & (column == np.trunc(column))), column, f"channels[{name!r}]", REMEDIES["lengths"])
    total = sum((column for name, column in found.items() if name != OBSERVATION), np.zeros(len(length)))
    refuse(total != length, total, "the sum of channels", "channels that sum to `lengths`, observations left out")
    return {name: column.astype(np.int64) for name, column in found.items()}


def brief(value: Any) -> str:
    return " ".join(repr(value).split())[:60]


def check_method(method: Any) -> None:
    if not isinstance(method, Method):
        raise ValueError(f"method={brief(method)}: give a Method, such as fairlen.compose('grpo')")


def check_whole(name: str, value: Any, meaning: str) -> None:
    try:
        is_whole = not isinstance(value, bool | str) and 1 <= value < 2**53 and int(value) == value
    except (TypeError, ValueError, OverflowError, RuntimeError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{name}={brief(value)}: give {meaning}, a whole number from 1 on")


def read_column(name: str, values: Any) -> np.ndarray:
    """Return an array of numbers. Raises ValueError for the first value that is none."""
    remedy = REMEDIES.get(name, REMEDIES["lengths"])
    try:
        column = to_numpy(values)
    except (ValueError, TypeError, RuntimeError):  # rows of unlike lengths
        column = np.array(None)
    if not column.ndim:
        raise ValueError(f"{name}={brief(values)}: give {remedy} for every response, [N]")
    if column.dtype.kind in "biuf":
        return column
    found = column.ravel()
    wrong = [not isinstance(value, Real) or abs(cast(float, value)) > MAX_REWARD for value in found.tolist()]
    refuse(np.array(wrong, np.bool_), found, name, remedy)
    return column.astype(np.float64)


def refuse(wrong: np.ndarray, values: np.ndarray, name: str, remedy: str) -> None:
    if wrong.any():
        place = int(np.argmax(wrong))
        raise ValueError(f"{name}[{place}]={brief(values.tolist()[place])}: give {remedy}")


def number_groups(groups: Any) -> Ints:
    """Return numbers from 0 for equal keys, [N]. Raises ValueError for what has no key for each response."""
    remedy = "give a key for every response, [N], such as the number or the id of its prompt"
    if isinstance(groups, str | bytes | dict | set) or not hasattr(groups, "__len__") or not getattr(groups, "ndim", 1):
        raise ValueError(f"groups={brief(groups)}: {remedy}")
    keys = groups if isinstance(groups, list | tuple) else to_numpy(groups)
    if isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype.kind in "iu":
        return np.unique(keys, return_inverse=True)[1].astype(np.int64)
    for place, key in enumerate(keys):
        if not is_key(key):
            raise ValueError(f"groups[{place}]={brief(key)}: {remedy}")
    return number_keys(list(keys))


def is_key(key: Any) -> bool:
    """Return whether a key can group responses: it is hashable, equals itself and is not None."""
    try:
        hash(key)
    except TypeError:
        return False
    return key is not None and key == key


def to_numpy(values: Any) -> np.ndarray:
    """Return an array of numbers, a tensor of any device and type among them."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)
