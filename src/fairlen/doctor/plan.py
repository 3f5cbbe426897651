"""From settings to the plan that checks look at."""

from __future__ import annotations

from dataclasses import dataclass

from fairlen.doctor.finding import Plan
from fairlen.methods.compose import explain
from fairlen.train.config import TrainConfig


@dataclass(frozen=True)
class DoctorConfig(TrainConfig):
    """Check this machine and, with the flags of `fairlen train`, a run that is planned. Ends with 1 where a check fails."""

    deep: bool = False
    """Add what takes minutes: the engine against the trainer, a rehearsal of verl."""
    json: bool = False
    """Print findings for machines."""


def make_plan(config: TrainConfig, complaint: str = "") -> Plan:
    """The plan; `complaint` says why settings that were given cannot be, in whose place `config` has the defaults."""
    if complaint:
        return Plan(config, None, complaint)
    try:
        return Plan(config, explain(config.method, config.set))
    except ValueError as error:
        return Plan(config, None, str(error))
