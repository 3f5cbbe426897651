"""Audits rollouts: every measure that their files allow, what is missing for the others, and findings in plain words.

A finding needs a 95% interval that excludes no effect. `size` puts them in order: of a ratio its logarithm, of lengths the share
of their mean, of shares the difference. Not here: how an audit is printed or written as JSON (summary.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.diagnostics.acceptance import Acceptance, acceptance
from fairlen.diagnostics.coupling import Coupling, WeightShares, coupling, weight_shares
from fairlen.diagnostics.lengths import ByLength, Lengths, by_length, counted, lengths
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.readers import DEFAULTS, Options, Reading, Source, read
from fairlen.diagnostics.streams import StreamReport, stream_report
from fairlen.diagnostics.uncertainty import NOTHING, Bins, Estimate, bootstrap, mean_over, ratio, share_of

MIN_PROMPTS = 10
"""Intervals over fewer prompts are too narrow to conclude from."""
ROUNDING = 1e-6
"""Effects below it are rounding."""
MIN_SPREAD = 0.25
"""Of lengths within a sign, over their mean: less makes no finding."""
MIN_IDLE = 0.1
"""Share of groups without contrast that every run has."""
MIN_REPEATED = 0.02


@dataclass(frozen=True)
class Shares:
    """Of responses that started from their prompt, and of prompts; intervals over prompts."""

    truncated_incorrect: Estimate
    truncated_correct: Estimate
    truncated_incorrect_minus_correct: Estimate
    accuracy_long: Estimate
    """In the last bin of length."""
    accuracy_short: Estimate
    """In the first one."""
    accuracy_long_minus_short: Estimate
    idle_groups: Estimate
    """Prompts with several responses that are all correct or all incorrect."""
    all_correct: Estimate
    all_incorrect: Estimate
    duplicate: Estimate
    """Responses that repeat an earlier one to the same prompt."""


@dataclass(frozen=True)
class Finding:
    """One effect of length, or of what goes with it."""

    text: str
    effect_size: float
    """The number in the text, with its 95% interval."""
    low: float
    high: float
    advice: str
    """What to try."""
    measure: str
    """The measure that it comes from."""
    size: float
    """How large the effect is, on a scale that all findings share; no effect is 0."""


@dataclass(frozen=True)
class Audit:
    """All about one log."""

    source: Source
    lengths: Lengths
    by_length: ByLength
    coupling: Coupling
    weights: dict[str, WeightShares]
    shares: Shares
    acceptance: Acceptance | None
    streams: StreamReport | None

    @property
    def log(self) -> Log:
        return self.source.log

    @property
    def enough(self) -> bool:
        """Whether there are prompts enough for findings."""
        return self.log.responses.num_prompts >= MIN_PROMPTS

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the largest effect first."""
        found = [finding for find in FINDERS if (finding := find(self))] if self.enough else []
        return tuple(sorted(found, key=lambda one: -one.size))


def audit(paths: list[str], options: Options = DEFAULTS) -> tuple[tuple[Audit, ...], Reading]:
    """Read and measure. Raises ValueError for options that cannot be and paths where nothing is."""
    reading = read(paths, options)
    return tuple(audit_source(source) for source in reading.sources), reading


def audit_source(source: Source) -> Audit:
    """Measure one log."""
    log, bins = source.log, by_length(source.log)
    return Audit(
        source=source,
        lengths=lengths(log),
        by_length=bins,
        coupling=coupling(log),
        weights=weight_shares(log),
        shares=find_shares(log, bins.bins),
        acceptance=acceptance(log) if len(log.trained) else None,
        streams=stream_report(log),
    )


def find_shares(log: Log, bins: Bins) -> Shares:
    """Return shares that are no measure of their own."""
    rows = counted(log)
    prompt, correct = log.responses.prompt[rows], log.correct[rows]
    truncated, is_known = log.responses.truncated[rows], "truncated" in log.known
    last, size = len(bins) - 1, log.responses.num_prompts
    number, hits = count_by(prompt, size), sum_by(prompt, correct, size)
    all_correct, all_incorrect = ((hits == n)[number > 1] for n in (number, 0))
    repeated = log.columns.get("duplicate")
    return Shares(
        *(compare(prompt, truncated, ~correct, correct) if is_known else [NOTHING] * 3),
        *(compare(prompt, correct, bins.index == last, bins.index == 0) if last > 0 else [NOTHING] * 3),
        idle_groups=share_of(all_correct | all_incorrect),
        all_correct=share_of(all_correct),
        all_incorrect=share_of(all_incorrect),
        duplicate=NOTHING if repeated is None else mean_over(prompt, repeated[rows]),
    )


def compare(prompt: Ints, hits: Bools, one: Bools, other: Bools) -> list[Estimate]:
    """Return the share of hits among one set of rows, among the other, and the first minus the second."""
    if not len(hits):
        return [NOTHING] * 3

    def measure(sums: Floats) -> Floats:
        return ratio(sums[..., 0], sums[..., 1]) - ratio(sums[..., 2], sums[..., 3])

    difference = bootstrap(prompt, [hits & one, one, hits & other, other], measure).at(0)
    first, second = mean_over(prompt[one], hits[one]), mean_over(prompt[other], hits[other])
    if difference.low == difference.high:  # both shares are 0 or 1, which resampling takes for certain
        difference = difference_of(first, second)
    return [first, second, difference]


def difference_of(one: Estimate, other: Estimate) -> Estimate:
    """Return one share minus another from their intervals (Newcombe 1998, method 10)."""
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, low, high)


def find_missing(one: Audit) -> tuple[str, ...]:
    """Return what the files do not say, what cannot be known for it, and what to do."""
    log, remedy, limit = one.log, one.source.format.remedy, one.source.format.max_response_length
    truncated = remedy.get("truncated", "no finish reason of every response")
    advantage = remedy.get("advantage", "no column of advantages")
    candidates = {
        f"tokens: lengths are in {log.unit}; --tokenizer FOLDER of the model counts tokens": log.unit != "tokens",
        f"truncation: {truncated}; --max-response-length N (of {limit}) with --tokenizer FOLDER estimates it":
            "truncated" not in log.known,
        f"advantages: {advantage}; rewards normalised by prompt and step stand for them": "advantage" not in log.known,
        "verdicts: an outcome in the upper half of their range counts as correct": "correct" not in log.known,
        "updates: no log ratios, so that acceptance by length is unknown; fairlen train records them": not len(log.trained),
        "groups: hardly any prompt has a second response in its step, so that nothing can be compared within prompts":
            len(log) < 1.5 * max(log.responses.num_prompts, 1),
    }  # fmt: skip
    return tuple(sentence for sentence, is_missing in candidates.items() if is_missing)


def is_significant(found: Estimate, none: float = 0.0) -> bool:
    """Return whether the interval excludes no effect, by more than rounding."""
    return found.excludes(none, ROUNDING)


def number(found: Estimate, style: str = ".3g", unit: str = "") -> str:
    """Format as 1.9x [1.7x, 2.1x]."""
    value, low, high = (f"{x:{style}}{unit}" for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def make(measure: str, found: Estimate, size: float, text: str, advice: str) -> Finding:
    """Return the finding of one measure."""
    return Finding(text, found.value, found.low, found.high, advice, measure, abs(size))


def size_of(found: Estimate) -> Estimate:
    """Return a negative number and its interval without the sign."""
    return found if found.value >= 0 else Estimate(-found.value, -found.high, -found.low)


def find_incorrect_and_correct(one: Audit) -> Finding | None:
    """Find incorrect responses longer, or shorter, than correct ones."""
    found, difference = one.lengths, one.lengths.difference
    if not is_significant(difference):
        return None
    word, advice = (
        ("longer", "where a token mean weighs them so, `+balanced` keeps both sides equal; `+toplambda` shortens correct "
                   "responses to easy prompts only")
        if difference.value > 0 else
        ("shorter", "lengths will grow with accuracy: watch the limit; under a token mean `+balanced` keeps both sides equal")
    )  # fmt: skip
    text = f"incorrect responses are {number(size_of(difference))} {one.log.unit} {word} than correct ones"
    text += f": {found.incorrect.value:.3g} against {found.correct.value:.3g}"
    return make("lengths.difference", difference, difference.value / found.mean.value, text, advice)


def find_gap_within_groups(one: Audit) -> Finding | None:
    """Find the same among responses to one prompt, where difficulty cannot explain it."""
    gap = one.coupling.gap
    if not is_significant(gap):
        return None
    word, tokens = "longer" if gap.value > 0 else "shorter", abs(one.coupling.gap_tokens.value)
    text = (
        f"among responses to one prompt, those below its mean are {number(size_of(gap), '.0%')} {word} than those above"
    )
    advice = "`+balanced`; a token mean turns this into unequal weight"
    return make("coupling.gap", gap, gap.value, f"{text} ({tokens:.3g} {one.log.unit})", advice)


def find_token_mean(one: Audit) -> Finding | None:
    """Find unequal weight of the two signs under a token mean."""
    found = one.weights["token_mean"].negative_to_positive
    if not is_significant(found, 1.0) or found.value <= 0:
        return None
    text = f"a token mean gives incorrect responses {number(found, '.2f', 'x')} the weight of correct ones here"
    return make("weights.token_mean.negative_to_positive", found, math.log(found.value), text, "`+balanced` removes it")


def find_sequence_mean(one: Audit) -> Finding | None:
    """Find tokens of long responses that weigh less than those of short ones of the same sign under a sequence mean."""
    spread, weights = one.coupling.variation_within_sign, one.weights["sequence_mean"]
    if not spread.low > MIN_SPREAD:
        return None
    text = f"lengths of one sign spread by {number(spread, '.0%')} of their mean"
    if len(weights.per_token) > 1 and weights.per_token[0] > 0:
        share = f"{weights.per_token[-1] / weights.per_token[0]:.2g}x the weight of one of the shortest"
        text += f": a sequence mean gives a token of the longest responses {share}"
    advice = "a token mean such as `dapo`'s, or `+balanced`, which keeps the signs equal too"
    return make("coupling.variation_within_sign", spread, spread.value - MIN_SPREAD, text, advice)


def find_sign_length(one: Audit) -> Finding | None:
    """Find advantages that go with length."""
    found = one.coupling.sign_length
    if not is_significant(found):
        return None
    text = f"long responses have the {'lower' if found.value < 0 else 'higher'} advantages: sum A L / sum L = "
    text += f"{number(found)}, where a token mean should start from 0"
    advice = "`+balanced`, or a sequence mean such as `grpo`'s, whose sum is 0"
    return make("coupling.sign_length", found, found.value, text, advice)


def find_truncation(one: Audit) -> Finding | None:
    """Find responses that truncation made incorrect."""
    found, difference = one.shares, one.shares.truncated_incorrect_minus_correct
    if not difference.low > ROUNDING:
        return None
    text = f"{number(found.truncated_incorrect, '.0%')} of incorrect responses were truncated, "
    text += f"{found.truncated_correct.value:.0%} of correct ones"
    advice = "a larger limit, `+overlong_filter` (leave them out) or `+overlong` (a soft penalty before the end)"
    return make("shares.truncated_incorrect", found.truncated_incorrect, difference.value, text, advice)


def find_accuracy_by_length(one: Audit) -> Finding | None:
    """Find accuracy that falls, or rises, with length."""
    found, difference = one.shares, one.shares.accuracy_long_minus_short
    if not is_significant(difference):
        return None
    falls = difference.value < 0
    points = Estimate(*(100 * x for x in (difference.value, difference.low, difference.high)))
    text = f"accuracy {'falls' if falls else 'rises'} with length: {found.accuracy_short.value:.0%} of the shortest responses "
    text += f"are correct, {found.accuracy_long.value:.0%} of the longest, {number(points, '+.0f')} points"
    advice = "look at long responses for repetition" if falls else "penalties of length would cost accuracy here"
    return make("shares.accuracy_long_minus_short", difference, difference.value, text, advice)


def find_growth(one: Audit) -> Finding | None:
    """Find responses that become longer, or shorter, over training."""
    found, trend = one.lengths, one.lengths.trend
    span = float(found.batch[-1] - found.batch[0]) if len(found.batch) else 0.0
    if not is_significant(trend) or not span:
        return None
    text = f"responses {'grow' if trend.value > 0 else 'shrink'} by {number(size_of(trend))} {one.log.unit} a step, "
    text += f"{abs(trend.value) * span:.3g} over steps {found.batch[0]} to {found.batch[-1]}"
    advice = "compare with accuracy; `+gr3` or `+toplambda` penalise length" if trend.value > 0 else "watch accuracy"
    return make("lengths.trend", trend, trend.value * span / found.mean.value, text, advice)


def find_idle_groups(one: Audit) -> Finding | None:
    """Find groups that teach nothing, because all responses are correct or all incorrect."""
    idle = one.shares.idle_groups
    if not idle.low > MIN_IDLE:
        return None
    text = f"{number(idle, '.0%')} of groups have no contrast: all correct {one.shares.all_correct.value:.0%}, "
    text += f"all incorrect {one.shares.all_incorrect.value:.0%}"
    advice = "`+dynamic` samples others instead; easier or harder prompts, or more responses each"
    return make("shares.idle_groups", idle, idle.value - MIN_IDLE, text, advice)


def find_duplicates(one: Audit) -> Finding | None:
    """Find responses that repeat another one of their group."""
    found = one.shares.duplicate
    if not found.low > MIN_REPEATED:
        return None
    text = f"{number(found, '.0%')} of responses repeat an earlier one to the same prompt word for word"
    return make("shares.duplicate", found, found.value, text, "a higher temperature, or harder prompts")


def find_acceptance(one: Audit) -> Finding | None:
    """Find a bound that accepts lengths unequally."""
    found = one.acceptance
    if found is None or found.undefined or not is_significant(found.lre):
        return None
    p_value = found.p_value if math.isnan(found.p_value_prompts) else found.p_value_prompts
    if not (found.lre.value > found.floor and p_value < 0.05):
        return None
    share = found.share.value
    text = f"the bound accepts {share[0]:.0%} of the shortest responses and {share[-1]:.0%} of the longest: "
    text += f"length reweighting error {number(found.lre)}, of which noise {found.floor:.2g}, p = {p_value:.2g}"
    advice = "`fspo`, whose band grows with the root of length; where it is that one, `fspo_centred` or `fspo_v3`"
    return make("acceptance.lre", found.lre, found.lre.value, text, advice)


def find_optimism(one: Audit) -> Finding | None:
    """Find survivors valued by the best of what came later."""
    found = one.streams.optimism if one.streams else NOTHING
    if not is_significant(found):
        return None
    text = f"`max` values survivors {number(found)} above what is unbiased, a pair"
    advice = "`eqlen_unbiased`, or --set sampling.survivor_reward=halving"
    return make("streams.optimism", found, found.value, text, advice)


def find_eos_advantage(one: Audit) -> Finding | None:
    """Find advantages on EOS that do not add up to 0."""
    found = one.streams.eos_advantage if one.streams else NOTHING
    if not is_significant(found):
        return None
    text = f"stopping is {'penalised' if found.value < 0 else 'reinforced'}: net advantage on EOS {number(found)} a response"
    return make("streams.eos_advantage", found, found.value, text, "`eqlen_unbiased`, whose sum is 0 on average")


FINDERS = (
    find_incorrect_and_correct, find_gap_within_groups, find_token_mean, find_sequence_mean, find_sign_length, find_truncation,
    find_accuracy_by_length, find_growth, find_idle_groups, find_duplicates, find_acceptance, find_optimism, find_eos_advantage,
)  # fmt: skip
