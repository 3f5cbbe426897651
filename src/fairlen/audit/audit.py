"""The audit of a log: its verdict, findings under one false discovery rate with advice for the method in use, and description."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlen.audit import conclusion
from fairlen.audit.advice import Advice, advise
from fairlen.audit.log import Log, ended_samples, halfway, plain_samples
from fairlen.audit.method_in_use import InUse, find_method
from fairlen.audit.readers import DEFAULTS, LogReading, Options, Source, read
from fairlen.audit.statistics.acceptance import Acceptance, acceptance
from fairlen.audit.statistics.budgets import BudgetCurve, budget_curve
from fairlen.audit.statistics.channels import ChannelEffect, channel_effects
from fairlen.audit.statistics.coupling import Coupling, Untrained, WeightShares, coupling, untrained, weight_shares
from fairlen.audit.statistics.intervals import NOTHING, Estimate, bootstrap, mean_over, ratio
from fairlen.audit.statistics.lengths import Lengths, lengths, prompt_means, without_steps
from fairlen.audit.statistics.streams import StreamReport, stream_report
from fairlen.audit.statistics.within import MIN_PROMPTS, Effect, Within, jackknife, sum_pairs
from fairlen.batch import Bools
from fairlen.channels import name_channel

MARGINS = conclusion.Margins()
OF_THESE_STEPS = (
    "the interval is over prompts, in these {} steps: if the effect changes from step to step, "
    "other steps may show another effect"
)


@dataclass(frozen=True)
class Selection:
    """Which responses are not compared, or not there. Shares are of responses that started from their prompt, or of prompts."""

    truncated: Estimate  # nan where truncation is not known
    truncated_correct: Estimate
    truncated_incorrect: Estimate
    dropped: Estimate  # responses without a verdict: aborted, timed out, too old
    dropped_gap: Effect  # log length of a dropped response minus that of a kept one to the same prompt
    group_size: int  # responses that most prompts have in a step
    incomplete: Estimate  # prompts with fewer


@dataclass(frozen=True)
class Shares:
    """Description of the rollouts; intervals over prompts. It is no effect of length, and gives no advice about it."""

    difficulty: Estimate  # correlation of a prompt's mean log length with its accuracy, between the prompts of a step
    all_correct: Estimate  # prompts with several responses, all of them correct
    all_incorrect: Estimate
    duplicate: Estimate  # responses that repeat an earlier one to the same prompt in their step


@dataclass(frozen=True)
class AuditFinding:
    """An effect that stands at the false discovery rate."""

    measure: str
    """One of a `Quantity`, as within.length, or selection.truncated, selection.dropped, acceptance.lre, streams.optimism,
    streams.eos_advantage."""
    estimate: Estimate  # with its 95% interval: of lengths a relative difference, else in the measure's unit
    p_value: float  # nan of a share, which is no test
    text: str
    more: tuple[str, ...] = ()  # what has to be known with it
    advice: Advice | None = None


@dataclass(frozen=True)
class Audit:
    source: Source
    method: InUse | None
    conclusion: conclusion.Conclusion
    findings: tuple[AuditFinding, ...]
    within: Within  # without truncated responses
    within_with_truncated: Within
    selection: Selection
    lengths: Lengths
    budgets: BudgetCurve
    coupling: Coupling
    weights: dict[str, WeightShares]
    untrained: Untrained
    shares: Shares
    acceptance: Acceptance | None
    streams: StreamReport | None
    turns: conclusion.TurnReport | None  # None where every response is one turn
    channels: tuple[ChannelEffect, ...] = ()  # empty of a log with one

    @property
    def conclusions(self) -> tuple[conclusion.Conclusion, ...]:
        of_turns = (self.turns.number.conclusion, self.turns.length.conclusion) if self.turns else ()
        return self.conclusion, *of_turns

    @property
    def log(self) -> Log:
        return self.source.log


def audit(
    paths: str | list[str],
    options: Options = DEFAULTS,
    method: InUse | None = None,
    margins: conclusion.Margins = MARGINS,
) -> tuple[tuple[Audit, ...], LogReading]:
    """Read and measure. Raises ValueError for options that cannot be and paths where nothing is."""
    reading = read([paths] if isinstance(paths, str) else paths, options)
    return tuple(audit_source(source, method, margins) for source in reading.sources), reading


def audit_source(source: Source, method: InUse | None = None, margins: conclusion.Margins = MARGINS) -> Audit:
    """Measure one log; without a method it is looked for beside the files."""
    log, method = source.log, method or find_method(source.files)
    selection = find_selection(log)
    quantities = (conclusion.LENGTH, *conclusion.TURN_QUANTITIES) if log.has_turns else (conclusion.LENGTH,)
    effects = [conclusion.within_log(log, quantity=one) for one in quantities]
    accepted, streams = acceptance(log) if len(log.trained) else None, stream_report(log)
    channels = channel_effects(log)
    others = [*find_dropped(selection), *find_unequal_acceptance(accepted), *find_in_streams(streams)]
    others += () if log.question else find_channels(channels, margins)
    again = [conclusion.within_log(log, with_truncated=True, quantity=one) for one in quantities]
    p_values = [p for one in zip(effects, quantities, strict=True) for p in conclusion.p_values_of(*one).values()]
    p_values += [one.p_value for one in others]
    found = [conclusion.conclude(within, margins, p_values, of) for within, of in zip(effects, quantities, strict=True)]
    found = [conclusion.add_grouping(one, log) for one in found]
    findings = [
        *find_limit(source, selection.truncated),
        *(finding for one in zip(found, effects, again, strict=True) for finding in find_within(log, *one)),
        *(one for one in others if one.p_value <= found[0].bar),
    ]
    told = found[0].effect and found[0].quantity.measure_of(found[0].effect)
    findings.sort(key=lambda one: (one.measure != "selection.truncated", one.measure != told))  # the verdict's first
    weights, turns = weight_shares(log), conclusion.report_turns(log, effects[1:], found[1:]) if log.has_turns else None
    verdict = found[0]
    if not log.question:
        verdict = conclusion.conclude_log(verdict, log, selection.truncated.value)
    return Audit(
        source, method, verdict,
        tuple(replace(one, advice=one.advice or find_advice(one, method, weights)) for one in findings),
        effects[0], again[0], selection, lengths(log), budget_curve(log), coupling(log), weights, untrained(log),
        find_shares(log), accepted, streams, turns, channels,
    )  # fmt: skip


def find_advice(one: AuditFinding, method: InUse | None, weights: dict[str, WeightShares]) -> Advice | None:
    """Return the advice; none where the effect, of typical lengths, does not reach the weights, of arithmetic means."""
    if method and one.measure == "within.length" and method.aggregation in ("token_mean", "token_mean_update"):
        weight = weights[method.aggregation].incorrect_to_correct
        if not weight.excludes(1.0) or (weight.value > 1.0) != (one.estimate.value > 0):
            return None
    return advise(one.measure, one.estimate, method)


def find_limit(source: Source, truncated: Estimate) -> Iterator[AuditFinding]:
    if truncated.value > conclusion.MANY:
        text = f"{truncated:.0%} of responses end at the limit of generation"
        more = ("all effects are of the others, which length decided: that of all responses may be larger or smaller",)
        advice = Advice(f"raise {source.format.max_response_length} before all else", ())
        yield AuditFinding("selection.truncated", truncated, math.nan, text, more, advice)


def find_within(
    log: Log, found: conclusion.Conclusion, within: Within, with_truncated: Within
) -> Iterator[AuditFinding]:
    """Find the effects within prompts that the verdict calls, each with the same including truncated responses."""
    if found.status != "effect":
        return
    quantity, p_values = found.quantity, conclusion.p_values_of(within, found.quantity)
    known: tuple[conclusion.Name, ...] = tuple(name for name in found.significant if vars(with_truncated)[name].exists)
    again = {measure: text for measure, _, text in conclusion.describe_effects(with_truncated, known, quantity)}
    num_steps = len(np.unique(log.batch))
    limit = (OF_THESE_STEPS.format(num_steps),) if num_steps > 1 else ()
    for measure, name, text in conclusion.describe_effects(within, found.significant, quantity):
        effect, more = vars(within)[name], ()
        if "truncated" in log.known and log.responses.truncated.any():
            same = "it is the same" if again.get(measure) == text else again.get(measure, "that is unknown")
            with_them = f"; with them {same}" if log.responses.truncated[log.responses.active].any() else ": no verdict"
            more = (f"truncated responses are left out{with_them}",)
        elif "truncated" not in log.known:
            more = (
                "which responses were truncated is not known; those are long, and mostly incorrect, by the limit, "
                "and may be part of this",
            )
        yield AuditFinding(measure, conclusion.as_estimate(name, effect), p_values[measure], text, (*more, *limit))


def find_dropped(found: Selection) -> Iterator[AuditFinding]:
    effect = found.dropped_gap
    if effect.num_prompts >= MIN_PROMPTS:
        side = 1 if effect.value > 0 else -1
        size = f"{conclusion.show_size('gap', effect.estimate, side)} {conclusion.LENGTH.words[side < 0]}"
        text = f"responses without a verdict are {size} than others to the same prompt"
        more = (
            "which are left is decided by length, so that effects among them may differ from those of all responses",
        )
        yield AuditFinding("selection.dropped", conclusion.as_estimate("gap", effect), effect.p_value, text, more)


def find_channels(effects: Sequence[ChannelEffect], margins: conclusion.Margins) -> Iterator[AuditFinding]:
    """Find the channels that may go with correctness, alone and given the others."""
    for one in effects:
        side, verb = (1, "more") if one.alone.value > 0 else (-1, "less")
        alone, given = (conclusion.show_size("gap", effect.estimate, side) for effect in (one.alone, one.given))
        text = f"incorrect responses spend {alone} {verb} on {name_channel(one.channel)} than correct ones to the same prompt, "
        text += f"and {given} {verb} where all other channels are as long"
        if one.is_named(1.0, margins.of("gap")):
            yield AuditFinding(f"channels.{one.channel}", conclusion.as_estimate("gap", one.given), one.p_value, text)


def find_unequal_acceptance(found: Acceptance | None) -> Iterator[AuditFinding]:
    if found and not found.undefined and found.lre.value > found.floor:
        share = found.share.value
        text = f"the bound accepts {share[0]:.0%} of the shortest responses and {share[-1]:.0%} of the longest: "
        text += f"length reweighting error {found.lre:.3g}, of which noise {found.floor:.2g}"
        yield AuditFinding("acceptance.lre", found.lre, found.p_value, text)


def find_in_streams(found: StreamReport | None) -> Iterator[AuditFinding]:
    if not found:
        return
    best, net = found.optimism, found.eos_advantage
    texts = (
        f"`max` values survivors {best.estimate:.3g} above what is unbiased, a pair",
        f"stopping is {'penalised' if net.value < 0 else 'reinforced'}: net advantage on EOS {net.estimate:.3g} a response",
    )
    for name, effect, text in zip(("optimism", "eos_advantage"), (best, net), texts, strict=True):
        if effect.num_prompts >= MIN_PROMPTS:
            yield AuditFinding(f"streams.{name}", effect.estimate, effect.p_value, text)


def find_selection(log: Log) -> Selection:
    """Return which responses are not compared; one that the method leaves out for being truncated is not dropped."""
    started = log.responses.round == 0
    table, problem, correct = log.responses.take(started), log.clusters[started], log.correct[started]
    kept, truncated = ended_samples(log)[started], table.truncated
    told = kept | (table.length > 1)  # of what broke off often no length is known, which counts as 1
    _, first, size = np.unique(table.prompt[kept], return_index=True, return_counts=True)
    usual = int(np.bincount(size).argmax()) if kept.any() else 0
    is_graded = bool((table.active & truncated).any() or not truncated.any())  # else shares of verdicts would say 0

    def share(of: Bools, is_known: bool = True) -> Estimate:
        return mean_over(problem[of], truncated[of]) if is_known and "truncated" in log.known else NOTHING

    _, sums = sum_pairs(
        log.strata[started][told], problem[told], kept[told].astype(np.float64), np.log(table.length[told])
    )
    return Selection(
        share(kept), share(table.active & correct, is_graded), share(table.active & ~correct, is_graded),
        dropped=mean_over(problem, ~kept),
        dropped_gap=jackknife(sums[:, 2], sums[:, 0]),
        group_size=usual,
        incomplete=mean_over(problem[kept][first], size < usual),
    )  # fmt: skip


def find_shares(log: Log) -> Shares:
    rows, repeated = plain_samples(log, with_truncated=True), log.columns.get("duplicate")
    cluster, step, count, length, accuracy = prompt_means(log)
    x, y = (without_steps(step, of).round(9) for of in (length, accuracy))
    difficulty = bootstrap(cluster, [x * y, x * x, y * y], lambda s: ratio(s[..., 0], np.sqrt(s[..., 1] * s[..., 2])))
    all_correct, all_incorrect = (mean_over(cluster[count > 1], accuracy[count > 1] == share) for share in (1, 0))
    return Shares(
        difficulty=difficulty.at(0) if len(count) > 2 else NOTHING,
        all_correct=all_correct,
        all_incorrect=all_incorrect,
        duplicate=NOTHING if repeated is None else mean_over(log.clusters[rows], repeated[rows]),
    )


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
        f"verdicts: outcomes above {halfway(log.responses.outcome[log.responses.active]):.3g} count as correct; --columns "
        "correct=COLUMN>NUMBER sets another bar":
            "correct" not in log.known and not np.isin(log.responses.outcome[log.responses.active], (0.0, 1.0)).all(),
        "updates: no log ratios, so that acceptance by length is unknown; fairlen train records them": not len(log.trained),
        "groups: hardly any prompt has a second response in its step, so that nothing can be compared within prompts; "
        "--pool reads runs of one policy over the same prompts as one log":
            len(log) < 1.5 * max(log.responses.num_prompts, 1),
    }  # fmt: skip
    return tuple(sentence for sentence, is_missing in candidates.items() if is_missing)
