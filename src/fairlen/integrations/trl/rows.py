"""Rows of TRL: parts of a micro-batch, which of their tokens train, and outcomes and verdicts from reward functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from fairlen.batch import NO_VERDICT, Floats, Ints, Segments
from fairlen.integrations.rows import count_kept, find_trained, grade, read_response, was_truncated
from fairlen.methods.conflicts import refuse_missing
from fairlen.methods.method import Scored
from fairlen.methods.stages.reward import NUM_READ
from fairlen.precision import is_above
from fairlen.rollouts import Response, Rollouts

COLUMN = "fair_"
"""Begins the names of a plan's columns in a rollout batch of TRL, which shuffles and splits them with its own."""

FORWARDED = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
    "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
"""Inputs of a model besides tokens."""


@dataclass
class CurrentBatch:
    """State of one call that TRL's signatures cannot pass from one override to the next.

    A trainer's `current` is one of these during a call of TRL's generation and scoring, or during a forward pass; else empty.
    """

    inputs: Sequence[dict[str, Any]] = ()
    """The data set's rows of this process."""
    trains: bool = False
    """Whether the responses are trained, not those of an evaluation."""
    sampled: Any = None
    """`generation.Sampled`, where a sampler that cuts responses has generated them."""
    rewards: Tensor = field(default_factory=lambda: torch.zeros(0))
    """By function, of the responses of all processes, [R, F]."""
    open_calls: Sequence[bool] = ()
    """Whether each response of this process ends with a call of a tool that was not made."""
    depth: Tensor | None = None
    """Of tokens after the prompt in rows that are trees, [N, L]."""


def split_rows(inputs: dict[str, Tensor | None], size: int) -> list[dict[str, Tensor | None]]:
    """A micro-batch in parts of at most `size` rows: batches of pairs have more rows than TRL's settings ask for."""
    num_rows = len(inputs["completion_ids"])  # type: ignore[arg-type]
    if num_rows <= size:
        return [inputs]
    rows = {name: value for name, value in inputs.items() if value is not None and value.ndim}
    return [
        inputs | {name: value[first : first + size] for name, value in rows.items()}
        for first in range(0, num_rows, size)
    ]


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """1 on trained tokens, [N, L]: completions without what tools and environments wrote."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def read_trained(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Which tokens of a micro-batch train, [N, L], and how many of each segment, row after row."""
    return find_trained(loss_mask(inputs), inputs[f"{COLUMN}trains"], inputs[f"{COLUMN}length"])


def read_responses(
    output: dict[str, Any], eos_ids: Collection[int], max_response_length: int, open_calls: Sequence[bool]
) -> list[Response]:
    """Return the responses of TRL's batch, [N]; log-probs are the engine's, nan where it gives none."""
    nats = output.get("sampling_per_token_logps")
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    columns = [*(output[name] for name in names), loss_mask(output)]
    prompts, is_prompt, ids, mask, own = (column.cpu().numpy() for column in columns)
    values = np.full(ids.shape, np.nan) if nats is None else nats.cpu().numpy()
    rows, found = zip(prompts, is_prompt > 0, ids, mask > 0, own, values, strict=True), []
    for (prompt, in_prompt, row, is_there, written, logprobs), is_open in zip(rows, open_calls, strict=True):
        text = row[is_there].tolist()
        is_truncated = is_open or was_truncated(text, written[is_there], eos_ids, max_response_length)
        given = prompt[in_prompt].tolist(), text, written[is_there], logprobs[is_there].tolist(), is_truncated
        found.append(read_response(*given, prompt=0, seed=0))
    return found


class Graded(NamedTuple):
    """A graded response, and what its row of the data set says."""

    process: int
    """That has generated it."""
    response: Response
    columns: dict[str, Any]
    """Where the method reads some."""
    answer: str
    """The reference answer."""


def gather_rows(trainer: Any, graded: Sequence[Response], inputs: Sequence[dict[str, Any]]) -> list[Graded]:
    """Return the graded responses of all processes, given those of this one with their rows of the data set."""
    process, known = trainer.accelerator.process_index, dict.fromkeys(trainer.reward_func_names)
    found = []
    for one, row in zip(graded, inputs, strict=True):
        columns = known | row if trainer.method.reads else {}
        found.append(Graded(process, one.with_channels(trainer._tokenizer.decode), columns, find_answer(row)))
    return gather_object(found)


def refuse_infinite(rewards: Tensor, names: Sequence[str]) -> None:
    """Raise ValueError where a reward function gave no finite number, of [N, functions]; nan is no verdict."""
    for row, place in rewards.isinf().nonzero().tolist():
        given = f"{names[place]} gave {rewards[row, place]} to response {row}"
        raise ValueError(f"reward_funcs: {given}; give finite numbers, or None where there is no verdict")


def score_rows(trainer: Any, rows: Sequence[Graded]) -> tuple[Rollouts, Scored]:
    """Return the rollout batch of some prompts, and its scores."""
    responses = tuple(row.response for row in rows)
    rollouts = Rollouts(responses, trainer.method.sampling.cut(responses), trainer.max_completion_length)
    columns = {row.response.prompt: row.columns for row in rows}
    return rollouts, trainer.method.score(rollouts, [columns[prompt] for prompt in range(len(columns))])


def find_answer(row: dict[str, Any]) -> str:
    """Return the reference answer in a row of a data set, by the names that it mostly has."""
    return str(next((row[name] for name in ("answer", "solution") if row.get(name) is not None), ""))


def refuse_unread(trainer: Any) -> None:
    """Raise ValueError for a column that a stage reads and nothing gives, where the data set names its columns."""
    if names := getattr(trainer.train_dataset, "column_names", None):
        refuse_missing(trainer.method, [NUM_READ, *names, *trainer.reward_func_names])


def find_kept(trainer: Any, output: dict[str, Any], segments: Segments) -> Ints | None:
    """Return the tokens that a correction keeps of each segment of all processes; None where all count."""
    rollout, old = output.get("sampling_per_token_logps"), output.get("old_per_token_logps")
    if not trainer.method.recounts or rollout is None or old is None:
        return None
    mask = loss_mask(output).bool()
    own = segments.take(segments.response // len(mask) == trainer.accelerator.process_index)
    places = mask.sum(1).cpu().numpy(), own.response % len(mask), own
    logprobs = old[mask], torch.where(rollout.isnan(), old, rollout)[mask]
    return np.concatenate(gather_object([count_kept(trainer.method.correction, *places, *logprobs)]))


def has_open_call(completion: Any) -> bool:
    """Return whether messages end with a call of a tool that was not made: the limit on calls, or on tokens, came before."""
    return isinstance(completion, list) and bool(completion) and bool(completion[-1].get("tool_calls"))


SUM = "sum"
"""In place of a reward function's name: the weighted sum of all."""
DECIDING = re.compile(r"(?:.*_)?(?:accuracy|correctness)(?:_.*)?", re.IGNORECASE)
"""Names of reward functions that decide by default what is correct: accuracy_reward, correctness_reward_func."""


def choose_verdict(given: str, names: Sequence[str]) -> str:
    """Return the reward function that decides what is correct, or `SUM`.

    Args:
        given: A name, `SUM`, or an empty text: then a function named accuracy or correctness decides if there is one.
        names: The names of all reward functions.

    Raises:
        ValueError: If no function has the name, or several functions are named accuracy or correctness.
    """
    if given:
        if given != SUM and list(names).count(given) != 1:
            raise ValueError(f"verdict={given!r}: name one reward function of {', '.join(names)}, or give {SUM!r}")
        return given
    deciding = [name for name in names if DECIDING.fullmatch(name)]
    if len(deciding) > 1:
        raise ValueError(
            f"reward_funcs: {' and '.join(deciding)} could each decide what is correct; give verdict={deciding[0]!r}"
        )
    return deciding[0] if deciding and len(names) > 1 else SUM


def describe_verdict(verdict: str, names: Sequence[str], weights: Sequence[float], threshold: float | None) -> str:
    """Return a line on what counts as correct."""
    if verdict != SUM:
        return f"correct: {verdict} is above {0.5 if threshold is None else threshold:g}"
    terms = " + ".join(f"{weight:g} * {name}" for name, weight in zip(names, weights, strict=True))
    limit = f"{threshold:g}" if threshold is not None else f"{sum(max(weight, 0.0) for weight in weights) / 2:g}"
    note = "" if len(names) == 1 else "; verdict='NAME' lets one function decide"
    return f"correct: {terms} is above {limit}{note}"


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of some responses by the reward functions, [N]."""

    outcome: Floats
    """Weighted sum of the reward functions that apply, in their precision, float32; 0 where none does."""
    verdict: Floats
    """1 if a response is correct, 0 if it is not, nan if the functions that decide it do not apply."""
    by_function: Sequence[dict[str, float]]
    """What the functions that apply returned, by name."""

    @classmethod
    def read(
        cls, rewards: Tensor, weights: Tensor, threshold: float | None, names: Sequence[str], verdict: str = SUM
    ) -> Outcomes:
        """Return the outcomes of responses, and which of them are correct.

        Args:
            rewards: What each function returned, [N, F]; nan if it does not apply.
            weights: The functions' weights, [F].
            threshold: A response is correct above it. None is half of the most that functions which return 0 to 1 could give.
            names: The functions' names, [F].
            verdict: The function whose value is compared with the threshold, or `SUM` for the weighted sum of all.
        """
        values, weight = rewards.double().cpu().numpy(), weights.double().cpu().numpy()
        applies = ~np.isnan(values)
        outcome = np.nansum(values * weight, axis=1).astype(np.float32).astype(np.float64)
        decides = np.array([name == verdict for name in names]) if verdict != SUM else np.ones(len(names), np.bool_)
        value = outcome if verdict == SUM else values[:, decides][:, 0]
        most = (applies * weight.clip(min=0.0)).sum(axis=1) if verdict == SUM else 1.0
        limit = most / 2.0 if threshold is None else threshold
        is_known = applies[:, decides].any(axis=1)
        rows = (zip(names, row, strict=True) for row in values.tolist())
        by_function = [{name: value for name, value in row if value == value} for row in rows]
        is_correct = is_above(np.where(is_known, value, 0.0), limit)
        return cls(outcome, np.where(is_known, is_correct, NO_VERDICT), by_function)

    def grade(self, responses: Sequence[Response]) -> list[Response]:
        found = zip(responses, self.outcome.tolist(), self.verdict.tolist(), self.by_function, strict=True)
        return [replace(grade(one, outcome, verdict), outcomes=said) for one, outcome, verdict, said in found]
