"""One self-contained page about a run: curves, lengths by outcome, weights by length, and answers to read."""

from fairlen.report.page import write_report

__all__ = ["write_report"]
