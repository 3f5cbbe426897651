"""Every measure of a log, under one roof: functions of `Log`, without torch, each with its uncertainty."""

from fairlen.diagnostics.acceptance import Acceptance, acceptance, acceptance_by_length
from fairlen.diagnostics.bins import Bins, length_bins
from fairlen.diagnostics.coupling import Coupling, Criterion, coupling, criterion
from fairlen.diagnostics.direction import Direction, direction_bound
from fairlen.diagnostics.drift import RatioLaw, drift, ratio_law
from fairlen.diagnostics.lengths import ByLength, Lengths, by_length, lengths
from fairlen.diagnostics.replay import RULES, WIDTHS, Replayed, replay
from fairlen.diagnostics.tracks import LearningTax, StreamReport, learning_tax, stopping, stream_report
from fairlen.diagnostics.uncertainty import Estimate, Estimates
from fairlen.diagnostics.weights import AGGREGATIONS, WeightMass, weight_masses

__all__ = [
    "AGGREGATIONS", "RULES", "WIDTHS", "Acceptance", "Bins", "ByLength", "Coupling", "Criterion", "Direction",
    "Estimate", "Estimates", "LearningTax", "Lengths", "RatioLaw", "Replayed", "StreamReport", "WeightMass",
    "acceptance", "acceptance_by_length", "by_length", "coupling", "criterion", "direction_bound", "drift",
    "learning_tax", "length_bins", "lengths", "ratio_law", "replay", "stopping", "stream_report", "weight_masses",
]  # fmt: skip
