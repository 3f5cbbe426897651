"""State that a stage carries by value: a marked field, never set by a user, kept in the checkpoint."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any


def state(default: float) -> Any:
    """A field that `method.update` replaces; left out of `--set`, of tables and of the configuration hash."""
    return field(default=default, metadata={"state": True}, repr=False)


def is_state(stage_field: Field[Any]) -> bool:
    """Whether the field was made by `state`."""
    return bool(stage_field.metadata.get("state"))
