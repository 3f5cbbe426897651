"""Errors that end a run which cannot go on; what it saved before is whole. The command line shows one line and ends with 1."""


class TrainingStopped(RuntimeError):
    """Says why, and what to change."""
