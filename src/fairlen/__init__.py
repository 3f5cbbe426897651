"""Length-fair reinforcement learning with verifiable rewards: choose, combine, prove, run and diagnose methods.

The public names import without torch; only calling a surrogate or training needs it.
"""

from fairlen.batch import Plan, Response, Rollouts, Segment
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, Scored, Update, updates
from fairlen.sampling.extend import Continuation, Sampling

__version__ = "0.1.0"

__all__ = [
    "Continuation", "Method", "Plan", "Response", "Rollouts", "Sampling", "Scored", "Segment", "Update", "compose", "updates",
]  # fmt: skip
