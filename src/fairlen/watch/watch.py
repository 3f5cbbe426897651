"""A watch on length beside any trainer: one call a rollout batch returns new alarms, each at most once a run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairlen.audit.advice import advise
from fairlen.audit.conclusion import LENGTH, Margins
from fairlen.audit.method_in_use import InUse, parse_method
from fairlen.audit.statistics.intervals import Estimate
from fairlen.batch import CORRECT_THRESHOLD, Floats, Responses, build_responses, number_keys
from fairlen.watch.evidence import EProcess, Size, compare_groups
from fairlen.watch.history import History
from fairlen.watch.thresholds import THRESHOLDS, Shape, find_crossed

EFFECT = "effect"
"""The kind of alarm about length and correctness; all others are thresholds without a test."""
NONE: Mapping[str, Floats] = {}
ASSOCIATION = (
    "an association, not a cause: the longer response may be incorrect because it is long, or long because it was lost"
)


@dataclass(frozen=True)
class Alarm:
    """Something that a run's user should see, told once."""

    kind: str
    """"effect", or a threshold: "truncation", "length", "signal", "verdicts", "staleness", "weight"."""
    step: int
    """At which it was raised."""
    size: float
    """Of the effect the relative difference of length, incorrect over correct; of a threshold what crossed it."""
    interval: tuple[float, float] | None
    """95% confidence sequence of the size; None for thresholds, which have none."""
    text: str
    """What happened, since about when, what it does not mean, and what to do."""
    since: int | None = None
    """Estimated step of the onset."""

    def __str__(self) -> str:
        return f"{self.kind}, step {self.step}: {self.text}"


@dataclass
class LengthWatch:
    """Watches the rollout batches of one run.

    Alarms of the kind "effect" come with a probability of at most `error` in a whole run in which length and correctness are
    unrelated within prompts and steps up to the margins, however long it is: half of it for either direction.
    """

    method: str = ""
    """Method that trains, such as dapo+balanced, or its aggregation, such as token_mean: what advice is about."""
    error: float = 0.05
    smallest_length: float = 0.10
    """Smallest relative difference of length that matters."""
    smallest_share: float = 0.05
    """Smallest difference of shares of pairs that matters."""
    correct_threshold: float = CORRECT_THRESHOLD
    """Outcome above which a response counts as correct."""
    exchangeable: bool = True
    """False where the sampler selects responses by length (EqLen's forks, first come first served): then no effect is tested."""
    kinds: tuple[str, ...] = (EFFECT, *THRESHOLDS)
    """Alarms that are raised."""
    keep: bool = True
    """Keep lengths and outcomes of all responses for `page`: 25 bytes each."""
    in_use: InUse | None = field(default=None, init=False, repr=False)
    evidence: EProcess = field(init=False, repr=False)
    steps: list[Shape] = field(default_factory=list, init=False, repr=False)
    alarms: list[Alarm] = field(default_factory=list, init=False)
    history: History = field(default_factory=History, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("error", "smallest_length", "smallest_share"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: give a number between 0 and 1")
        self.evidence = EProcess(Margins(self.smallest_length, self.smallest_share))
        self.name_method(self.method)

    def name_method(self, name: str) -> None:
        """Say which method trains. Raises ValueError for an unknown one."""
        self.method, self.in_use = name, parse_method(name) if name else None

    def attach(self, trainer: Any, verdict: str = "") -> Any:
        """Look at every rollout batch of TRL's GRPOTrainer; `verdict` names its reward function that tells correctness."""
        return resolve_name("fairlen.integrations.trl.watch:attach")(self, trainer, verdict)

    def add(
        self,
        prompts: Iterable[Hashable],
        lengths: ArrayLike,
        outcomes: ArrayLike,
        *,
        truncated: ArrayLike | None = None,
        step: int | None = None,
        channels: Mapping[str, ArrayLike] | None = None,
        age: ArrayLike | None = None,
    ) -> list[Alarm]:
        """Take one rollout batch and return the alarms that it raises.

        All are columns [N]: any hashable for each prompt, tokens of each response, verdicts or rewards (nan: none), whether the
        limit ended it (None: not known), tokens by channel, and updates since the weights that generated it. `step` is one more
        than the last by default; a step that was added before is passed over, as the iterations over one batch. Raises ValueError
        for columns that cannot be.
        """
        keys = list(prompts)
        columns = {"lengths": lengths, "outcomes": outcomes, "truncated": truncated, "age": age, **(channels or {})}
        given = {name: read_column(name, column, len(keys)) for name, column in columns.items() if column is not None}
        number = self.last_step + 1 if step is None else int(step)
        length, cut = given["lengths"].astype(np.int64), given.get("truncated", np.zeros(len(keys))) > 0
        table = build_responses(
            number_keys(keys), length, given["outcomes"], given["outcomes"], cut, int(length.max(initial=1)),
            correct_threshold=self.correct_threshold,
        )  # fmt: skip
        shape = {name: given[name] for name in (channels or {})}
        is_new = bool(keys) and number > self.last_step
        found = self.look(number, table, age=given.get("age"), channels=shape, knows_limit="truncated" in given)
        if self.keep and is_new:
            self.history.add(number, keys, table, "truncated" in given)
        return found

    @property
    def last_step(self) -> int:
        return self.steps[-1].number if self.steps else -1

    def look(
        self, step: int, table: Responses, *, age: Floats | None = None, channels: Mapping[str, Floats] = NONE,
        knows_limit: bool = True,
    ) -> list[Alarm]:  # fmt: skip
        """Take one rollout batch as a trainer of fairlen's has it, and return the alarms that it raises."""
        if step <= self.last_step or not len(table):
            return []
        rule = self.in_use.aggregation if self.in_use else ""
        self.steps.append(Shape.of(step, table, age, channels, knows_limit, rule))
        rows = table.active & ~table.truncated
        versions = np.zeros(len(table)) if age is None else age
        stratum = number_keys(np.column_stack([table.prompt, versions.astype(np.int64)]))[rows]
        self.evidence.add(step, *compare_groups(stratum, table.correct[rows].astype(np.float64), table.length[rows]))
        new = [*self.find_effects(step), *self.find_crossed(step)]
        self.alarms += new
        return new

    def find_effects(self, number: int) -> Iterable[Alarm]:
        if not self.exchangeable or EFFECT not in self.kinds:
            return
        for side, word in enumerate(LENGTH.words):
            is_told = any(one.kind == EFFECT and (one.size > 0) == (side == 0) for one in self.alarms)
            if not is_told and self.evidence.measure(side) >= 2 / self.error:
                yield self.describe_effect(number, side, word)

    def describe_effect(self, number: int, side: int, word: str) -> Alarm:
        onset = self.evidence.find_onset(side)
        gap, order = self.evidence.estimate(onset)
        since, sign = self.evidence.steps[onset], 1 - 2 * side
        length = Estimate(*(math.expm1(x) for x in (gap.value, gap.low, gap.high)))
        text = (
            f"incorrect responses are {show(length, sign)} {word} than correct ones to the same prompt and the {word} ones in "
            f"{show(shares(order, sign), 1)} of pairs, since about step {since}; {ASSOCIATION}"
        )
        advice = advise("within.length", length, self.in_use)
        unknown = "" if self.method else "Name the method (LengthWatch(method=...)) for what follows under it. "
        look = f"{unknown}The audit's page shows which prompts and responses it is"
        remedy = f"With {self.method}: {advice.text}" if advice else look
        return Alarm(EFFECT, number, length.value, (length.low, length.high), f"{text}. {remedy}", since)

    def find_crossed(self, number: int) -> Iterable[Alarm]:
        """Yield alarms of thresholds that are crossed now and were not told."""
        told = {one.kind for one in self.alarms}
        for kind, found in find_crossed(self.steps):
            if kind in self.kinds and kind not in told:
                text = f"{found.text} (a threshold, not a test). {found.remedy}"
                yield Alarm(kind, number, found.size, None, text, found.since)

    def summary(self) -> dict[str, Any]:
        """Return the numbers so far: steps, responses, the latest shape, e-values, the effect since its onset, alarms."""
        side = int(self.evidence.measure(1) > self.evidence.measure(0))
        found: dict[str, Any] = {"steps": len(self.steps), "responses": sum(one.size for one in self.steps)}
        if self.steps:
            onset = self.evidence.find_onset(side)
            gap, order = self.evidence.estimate(onset)
            found |= {"last": asdict(self.steps[-1]), "since": self.evidence.steps[onset]}
            found |= {"gap": asdict(gap), "order": asdict(order)}
        evalues = {"longer": self.evidence.measure(0), "shorter": self.evidence.measure(1)}
        tested = {"evalues": evalues, "alarm_at": 2 / self.error} if self.exchangeable else "not tested"
        return found | {"effect": tested, "alarms": [asdict(one) for one in self.alarms]}

    def page(self, path: str | Path) -> Path:
        """Write the audit of all responses so far as one page, alarms first."""
        from fairlen.watch.page import write_log_page

        return write_log_page(Path(path), self.rows(), self.history.log(), self.in_use, self.evidence.margins)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the alarms as (kind, step, since, text)."""
        return [(one.kind, str(one.step), "" if one.since is None else str(one.since), one.text) for one in self.alarms]

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs, which JSON keeps exactly."""
        alarms, steps = [asdict(one) for one in self.alarms], [asdict(one) for one in self.steps]
        return {
            "alarms": alarms, "steps": steps, "evidence": self.evidence.state(), "history": asdict(self.history)
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, as if the run had not been interrupted; an empty one changes nothing."""
        if not state:
            return
        self.alarms = [
            Alarm(**one | {"interval": one["interval"] and tuple(one["interval"])}) for one in state["alarms"]
        ]
        self.steps = [Shape(**one) for one in state["steps"]]
        self.evidence.restore(state["evidence"])
        self.history = History(**state["history"])


def read_column(name: str, column: ArrayLike, size: int) -> np.ndarray:
    """Return a column as float64, [size]. Raises ValueError for another size, and for numbers that it cannot have."""
    values = np.asarray(column, np.float64)
    if values.shape != (size,):
        raise ValueError(
            f"{name} has the shape {list(values.shape)}, prompts [{size}]: give one number for each response"
        )
    bad = np.isinf(values) if name == "outcomes" else ~np.isfinite(values) | (values < 0)
    if bad.any():
        place = int(bad.argmax())
        fix = "nan stands for no verdict" if name == "outcomes" else "give numbers of at least 0"
        raise ValueError(f"{name}[{place}]={values[place]}: {fix}")
    return values


def shares(order: Size, sign: int) -> Estimate:
    return Estimate(*(0.5 + sign * x for x in (order.value, order.low, order.high)))


def show(found: Estimate, sign: int) -> str:
    low, high = sorted((sign * found.low, sign * found.high)) if sign < 0 else (found.low, found.high)
    return f"{sign * found.value:.0%} [{low:.0%}, {high:.0%}]"
