"""A watch on length beside any trainer: one call a rollout batch returns new alarms, each at most once a run."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairlen.audit.advice import advise
from fairlen.audit.conclusion import LENGTH, Margins, show_size
from fairlen.audit.method_in_use import InUse, parse_method
from fairlen.audit.statistics.intervals import Estimate
from fairlen.batch import CORRECT_THRESHOLD, Floats, Responses, build_responses, number_keys
from fairlen.methods.rows import name_channels, read_channels
from fairlen.schema import number_text
from fairlen.watch.evidence import EProcess, compare_groups
from fairlen.watch.thresholds import THRESHOLDS, Alarm, Shape, find_crossed

EFFECT = "effect"
"""The kind of alarm that a test raises; all others are thresholds."""
ASSOCIATION = "an association, not a cause: length may decide what is correct, or follow from it"


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
    """Keep lengths and outcomes of all responses for `page`: 40 bytes each."""
    in_use: InUse | None = field(default=None, init=False, repr=False)
    evidence: EProcess = field(init=False, repr=False)
    steps: list[Shape] = field(default_factory=list, init=False, repr=False)
    alarms: list[Alarm] = field(default_factory=list, init=False)
    kept: list[Floats] = field(default_factory=list, init=False, repr=False)
    """Of each step's responses number of the prompt, length, outcome, and whether it is correct and truncated, [N, 5]."""

    def __post_init__(self) -> None:
        if not 0.0 < self.error < 1.0:
            raise ValueError(f"error={self.error}: give a number between 0 and 1")
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
        prompts: Iterable[Any],
        lengths: ArrayLike,
        outcomes: ArrayLike,
        *,
        truncated: ArrayLike | None = None,
        step: int | None = None,
        channels: Mapping[str, ArrayLike] | None = None,
        age: ArrayLike | None = None,
    ) -> list[Alarm]:
        """Take one rollout batch and return the alarms that it raises.

        All are columns [N]: an id, text or messages for each prompt, tokens of each response, verdicts or rewards (nan: none),
        whether the limit ended it (None: not known), tokens by channel, and updates since the weights that generated it. `step`
        is one more than the last by default; one that was added before is passed over, as the iterations over one batch. Raises
        ValueError for columns and steps that cannot be.
        """
        keys = [str(one.tolist() if hasattr(one, "tolist") else one) for one in prompts]  # numpy shortens long arrays
        number = self.last_step + 1 if step is None else int(step)
        if number < 0:
            raise ValueError(f"step={step}: give a number of at least 0")
        columns = {"lengths": lengths, "outcomes": outcomes, "truncated": truncated, "age": age}
        columns |= (spent := name_channels(channels))
        given = {name: read_column(name, column, len(keys)) for name, column in columns.items() if column is not None}
        length, outcome = given["lengths"].astype(np.int64), given["outcomes"]
        table = build_responses(  # empty responses count as length 1, as in the audit of files
            number_keys(keys), np.maximum(length, 1), outcome, outcome, given.get("truncated", np.zeros(len(keys))) > 0,
            int(length.max(initial=1)), correct_threshold=self.correct_threshold,
            channels=read_channels({name: given[name] for name in spent}, length),
        )  # fmt: skip
        if self.keep and keys and number > self.last_step:
            prompt = [number_text(key) % 2**52 for key in keys]
            self.kept.append(np.column_stack([prompt, table.length, outcome, table.correct, table.truncated]))
        return self.look(number, table, age=given.get("age"), knows_limit="truncated" in given)

    @property
    def last_step(self) -> int:
        return self.steps[-1].number if self.steps else -1

    def look(self, step: int, table: Responses, *, age: Floats | None = None, knows_limit: bool = True) -> list[Alarm]:
        """Take one rollout batch as a trainer of fairlen's has it, and return the alarms that it raises."""
        if step <= self.last_step or not len(table):
            return []
        shape = Shape.of(step, table, age, knows_limit, self.in_use.aggregation if self.in_use else "")
        rows = table.active & ~table.truncated
        versions = np.zeros(len(table)) if age is None else age
        stratum = number_keys(np.column_stack([table.prompt, versions.astype(np.int64)]))[rows]
        correct, length = table.correct[rows].astype(np.float64), table.length[rows]
        return self.record(shape, compare_groups(stratum, correct, length)[1])

    def record(self, shape: Shape, groups: Floats) -> list[Alarm]:
        """Take the numbers of a step, and return the alarms that it raises."""
        self.steps.append(shape)
        self.evidence.add(groups)
        told = {one.size > 0 if one.kind == EFFECT else one.kind for one in self.alarms}
        is_tested = self.exchangeable and EFFECT in self.kinds
        new = [one for side in (0, 1) if is_tested and (side == 0) not in told for one in self.find_effect(side)]
        new += find_crossed(self.steps, {*self.kinds} - told)
        self.alarms += new
        return new

    def find_effect(self, side: int) -> Iterator[Alarm]:
        """Yield the alarm of a side, 0 for longer, 1 for shorter, where the evidence suffices."""
        sizes, sign, word = self.evidence.find(side, self.error / 2), 1 - 2 * side, LENGTH.words[side]
        for name, size in list(sizes.items())[:1]:
            found = Estimate(*(math.expm1(x) if name == "gap" else x for x in size))
            since = self.steps[self.evidence.find_onset(side)].number
            told = " and ".join(vars(LENGTH)[name].format(show_size(name, x, sign), word) for name, x in sizes.items())
            advice = advise("within.length", found, self.in_use)
            unknown = "" if self.method else "Name the method (method=, or --method) for what follows under it. "
            remedy = f"{unknown}The audit's page shows which prompts it is"
            remedy = f"With {self.method}: {advice.text}" if advice else remedy
            is_pairs = "; half of the pairs of a prompt would be no effect" * ("order" in sizes)
            text = f"{LENGTH.subject} {told}, since about step {since} (95% intervals that hold at every step{is_pairs}; at "
            text += f"most {self.error:.0%} of runs raise such an alarm in error); {ASSOCIATION}. {remedy}"
            quantity = "length" if name == "gap" else "pairs"
            yield Alarm(EFFECT, self.last_step, found.value, (found.low, found.high), text, since, quantity)

    def summary(self) -> dict[str, Any]:
        """Return the numbers so far: steps, responses, the latest shape, e-values, the effect since its onset, alarms."""
        evalues = {"longer": self.evidence.measure(0), "shorter": self.evidence.measure(1)}
        tested = {"evalues": evalues, "alarm_at": 2 / self.error} if self.exchangeable else "not tested"
        found: dict[str, Any] = {"steps": len(self.steps), "responses": sum(one.size for one in self.steps)}
        if self.steps:
            onset = self.evidence.find_onset(int(evalues["shorter"] > evalues["longer"]))
            sizes = {name: size._asdict() for name, size in self.evidence.estimate(onset).items()}
            found |= {"last": asdict(self.steps[-1]), "since": self.steps[onset].number} | sizes
        return found | {"effect": tested, "alarms": [asdict(one) for one in self.alarms]}

    def page(self, path: str | Path) -> Path:
        """Write the audit of all responses so far as one page, alarms first. Raises ValueError where none was kept."""
        from fairlen.watch.page import audit_kept, write_page

        audits = audit_kept(self.steps, self.kept, self.in_use, self.evidence.margins)
        return write_page(Path(path), self.alarms, *audits)

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs, which JSON keeps exactly."""
        groups, kept = ([pack(part) for part in parts] for parts in (self.evidence.groups, self.kept))
        return {"steps": [asdict(one) for one in self.steps], "groups": groups, "kept": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, as if the run had not been interrupted, by taking its steps again; an empty one changes nothing.

        Raises ValueError for what is no state.
        """
        try:
            steps, groups, kept = (state[name] if state else () for name in ("steps", "groups", "kept"))
            taken = [(Shape(**shape), unpack(part, 3)) for shape, part in zip(steps, groups, strict=True)]
            self.kept = [unpack(part, 5) for part in kept]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"state={state!r:.60}: {error!r}; give what state() returned, whole") from None
        for shape, table in taken:
            self.record(shape, table)


def pack(table: Floats) -> str:
    return b64encode(table.astype("<f8").tobytes()).decode()


def unpack(text: str, width: int) -> Floats:
    return np.frombuffer(b64decode(text, validate=True), "<f8").reshape(-1, width)


def read_column(name: str, column: ArrayLike, size: int) -> Floats:
    """Return a column as float64, [size]. Raises ValueError for another size, and for numbers that it cannot have."""
    try:
        values = np.asarray(column, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={column!r:.60}: give one number a response") from None
    if values.shape != (size,):
        raise ValueError(f"{name} has the shape {list(values.shape)}, prompts [{size}]: one number a response")
    bad = ~((values >= 0) & (values <= 2**53) & (values == np.floor(values)))
    fix = "give whole numbers from 0"
    if name == "outcomes":
        bad, fix = abs(values) > 1e100, "give at most 1e+100, nan where there is no verdict"
    if bad.any():
        raise ValueError(f"{name}[{int(bad.argmax())}]={values[bad.argmax()]}: {fix}")
    return values
