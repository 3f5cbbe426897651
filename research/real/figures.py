"""Figures of phase A, one function each, from the kept tables alone; intervals are over prompts, by bootstrap or jackknife."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fairlen.audit.statistics.intervals import bootstrap, ratio
from fairlen.batch import Floats, Ints, Responses, build_segments, mean_or_nan, sum_by
from fairlen.methods.compose import compose
from fairlen.methods.stages.reward import TopLambda
from fairlen.sampling.stream_metrics import find_finishers, order_streams
from recipes.replay_bands import WIDTHS, critical_factor, factor_for
from research.ledger.study import rounded
from research.real.evidence import Evidence
from research.study.intervals import quantile
from research.study.quantities import cross_fit, exponent

FIGURES_FILE = "figures.json"
NUM_BINS, NUM_FOLDS, SHARE = 6, 32, 0.8
RULES = {
    "max": "eqlen+grpo", "mean": "eqlen+grpo:mean", "halving": "eqlen+grpo:halving", "unbiased": "eqlen_unbiased",
}  # fmt: skip
"""Rules for the worth of a survivor."""
AGGREGATIONS = ("grpo", "dapo", "dr_grpo", "dapo+balanced", "grpo+vl_norm")
SAME = "dr_grpo"
"""Its gradient is the leave-one-out one by definition, but for a factor."""
BANDS, FAIR = ("rloo", "gspo", "fspo_v3"), "fspo_v3"
"""Version 1 of FSPO is version 3 here: before the first off-policy update its drift is 0."""
Row = dict[str, Any]
Measured = Callable[[Floats], Floats]
"""Of sums over prompts, [..., M], which are resampled."""


def over_prompts(columns: Sequence[Floats], measure: Measured) -> Row:
    """Return what a function makes of the sums of columns by prompt, [P] each, with its 95% interval by bootstrap."""
    found = bootstrap(np.arange(len(columns[0])), columns, measure).at(0)
    return found._asdict() | {"prompts": len(columns[0])}


def first_over_second(sums: Floats) -> Floats:
    return ratio(sums[..., 0], sums[..., 1])


def ratio_over(prompt: Ints, above: Floats | Ints, below: Floats | Ints, num: int) -> Row:
    """Return a ratio of two sums over rows."""
    return over_prompts([sum_by(prompt, above, num), sum_by(prompt, below, num)], first_over_second)


def without_each(prompt: Ints, measure: Callable[[Ints], float]) -> Row:
    """Return a number of rows and its 95% interval from leaving out each of NUM_FOLDS parts of the prompts (jackknife,
    Student's t): what halves prompts itself would take one that is drawn twice for two."""
    every, fold = np.arange(len(prompt)), prompt % NUM_FOLDS
    parts = np.array([measure(every[fold != one]) for one in np.unique(fold)])
    freedom = len(parts) - 1
    value, half = measure(every), quantile(0.975, freedom) * float(np.sqrt(freedom * parts.var()))
    return {"value": value, "low": value - half, "high": value + half, "prompts": len(np.unique(prompt))}


def drawing(found: Evidence) -> Iterator[Row]:
    """Yield how often problems were solved in the draws that chose them, and in those that count, where nothing was chosen."""
    solved, sizes, table = found.tables["candidates"]["solved"], found.about["sizes"], found.independent
    taken = solved[(solved >= sizes["low"]) & (solved <= sizes["high"])][: sizes["prompts"]]
    yield {"what": "problems tried", "value": float(len(solved))}
    yield {"what": "correct in the filter"} | over_prompts([taken, np.ones(len(taken))], first_over_second)
    for name in ("correct", "truncated", "length"):
        yield {"what": name} | ratio_over(table.prompt, getattr(table, name), np.ones(len(table)), table.num_prompts)


def stopping(found: Evidence) -> Iterator[Row]:
    """Yield, by what had been written, the chance to stop at a token, and how often those that stopped were correct; and by how
    much of its mean the chance changes over as many tokens as a mean response has, on a straight line through all tokens."""
    table = found.independent
    num, length = table.num_prompts, table.length.astype(np.float64)
    edges = np.unique(np.quantile(table.length, np.linspace(0, 1, NUM_BINS + 1)).astype(int))
    for low, high in zip([0, *edges[1:-1]], edges[1:], strict=True):
        ends = (table.length > low) & (table.length <= high) & ~table.truncated
        tokens = np.clip(table.length - low, 0, high - low)
        named = {"from": int(low) + 1, "to": int(high)}
        yield named | {"what": "stops"} | ratio_over(table.prompt, ends, tokens, num)
        yield named | {"what": "correct"} | ratio_over(table.prompt, ends & table.correct, ends, num)
    at, squares = length * (length + 1) / 2, length * (length + 1) * (2 * length + 1) / 6
    columns = (length, at, squares, ~table.truncated, ~table.truncated * length, np.ones(len(table)))

    def slope(sums: Floats) -> Floats:
        tokens, x, xx, y, xy, responses = np.moveaxis(sums, -1, 0)
        return ratio(xy - x * y / tokens, xx - x * x / tokens) * ratio(tokens * tokens, responses * y)

    yield {"what": "slope"} | over_prompts([sum_by(table.prompt, one, num) for one in columns], slope)


def pair_cost(found: Evidence) -> Iterator[Row]:
    """Yield the tokens generated for a pair over those of two independent responses, and pairs a stream; the same of rounds, of
    which the last makes no pair where its texts are equal, or truncated both."""
    streams, alone, pairs = found.tracks, found.independent, found.pairs
    num, own = alone.num_prompts, streams.length - found.tables["tracks"]["inherited"]
    order, first = order_streams(streams)
    formed = sum_by(streams.prompt[pairs.response], np.full(len(pairs), 0.5), num)
    tokens, lengths = sum_by(streams.prompt, own, num), sum_by(alone.prompt, alone.length, num)
    starts, ends = (sum_by(streams.prompt[order], one, num) for one in (first, np.ones(len(order))))
    base = (2.0 * lengths, np.bincount(alone.prompt, minlength=num).astype(np.float64))
    for name, number in (("pair", formed), ("round", ends - starts)):
        cost = over_prompts(
            (tokens, number, *base), lambda sums: first_over_second(sums) / first_over_second(sums[..., 2:])
        )
        yield {"what": f"tokens a {name}"} | cost
        yield {"what": f"{name}s a stream"} | over_prompts((number, starts), first_over_second)


def eos_advantage(found: Evidence) -> Iterator[Row]:
    """Yield, by rule, the value of a finisher less that of the survivor beside it, over pairs that one track ended, in standard
    deviations of the outcome of independent responses; and the maximum's less that of halving, on the same pairs.

    Where stopping is memoryless and a response as often correct whatever its length, v, it is v - 1 + (1 - v)^n outcomes under
    the maximum of n later ends, and 0 under averages.
    """
    table, pairs, alone = found.tracks, found.pairs, found.independent
    num, survivor = alone.num_prompts, np.flatnonzero(pairs.survivor)
    prompt, finisher = table.prompt[pairs.response[survivor]], find_finishers(pairs)[pairs.group[survivor]]
    moments = [sum_by(alone.prompt, alone.outcome**power, num) for power in (0, 1, 2)]

    def measure(sums: Floats) -> Floats:
        count, total, squares = np.moveaxis(sums[..., 2:], -1, 0)
        return first_over_second(sums) / np.sqrt(squares / count - (total / count) ** 2)

    def row(gap: Floats, mass: Floats) -> Row:
        known = np.isfinite(gap)
        sums = [sum_by(prompt[known], column[known], num) for column in (mass * gap, mass)]
        return over_prompts([*sums, *moments], measure)

    gaps = dict[str, Floats]()
    for rule, name in RULES.items():
        text, _, reward = name.partition(":")
        sampling: Any = compose(text, [f"sampling.survivor_reward={reward}"] if reward else []).sampling
        value = sampling.value(table, pairs, table.outcome)
        gaps[rule] = value[finisher] - value[survivor]
        yield {"rule": rule} | row(gaps[rule], 0.5 ** (pairs.round[survivor] * (sampling.round_weight == "halving")))
    yield {"rule": "max less halving"} | row(gaps["max"] - gaps["halving"], np.ones(len(survivor)))


def penalised_prefixes(found: Evidence) -> Iterator[Row]:
    """Yield, of prefixes from which an incorrect response came, how many led to a correct one as well.

    A stream forks at each of its prefixes: the responses that end after a round all continue what survived it.
    """
    table = found.tracks
    order, first = order_streams(table)
    rows = list[tuple[int, int, int]]()
    for begin, end in pairwise([*np.flatnonzero(first), len(order)]):
        correct = table.correct[order[begin:end]]
        for place in range(1, len(correct) - 1):  # from two later ends on
            number = int((~correct[place:]).sum())
            rows.append((int(table.prompt[order[begin]]), number * bool(correct[place:].any()), number))
    prompt, both, wrong = np.array(rows).T
    yield {"what": "of penalised prefixes"} | ratio_over(prompt, both, wrong, table.num_prompts)


def length_gap(found: Evidence) -> Iterator[Row]:
    """Yield by how many percent of the mean incorrect responses to a prompt are longer than correct ones."""
    table = found.independent
    num, side = table.num_prompts, 2 * table.prompt + table.correct
    counts = np.bincount(side, minlength=2 * num)
    means = ratio(sum_by(side, table.length, 2 * num), counts).reshape(num, 2)
    both, every = np.isfinite(means.sum(1)), sum_by(table.prompt, table.length, num) / counts.reshape(num, 2).sum(1)
    gap = np.where(both, 100.0 * (means[:, 0] - means[:, 1]) / every, 0.0)
    counted = np.where(both, 1.0, 0.0)
    yield {"what": "percent"} | over_prompts((gap, counted), first_over_second)
    yield {"what": "prompts with both verdicts"} | over_prompts((counted, np.ones(num)), first_over_second)


def directions(found: Evidence) -> Iterator[Row]:
    """Yield the cosine of each aggregation's gradient and the leave-one-out one, of sums over the same responses; and that of the
    nearest less each other, but for the one that is the same by definition."""
    table = found.independent.take(np.arange(len(found.products)))
    segments, num, size = build_segments(table, table.length), table.num_prompts, len(table)
    values, vectors = np.linalg.eigh(found.products)
    gradients = vectors * np.sqrt(np.maximum(values, 0.0))  # rows with these inner products

    def by_prompt(weight: Floats) -> list[Floats]:
        return [sum_by(table.prompt, weight * one, num) for one in gradients.T]

    def cosine(sums: Floats) -> Floats:
        one, other = sums[..., :size], sums[..., size : 2 * size]
        return ratio((one * other).sum(-1), np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1))

    loo, sums = by_prompt(leave_one_out(table)), dict[str, list[Floats]]()
    for name in AGGREGATIONS:
        method, coefficient = compose(name), np.zeros(size)
        plan = method.plan(method.score_tables(table, segments))
        coefficient[plan.rows] = plan.weight * plan.advantage
        sums[name] = [*by_prompt(coefficient), *loo]
        yield {"aggregation": name} | over_prompts(sums[name], cosine)
    best, *others = sorted(set(AGGREGATIONS) - {SAME}, key=lambda name: -float(cosine(np.sum(sums[name], 1))))
    for other in others:
        both = [*sums[best], *sums[other]]
        less = over_prompts(both, lambda sums: cosine(sums) - cosine(sums[..., 2 * size :]))
        yield {"aggregation": f"{best} less {other}"} | less


def leave_one_out(table: Responses) -> Floats:
    """Return each outcome less the mean of the others of its prompt."""
    num = np.bincount(table.prompt)[table.prompt]
    total = sum_by(table.prompt, table.outcome, table.num_prompts)[table.prompt]
    return table.outcome - ratio(total - table.outcome, num - 1)


def bands(found: Evidence) -> Iterator[Row]:
    """Yield, on responses that the one update was not made on, the reweighting error of each band at 80% acceptance; FSPO's less
    those of the fixed clips; what its published width accepts; the mean log ratio, and the exponent of its spread; how much of
    it may be rounding: the standard deviation of the trainer's log-prob less the engine's, of the same weights, over its own."""
    kept, table = found.tables["responses"], found.independent
    other = np.flatnonzero(table.prompt >= found.stepped)
    length, prompt, total = table.length[other], table.prompt[other], found.log_ratio[other]
    rounding = (kept["before"] - kept["sampled"])[other]

    def factors(rule: str, rows: Ints) -> Floats:
        return critical_factor(rule, length[rows], total[rows], 0.0, *WIDTHS[rule])

    def error(rule: str, rows: Ints) -> float:
        critical = factors(rule, rows)
        return cross_fit(length[rows], critical <= factor_for(critical, SHARE), prompt[rows])

    measures: dict[str, Callable[[Ints], float]] = {rule: partial(error, rule) for rule in BANDS}
    for fixed in BANDS[:2]:
        measures[f"{FAIR} less {fixed}"] = partial(lambda clip, rows: error(FAIR, rows) - error(clip, rows), fixed)
    measures["accepted"] = lambda rows: float((factors(FAIR, rows) <= 1.0).mean())
    measures["moved"] = lambda rows: float(total[rows].mean())
    measures["exponent"] = lambda rows: exponent(length[rows], total[rows])
    measures["rounding"] = lambda rows: float(ratio(rounding[rows].std(), total[rows].std()))
    yield from ({"band": name} | without_each(prompt, measure) for name, measure in measures.items())


def choice(found: Evidence) -> Iterator[Row]:
    """Yield the length of responses to prompts that top-lambda penalises, over that of all, and how often they are correct."""
    table = found.independent

    def over_all(column: Floats, rows: Ints) -> float:
        some = table.take(rows)
        return mean_or_nan(column[rows][TopLambda().select(some)[some.prompt]]) / float(column[rows].mean())

    for name, column in (("length", table.length), ("correct", table.correct)):
        yield {"what": f"{name} over all"} | without_each(table.prompt, partial(over_all, column.astype(float)))


FIGURES: Mapping[str, Callable[[Evidence], Iterator[Row]]] = {
    one.__name__: one
    for one in (drawing, stopping, pair_cost, eos_advantage, penalised_prefixes, length_gap, directions, bands, choice)
}


def make_figures(found: Evidence) -> dict[str, list[Row]]:
    """Return every figure as it is stored: six digits, null for what does not exist."""
    return rounded({name: list(figure(found)) for name, figure in FIGURES.items()})


def name_row(row: Mapping[str, Any]) -> str:
    """Return what tells a row from the others of its figure, such as "1 43 stops"."""
    return " ".join(str(value) for key, value in row.items() if key not in ("value", "low", "high", "prompts"))
