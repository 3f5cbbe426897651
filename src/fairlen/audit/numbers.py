"""The numbers of an audit as rows of text, for the terminal and the page, and as JSON data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fairlen.audit.audit import Audit, find_missing
from fairlen.audit.comparison import Against
from fairlen.audit.conclusion import LENGTH, Quantity, as_estimate, list_effects
from fairlen.audit.method_in_use import USERS
from fairlen.audit.readers import LogReading
from fairlen.audit.statistics.budgets import BudgetCurve
from fairlen.audit.statistics.intervals import Bins, Estimate
from fairlen.audit.statistics.streams import StreamReport
from fairlen.audit.statistics.within import Effect, Within
from fairlen.channels import OBSERVATION, name_channel
from fairlen.console import plural

MAX_ROWS_JSON = 100  # malformed rows that are listed
CHANNELS_HEAD = (
    "what is spent on each channel", "share", "mean", "of correct ones", "of incorrect ones",
    "same prompt: incorrect over correct", "and other channels as long"
)  # fmt: skip
AGGREGATIONS = "what each aggregation would do"
Rows = Iterator[tuple[str, str, str]]


def count_rollouts(one: Audit) -> str:
    counts = {"response": len(one.log), "prompt": len(np.unique(one.log.clusters)), "step": len(one.lengths.batch)}
    responses, prompts, steps = (f"{count:,} {plural(word, count)}" for word, count in counts.items())
    found = f"{responses} to {prompts} in {steps}, {one.conclusion.num_prompts:,} with correct and incorrect ones"
    forks = np.count_nonzero(one.log.responses.round)
    plain = (
        f"; lengths and effects are of {len(one.log) - forks:,}, not of {forks:,} forks, which continue what survived"
    )
    return found + plain if forks else found


def describe_method(one: Audit) -> str:
    if one.method:
        return f"{one.method.name}, aggregation {one.method.aggregation} ({one.method.origin})"
    ask = "name it: --method grpo+balanced, TRL's loss_type=dapo, verl's loss_agg_mode=token-mean"
    return f"not known, so that there is no advice; {ask}"


def line(name: str, found: Estimate, style: str = ".3g") -> tuple[str, str, str]:
    if not found.exists:
        return name, "unknown", ""
    styles = (style if abs(one) < 999.5 else style.replace(".3g", ",.0f") for one in found)  # 7,230 and not 7.23e+03
    value, low, high = (f"{one:{form}}" for one, form in zip(found, styles, strict=True))
    return name, value, "" if math.isnan(found.low + found.high) else f"[{low}, {high}]"


def within_rows(one: Audit) -> Rows:
    sides = {"": one.within}
    if (one.log.responses.truncated & one.log.responses.active).any():
        sides = {", truncated ones left out": one.within, ", with truncated ones": one.within_with_truncated}
    for what, within in sides.items():
        yield from effect_rows(within, LENGTH, what)
    for of_turns in (one.turns.number, one.turns.length) if one.turns else ():
        yield from effect_rows(of_turns.within, of_turns.conclusion.quantity, next(iter(sides)))


def effect_rows(within: Within, quantity: Quantity, what: str) -> Rows:
    found, noun = {name: as_estimate(name, effect) for name, effect in list_effects(within)}, quantity.noun
    yield line(f"{noun} of incorrect over correct responses{what}".removeprefix("the "), found["gap"], "+.1%")
    yield line(f"  pairs in which the incorrect response {quantity.is_more}", above_half(found["order"]), ".1%")
    yield line(f"  in which it is farther from {quantity.median}", above_half(found["bend"]), ".1%")
    yield line(
        f"  accuracy lost one standard deviation from the best {noun.removeprefix('the ')}", found["curve"], "+.1%"
    )


def above_half(found: Estimate) -> Estimate:
    """Return a share that was given as its difference from a half."""
    return Estimate(found.value + 0.5, max(found.low + 0.5, 0.0), min(found.high + 0.5, 1.0))


def aggregation_head(one: Audit) -> tuple[str, ...]:
    head = ("weight of incorrect over correct", "95% interval", "a token of the longest over the shortest")
    return AGGREGATIONS, *head, *["a turn of the most turns over the fewest"] * bool(one.turns)


def aggregation_rows(one: Audit) -> Iterator[tuple[str, ...]]:
    for name, found in one.weights.items():
        mark = ", in use" if one.method and name == one.method.aggregation else f" ({USERS[name]})"
        _, value, interval = line("", found.incorrect_to_correct, ".2f")
        ratios = found.long_to_short, *[found.many_to_few] * bool(one.turns)
        yield f"{name}{mark}", value, interval, *("" if math.isnan(number) else f"{number:.2f}" for number in ratios)


def channel_rows(one: Audit) -> Iterator[tuple[str, ...]]:
    total = sum(found.mean.value for found in one.channels if found.channel != OBSERVATION)
    for found in one.channels:
        share = "" if found.channel == OBSERVATION else f"{found.mean.value / total:.1%}"
        means = (line("", mean)[1] for mean in (found.mean, found.correct, found.incorrect))
        gaps = (" ".join(line("", as_estimate("gap", gap), "+.0%")[1:]) for gap in (found.alone, found.given))
        yield name_channel(found.channel), share, *means, *gaps


def selection_rows(one: Audit) -> Rows:
    found = one.selection
    yield line("truncated", found.truncated, ".1%")
    if found.truncated.value > 0:
        yield line("  of incorrect responses", found.truncated_incorrect, ".1%")
        yield line("  of correct responses", found.truncated_correct, ".1%")
    if found.dropped.value > 0:
        yield line("without a verdict", found.dropped, ".1%")
    if found.incomplete.value > 0:
        yield line(f"prompts with fewer than {found.group_size} responses in their step", found.incomplete, ".1%")


def describe_budgets(found: BudgetCurve, unit: str) -> str:
    """Return what a limit of half the longest response would cost, and the budget that nine tenths of correct responses need."""
    if found.half < 0 or math.isnan(found.enough.low):
        return ""
    accuracy, lost, enough = found.correct.value[found.half], found.lost.at(found.half), found.enough
    points = Estimate(*(100 * x for x in lost))
    cost = (
        f"A limit of {found.budget[found.half]:,} {unit}, half of the longest response, would keep "
        f"{found.spent[found.half]:.0%} of the {unit} and cost {points:.1f} points of accuracy, which leaves {accuracy:.1%}."
    )
    ends = f"90% of correct responses end within {enough.value:,.0f} {unit}"
    if math.isnan(enough.high):
        few = "too few prompts have a correct response for an upper end"
        return f"{cost} {ends} [{enough.low:,.0f}, unknown]: {few}."
    return f"{cost} {ends} [{enough.low:,.0f}, {enough.high:,.0f}]."


def budget_rows(found: BudgetCurve) -> Rows:
    """Yield accuracy within each budget, both bounds where truncation leaves it open."""
    columns = found.correct.value, found.highest.value, found.correct.low, found.highest.high
    for budget, *ends in zip(found.budget, *columns, strict=True):
        low, high, *interval = (f"{end:.1%}" for end in ends)
        shown = "" if math.isnan(ends[2]) else f"[{interval[0]}, {interval[1]}]"
        yield f"{budget:,}", low if low == high else f"{low} to {high}", shown


def main_budgets(found: BudgetCurve) -> Rows:
    """Yield half an octave apart those that change something, half of the longest response, all of it, and what lies beyond."""
    rows, lost, size = list(budget_rows(found)), found.lost.value, len(found.budget)
    changed = [place for place in range(size - 1, -1, -2) if lost[place] > 0.005 * found.correct.value[-1]]
    yield from (rows[place] for place in sorted({*changed, found.half, found.last, size - 1} - {-1}))


def untrained_head(one: Audit) -> tuple[str, ...]:
    return f"{one.log.unit} that trained nothing", "share", "95% interval", *one.untrained.bins.names()


def untrained_rows(one: Audit) -> Iterator[tuple[str, ...]]:
    """Yield the reasons that there are, with the share in each bin of length, and all of them together."""
    found, together = one.untrained, np.sum(list(one.untrained.share.values()), 0)
    rows = [(name, total, found.share[name]) for name, total in found.total.items() if total.value > 0]
    for name, total, shares in [*rows, ("together", found.together, together)] if rows else ():
        yield *line(name, total, ".1%"), *(f"{share:.1%}" for share in shares)


def measured_rows(one: Audit) -> Rows:
    found, shares = one.lengths, one.shares
    yield line("accuracy", found.accuracy, ".1%")
    yield line("prompts all correct", shares.all_correct, ".1%")
    yield line("prompts all incorrect", shares.all_incorrect, ".1%")
    yield line("repeated responses in one step", shares.duplicate, ".1%")
    yield line(f"length ({one.log.unit})", found.mean)
    yield line("  of correct responses", found.correct)
    yield line("  of incorrect responses", found.incorrect)
    if len(found.batch) > 1:
        yield line("  change a step", found.trend, "+.3g")
    if one.turns:
        for name, of in (("turns", one.turns.number), (f"length of a turn ({one.log.unit})", one.turns.length)):
            yield line(name, of.mean)
            yield line("  of correct responses", of.correct)
            yield line("  of incorrect responses", of.incorrect)
        yield line("net advantage on another turn (a response)", one.turns.another_turn, "+.3f")
    yield line("difficulty: correlation of accuracy and log length between prompts", shares.difficulty, "+.2f")
    yield line("spread of lengths within a sign, over their mean", one.coupling.variation_within_sign, ".3f")
    yield line("sign and length, sum A L / sum L", one.coupling.sign_length, "+.3f")


def recorded_rows(one: Audit) -> Rows:
    found, streams = one.acceptance, one.streams
    if found and found.undefined:
        yield "acceptance by length", found.undefined, ""
    elif found:
        yield line("accepted by the bound", found.overall, ".1%")
        yield line(f"length reweighting error (noise alone {found.floor:.2g})", found.lre, ".3f")
    if streams:
        yield line("rounds a stream", streams.rounds)
        yield line("optimism of `max` (reward a pair)", streams.optimism.estimate, "+.3f")
        yield line("net advantage on EOS (a response)", streams.eos_advantage.estimate, "+.3f")


def to_json(audits: tuple[Audit, ...], reading: LogReading, against: Against | None = None) -> dict[str, Any]:
    """Return everything as JSON data; docs/audit.md lists the fields."""
    logs, compared = [log_to_json(one) for one in audits], plain(against)
    if against:
        compared["sentence"] = against.sentence
    return {"logs": logs, "against": compared, "unreadable": reading.unreadable, "skipped": reading.skipped}


def log_to_json(one: Audit) -> dict[str, Any]:
    rollouts, source, method = one.log, one.source, one.method
    counts = {
        "responses": len(rollouts), "prompts": len(np.unique(rollouts.clusters)),
        "rollout_batches": len(np.unique(rollouts.batch)), "malformed": len(rollouts.malformed),
    }  # fmt: skip
    fields = {name: value for name, value in vars(one).items() if name != "source"}
    return plain({
        "format": rollouts.format, "title": source.format.title, "folder": source.folder, "files": source.files,
        "unit": rollouts.unit, "counts": counts, "notes": source.notes, "malformed": rollouts.malformed[:MAX_ROWS_JSON],
        "known": sorted(rollouts.known), "missing": find_missing(one), **fields,
        "method": method and {"name": method.name, "aggregation": method.aggregation, "origin": method.origin},
        "channels": {found.channel: found for found in one.channels},
    })  # fmt: skip


def plain(value: Any) -> Any:
    """Return numbers, arrays and estimates as JSON data; numbers that are not finite become null."""
    if isinstance(value, Quantity):
        return value.noun
    if isinstance(value, Within):
        value = {name: as_estimate(name, effect) for name, effect in list_effects(value)}
    if isinstance(value, StreamReport):
        value = {name: getattr(one, "estimate", one) for name, one in vars(value).items()}
    if isinstance(value, Effect):  # all others are differences of log lengths
        value = as_estimate("gap", value)
    if isinstance(value, Estimate):
        value = value._asdict()
    if isinstance(value, Bins):
        value = {"low": value.low, "high": value.high, "count": value.count}
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
