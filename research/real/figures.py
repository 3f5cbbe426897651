"""Figures of phase A, one function each, from the kept tables alone; intervals are over prompts, by bootstrap or jackknife."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fairlen.audit.statistics.intervals import ratio
from fairlen.batch import Floats, Ints, Responses, mean_or_nan, sum_by
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.reward import TopLambda
from fairlen.rollouts import Rollouts
from fairlen.sampling.stream_metrics import find_finishers, order_streams
from recipes.replay_bands import WIDTHS, critical_factor, factor_for
from research.real.draws import read_draws
from research.real.world import ABOUT
from research.study.quantities import cross_fit

NUM_BINS, NUM_RESAMPLES, NUM_FOLDS, SHARE = 6, 2000, 32, 0.8
RULES = {
    "max": "eqlen+grpo", "mean": "eqlen+grpo:mean", "halving": "eqlen+grpo:halving", "unbiased": "eqlen_unbiased",
}  # fmt: skip
"""Rules for the worth of a survivor."""
AGGREGATIONS = ("grpo", "dapo", "dr_grpo", "dapo+balanced", "grpo+vl_norm")
BANDS = ("rloo", "gspo", "fspo", "fspo_v3")
FAIR = "fspo_v3"
Row = dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """What was drawn and computed, all files of a kind joined; prompts are numbered through."""

    independent: Rollouts
    streams: Rollouts
    sketches: Floats
    """Of the first responses, [N, SIZE]."""
    log_ratio: Floats
    """Of all independent responses, [R]."""
    stepped: int
    """Prompts that the update was made on, the first ones."""


def load(out: Path) -> Evidence:
    """Return the evidence of a folder. Raises ValueError where a part is missing."""
    about = json.loads((out / ABOUT).read_text(encoding="utf-8"))
    length, chunk = about["max_response_length"], about["sizes"]["chunk"]
    drawn = {kind: read_draws(out / kind, length) for kind in ("independent", "streams")}
    tables = {name: [pq.read_table(path) for path in sorted((out / name).glob("*.parquet"))] for name in
              ("gradients", "before", "after")}  # fmt: skip
    if lacking := [name for name, found in {**drawn, **tables}.items() if not found]:
        raise ValueError(f"{out}: there is no {lacking[0]} yet: python -m research.real --out {out} goes on")
    sketches = np.concatenate([np.stack(one["sketch"].to_numpy(zero_copy_only=False)) for one in tables["gradients"]])
    before, after = (
        np.concatenate([one["logprob"].to_numpy() for one in tables[name]]) for name in ("before", "after")
    )
    return Evidence(join(drawn["independent"]), join(drawn["streams"]), sketches, after - before, chunk)


def join(parts: Sequence[Rollouts]) -> Rollouts:
    """Return rollouts of several files as one, prompts numbered on."""
    found, place = parts[0], parts[0].response_table.num_prompts
    for part in parts[1:]:
        rows = tuple(replace(one, prompt=one.prompt + place) for one in part.responses)
        place += part.response_table.num_prompts
        found = found.join(Rollouts(rows, part.segments, part.max_response_length))
    return found


def resampled(measure: Callable[[Floats], float], num: int) -> Row:
    """Return a number and its 95% interval over prompts, as a function of how often each of them counts, [P]."""
    rng = np.random.default_rng(0)
    drawn = [
        measure(np.bincount(rng.integers(num, size=num), minlength=num).astype(float)) for _ in range(NUM_RESAMPLES)
    ]
    known = [one for one in drawn if np.isfinite(one)]
    low, high = np.quantile(known, [0.025, 0.975]) if known else (np.nan, np.nan)
    return {"value": measure(np.ones(num)), "low": float(low), "high": float(high), "prompts": num}


def ratio_over(prompt: Ints, above: Floats | Ints, below: Floats | Ints, num: int) -> Row:
    """Return a ratio of two sums over rows."""
    sums = sum_by(prompt, above, num), sum_by(prompt, below, num)
    return resampled(lambda weight: float(ratio(weight @ sums[0], weight @ sums[1])), num)


def without_each(prompt: Ints, measure: Callable[[Ints], float]) -> Row:
    """Return a number of rows and its 95% interval from leaving out each of NUM_FOLDS parts of the prompts (jackknife): what
    halves prompts itself would take one that is drawn twice for two."""
    every, fold = np.arange(len(prompt)), prompt % NUM_FOLDS
    parts = np.array([measure(every[fold != one]) for one in np.unique(fold)])
    value, half = measure(every), 1.96 * float(np.sqrt((len(parts) - 1) * parts.var()))
    return {"value": value, "low": value - half, "high": value + half, "prompts": len(np.unique(prompt))}


def stopping(found: Evidence) -> Iterator[Row]:
    """Yield, by what had been written, the chance to stop at a token, and how often those that stopped were correct."""
    table = found.independent.response_table
    edges = np.unique(np.quantile(table.length, np.linspace(0, 1, NUM_BINS + 1)).astype(int))
    for low, high in zip([0, *edges[1:-1]], edges[1:], strict=True):
        ends = (table.length > low) & (table.length <= high) & ~table.truncated
        tokens = np.clip(table.length - low, 0, high - low)
        named = {"from": int(low) + 1, "to": int(high)}
        yield named | {"what": "stops"} | ratio_over(table.prompt, ends, tokens, table.num_prompts)
        yield named | {"what": "correct"} | ratio_over(table.prompt, ends & table.correct, ends, table.num_prompts)


def pair_cost(found: Evidence) -> Iterator[Row]:
    """Yield the tokens generated for a pair over those of two independent responses, and pairs a stream."""
    streams, alone = found.streams, found.independent.response_table
    num, table = alone.num_prompts, streams.response_table
    own = table.length - np.array([one.inherited for one in streams.responses])
    pairs = sum_by(table.prompt[streams.segment_table.response], np.full(len(streams.segments), 0.5), num)
    tokens, starts = sum_by(table.prompt, own, num), order_streams(table)[1].sum()
    lengths, ones = sum_by(alone.prompt, alone.length, num), sum_by(alone.prompt, np.ones(len(alone)), num)

    def cost(weight: Floats) -> float:
        return float((weight @ tokens) / (weight @ pairs) / (2.0 * (weight @ lengths) / (weight @ ones)))

    yield {"what": "tokens of a pair over those of two responses"} | resampled(cost, num)
    yield {"what": "pairs a stream", "value": float(pairs.sum() / starts)}


def rule_of(name: str) -> Method:
    """Return the method of a rule, such as eqlen+grpo:mean."""
    text, _, reward = name.partition(":")
    return compose(text, [f"sampling.survivor_reward={reward}"] if reward else [])


def eos_advantage(found: Evidence) -> Iterator[Row]:
    """Yield, by rule, the value of a finisher less that of the survivor beside it, over pairs that one track ended.

    Where stopping is memoryless and a response as often correct whatever its length, v: v - 1 + (1 - v)^n under the maximum of n
    later ends, and 0 under averages.
    """
    for rule, name in RULES.items():
        method = rule_of(name)
        table = found.streams.response_table
        rollouts = Rollouts(
            found.streams.responses, method.sampling.cut(found.streams.responses), table.max_response_length
        )
        segments = rollouts.segment_table
        value = method.sampling.value(table, segments, table.outcome)
        survivor = np.flatnonzero(segments.survivor)
        gap = value[find_finishers(segments)[segments.group[survivor]]] - value[survivor]
        known = np.isfinite(gap)
        rows, weight = survivor[known], segments.mass[survivor[known]]
        yield {"rule": rule} | ratio_over(
            table.prompt[segments.response[rows]], weight * gap[known], weight, table.num_prompts
        )


def penalised_prefixes(found: Evidence) -> Iterator[Row]:
    """Yield, of prefixes from which an incorrect response came, how many led to a correct one as well.

    A stream forks at each of its prefixes: the responses that end after a round all continue what survived it.
    """
    table = found.streams.response_table
    order, first = order_streams(table)
    starts = [*np.flatnonzero(first), len(order)]
    prompt, both, wrong = list[int](), list[float](), list[float]()
    for begin, end in pairwise(starts):
        correct = table.correct[order[begin:end]]
        for place in range(1, len(correct) - 1):  # from two later ends on
            later = correct[place:]
            prompt.append(int(table.prompt[order[begin]]))
            wrong.append(float((~later).sum()))
            both.append(float((~later).sum()) if later.any() else 0.0)
    yield {"what": "of penalised prefixes"} | ratio_over(
        np.array(prompt, int), np.array(both), np.array(wrong), table.num_prompts
    )


def length_gap(found: Evidence) -> Iterator[Row]:
    """Yield by how many percent of the mean incorrect responses to a prompt are longer than correct ones."""
    table = found.independent.response_table
    num, side = table.num_prompts, 2 * table.prompt + table.correct
    counts = np.bincount(side, minlength=2 * num)
    means = ratio(sum_by(side, table.length, 2 * num), counts).reshape(num, 2)
    both = np.isfinite(means).all(1)
    every = ratio(sum_by(table.prompt, table.length, num), counts.reshape(num, 2).sum(1))
    gap = np.where(both, 100.0 * (means[:, 0] - means[:, 1]) / every, 0.0)
    yield {"what": "gap, percent"} | resampled(lambda weight: float(ratio(weight @ gap, weight @ both)), num)
    yield {"what": "prompts with both verdicts", "value": float(both.mean())}


def directions(found: Evidence) -> Iterator[Row]:
    """Yield the cosine of each aggregation's gradient and the leave-one-out one, of sums over the same responses."""
    rows = np.arange(len(found.sketches))
    table = found.independent.response_table.take(rows)
    num = table.num_prompts
    loo = leave_one_out(table)
    for name in AGGREGATIONS:
        method = compose(name)
        segments = found.independent.segment_table.take(rows)
        plan = method.plan(method.score_tables(table, segments))
        coefficient = np.zeros(len(rows))
        coefficient[plan.rows] = plan.weight * plan.advantage
        parts = [np.stack([(weight[table.prompt == p, None] * found.sketches[table.prompt == p]).sum(0) for p in range(num)])
                 for weight in (coefficient, loo)]  # fmt: skip
        yield {"aggregation": name} | resampled(
            lambda weight, parts=parts: cosine(weight @ parts[0], weight @ parts[1]), num
        )


def leave_one_out(table: Responses) -> Floats:
    """Return each outcome less the mean of the others of its prompt."""
    num = np.bincount(table.prompt)[table.prompt]
    total = sum_by(table.prompt, table.outcome, table.num_prompts)[table.prompt]
    return table.outcome - ratio(total - table.outcome, num - 1)


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine of two vectors; nan of one without length."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else math.nan


def bands(found: Evidence) -> Iterator[Row]:
    """Yield the reweighting error of each band at 80% acceptance, on responses that the one update was not made on, and that of
    FSPO's less those of the fixed clips."""
    table = found.independent.response_table
    other = np.flatnonzero(table.prompt >= found.stepped)
    length, prompt, total = table.length[other], table.prompt[other], found.log_ratio[other]

    def error(rule: str, rows: Ints) -> float:
        critical = critical_factor(rule, length[rows], total[rows], 0.0, *WIDTHS[rule])
        return cross_fit(length[rows], critical <= factor_for(critical, SHARE), prompt[rows])

    for rule in BANDS:
        yield {"band": rule} | without_each(prompt, partial(error, rule))
    for fixed in BANDS[:2]:
        less = partial(lambda clip, rows: error(FAIR, rows) - error(clip, rows), fixed)
        yield {"band": f"{FAIR} less {fixed}"} | without_each(prompt, less)


def choice(found: Evidence) -> Iterator[Row]:
    """Yield the length of responses to prompts that top-lambda penalises, over that of all, and how often they are correct."""
    table = found.independent.response_table

    def over_all(column: Floats, rows: Ints) -> float:
        some = table.take(rows)
        return mean_or_nan(column[rows][TopLambda().select(some)[some.prompt]]) / float(column[rows].mean())

    for name, column in (("length", table.length), ("correct", table.correct)):
        yield {"what": f"{name} over all"} | without_each(table.prompt, partial(over_all, column.astype(float)))


FIGURES: Mapping[str, Callable[[Evidence], Iterator[Row]]] = {
    one.__name__: one
    for one in (stopping, pair_cost, eos_advantage, penalised_prefixes, length_gap, directions, bands, choice)
}
