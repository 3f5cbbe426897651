"""Every measure that the files of rollouts allow, what is missing for the others, and findings in plain words.

A finding needs a 95% interval that excludes no effect. `size` puts them in order: of a ratio its logarithm, of lengths the share
of their mean, of shares the difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
class Effect:
    """One effect of length, or of what goes with it."""

    measure: str
    """The measure that it comes from."""
    estimate: Estimate
    """The number in the text."""
    size: float
    """How large the effect is, on a scale that all findings share; no effect is 0."""
    text: str
    advice: str
    """What to try."""


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
    def findings(self) -> tuple[Effect, ...]:
        """All findings, the largest effect first."""
        parts = (
            (find_in_lengths, find_in_groups, find_in_weights, find_in_outcomes, find_in_records) if self.enough else ()
        )
        return tuple(sorted((finding for find in parts for finding in find(self)), key=lambda one: -one.size))


def audit(paths: list[str], options: Options = DEFAULTS) -> tuple[tuple[Audit, ...], Reading]:
    """Read and measure. Raises ValueError for options that cannot be and paths where nothing is."""
    reading = read(paths, options)
    return tuple(audit_source(source) for source in reading.sources), reading


def audit_source(source: Source) -> Audit:
    """Measure one log."""
    log, bins = source.log, by_length(source.log)
    accepted = acceptance(log) if len(log.trained) else None
    shares = find_shares(log, bins.bins)
    return Audit(source, lengths(log), bins, coupling(log), weight_shares(log), shares, accepted, stream_report(log))


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


def size_of(found: Estimate) -> Estimate:
    """Return a negative number and its interval without the sign."""
    return found if found.value >= 0 else Estimate(-found.value, -found.high, -found.low)


def find_in_lengths(one: Audit) -> Iterator[Effect]:
    """Find incorrect responses longer or shorter than correct ones, and lengths that change over training."""
    found, difference, trend = one.lengths, one.lengths.difference, one.lengths.trend
    if is_significant(difference):
        word, advice = (
            ("longer", "where a token mean weighs them so, `+balanced` keeps both sides equal; `+toplambda` shortens correct "
                       "responses to easy prompts only")
            if difference.value > 0 else
            ("shorter", "lengths will grow with accuracy: watch the limit; under a token mean `+balanced` keeps both sides equal")
        )  # fmt: skip
        text = f"incorrect responses are {number(size_of(difference))} {one.log.unit} {word} than correct ones: "
        text += f"{found.incorrect.value:.3g} against {found.correct.value:.3g}"
        yield Effect("lengths.difference", difference, abs(difference.value) / found.mean.value, text, advice)
    if is_significant(trend):
        grows, change = trend.value > 0, abs(trend.value) * float(found.batch[-1] - found.batch[0])
        text = f"responses {'grow' if grows else 'shrink'} by {number(size_of(trend))} {one.log.unit} a step, "
        text += f"{change:.3g} over steps {found.batch[0]} to {found.batch[-1]}"
        advice = "compare with accuracy; `+gr3` or `+toplambda` penalise length" if grows else "watch accuracy"
        yield Effect("lengths.trend", trend, change / found.mean.value, text, advice)


def find_in_groups(one: Audit) -> Iterator[Effect]:
    """Find lengths that go with verdicts within prompts, prompts that teach nothing, and repeated responses."""
    gap, shares = one.coupling.gap, one.shares
    idle, repeated = shares.idle_groups, shares.duplicate
    if is_significant(gap):
        word, tokens = "longer" if gap.value > 0 else "shorter", abs(one.coupling.gap_tokens.value)
        text = f"among responses to one prompt, those below its mean are {number(size_of(gap), '.0%')} {word} "
        text += f"than those above ({tokens:.3g} {one.log.unit})"
        advice = "`+balanced`; a token mean turns this into unequal weight"
        yield Effect("coupling.gap", gap, abs(gap.value), text, advice)
    if idle.low > MIN_IDLE:
        text = f"{number(idle, '.0%')} of groups have no contrast: all correct {shares.all_correct.value:.0%}, "
        text += f"all incorrect {shares.all_incorrect.value:.0%}"
        advice = "`+dynamic` samples others instead; easier or harder prompts, or more responses each"
        yield Effect("shares.idle_groups", idle, idle.value - MIN_IDLE, text, advice)
    if repeated.low > MIN_REPEATED:
        text = f"{number(repeated, '.0%')} of responses repeat an earlier one to the same prompt word for word"
        yield Effect("shares.duplicate", repeated, repeated.value, text, "a higher temperature, or harder prompts")


def find_in_weights(one: Audit) -> Iterator[Effect]:
    """Find unequal weight of signs under a token mean, of tokens under a sequence mean, and advantages that go with length."""
    token_mean, per_token = one.weights["token_mean"].negative_to_positive, one.weights["sequence_mean"].per_token
    spread, coupled = one.coupling.variation_within_sign, one.coupling.sign_length
    if is_significant(token_mean, 1.0) and token_mean.value > 0:
        text = (
            f"a token mean gives incorrect responses {number(token_mean, '.2f', 'x')} the weight of correct ones here"
        )
        size = abs(math.log(token_mean.value))
        yield Effect("weights.token_mean.negative_to_positive", token_mean, size, text, "`+balanced` removes it")
    if spread.low > MIN_SPREAD:
        text = f"lengths of one sign spread by {number(spread, '.0%')} of their mean"
        if len(per_token) > 1 and per_token[0] > 0:
            share = f"{per_token[-1] / per_token[0]:.2g}x the weight of one of the shortest"
            text += f": a sequence mean gives a token of the longest responses {share}"
        advice = "a token mean such as `dapo`'s, or `+balanced`, which keeps the signs equal too"
        yield Effect("coupling.variation_within_sign", spread, spread.value - MIN_SPREAD, text, advice)
    if is_significant(coupled):
        text = f"long responses have the {'lower' if coupled.value < 0 else 'higher'} advantages: sum A L / sum L = "
        text += f"{number(coupled)}, where a token mean should start from 0"
        advice = "`+balanced`, or a sequence mean such as `grpo`'s, whose sum is 0"
        yield Effect("coupling.sign_length", coupled, abs(coupled.value), text, advice)


def find_in_outcomes(one: Audit) -> Iterator[Effect]:
    """Find responses that truncation made incorrect, and accuracy that falls or rises with length."""
    found, cut, tilt = one.shares, one.shares.truncated_incorrect_minus_correct, one.shares.accuracy_long_minus_short
    if cut.low > ROUNDING:
        text = f"{number(found.truncated_incorrect, '.0%')} of incorrect responses were truncated, "
        text += f"{found.truncated_correct.value:.0%} of correct ones"
        advice = "a larger limit, `+overlong_filter` (leave them out) or `+overlong` (a soft penalty before the end)"
        yield Effect("shares.truncated_incorrect", found.truncated_incorrect, cut.value, text, advice)
    if is_significant(tilt):
        falls, points = tilt.value < 0, Estimate(*(100 * x for x in (tilt.value, tilt.low, tilt.high)))
        text = (
            f"accuracy {'falls' if falls else 'rises'} with length: {found.accuracy_short.value:.0%} of the shortest "
        )
        text += (
            f"responses are correct, {found.accuracy_long.value:.0%} of the longest, {number(points, '+.0f')} points"
        )
        advice = "look at long responses for repetition" if falls else "penalties of length would cost accuracy here"
        yield Effect("shares.accuracy_long_minus_short", tilt, abs(tilt.value), text, advice)


def find_in_records(one: Audit) -> Iterator[Effect]:
    """Find a bound that accepts lengths unequally, and of streams, survivors valued too high and a net advantage on EOS."""
    bound, streams = one.acceptance, one.streams
    if bound and is_significant(bound.lre) and bound.lre.value > bound.floor:
        p_value = bound.p_value if math.isnan(bound.p_value_prompts) else bound.p_value_prompts
        share = bound.share.value
        text = f"the bound accepts {share[0]:.0%} of the shortest responses and {share[-1]:.0%} of the longest: "
        text += f"length reweighting error {number(bound.lre)}, of which noise {bound.floor:.2g}, p = {p_value:.2g}"
        advice = "`fspo`, whose band grows with the root of length; where it is that one, `fspo_centred` or `fspo_v3`"
        if p_value < 0.05:
            yield Effect("acceptance.lre", bound.lre, bound.lre.value, text, advice)
    if streams and is_significant(streams.optimism):
        text = f"`max` values survivors {number(streams.optimism)} above what is unbiased, a pair"
        advice = "`eqlen_unbiased`, or --set sampling.survivor_reward=halving"
        yield Effect("streams.optimism", streams.optimism, abs(streams.optimism.value), text, advice)
    if streams and is_significant(streams.eos_advantage):
        net = streams.eos_advantage
        text = f"stopping is {'penalised' if net.value < 0 else 'reinforced'}: net advantage on EOS {number(net)} a response"
        yield Effect("streams.eos_advantage", net, abs(net.value), text, "`eqlen_unbiased`, whose sum is 0 on average")
