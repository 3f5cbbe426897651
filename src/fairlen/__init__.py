"""Length-fair reinforcement learning with verifiable rewards: choose, combine, prove, run and diagnose methods.

Every public name is imported when it is first asked for; only `policy_loss`, `finish_update` and training need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlen.batch import Plan
    from fairlen.loop.policy_loss import PolicyLoss, policy_loss
    from fairlen.loop.update import Skips, finish_update
    from fairlen.methods.compose import compose
    from fairlen.methods.method import Method, Scored, Update, updates
    from fairlen.methods.rows import RowPlan, plan_rows
    from fairlen.rollouts import Response, Rollouts, Segment
    from fairlen.sampling.extend import Continuation, Sampling
    from fairlen.watch.watch import LengthWatch

__version__ = "0.1.0"

__all__ = [
    "Continuation", "LengthWatch", "Method", "Plan", "PolicyLoss", "Response", "Rollouts", "RowPlan", "Sampling", "Scored",
    "Segment", "Skips", "Update", "compose", "finish_update", "plan_rows", "policy_loss", "updates",
]  # fmt: skip

HOMES = {
    "batch": "Plan",
    "methods.compose": "compose",
    "methods.method": "Method Scored Update updates",
    "loop.policy_loss": "PolicyLoss policy_loss",
    "methods.rows": "RowPlan plan_rows",
    "loop.update": "Skips finish_update",
    "rollouts": "Response Rollouts Segment",
    "sampling.extend": "Continuation Sampling",
    "watch.watch": "LengthWatch",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: `import fairlen` alone takes no time."""
    for home, names in HOMES.items():
        if name in names.split():
            return getattr(import_module(f"fairlen.{home}"), name)
    raise AttributeError(f"module 'fairlen' has no attribute {name!r}")
