"""Every measure of a log, under one roof: functions of `Log`, without torch, each with its uncertainty."""

from fairlen.diagnostics.acceptance import RULES, WIDTHS, Acceptance, Replayed, acceptance, acceptance_by_length, replay
from fairlen.diagnostics.conclusion import Conclusion, Margins, conclude, within_log
from fairlen.diagnostics.coupling import AGGREGATIONS, Coupling, WeightShares, coupling, weight_shares
from fairlen.diagnostics.law import RatioLaw, ratio_law
from fairlen.diagnostics.lengths import Lengths, lengths
from fairlen.diagnostics.streams import StreamReport, mean_eos_advantage, stream_report
from fairlen.diagnostics.uncertainty import Bins, Estimate, Estimates, length_bins
from fairlen.diagnostics.within import Effect, Within, compare_within

__all__ = [
    "AGGREGATIONS", "RULES", "WIDTHS", "Acceptance", "Bins", "Conclusion", "Coupling", "Effect", "Estimate", "Estimates",
    "Lengths", "Margins", "RatioLaw", "Replayed", "StreamReport", "WeightShares", "Within", "acceptance", "acceptance_by_length",
    "compare_within", "conclude", "coupling", "length_bins", "lengths", "mean_eos_advantage", "ratio_law", "replay",
    "stream_report", "weight_shares", "within_log",
]  # fmt: skip
