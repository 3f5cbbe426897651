"""Alarms of a watch as alerts of wandb and trackio, where a run of theirs is open, and as text in TensorBoard's files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlen.watch.watch import Alarm


def send_alert(alarm: Alarm, services: Iterable[str]) -> None:
    """Alert in the services that report a run in this process; those without alerts, and without a run, are passed over."""
    title = f"{alarm.kind} at step {alarm.step}"
    wandb, trackio = (sys.modules.get(name) for name in ("wandb", "trackio"))
    if "wandb" in services and wandb is not None and wandb.run is not None:
        wandb.alert(title=title, text=alarm.text, level=wandb.AlertLevel.WARN)
    if "trackio" in services and trackio is not None:
        trackio.alert(title=title, text=alarm.text, level=trackio.AlertLevel.WARN)
