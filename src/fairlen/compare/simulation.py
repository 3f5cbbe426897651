"""Effects of methods on length, measured on the same made rollouts: no model, no training, seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.audit.statistics.intervals import Bins, length_bins, ratio
from fairlen.batch import Bools, Floats, Ints, mean_by, mean_or_nan, sum_by
from fairlen.console import log, make_console, print_table
from fairlen.files.folders import write_file
from fairlen.methods.compose import explain
from fairlen.methods.method import Method
from fairlen.methods.rows import plan_rows
from fairlen.precision import tolerance
from fairlen.report.figure import (
    TONES,
    Figure,
    Section,
    Series,
    Table,
    by_length,
    lines,
    middles,
    nice_axis,
    plain,
    share,
)
from fairlen.report.page import render_page

NUM_PROMPTS, NUM_TRACKS, BUDGET, SPREAD = 512, 16, 1024, 0.03
MADE = (
    f"{NUM_PROMPTS} prompts x {NUM_TRACKS} responses, drawn once: solved between 5% and 95% of the time, incorrect responses "
    f"half as long again as correct ones, truncated at {BUDGET:,} tokens; log ratios of tokens are independent, of standard "
    f"deviation {SPREAD}."
)
THIRDS, FINE = 3, 12  # bins of length of the table, and of the picture
HEAD = (
    "method", "weight of a token: short", "middle", "long", "shorter over longer", "EOS", "inside: short", "middle", "long",
)  # fmt: skip
MEANING = (
    "weight of a token: over the mean of all tokens, in thirds of the responses by length; shorter over longer: advantage of the "
    "shorter half of a prompt's correct responses less that of the longer half; EOS: sum of weight * advantage over that of its "
    "size, at EOS; inside: share of tokens within the two-sided bound, mean over responses"
)
SMALL = 0.01  # difference of advantages, or net advantage, that is called none


@dataclass(frozen=True)
class MadeRollouts:
    """Columns [N], log ratios [T]."""

    prompt: Ints
    length: Ints
    correct: Bools
    log_ratio: Floats

    @property
    def truncated(self) -> Bools:
        return self.length == BUDGET


@cache
def make_rollouts() -> MadeRollouts:
    """Return the rollout batch; RandomState draws the same in every version of numpy."""
    draw = np.random.RandomState(0)
    prompt = np.repeat(np.arange(NUM_PROMPTS), NUM_TRACKS)
    correct = draw.uniform(size=len(prompt)) < draw.uniform(0.05, 0.95, NUM_PROMPTS)[prompt]
    size = draw.lognormal(np.log(120.0), 0.9, len(prompt)) * np.where(correct, 1.0, 1.5)
    length = np.clip(np.round(size), 1, BUDGET).astype(np.int64)
    return MadeRollouts(prompt, length, correct, draw.normal(-(SPREAD**2) / 2, SPREAD, int(length.sum())))


@dataclass(frozen=True)
class LengthEffect:
    name: str
    weight: Floats  # mean weight of a token in each third over that of all tokens, [3]
    shorter: float
    """Advantage of the shorter half of a prompt's correct responses less that of the longer half, mean over prompts."""
    eos: float  # sum of weight * advantage at EOS, over the sum of its size there: above 0 stopping is reinforced
    inside: Floats  # share of a response's tokens within the two-sided bound, mean of each third, [3]
    curves: dict[str, Floats]  # `weight` and `inside` in finer bins, for the picture

    def describe(self) -> str:
        (low, light), (high, heavy) = sorted(zip(self.weight[[0, 2]].tolist(), ("short", "long"), strict=True))
        weighs = f"a token of a {heavy} response weighs {high / low:.2g} times one of a {light}"
        if high < 1.05 * low:
            weighs = "every token weighs the same"
        worth = "as much as"
        if abs(self.shorter) > SMALL:
            worth = f"{abs(self.shorter):.2g} {'more' if self.shorter > 0 else 'less'} than"
        push = (
            f"{'reinforced' if self.eos > 0 else 'penalised'}, net {self.eos:+.2g}"
            if abs(self.eos) > SMALL
            else "neutral"
        )
        short, _, long = map(share, self.inside.tolist())
        bound = (
            "" if (self.inside == 1).all() else f"; inside the bound are {short} of short and {long} of long responses"
        )
        return f"{self.name}: {weighs}; a short correct response is worth {worth} a long one; EOS is {push}{bound}"


def measure(names: str) -> LengthEffect:
    """Measure a method. Raises ValueError for an unknown one, and for one that chooses what is generated."""
    found, rows = explain(names), make_rollouts()
    plan = plan_rows(
        found.method, groups=rows.prompt, lengths=rows.length, rewards=rows.correct.astype(np.float64),
        truncated=rows.truncated, max_response_length=BUDGET,
    )  # fmt: skip
    push = np.where(rows.truncated, 0.0, plan.weight * plan.advantage)
    inside = share_inside(found.method, plan, rows)
    (weight, held), (fine_weight, fine_held) = (
        by_bin(length_bins(rows.length, size), plan, rows, inside) for size in (THIRDS, FINE)
    )
    eos = float(ratio(push.sum(), np.abs(push).sum()))
    curves = {"weight": fine_weight, "inside": fine_held}
    return LengthEffect(found.name, weight, shorter_over_longer(plan, rows), eos, held, curves)


def by_bin(bins: Bins, plan: Any, rows: MadeRollouts, inside: Floats) -> tuple[Floats, Floats]:
    size, tokens = len(bins), rows.length * plan.trains
    per_token = ratio(sum_by(bins.index, plan.weight * tokens, size), sum_by(bins.index, tokens, size))
    held = ratio(sum_by(bins.index, inside * plan.trains, size), sum_by(bins.index, plan.trains, size))
    return per_token * float(tokens.sum() / (plan.weight * tokens).sum()), held


def shorter_over_longer(plan: Any, rows: MadeRollouts) -> float:
    """Return the mean over prompts with correct responses on both sides of their median length; nan where there are none."""
    chosen = rows.correct & plan.trains
    prompt, length, advantage = rows.prompt[chosen], rows.length[chosen], plan.advantage[chosen]
    median = np.array(
        [np.median(length[prompt == one]) if (prompt == one).any() else 0.0 for one in range(NUM_PROMPTS)]
    )
    sides = [(length < median[prompt]), (length > median[prompt])]
    both = np.logical_and(*(np.bincount(prompt[side], minlength=NUM_PROMPTS) > 0 for side in sides))
    short, long = (mean_by(prompt[side], advantage[side], NUM_PROMPTS)[both] for side in sides)
    apart = np.where(np.abs(short - long) <= tolerance(np.abs(short), parts=len(advantage)), 0.0, short - long)
    return mean_or_nan(apart)


def share_inside(method: Method, plan: Any, rows: MadeRollouts) -> Floats:
    """Return the share of each response's tokens within the bound, [N]; a band that learns has seen these rollouts once."""
    import torch

    from fairlen.methods.stages.micro import Micro, Outputs

    columns = plan.to("cpu", torch.float64)
    log_ratio = torch.from_numpy(rows.log_ratio)
    micro = Micro.of(
        torch.from_numpy(rows.length), columns.advantage, columns.weight, columns.term_weight, -1.0 - log_ratio
    )
    outputs = Outputs(torch.full_like(log_ratio, -1.0), log_ratio)
    method = method.update(method.observe(outputs, micro))
    inside = method.surrogate(outputs.logprobs, micro).inside
    return (micro.sum_per_sequence(inside.double()) / micro.length).numpy()


def cells_of(effect: LengthEffect) -> list[str]:
    weight, inside = (
        [form(float(v)) for v in values] for form, values in ((plain, effect.weight), (share, effect.inside))
    )
    return [effect.name, *weight, f"{effect.shorter:+.3f}", f"{effect.eos:+.3f}", *inside]


def run(names: Sequence[str], out: str, as_json: bool) -> int:
    effects = [measure(name) for name in dict.fromkeys(names)]
    if out:
        write_effects(effects, out)
    if as_json:
        log(json.dumps([to_json(effect) for effect in effects], indent=1))
    else:
        title = f"on the same {NUM_PROMPTS * NUM_TRACKS:,} made responses"
        console = make_console(160)
        print_table(console, title, HEAD, map(cells_of, effects), left=(0,))
        for line in (*(effect.describe() for effect in effects), MEANING):
            console.print(line, soft_wrap=True)
    return 0


def to_json(effect: LengthEffect) -> dict[str, Any]:
    numbers = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in asdict(effect).items()}
    return {key: value for key, value in numbers.items() if key != "curves"} | {"summary": effect.describe()}


def write_effects(effects: Sequence[LengthEffect], out: str) -> None:
    """Raises ValueError for more methods than there are colours."""
    if len(effects) > len(TONES):
        raise ValueError(f"--out draws up to {len(TONES)} methods and was given {len(effects)}: name fewer")
    bins = length_bins(make_rollouts().length, FINE)
    draw = partial(draw_curves, effects, bins)
    names = "Weight of a token by length of its response", "Share of tokens within the bound by length"
    figures = [
        Figure(names[0], "Over the mean of all tokens: 1 is the same for all.", draw("weight", plain, names[0]),
               Table(HEAD, [cells_of(effect) for effect in effects]), f"{MEANING[0].upper()}{MEANING[1:]}."),
        Figure(names[1], "Two-sided, mean over responses.", draw("inside", share, names[1])),
    ]  # fmt: skip
    notes = [f"{effect.describe()}." for effect in effects]
    head = {"name": "What methods do to length", "folder": "made rollouts", "kind": "methods", "notes": notes}
    write_file(Path(out), render_page(head, [], [Section("methods", "By length", MADE, figures)]).encode())


def draw_curves(effects: Sequence[LengthEffect], bins: Bins, key: str, form: Any, label: str) -> Any:
    found = [effect.curves[key] for effect in effects]
    series = [
        Series(e.name, middles(len(bins)), y, tone, form=form)
        for e, y, tone in zip(effects, found, TONES[: len(effects)], strict=True)
    ]
    return lines(by_length(bins, nice_axis(found, form, zero=True), "length", "tokens"), series, label)
