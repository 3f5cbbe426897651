"""Every method in TRL: `from fairlen.integrations.trl import FairGRPOTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlen.integrations.trl.trainer import FairGRPOTrainer

__all__ = ["FairGRPOTrainer"]


def __getattr__(name: str) -> Any:
    """The trainer, when it is asked for: TRL takes seconds to import, which the settings of a command need not wait for."""
    if name == "FairGRPOTrainer":
        from fairlen.integrations.trl.versions import refuse_changed

        refuse_changed()  # first: what follows may not import with another TRL
        from fairlen.integrations.trl.trainer import FairGRPOTrainer

        return FairGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
