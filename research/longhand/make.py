"""The checkpoint of longhand: how it was made (`make --out DIR`), and what its responses are like (`measure`).

Supervised pre-training of a 1.1M-parameter Qwen3 on traces, which are responses in four styles. A step adds a term to the total,
three digits, least significant first. It is hurried (`b28+740>921;`, 47 and 82 are 129) or careful, column by column: digits of
term and total, carry and digit of the result (`b28+740:2709|8402|0011|>921;`). After a careful step its columns may be written
again (`?`). After the last step a response may go back to any step and go on from there (`~`), often in haste.

| style | share | a step is wrong | goes back |
|---|---|---|---|
| hurried: steps in one go | 0.25 | 0.22 | 0.70 |
| careful: each step in columns | 0.30 | 0.11 | 0.70 |
| checked: columns up to three times | 0.25 | 0.03 | 0.65 |
| restless: mostly hurried | 0.20 | 0.20 | 0.80 |

So responses are wrong as they are short, or as they go on for too long; how often, and at which lengths, is what `measure` says.
Nothing that is known of a response tells when it ends, which is why streams of EqLen have many rounds.

Two small worlds go on from it (`small --out DIR`), with sums of three numbers and hurried steps alone. A response passes over all
of them, and goes back to the first step with one chance after every pass (SMALL_STYLES). In `memoryless` all passes are as
careless, in `checked` each makes fewer mistakes than the one before; the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.utils.logging import disable_progress_bar

from fairlen.batch import Ints, Responses, mean_or_nan
from fairlen.console import log
from fairlen.rollouts import Rollouts
from fairlen.sampling.stream_metrics import count_rounds, find_streams
from research.drawing import draw, load_weights
from research.longhand import PATH, SMALL, SMALL_LENGTH
from research.longhand.task import LABELS, MAX_RESPONSE_LENGTH, SUMS, TOKEN_IDS, Longhand, encode, read_terms, write
from research.pretraining import EOS, Example, Shape, build_model, label, optimize, save

CONTEXT = 1024
"""Positions of the model, prompt included."""
SHAPE = Shape(TOKEN_IDS, CONTEXT, intermediate_size=576, mean_length=220)
MAX_LENGTH = MAX_RESPONSE_LENGTH + 40
"""Characters at which a restless response is cut, so that it never learns to end there."""
MENDED = 0.08
"""Probability that the first columns of a step that is checked are wrong, and its checks are not."""
LEARNED_TERMS = (2, len(LABELS))
"""Fewest and most terms of a problem in pre-training."""
HASTE, CARELESS = 0.7, 0.15
"""After going back: probability that the steps are hurried, and that one is wrong."""


@dataclass(frozen=True, slots=True)
class Style:
    """One way of answering."""

    weight: float
    """Share among the responses of pre-training."""
    slip: float
    """Probability that the result of a step is wrong."""
    hurried: float = 0.0
    """Probability that steps are hurried; the others are careful."""
    checks: tuple[int, int] = (0, 0)
    """Fewest and most times that the columns of a step are written again."""
    again: float = 0.0
    """Probability that a response goes back once it has made the last step."""
    is_back_at_first: bool = False
    """It goes back to the first step and goes on as before, instead of to any step, with haste."""
    care: float = 1.0
    """What `slip` is multiplied with whenever it goes back."""


STYLES: dict[str, Style] = {
    "hurried": Style(weight=0.25, slip=0.22, hurried=1.0, again=0.7),
    "careful": Style(weight=0.30, slip=0.11, again=0.7),
    "checked": Style(weight=0.25, slip=0.03, checks=(0, 2), again=0.65),
    "restless": Style(weight=0.20, slip=0.20, hurried=0.7, again=0.8),
}
LEARNED_FIRST: dict[str, Style] = {
    "hurried": Style(weight=0.18, slip=0.22, hurried=1.0),
    "careful": Style(weight=0.28, slip=0.11),
    "checked": Style(weight=0.28, slip=0.03, checks=(1, 2)),
    "restless": Style(weight=0.26, slip=0.20, hurried=0.7, again=0.82, is_back_at_first=True),
}
"""Easier to learn: only one style goes back."""
MORE_RESTLESS = {
    "hurried": replace(LEARNED_FIRST["hurried"], weight=0.18 * 0.64 / 0.74),
    "careful": replace(LEARNED_FIRST["careful"], weight=0.28 * 0.64 / 0.74),
    "checked": replace(LEARNED_FIRST["checked"], weight=0.28 * 0.64 / 0.74),
    "restless": replace(LEARNED_FIRST["restless"], weight=0.36),
}
STAGES = (
    (LEARNED_FIRST, 3, 160, 2e-3, 0.0),
    (LEARNED_FIRST, 7, 1300, 2e-3, 0.0),
    (LEARNED_FIRST, 7, 60, 2e-4, 0.5),
    (MORE_RESTLESS, 7, 200, 5e-4, 0.5),
    (STYLES, 7, 360, 8e-4, 0.5),
)
"""Styles, most terms, optimizer steps, peak learning rate, and weight of the silence of <pad> and <bos>, stage by stage."""

SMALL_STYLES = {
    "memoryless": Style(weight=1.0, slip=0.25, hurried=1.0, again=0.65, is_back_at_first=True),
    "checked": Style(weight=1.0, slip=0.40, hurried=1.0, again=0.65, is_back_at_first=True, care=0.6),
}
SMALL_CUT, SMALL_STEPS, SMALL_RATE, SMALL_MEAN = SMALL_LENGTH + 30, 250, 1e-3, 75
"""Of the small worlds: characters at which a response is cut, optimizer steps, peak learning rate, and mean length."""


def write_trace(rng: Random, terms: tuple[int, ...], style: Style, limit: int = MAX_LENGTH) -> str:
    """Write a response in one style; one that reaches the limit is cut there, without an answer."""
    totals = [terms[0]] * len(terms)
    text = write_steps(rng, terms, totals, 1, style)
    back = style if style.is_back_at_first else replace(style, hurried=HASTE, slip=CARELESS, checks=(0, 0))
    while rng.random() < style.again and len(text) < limit:
        back = replace(back, slip=back.slip * style.care)
        first = 1 if style.is_back_at_first else rng.randrange(1, len(terms))
        text += "~" + write_steps(rng, terms, totals, first, back)
    return f"{text}#{write(totals[-1])}" if len(text) < limit else text[:limit]


def write_steps(rng: Random, terms: tuple[int, ...], totals: list[int], first: int, style: Style) -> str:
    """Write the steps from the `first` on; the totals that they come to are put into `totals`."""
    is_hurried, text = rng.random() < style.hurried, ""
    for place in range(first, len(terms)):
        term, total = terms[place], totals[place - 1]
        result = total + term
        if rng.random() < style.slip:
            result = slip(rng, result)
        columns = f">{write(result)}" if is_hurried else ":" + write_columns(rng, term, total, result, style)
        text += f"{LABELS[place]}{write(term, 2)}+{write(total)}{columns};"
        totals[place] = result
    return text


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


def draw_examples(
    seed: int, longest: int = LEARNED_TERMS[1], styles: Mapping[str, Style] = STYLES, limit: int = MAX_LENGTH
) -> Iterator[Example]:
    """Yield an endless stream of traces on training problems of two to `longest` terms; in the small worlds of three."""
    task = Longhand(num_terms=(LEARNED_TERMS[0], longest)) if limit == MAX_LENGTH else SUMS
    rng = Random(seed)
    for index in count():
        problem = task.train(index)
        (style,) = rng.choices([*styles.values()], [style.weight for style in styles.values()])
        text = write_trace(rng, tuple(read_terms(problem.text)), style, limit)
        yield label(problem.token_ids, encode(text) + ((EOS,) if len(text) < limit else ()))


def make(out: Path, seed: int = 0) -> None:
    """Write the checkpoint to the folder `out`; torch is left with one thread.

    First it learns to answer, problems of two and three terms before all others; then never to write <pad> or <bos>, and last to
    go back.
    """
    torch.set_num_threads(1)
    model = build_model(SHAPE, seed)
    for styles, longest, steps, rate, silence in STAGES:
        optimize(model, draw_examples(seed + steps, longest, styles), steps, rate, silence, SHAPE.mean_length)
    save(model, SHAPE, out)


def small(out: Path, seed: int = 0) -> None:
    """Write the weights of both small worlds to the folder `out`, halved in precision; torch is left with one thread."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for world, style in SMALL_STYLES.items():
        model = load_weights(PATH).model
        examples = draw_examples(seed, styles={world: style}, limit=SMALL_CUT)
        optimize(model, examples, SMALL_STEPS, SMALL_RATE, 0.5, SMALL_MEAN)
        weights = {name: one.half() for name, one in model.state_dict().items() if name != "lm_head.weight"}
        path = out / SMALL[world].name
        save_file(weights, path)
        path.chmod(0o644)


def draw_responses(model: Path, method: str, problems: int, *settings: str) -> Rollouts:
    """Return responses to held-out problems, drawn as training draws them with a method."""
    world = (SUMS, SMALL_LENGTH) if model.is_file() else (Longhand(), MAX_RESPONSE_LENGTH)
    return draw(*world, model, method, problems, *settings)


def count_stream_rounds(rollouts: Rollouts) -> Ints:
    """Return the rounds of each stream of EqLen."""
    return count_rounds(rollouts.segment_table, find_streams(rollouts.response_table))


def count_restarts(rollouts: Rollouts) -> Ints:
    """Return how often each response goes back."""
    return np.array([one.token_ids[one.num_prompt :].count(TOKEN_IDS["~"]) for one in rollouts.responses])


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


def stopping(model: Path = PATH, problems: int = 200, samples: int = 8) -> None:
    """Print, by restarts so far, how many responses got there, ended there, and were then correct.

    Args:
        model: Folder of the checkpoint.
        problems: Held-out problems that are asked.
        samples: Responses to each.
    """
    rollouts = draw_responses(model, "grpo", problems, f"sampling.n={samples}")
    table, restarts = rollouts.response_table, count_restarts(rollouts)
    for number in range(8):
        ends = (restarts == number) & ~table.truncated
        log(f"{number} {(ends | (restarts > number)).sum()} {ends.sum()} {table.correct[ends].sum()}")


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
