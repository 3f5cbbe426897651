"""Every measure of a log, under one roof: functions of `Log`, without torch, each with its uncertainty."""

from fairlen.diagnostics.acceptance import RULES, WIDTHS, Acceptance, Replayed, acceptance, acceptance_by_length, replay
from fairlen.diagnostics.coupling import AGGREGATIONS, Coupling, WeightShares, coupling, weight_shares
from fairlen.diagnostics.law import RatioLaw, ratio_law
from fairlen.diagnostics.lengths import ByLength, Lengths, by_length, lengths
from fairlen.diagnostics.streams import StreamReport, mean_eos_advantage, stream_report
from fairlen.diagnostics.uncertainty import Bins, Estimate, Estimates, length_bins

__all__ = [
    "AGGREGATIONS", "RULES", "WIDTHS", "Acceptance", "Bins", "ByLength", "Coupling", "Estimate", "Estimates",
    "Lengths", "RatioLaw", "Replayed", "StreamReport", "WeightShares", "acceptance", "acceptance_by_length", "by_length",
    "coupling", "length_bins", "lengths", "mean_eos_advantage", "ratio_law", "replay", "stream_report",
    "weight_shares",
]  # fmt: skip
