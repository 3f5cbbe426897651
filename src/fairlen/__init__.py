"""Length-fair reinforcement learning with verifiable rewards: choose, combine, prove, run and diagnose methods.

The public names import without torch; only `policy_loss`, `finish_update` and training need it.
"""

from typing import TYPE_CHECKING, Any

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, Scored, Update, updates
from fairlen.methods.rows import RowPlan, plan_rows
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.sampling.extend import Continuation, Sampling

if TYPE_CHECKING:
    from fairlen.methods.policy_loss import PolicyLoss, finish_update, policy_loss

__version__ = "0.1.0"

__all__ = [
    "Continuation", "Method", "Plan", "PolicyLoss", "Response", "Rollouts", "RowPlan", "Sampling", "Scored", "Segment", "Update",
    "compose", "finish_update", "plan_rows", "policy_loss", "updates",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what needs torch where it is asked for."""
    if name in ("PolicyLoss", "finish_update", "policy_loss"):
        from fairlen.methods import policy_loss

        return getattr(policy_loss, name)
    raise AttributeError(f"module 'fairlen' has no attribute {name!r}")
