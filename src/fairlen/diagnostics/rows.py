"""Which rows of a log a measure counts, and with which advantages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlen.batch import Bools, Columns, Floats, Ints, Segments
from fairlen.diagnostics.log import Log
from fairlen.methods.stages.advantage import GroupNormalized


@dataclass(frozen=True)
class OffPolicy(Columns):
    """Sequences of updates whose log ratio is not exactly 0, [N]: the others are let through by every bound."""

    length: Ints
    log_ratio: Floats
    """S, nats."""
    inside: Floats
    clipped: Floats
    advantage: Floats
    prompt: Ints
    segment: Ints
    update: Ints


def off_policy(log: Log) -> OffPolicy:
    """No rows where updates were not recorded; a log ratio that is not finite does not count."""
    if log.trained is None:
        none = np.zeros(0, np.int64)
        real = none.astype(np.float64)
        return OffPolicy(none, real, real, real, real, none, none, none)
    known = np.isfinite(log.trained.log_ratio) & (log.trained.log_ratio != 0.0)
    rows = log.trained.take(known)
    return OffPolicy(
        length=log.segments.length[rows.segment],
        log_ratio=rows.log_ratio,
        inside=rows.inside,
        clipped=rows.clipped,
        advantage=advantages(log)[rows.segment],
        prompt=log.responses.prompt[log.segments.response[rows.segment]],
        segment=rows.segment,
        update=rows.update,
    )


def rewards(log: Log) -> Floats:
    """What each response was worth, [R]: the shaped reward where recorded, else the outcome."""
    return log.columns.get("reward", log.responses.outcome)


def values(log: Log) -> Floats:
    """What each segment was worth, [B]: as recorded, else the reward of its response."""
    return rewards(log)[log.segments.response] if log.value is None else log.value


def advantages(log: Log) -> Floats:
    """As recorded, else values normalised by group (GroupNormalized), [B]; 0 where inactive or not finite."""
    if log.advantage is not None:
        return np.where(np.isfinite(log.advantage) & log.segments.active, log.advantage, 0.0)
    value = values(log)
    counts = log.segments.active & np.isfinite(value)
    found = np.zeros(len(log.segments))
    found[counts] = GroupNormalized()(log.segments.take(counts).with_dense_groups(), value[counts])
    return found


@dataclass(frozen=True)
class Weighed:
    """What updates add up, [n]; a segment once for each update that it was part of."""

    segments: Segments
    """Groups dense from 0, never in two units."""
    advantage: Floats
    unit: Ints
    """Dense from 0."""
    names: Ints
    """Number of the update, or rollout batch, that each unit is, [units]."""
    prompt: Ints
    right: Bools
    batch: Ints
    """Rollout batch."""

    @property
    def num_units(self) -> int:
        return len(self.names)


def weighed(log: Log) -> Weighed:
    """The recorded updates; where there are none, the active segments, each rollout batch as one update."""
    if log.trained is not None and len(log.trained):
        rows, name = log.trained.segment, log.trained.update
    else:
        rows = np.flatnonzero(log.segments.active)
        name = log.batch[log.segments.response[rows]]
    segments = log.segments.take(rows)
    names, unit = np.unique(name, return_inverse=True)
    _, group = np.unique(unit * max(segments.num_groups, 1) + segments.group, return_inverse=True)
    return Weighed(
        segments=replace(segments, group=group),
        advantage=advantages(log)[rows],
        unit=unit,
        names=names,
        prompt=log.responses.prompt[segments.response],
        right=log.right[segments.response],
        batch=log.batch[segments.response],
    )
