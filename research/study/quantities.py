"""What is measured of a run: functions from its tables to one number, nan where there is none, by name in QUANTITIES.

Accuracies and shares are in percent, lengths in tokens. `place`: the number of an evaluation, from 0; of one between two the line
between them is read, on the problems that all evaluations share; by default the last, on all its problems. `shortest`: without
sequences of fewer tokens. `quarter`: 0 to 3, of the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps

import numpy as np

from fairlen.audit.statistics.acceptance import distances
from fairlen.audit.statistics.intervals import length_bins, ratio
from fairlen.batch import Bools, Floats, Ints, count_by, mean_by, sum_by
from fairlen.methods.stages.fair_band import FairBand, band_sums
from recipes.replay_bands import WIDTHS, critical_factor, factor_for, slope
from research.study.evidence import RunTables, Table

NAN = float("nan")
POINTS = 10.0
"""Accuracy below the best before it from which on a run counts as collapsed."""
NUM_BINS = 8
NUM_SPLITS = 16
"""Ways to part the prompts, over which the mean is taken."""
FOLLOWING = ("fspo", "fspo_centred")
"""Bands that follow the drift of log ratios."""
Quantity = Callable[..., float]


@dataclass(frozen=True)
class Rates:
    """How long a variant takes on an idle machine, in seconds."""

    generated: float
    """To collect one token."""
    trained: float
    """To train on one token."""


def shared(run: RunTables) -> Table:
    """Return the evaluations of a run on the problems that all of them have."""
    table = run.evaluations
    _, index, count = np.unique(table["problem"], return_inverse=True, return_counts=True)
    keep = count[index] == len(np.unique(table["generated"]))
    return {name: values[keep] for name, values in table.items()}


def add_up(table: Table, values: Floats | Ints | str) -> Floats:
    """Return sums over the problems of each evaluation, [E], of a column or its name."""
    moments, index = np.unique(table["generated"], return_inverse=True)
    return sum_by(index, table[values] if isinstance(values, str) else values, len(moments))


def accuracies(table: Table) -> Floats:
    """Return the percent of correct responses at each evaluation, [E]."""
    return 100.0 * ratio(add_up(table, "right"), add_up(table, "samples"))


def lengths(table: Table, correct: bool | None = None) -> Floats:
    """Return the mean length at each evaluation, of all responses or of those with a verdict, [E]."""
    right, tokens = table["length_right"], table["length"] * table["samples"]
    if correct is None:
        return ratio(add_up(table, tokens), add_up(table, "samples"))
    if correct:
        return ratio(add_up(table, right), add_up(table, "right"))
    return ratio(add_up(table, tokens - right), add_up(table, table["samples"] - table["right"]))


def length_gaps(table: Table) -> Floats:
    """Return by how many percent of a problem's mean length incorrect responses are longer than correct ones, on average over
    problems with both, at each evaluation, [E]."""
    right, wrong = table["right"], table["samples"] - table["right"]
    below = ratio(table["length"] * table["samples"] - table["length_right"], wrong)
    both = ((right > 0) & (wrong > 0)).astype(np.float64)
    gap = np.where(both > 0, 100.0 * (below - ratio(table["length_right"], right)) / table["length"], 0.0)
    return ratio(add_up(table, gap), add_up(table, both))


def costs(run: RunTables, cost: str, rates: Rates | None = None) -> Floats:
    """Return what had been spent at each evaluation, [E]: tokens generated, updates, or seconds by the rates."""
    generated, first = np.unique(run.evaluations["generated"], return_index=True)
    updates = run.evaluations["update"][first]
    if cost != "seconds":
        return (updates if cost == "updates" else generated).astype(np.float64)
    assert rates is not None  # of every cost in seconds
    trained = [run.updates["tokens_trained"][run.updates["update"] <= update].sum() for update in updates]
    return rates.generated * generated + rates.trained * np.array(trained, np.float64)


def read(curve: Callable[[Table], Floats]) -> Quantity:
    """Return what reads a curve over evaluations at a place."""

    def measure(run: RunTables, place: float | None = None) -> float:
        if place is None:
            return curve(run.evaluations)[-1]
        values = curve(shared(run))
        return np.interp(place, np.arange(len(values)), values)

    return measure


def by_problem(run: RunTables, column: str) -> Floats:
    """Return a column of the evaluations, a row each and a column for each problem that all share, [E, P]."""
    table = shared(run)
    order = np.lexsort([table["problem"], table["generated"]])
    values = table[column] / table["samples"] * 100.0 if column == "right" else table[column]
    return values[order].reshape(len(np.unique(table["generated"])), -1).astype(np.float64)


def at_best(values: Floats, right: Floats, problems: Ints) -> float:
    """Return values [E, P] at the evaluation with most right [E, P], chosen by one half of the problems and read on the other, to
    which chance adds nothing. What is lost where a half chooses amiss is about the same for methods that are compared."""
    half, found = halves(problems), []
    for chooses in (half, ~half):
        best = np.minimum((right @ chooses.T).argmax(0), len(values) - 1)
        found.append(ratio((values[best] * ~chooses).sum(1), (~chooses).sum(1)))
    return float(np.mean(found))


def best_accuracy(run: RunTables, is_drop: bool = False) -> float:
    """Return the best accuracy, or by how much it is above the last."""
    right = by_problem(run, "right")
    return at_best(right - right[-1] if is_drop else right, right, np.unique(shared(run)["problem"]))


def swings(run: RunTables) -> float:
    """Return the mean squared distance of accuracy from the middle of its neighbours, of which chance adds nothing to products of
    two problems."""
    right = by_problem(run, "right")
    size, found = right.shape[1], right[1:-1] - (right[:-2] + right[2:]) / 2.0
    return mean_of((found.sum(1) ** 2 - (found**2).sum(1)) / (size * (size - 1))) if size > 1 else NAN


def length_at_best(run: RunTables, chosen_by: RunTables | None = None) -> float:
    """Return the length where a run, by default this one, is most accurate after the first evaluation."""
    problems = np.unique(shared(run)["problem"])
    return at_best(by_problem(run, "length")[1:], by_problem(chosen_by or run, "right")[1:], problems)


def length_change(run: RunTables) -> float:
    """Return the percent by which tokens for a prompt changed from the first rollout batch to the last quarter of them."""
    tokens, asked = (run.batches[name] for name in ("generated", "asked"))
    last = np.array_split(np.arange(len(tokens)), 4)[3]
    return 100.0 * float((tokens[last].sum() / asked[last].sum()) / (tokens[0] / asked[0]) - 1.0)


def collapse(run: RunTables) -> float:
    """Return the updates after which accuracy stays POINTS below the best before it; all updates where it never does."""
    curve = accuracies(shared(run))
    is_up = curve > np.maximum.accumulate(curve) - POINTS + 1e-9
    return float(costs(run, "updates")[min(np.flatnonzero(is_up)[-1] + 1, len(curve) - 1)])


def mean_of(values: Floats, quarter: int | None = None) -> float:
    """Return the mean of all or of a quarter, those without a number left out."""
    part = values if quarter is None else np.array_split(values, 4)[quarter]
    known = part[np.isfinite(part)]
    return float(known.mean()) if len(known) else NAN


def mean_over_updates(column: str, change: Callable[[Floats], Floats] = np.asarray) -> Quantity:
    """Return what takes the mean of a column."""
    return lambda run, quarter=None: mean_of(change(run.updates[column]), quarter)


def entropy_change(run: RunTables) -> float:
    """Return the percent by which entropy changed from the first to the last quarter."""
    first, last = (mean_of(run.updates["entropy"], quarter) for quarter in (0, 3))
    return 100.0 * (last / first - 1.0)


def gradient_spread(run: RunTables) -> float:
    """Return the standard deviation of the gradient's norm over its mean."""
    norms = run.updates["gradient_norm"]
    return float(np.nanstd(norms) / mean_of(norms))


def generated(run: RunTables) -> int:
    """Return the tokens generated for training."""
    return int(run.batches["generated"].sum())


def seconds(run: RunTables, rates: Rates) -> float:
    """Return what the run would take on an idle machine."""
    return rates.generated * generated(run) + rates.trained * run.updates["tokens_trained"].sum()


def started(run: RunTables) -> RunTables:
    """Return a timed run without its first rollout batch and the updates on it, in which a process also starts up."""
    num_batches, num_updates = (len(table["seconds"]) for table in (run.batches, run.updates))
    batches = {name: values[1:] for name, values in run.batches.items()}
    updates = {name: values[num_updates // max(num_batches, 1) :] for name, values in run.updates.items()}
    return replace(run, batches=batches, updates=updates)


def tokens_per_second(run: RunTables) -> float:
    """Return how fast a timed run collects rollouts."""
    batches = started(run).batches
    return float(ratio(batches["generated"].sum(), batches["seconds"].sum()))


def samples_per_second(run: RunTables, rates: Rates) -> float:
    """Return what EqLen's paper counts for a second of the run: both pieces of every pair formed, or responses that train."""
    pieces = 2.0 * np.nansum(run.batches["pairs_formed"])
    return (pieces or len(run.sequences["length"])) / seconds(run, rates)


def signal(run: RunTables) -> float:
    """Return the percent of generated tokens that train with an advantage other than 0."""
    return 100.0 * run.sequences["length"][run.sequences["advantage"] != 0].sum() / generated(run)


def mixed_groups(run: RunTables) -> dict[str, Floats]:
    """Return, of prompts with both verdicts, by how much incorrect responses are longer, mean and spread of all, [G]."""
    prompts, place = np.unique(run.sequences["prompt"], return_inverse=True)
    size, length = len(prompts), run.sequences["length"].astype(np.float64)
    kind = 2 * place + run.sequences["correct"]
    below, above = ratio(sum_by(kind, length, 2 * size), count_by(kind, 2 * size)).reshape(size, 2).T
    every = mean_by(place, length, size)
    spread = np.sqrt(mean_by(place, (length - every[place]) ** 2, size))
    found = {"gap": below - above, "every": every, "spread": spread}
    return {name: values[np.isfinite(below - above)] for name, values in found.items()}


def over_groups(measure: Callable[[Mapping[str, Floats]], Floats]) -> Quantity:
    """Return what takes the mean over mixed groups."""
    return lambda run: mean_of(measure(mixed_groups(run)))


def off_policy(run: RunTables, shortest: float = 0) -> Table:
    """Return the columns of sequences that a band can refuse."""
    keep = run.sequences["off_policy"] & (run.sequences["length"] >= shortest)
    return {name: values[keep] for name, values in run.sequences.items()}


def mix(numbers: Ints) -> np.ndarray:
    """Return numbers that look random, by a hash (splitmix64) of each number [P], [NUM_SPLITS, P]."""
    salts = np.arange(1, NUM_SPLITS + 1, dtype=np.uint64)[:, None] << np.uint64(32)
    mixed = (numbers.astype(np.uint64) + salts) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def quarters(prompts: Ints) -> Ints:
    """Return which quarter each prompt [P] is in, [NUM_SPLITS, P]."""
    return (mix(prompts) & np.uint64(3)).astype(np.int64)


def halves(problems: Ints) -> Bools:
    """Return whether each problem [P] is in the first of two halves, as large as each other, [NUM_SPLITS, P]; where some are left
    out of a power of two, the others stay in their halves."""
    every = np.arange(1 << int(problems.max()).bit_length())
    return (np.argsort(np.argsort(mix(every), axis=1), axis=1) % 2 == 0)[:, problems]


def cross_fit(length: Ints, accepted: Floats | Bools, prompt: Ints) -> float:
    """Return the length reweighting error, 1/2 sum |share of accepted - share of all| over bins, without what chance adds to it.

    The sign of each bin's difference is that of one half of the prompts, its size that of the other, so that chance adds nothing.
    Wrong signs take something away, about as 1 / prompts: halves of half the prompts tell how much. Below 0 by chance alone.
    """
    bins = length_bins(length, NUM_BINS)
    if len(bins) < 2 or not accepted.any():
        return NAN
    prompts, place = np.unique(prompt, return_inverse=True)
    cell, shape = place * len(bins) + bins.index, (len(prompts), len(bins))
    took, every = (sum_by(cell, w, len(prompts) * len(bins)).reshape(shape) for w in (accepted, np.ones(len(length))))
    folds = [(quarters(prompts) == fold).astype(np.float64) for fold in range(4)]
    sums = np.array([(fold @ took, fold @ every) for fold in folds])

    def cross(one: Floats, other: Floats) -> Floats:
        first, second = distances(*one), distances(*other)
        return 0.25 * (np.sign(first) * second + np.sign(second) * first).sum(1)

    found = []
    for i, j, m, n in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2)):
        smaller = cross(sums[i], sums[j]) + cross(sums[m], sums[n])
        found.append(2.0 * cross(sums[i] + sums[j], sums[m] + sums[n]) - smaller / 2.0)
    return mean_of(np.array(found))


def gap_of(length: Ints, inside: Floats | Bools) -> float:
    """Return the points by which the longest quarter of sequences is accepted more often than the shortest."""
    if not len(length):
        return NAN
    low, high = np.quantile(length, [0.25, 0.75])
    return 100.0 * float(inside[length >= high].mean() - inside[length <= low].mean())


def acceptance_gap(run: RunTables, shortest: float = 0) -> float:
    """Return the acceptance gap of the run's own bound."""
    rows = off_policy(run, shortest)
    return gap_of(rows["length"], rows["inside"])


def fair_gap(run: RunTables, rule: str, acceptance: float = 0.8, shortest: float = 0) -> float:
    """Return the acceptance gap of a rule without drift whose widths, in their published ratio, accept this share."""
    rows = off_policy(run, shortest)
    critical = critical_factor(rule, rows["length"], rows["log_ratio"], 0.0, *WIDTHS[rule])
    return gap_of(rows["length"], critical <= factor_for(critical, acceptance)) if len(critical) else NAN


def lre(run: RunTables, shortest: float = 0) -> float:
    """Return the length reweighting error of the run's own bound."""
    rows = off_policy(run, shortest)
    return cross_fit(rows["length"], rows["inside"], rows["prompt"])


def drifts(run: RunTables) -> Floats:
    """Return what FSPO's band would have known of the drift at each off-policy sequence, nats a token."""
    rows, band = off_policy(run), FairBand()
    found, lengths = np.zeros(len(rows["length"])), rows["length"].astype(np.float64)
    for update in np.unique(rows["update"]):
        here = rows["update"] == update
        found[here] = band.current_drift
        length, total = lengths[here], rows["log_ratio"][here]
        band = band.update(band_sums(len(length), length.sum(), total.sum(), (total**2 / length).sum()))
    return found


def replayed(run: RunTables, rule: str, share: float, shortest: float) -> float:
    """Return the error of a rule whose widths, in their published ratio, accept this share of the sequences."""
    rows = off_policy(run, shortest)
    if not len(rows["length"]):
        return NAN
    drift = drifts(run)[off_policy(run)["length"] >= shortest] if rule in FOLLOWING else 0.0
    critical = critical_factor(rule, rows["length"], rows["log_ratio"], drift, *WIDTHS[rule])
    factor = factor_for(critical, share)
    return cross_fit(rows["length"], critical <= factor, rows["prompt"]) if factor > 0 else NAN


def replay(run: RunTables, rule: str = "", against: str = "", acceptance: float = 0.8, shortest: float = 0) -> float:
    """Return the error of a rule, by default the run's own, on its sequences, less that of another that accepts as many."""
    found = replayed(run, rule or run.run.variant, acceptance, shortest)
    return found - replayed(run, against, acceptance, shortest) if against else found


def exponent(length: Ints, log_ratio: Floats, is_mean: bool = False) -> float:
    """Return the exponent with which the spread of log ratios, or the size of their mean, grows with length over bins."""
    bins = length_bins(length, NUM_BINS)
    if len(bins) < 2:
        return NAN
    middle, mean = (mean_by(bins.index, values, len(bins)) for values in (length, log_ratio))
    spread = np.sqrt(mean_by(bins.index, (log_ratio - mean[bins.index]) ** 2, len(bins)))
    return float(slope(middle, np.abs(mean) if is_mean else spread))


def growth(run: RunTables, shortest: float = 0, minus: float = 0.0) -> float:
    """Return the exponent of the spread within updates: each is a pair of policies of its own, so that its log ratios are taken
    in units of its root mean square of log ratio / sqrt(length)."""
    rows = off_policy(run, shortest)
    updates, place = np.unique(rows["update"], return_inverse=True)
    unit = np.sqrt(mean_by(place, rows["log_ratio"] ** 2 / rows["length"], len(updates)))[place]
    moved = unit > 0
    return exponent(rows["length"][moved], rows["log_ratio"][moved] / unit[moved]) - minus


def drift_root(run: RunTables, shortest: float = 0, minus: float = 0.0) -> float:
    """Return the exponent of the size of the mean, of all updates together."""
    rows = off_policy(run, shortest)
    return exponent(rows["length"], rows["log_ratio"], is_mean=True) - minus


def cosine(run: RunTables, rule: str, against: str = "", column: str = "cosine") -> float:
    """Return a column of the directions, mean over updates, less that of another rule where both accept something."""
    table = run.directions
    values = {name: table[column][table["rule"] == name] for name in (rule, against) if name}
    return mean_of(values[rule] - values[against] if against else values[rule])


def bound_slack(run: RunTables, bound: str = "rho_paper") -> float:
    """Return by how much rho stays below a bound where that is least, of updates of all rules that have one."""
    slack = run.directions[bound] - run.directions["rho"]
    return slack[np.isfinite(slack)].min(initial=np.inf) if np.isfinite(slack).any() else NAN


def guard(measure: Quantity, table: str) -> Quantity:
    """Return a quantity that is nan of a run without rows of a table."""

    @wraps(measure)
    def guarded(run: RunTables, **options: object) -> float:
        exists = len(next(iter(getattr(run, table).values()), ()))
        return float(measure(run, **options)) if exists else NAN

    return guarded


BY_TABLE: dict[str, dict[str, Quantity]] = {
    "evaluations": {
        "accuracy": read(accuracies),
        "best_accuracy": lambda run: best_accuracy(run),
        "drop": lambda run: best_accuracy(run, is_drop=True),
        "swings": swings,
        "collapse": collapse,
        "length": read(lengths),
        "length_correct": read(lambda table: lengths(table, True)),
        "length_incorrect": read(lambda table: lengths(table, False)),
        "length_at_best": length_at_best,
        "length_gap": read(length_gaps),
        "truncated": read(lambda table: 100.0 * ratio(add_up(table, "truncated"), add_up(table, "samples"))),
    },
    "updates": {
        "loss": mean_over_updates("loss"),
        "loss_abs": mean_over_updates("loss", np.abs),
        "entropy": mean_over_updates("entropy"),
        "entropy_change": entropy_change,
        "gradient_spread": gradient_spread,
    },
    "batches": {
        "tokens": generated,
        "length_change": length_change,
        "seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "rounds": lambda run: mean_of(run.batches["rounds"]),
        "pairs": lambda run: run.batches["pairs_formed"].sum() / run.batches["asked"].sum(),
    },
    "sequences": {
        "samples_per_second": samples_per_second,
        "signal": signal,
        "gap": over_groups(lambda groups: 100.0 * groups["gap"] / groups["every"]),
        "variation": over_groups(lambda groups: groups["spread"] / groups["every"]),
        "acceptance": lambda run, shortest=0: 100.0 * mean_of(off_policy(run, shortest)["inside"]),
        "acceptance_gap": acceptance_gap,
        "fair_gap": fair_gap,
        "lre": lre,
        "replay": replay,
        "growth": growth,
        "drift_root": drift_root,
    },
    "directions": {"cosine": cosine, "bound_slack": bound_slack},
}
QUANTITIES = {name: guard(found, table) for table, part in BY_TABLE.items() for name, found in part.items()}
