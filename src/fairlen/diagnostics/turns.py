"""Turns of trajectories: how many and how long they are by outcome, and whether another one is reinforced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlen.diagnostics.conclusion import TURN_LENGTH, TURNS, Conclusion, plain_samples
from fairlen.diagnostics.lengths import split
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.streams import mean_advantage
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.diagnostics.within import Within
from fairlen.sampling.stream_metrics import count_continued

QUANTITIES = (TURNS, TURN_LENGTH)


@dataclass(frozen=True)
class ByOutcome:
    """A quantity of trajectories: effects of it within prompts, and arithmetic means over all prompts."""

    conclusion: Conclusion
    within: Within
    """Without truncated responses, as the verdict is."""
    mean: Estimate
    correct: Estimate
    incorrect: Estimate


@dataclass(frozen=True)
class TurnReport:
    """What a log says about turns; intervals are over prompts."""

    number: ByOutcome
    """Turns of a response."""
    length: ByOutcome
    """Mean length of its turns."""
    another_turn: Estimate
    """Net advantage on another turn, a response: the sum of advantages over turns that another one followed."""


def report_turns(log: Log, effects: Sequence[Within], conclusions: Sequence[Conclusion]) -> TurnReport:
    """Return what a log says about turns, of effects and verdicts on each of QUANTITIES."""
    rows = plain_samples(log, with_truncated=True)
    table, correct = log.responses.take(rows), log.correct[rows]
    number, length = (
        ByOutcome(conclusion, within, *split(table.prompt, quantity.of(table), correct)[:3])
        for quantity, within, conclusion in zip(QUANTITIES, effects, conclusions, strict=True)
    )
    return TurnReport(number, length, mean_advantage(log, count_continued(log.responses, log.segments)))
