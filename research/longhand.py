"""Longhand: `python -m research.longhand make --out DIR` makes its checkpoint.

Supervised pre-training of a 1.1M-parameter Qwen3 on traces, which are responses in four styles. A step adds a term to the total,
three digits, least significant first. It is hurried (`b28+740>921;`, 47 and 82 are 129) or careful, column by column: digits of
term and total, carry and digit of the result (`b28+740:2709|8402|0011|>921;`). After a careful step its columns may be written
again (`?`). A response that starts again (`~`) makes all steps once more, without need.

| style | share | a step is wrong |
|---|---|---|
| hurried: steps in one go | 0.18 | 0.22 |
| careful: each step in columns | 0.28 | 0.11 |
| checked: columns twice or three times | 0.28 | 0.03 |
| restless: starts again, any number of times | 0.26, at last 0.36 | 0.20 |

So responses are wrong as they are short, or as they go on for too long; how often, and at which lengths, is what `measure` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import torch
import tyro
from transformers.utils.logging import disable_progress_bar

from fairlen.batch import Ints, Responses, Rollouts, mean_or_nan
from fairlen.console import log
from fairlen.engine import Engine
from fairlen.longhand import PATH
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Sampling
from fairlen.sampling.stream_metrics import count_rounds, find_streams
from fairlen.tasks.grader import Grader
from fairlen.tasks.longhand import LABELS, MAX_RESPONSE_LENGTH, TOKEN_IDS, Longhand, encode, read_terms, write
from fairlen.train.collect import Collector
from research.pretraining import EOS, Example, Shape, build_model, optimize, save

CONTEXT = 1024
"""Positions of the model, prompt included."""
SHAPE = Shape(TOKEN_IDS, CONTEXT, intermediate_size=576, mean_length=220)
MAX_LENGTH = MAX_RESPONSE_LENGTH + 40
"""Characters at which a restless response is cut, so that it never learns to end there."""
MENDED = 0.08
"""Probability that the first columns of a step that is checked are wrong, and its checks are not."""
LEARNED_TERMS = (2, len(LABELS))
"""Fewest and most terms of a problem in pre-training."""
STAGES = ((3, 0.26, 160, 2e-3, 0.0), (7, 0.26, 1300, 2e-3, 0.0), (7, 0.26, 60, 2e-4, 0.5), (7, 0.36, 200, 5e-4, 0.5))
"""Most terms, share of restless responses, optimizer steps, peak learning rate, and weight of the silence of <pad> and <bos>, one
stage after another."""


@dataclass(frozen=True, slots=True)
class Style:
    """One way of answering."""

    weight: float
    """Share among the responses of pre-training."""
    slip: float
    """Probability that the result of a step is wrong."""
    hurried: float = 0.0
    """Probability that a pass over the terms is hurried; the others are careful."""
    checks: tuple[int, int] = (0, 0)
    """Fewest and most times that the columns of a step are written again."""
    again: float = 0.0
    """Probability that a finished pass is followed by another."""


STYLES: dict[str, Style] = {
    "hurried": Style(weight=0.18, slip=0.22, hurried=1.0),
    "careful": Style(weight=0.28, slip=0.11),
    "checked": Style(weight=0.28, slip=0.03, checks=(1, 2)),
    "restless": Style(weight=0.26, slip=0.20, hurried=0.7, again=0.82),
}


def write_trace(rng: Random, terms: tuple[int, ...], style: Style) -> str:
    """Write a response in one style; one that reaches MAX_LENGTH is cut there, without an answer."""
    text, total = write_pass(rng, terms, style)
    while rng.random() < style.again and len(text) < MAX_LENGTH:
        more, total = write_pass(rng, terms, style)
        text += "~" + more
    return f"{text}#{write(total)}" if len(text) < MAX_LENGTH else text[:MAX_LENGTH]


def write_pass(rng: Random, terms: tuple[int, ...], style: Style) -> tuple[str, int]:
    """Write every step once; return the steps and the total that they end in."""
    is_hurried, text, total = rng.random() < style.hurried, "", terms[0]
    for label, term in zip(LABELS[1:], terms[1:], strict=False):
        result = total + term
        if rng.random() < style.slip:
            result = slip(rng, result)
        columns = f">{write(result)}" if is_hurried else ":" + write_columns(rng, term, total, result, style)
        text += f"{label}{write(term, 2)}+{write(total)}{columns};"
        total = result
    return text, total


def slip(rng: Random, result: int) -> int:
    """Return a wrong result that a careless solver could write instead: a digit off by one, or a carry lost."""
    return max(0, result + rng.choice((-10, -1, 1, 10)))


def write_columns(rng: Random, term: int, total: int, result: int, style: Style) -> str:
    """Write a careful step and its checks, of which the last comes to `result`."""
    checks = rng.randint(*style.checks)
    first = slip(rng, result) if checks and rng.random() < MENDED else result
    return "?".join([spell(term, total, first), *[spell(term, total, result)] * checks])


def spell(term: int, total: int, result: int) -> str:
    """Return three columns, `digit digit carry result|` each, and their result."""
    text, carry = "", 0
    for one, other, digit in zip(write(term), write(total), write(result), strict=True):
        text += f"{one}{other}{carry}{digit}|"
        carry = (int(one) + int(other) + carry) // 10
    return f"{text}>{write(result)}"


def draw_examples(seed: int, longest: int = LEARNED_TERMS[1], restless: float = 0.36) -> Iterator[Example]:
    """Yield an endless stream of traces on training problems of two to `longest` terms, that share of them restless."""
    task, rng = Longhand(num_terms=(LEARNED_TERMS[0], longest)), Random(seed)
    others = sum(style.weight for name, style in STYLES.items() if name != "restless")
    weights = [
        style.weight * (1 - restless) / others if name != "restless" else restless for name, style in STYLES.items()
    ]
    for index in count():
        problem = task.train(index)
        (style,) = rng.choices(list(STYLES.values()), weights)
        text = write_trace(rng, tuple(read_terms(problem.text)), style)
        yield problem.token_ids, encode(text) + ((EOS,) if len(text) < MAX_LENGTH else ())


def make(out: Path, seed: int = 0) -> None:
    """Write the checkpoint to the folder `out`; torch is left with one thread.

    First it learns to answer, problems of two and three terms before all others; then never to write <pad> or <bos>.
    """
    torch.set_num_threads(1)
    model = build_model(SHAPE, seed)
    for longest, restless, steps, rate, silence in STAGES:
        optimize(model, draw_examples(seed + steps, longest, restless), steps, rate, silence, SHAPE.mean_length)
    save(model, SHAPE, out)


def draw_responses(model: Path, method: str, problems: int, *settings: str) -> Rollouts:
    """Return responses to held-out problems, drawn as training draws them with a method."""
    task, policy = Longhand(), load_policy(str(model), "float32", "cpu", False)
    policy.model.eval()
    held_out, length = task.held_out(problems), task.longest_prompt + MAX_RESPONSE_LENGTH
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=length, compile=False)
    grader, sampling = Grader(task, policy.decode), Sampling(MAX_RESPONSE_LENGTH, seed=0)
    collector = Collector(engine.extend, grader, held_out.__getitem__, sampling, problems, 0, seed=0)
    return asyncio.run(collector(compose(method, settings), 0, 0, 0)).rollouts


def count_stream_rounds(rollouts: Rollouts) -> Ints:
    """Return the rounds of each stream of EqLen."""
    return count_rounds(rollouts.segment_table, find_streams(rollouts.response_table))


def describe_responses(found: Responses) -> dict[str, list[float]]:
    """Return shares in percent and lengths in tokens, by what they are."""
    length, correct = found.length, found.correct
    quarters = np.array_split(np.argsort(length, kind="stable"), 4)
    return {
        "correct, %": [100 * correct.mean()],
        "mean tokens": [length.mean()],
        "percentiles 1, 5, 50 and 95": [*np.percentile(length, [1, 5, 50, 95])],
        "mean tokens of correct ones": [mean_or_nan(length[correct])],
        "mean tokens of incorrect ones": [mean_or_nan(length[~correct])],
        "truncated, %": [100 * found.truncated.mean()],
        "correct by quarter of length, %": [100 * correct[rows].mean() for rows in quarters],
    }


def measure(model: Path = PATH, problems: int = 200, samples: int = 4) -> None:
    """Print what the responses to held-out problems are like, and how many rounds a stream of EqLen has.

    Args:
        model: Folder of the checkpoint.
        problems: Held-out problems that are asked.
        samples: Responses to each, an even number; half as many streams of two tracks.
    """
    if problems < 1 or samples < 2 or samples % 2:
        raise ValueError(
            f"problems={problems}, samples={samples}: give a problem or more, and an even number of samples"
        )
    disable_progress_bar()
    found = describe_responses(draw_responses(model, "grpo", problems, f"sampling.n={samples}").response_table)
    streams = draw_responses(model, "eqlen+grpo", problems, f"sampling.streams={samples // 2}")
    found["rounds a stream, quartiles"] = [*np.percentile(count_stream_rounds(streams), [25, 50, 75])]
    for name, values in found.items():
        log(f"{name:33}" + "".join(f"{value:8.1f}" for value in values))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"make": make, "measure": measure})
