"""Effects of methods on length, measured on the same made rollouts or on somebody's own: no model, no training, seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np

from fairlen.audit.numbers import plain as to_data
from fairlen.audit.readers import Options, read
from fairlen.audit.statistics.intervals import Bins, length_bins, ratio
from fairlen.batch import Floats, Ints, Responses, build_responses, mean_by, mean_or_nan, sum_by
from fairlen.channels import OBSERVATION, name_channel
from fairlen.console import log, make_console, print_table, warn
from fairlen.files.folders import write_file
from fairlen.methods.compose import explain
from fairlen.methods.method import Method
from fairlen.methods.rows import RowPlan, plan_rows
from fairlen.precision import tolerance
from fairlen.report import figure
from fairlen.report.page import render_page
from fairlen.report.prompts import relate

NUM_PROMPTS, NUM_TRACKS, BUDGET, SPREAD = 512, 16, 1024, 0.03
MADE = (
    f"{NUM_PROMPTS} prompts x {NUM_TRACKS} responses, drawn once: solved between 5% and 95% of the time, incorrect responses "
    f"half as long again as correct ones, truncated at {BUDGET:,} tokens; log ratios of tokens are independent, of standard "
    f"deviation {SPREAD}."
)
THIRDS, FINE = 3, 12  # bins of length of the table, and of the picture
HEAD = ("method", "weight of a token: short", "middle", "long", "shorter over longer", "EOS")
INSIDE = ("inside: short", "middle", "long")
PARTS = ("incorrect: short", "middle", "long", "correct: short", "middle", "long")
MEANING = (
    "weight of a token: over the mean of all tokens, in thirds of the responses by length; shorter over longer: advantage of the "
    "shorter half of a prompt's correct responses less that of the longer half; EOS: sum of weight * advantage over that of its "
    "size, at EOS; inside: share of tokens within the two-sided bound, mean over responses; "
    "incorrect, correct: share of weight * size of the advantage * tokens"
)
SMALL = 0.01  # difference of advantages, or net advantage, that is called none


@dataclass(frozen=True)
class WeighedRollouts:
    """Whole responses that methods weigh, each rollout batch as one update."""

    title: str
    table: Responses
    batch: Ints  # [N]
    log_ratio: Floats  # [T]; empty where none are made
    unit: str = "tokens"

    def plan(self, method: Method) -> RowPlan:
        """Return the plans of all rollout batches as one; truncated responses count, with a verdict or without."""
        found = [np.zeros(len(self.table)) for _ in range(4)]
        for rows in (np.flatnonzero(self.batch == one) for one in np.unique(self.batch)):
            part = self.table.take(rows)
            with catch_warnings(action="ignore"):  # that a batch trains nothing
                plan = plan_rows(
                    method, groups=part.prompt, lengths=part.length, rewards=np.nan_to_num(part.outcome),
                    correct=np.where(part.active | part.truncated, part.correct, np.nan), truncated=part.truncated,
                    max_response_length=part.max_response_length, channels=part.channels or None,
                )  # fmt: skip
            for column, name in zip(found, ("trains", "advantage", "weight", "term_weight"), strict=True):
                column[rows] = getattr(plan, name)
        return RowPlan(found[0] > 0, *found[1:], method=method)


@cache
def make_rollouts() -> WeighedRollouts:
    """Return the rollout batch; RandomState draws the same in every version of numpy."""
    draw = np.random.RandomState(0)
    prompt = np.repeat(np.arange(NUM_PROMPTS), NUM_TRACKS)
    correct = draw.uniform(size=len(prompt)) < draw.uniform(0.05, 0.95, NUM_PROMPTS)[prompt]
    size = draw.lognormal(np.log(120.0), 0.9, len(prompt)) * np.where(correct, 1.0, 1.5)
    length = np.clip(np.round(size), 1, BUDGET).astype(np.int64)
    log_ratio = draw.normal(-(SPREAD**2) / 2, SPREAD, int(length.sum()))
    title = f"the same {NUM_PROMPTS * NUM_TRACKS:,} made responses"
    table = build_responses(prompt, length, correct.astype(np.float64), correct, length == BUDGET, BUDGET)
    return WeighedRollouts(title, table, 0 * prompt, log_ratio)


def read_rollouts(place: str, tokenizer: str = "") -> WeighedRollouts:
    """Return the whole responses of somebody's log. Raises ValueError where there is not one log."""
    reading = read([place], Options(tokenizer=tokenizer))
    if len(reading.sources) != 1:
        found = "; ".join(reading.unreadable) or ", ".join(one.folder for one in reading.sources) or "no rollouts there"
        raise ValueError(f"--rollouts {place}: {found}; name files of one format in one folder, as for fairlen audit")
    log = reading.sources[0].log
    if log.obstacle:
        raise ValueError(f"--rollouts {place}: {log.obstacle}")
    rows = log.responses.round == 0
    table = replace(log.responses, correct=log.correct).take(rows)
    title = f"{len(table):,} responses of {reading.sources[0].folder}"
    title += f", whose lengths are {log.unit}" * (log.unit != "tokens")
    if len(thirds := length_bins(table.length, THIRDS)) < THIRDS:
        raise ValueError(f"--rollouts {place}: {title}, too few, or of too few lengths, to compare short and long ones")
    title += f"; thirds by length are {', '.join(thirds.names())}"
    title += "".join(f"; {clause}" for clause in (*log.caveats, *map(str, log.questions)))
    title += f"; {log.grouping}" if log.grouping else ""
    if log.question:
        warn(f"--rollouts {place}: {log.question}")
    return WeighedRollouts(title, table, log.batch[rows], np.zeros(0), log.unit)


@dataclass(frozen=True)
class LengthEffect:
    name: str
    weight: Floats  # mean weight of a token in each third over that of all tokens, [3]
    shorter: float
    """Advantage of the shorter half of a prompt's correct responses less that of the longer half, mean over prompts."""
    eos: float  # sum of weight * advantage at EOS, over the sum of its size there: above 0 stopping is reinforced
    inside: Floats  # share of a response's tokens within the two-sided bound, mean of each third, [3]; nan without log ratios
    parts: Floats  # share of weight * |advantage| * tokens of incorrect and of correct responses in each third, [2, 3]
    channels: dict[str, float]  # share of the same by channel; empty of rollouts with one
    curves: dict[str, Floats]  # the same in finer bins, for the picture

    def describe(self) -> str:
        (low, light), (high, heavy) = sorted(zip(self.weight[[0, 2]].tolist(), ("short", "long"), strict=True))
        more = f"a token of a {heavy} response weighs {high / low:.2g} times one of a {light}"
        weighs = "every token weighs the same" if high < 1.05 * low else more
        weighs = weighs if np.isfinite(self.weight).all() else "a third by length trains nothing"
        gain = f"{abs(self.shorter):.2g} {'more' if self.shorter > 0 else 'less'} than"
        worth = f"is worth {gain if abs(self.shorter) > SMALL else 'as much as'} a long one"
        worth = "has no longer one beside it" if math.isnan(self.shorter) else worth
        pushed = f"{'reinforced' if self.eos > 0 else 'penalised'}, net {self.eos:+.2g}"
        push = pushed if abs(self.eos) > SMALL else "neutral"
        short, _, long = map(figure.share, self.inside.tolist())
        bound = f"; inside the bound are {short} of short and {long} of long responses" * bool((self.inside < 1).any())
        parts = ", ".join(f"{name_channel(name)} {figure.share(part)}" for name, part in self.channels.items())
        bound += f"; of its weight have {parts}" if parts else ""
        return f"{self.name}: {weighs}; a short correct response {worth}; EOS is {push}{bound}"


def measure(names: str, rows: WeighedRollouts | None = None) -> LengthEffect:
    """Measure a method, on made rollouts by default.

    Raises ValueError for an unknown one, and for one that chooses what is generated or reads columns of the data.
    """
    found, rows = explain(names), rows or make_rollouts()
    if found.method.reads:
        raise ValueError(f"{names}: it reads {', '.join(found.method.reads)}, which rollouts do not hold: leave it out")
    plan = rows.plan(found.method)
    push = np.where(rows.table.truncated, 0.0, plan.weight * plan.advantage)
    inside = share_inside(found.method, plan, rows) if len(rows.log_ratio) else np.full(len(rows.table.length), np.nan)
    (weight, held, parts), (fine_weight, fine_held, fine_parts) = (
        by_bin(length_bins(rows.table.length, size), plan, rows, inside) for size in (THIRDS, FINE)
    )
    eos = float(ratio(push.sum(), np.abs(push).sum()))
    curves = {"weight": fine_weight, "inside": fine_held, "incorrect": fine_parts[0], "correct": fine_parts[1]}
    shorter, channels = shorter_over_longer(plan, rows), by_channel(plan, rows)
    return LengthEffect(found.name, weight, shorter, eos, held, parts, channels, curves)


def by_channel(plan: RowPlan, rows: WeighedRollouts) -> dict[str, float]:
    """Return each channel's share of weight * size of the advantage over the tokens that were generated."""
    spent = {name: tokens for name, tokens in rows.table.channels.items() if name != OBSERVATION}
    moved = {name: float((plan.weight * np.abs(plan.advantage) * tokens).sum()) for name, tokens in spent.items()}
    total = sum(moved.values())
    return {name: one / total if total else math.nan for name, one in moved.items()}


def by_bin(bins: Bins, plan: RowPlan, rows: WeighedRollouts, inside: Floats) -> tuple[Floats, Floats, Floats]:
    size, tokens = len(bins), rows.table.length * plan.trains
    per_token = ratio(sum_by(bins.index, plan.weight * tokens, size), sum_by(bins.index, tokens, size))
    held = ratio(sum_by(bins.index, inside * plan.trains, size), sum_by(bins.index, plan.trains, size))
    moved, is_correct = plan.weight * np.abs(plan.advantage) * tokens, rows.table.correct.astype(np.int64)
    parts = sum_by(is_correct * size + bins.index, moved, 2 * size).reshape(2, size)
    return per_token * float(ratio(tokens.sum(), (plan.weight * tokens).sum())), held, ratio(parts, parts.sum())


def shorter_over_longer(plan: RowPlan, rows: WeighedRollouts) -> float:
    """Return the mean over prompts with correct responses on both sides of their median length; nan where there are none."""
    chosen = rows.table.correct & plan.trains
    names, prompt = np.unique(rows.table.prompt[chosen], return_inverse=True)
    advantage, length = plan.advantage[chosen], rows.table.length[chosen].astype(np.float64)
    relative, _ = relate(prompt, length, chosen[chosen])
    sides = (relative < 0, relative > 0)
    both = np.logical_and(*(np.bincount(prompt[side], minlength=len(names)) > 0 for side in sides))
    short, long = (mean_by(prompt[side], advantage[side], len(names))[both] for side in sides)
    apart = np.where(np.abs(short - long) <= tolerance(np.abs(short), parts=len(advantage)), 0.0, short - long)
    return mean_or_nan(apart)


def share_inside(method: Method, plan: RowPlan, rows: WeighedRollouts) -> Floats:
    """Return the share of each response's tokens within the bound, [N]; a band that learns has seen these rollouts once."""
    import torch

    from fairlen.methods.stages.micro import Micro, Outputs

    columns = plan.to("cpu", torch.float64)
    length, log_ratio = map(torch.from_numpy, (rows.table.length, rows.log_ratio))
    micro = Micro.of(length, columns.advantage, columns.weight, columns.term_weight, -1.0 - log_ratio)
    outputs = Outputs(torch.full_like(log_ratio, -1.0), log_ratio)
    method = method.update(method.observe(outputs, micro))
    inside = method.surrogate(outputs.logprobs, micro).inside
    return (micro.sum_per_sequence(inside.double()) / micro.length).numpy()


def cells_of(effect: LengthEffect) -> list[str]:
    last = effect.parts.ravel() if np.isnan(effect.inside).all() else effect.inside
    weight = map(figure.plain, effect.weight.tolist())
    signed = ("-" if math.isnan(one) else f"{one:+.3f}" for one in (effect.shorter, effect.eos))
    return [effect.name, *weight, *signed, *map(figure.share, last.tolist())]


def head_of(rows: WeighedRollouts) -> tuple[str, ...]:
    return (*HEAD, *(INSIDE if len(rows.log_ratio) else PARTS))


def run(names: Sequence[str], out: str, as_json: bool, place: str = "", tokenizer: str = "") -> int:
    """Compare methods on made rollouts, or on those of a place."""
    rows = read_rollouts(place, tokenizer) if place else make_rollouts()
    if len(rows.log_ratio) and not find_spec("torch"):
        rows = replace(rows, log_ratio=rows.log_ratio[:0])
        warn("what bounds let through is left out, as it needs torch: pip install '.[train]' in the checkout")
    effects = [measure(name, rows) for name in dict.fromkeys(names)]
    if out:
        write_effects(effects, out, rows)
    if as_json:
        log(json.dumps([to_json(effect) for effect in effects], indent=1))
    else:
        console = make_console(160)
        print_table(console, f"on {rows.title}", head_of(rows), map(cells_of, effects), left=(0,))
        for line in (*(effect.describe() for effect in effects), MEANING):
            console.print(line, soft_wrap=True)
    return 0


def to_json(effect: LengthEffect) -> dict[str, Any]:
    numbers = {key: value for key, value in asdict(effect).items() if key != "curves"}
    return to_data(numbers) | {"summary": effect.describe()}


def write_effects(effects: Sequence[LengthEffect], out: str, rows: WeighedRollouts) -> None:
    """Raises ValueError for more methods than there are colours."""
    if len(effects) > len(figure.TONES):
        raise ValueError(f"--out draws up to {len(figure.TONES)} methods and was given {len(effects)}: name fewer")
    draw = partial(draw_curves, effects, length_bins(rows.table.length, FINE), rows.unit)
    is_made = len(rows.log_ratio) > 0
    table, first = figure.Table(head_of(rows), [*map(cells_of, effects)]), "Weight of a token by length of its response"
    others = {key: f"Weight of {key} responses by length" for key in ("incorrect", "correct")}
    says = "Share of weight * size of the advantage * tokens of all responses: both pictures of a method add up to 1."
    if is_made:
        others, says = {"inside": "Share of tokens within the bound by length"}, "Two-sided, mean over responses."
    figures = [
        figure.Figure(first, "Over the mean of all tokens: 1 is the same for all.", draw("weight", figure.plain, first), table,
               f"{MEANING[0].upper()}{MEANING[1:]}."),
        *(figure.Figure(title, says, draw(key, figure.share, title)) for key, title in others.items()),
    ]  # fmt: skip
    notes = [f"{effect.describe()}." for effect in effects]
    head = {"name": "What methods do to length", "folder": rows.title, "kind": "methods", "notes": notes}
    shown = figure.Section(
        "methods", "By length", MADE if is_made else f"{rows.title[:1].upper()}{rows.title[1:]}.", figures
    )
    write_file(Path(out), render_page(head, [], [shown]).encode())


def draw_curves(effects: Sequence[LengthEffect], bins: Bins, unit: str, key: str, form: Any, label: str) -> Any:
    found = [effect.curves[key] for effect in effects]
    x, tones = figure.middles(len(bins)), figure.TONES[: len(effects)]
    series = [figure.Series(e.name, x, y, tone, form=form) for e, y, tone in zip(effects, found, tones, strict=True)]
    return figure.lines(figure.by_length(bins, figure.nice_axis(found, form, zero=True), "length", unit), series, label)
