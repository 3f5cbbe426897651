"""A watch on response length inside any training loop: hand it each rollout batch, and it returns new alarms.

Each kind of alarm is raised at most once per run. The statistics are in `evidence.py`, the thresholds in `thresholds.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fairlen.audit.advice import advise
from fairlen.audit.conclusion import LENGTH, Margins, show_size
from fairlen.audit.method_in_use import InUse, parse_method
from fairlen.audit.statistics.intervals import Estimate
from fairlen.batch import CORRECT_THRESHOLD, Floats, Responses, build_responses, number_keys
from fairlen.methods.rows import name_channels, read_channels
from fairlen.schema import number_text
from fairlen.watch.evidence import SIDES, EffectSizes, EProcess, compare_groups, is_on_side, pack_array, unpack_array
from fairlen.watch.thresholds import THRESHOLDS, Alarm, StepSummary, find_crossed, find_fingerprint, summarize_step

EFFECT = "effect"
"""Kind of the alarm that a statistical test raises. All other kinds are thresholds."""
INFLATED = "Sizes at the moment of an alarm are too large on average, in small batches by a fifth"
ASSOCIATION = "This is an association, not a cause: length may decide what is correct, or follow from it"


@dataclass
class LengthWatch:
    """Watch the rollout batches of one run for effects of response length.

    In a run without an effect of length beyond the margins, the alarm "effect" is ever raised with a probability of at most
    `error`, however long the run is. Half of the error is for each direction.
    """

    method: str = ""
    """Method that trains, such as dapo+balanced, or its aggregation, such as token_mean. Advice depends on it."""
    error: float = 0.05
    """Probability that a run without an effect raises the alarm "effect"."""
    smallest_length: float = 0.10
    """Smallest relative difference of length that matters."""
    smallest_share: float = 0.05
    """Smallest difference of shares of pairs that matters."""
    correct_threshold: float = CORRECT_THRESHOLD
    """Outcome above which a response counts as correct."""
    exchangeable: bool = True
    """Whether to test for an effect. Set False if the sampler selects responses by length (EqLen's forks, first come first
    served)."""
    kinds: tuple[str, ...] = (EFFECT, *THRESHOLDS)
    """Kinds of alarms to raise."""
    keep: bool = True
    """Whether to keep lengths and outcomes of responses for `page`, 40 bytes each."""
    max_kept: int = 100_000
    """Largest number of responses to keep. When it is exceeded, a random half of the prompts is dropped, with all responses to
    them in a step."""
    in_use: InUse | None = field(default=None, init=False, repr=False)
    """Parsed `method`."""
    evidence: EProcess = field(init=False, repr=False)
    """Evidence of the test."""
    steps: list[StepSummary] = field(init=False, repr=False)
    """Numbers of each step."""
    alarms: list[Alarm] = field(init=False)
    """Alarms so far, in the order in which they were raised."""
    notes: list[str] = field(init=False, repr=False)
    """Sentences about the data that a user should see once, such as the first late responses."""
    num_late: int = field(init=False, repr=False)
    """Number of responses that arrived after their step was counted. They are not part of the statistics."""
    kept: list[Floats] = field(init=False, repr=False)
    """Kept responses of each step: number of the prompt, length, outcome, and whether it is correct and truncated, [N, 5]."""
    kept_share: float = field(init=False, repr=False)
    """Share of the prompts that are kept."""

    def __post_init__(self) -> None:
        if not 0.0 < self.error < 1.0:
            raise ValueError(f"error={self.error}: give a number between 0 and 1")
        self.reset()
        self.name_method(self.method)

    def reset(self) -> None:
        """Forget all steps and alarms. Call this before the same object watches another run."""
        self.evidence = EProcess(Margins(self.smallest_length, self.smallest_share))
        self.steps = []
        self.alarms = []
        self.notes = []
        self.num_late = 0
        self.kept = []
        self.kept_share = 1.0

    def name_method(self, name: str) -> None:
        """Set the method that trains. Raises ValueError if it is unknown."""
        self.in_use = parse_method(name) if name else None
        self.method = name

    def attach(self, trainer: Any, verdict: str = "") -> Any:
        """Watch every rollout batch of TRL's GRPOTrainer.

        Args:
            trainer: The trainer, before `train()`.
            verdict: Name of the reward function that decides what is correct; needed if the trainer has several.

        Returns:
            The callback that was added to the trainer.
        """
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
        """Add one rollout batch and return the alarms that it raises.

        Steps count from 1. A step that was already counted is ignored if it has the same lengths and outcomes, as when a trainer
        iterates over one batch. Other responses of a counted step, or of an earlier one, are late: they count in `num_late`, and
        the alarm "verdicts" is raised if they are many. Call `reset` before another run.

        Args:
            prompts: Id, text or messages of each response's prompt, [N].
            lengths: Tokens of each response, [N].
            outcomes: Verdict or reward of each response, [N]; nan if it has none.
            truncated: Whether the limit of generation ended each response, [N]. None: unknown.
            step: Number of the step; by default one more than the last.
            channels: Tokens of each channel of the response, [N] each.
            age: Updates since the weights that generated each response, [N].

        Raises:
            ValueError: A column has another size or impossible values, or the step is below 0.
        """
        keys = [
            str(prompt.tolist() if hasattr(prompt, "tolist") else prompt) for prompt in prompts
        ]  # numpy shortens arrays
        if step is not None and step < 0:
            raise ValueError(f"step={step}: give a number of at least 0")
        number = max(self.last_step, 0) + 1 if step is None else int(step)
        channel_columns = name_channels(channels)
        columns = {"lengths": lengths, "outcomes": outcomes, "truncated": truncated, "age": age, **channel_columns}
        values = {name: read_column(name, column, len(keys)) for name, column in columns.items() if column is not None}
        length = values["lengths"].astype(np.int64)
        outcome = values["outcomes"]
        table = build_responses(
            number_keys(keys),
            np.maximum(length, 1),  # an empty response counts as one token, as in the audit of files
            outcome,
            outcome,
            values.get("truncated", np.zeros(len(keys))) > 0,
            int(length.max(initial=1)),
            correct_threshold=self.correct_threshold,
            channels=read_channels({name: values[name] for name in channel_columns}, length),
        )
        is_new = len(keys) > 0 and number > self.last_step
        alarms = self.look(number, table, age=values.get("age"), knows_limit="truncated" in values)
        if self.keep and is_new:
            prompt = [number_text(key) % 2**52 for key in keys]
            rows = np.column_stack([prompt, table.length, outcome, table.correct, table.truncated])
            self.kept[-1] = select_prompts(rows, number, self.kept_share)
            self.thin_kept()
        return alarms

    @property
    def last_step(self) -> int:
        """Number of the newest step; -1 if no step was added."""
        return self.steps[-1].number if self.steps else -1

    def look(self, step: int, table: Responses, *, age: Floats | None = None, knows_limit: bool = True) -> list[Alarm]:
        """Add one rollout batch as fairlen's trainers and readers hold it, and return the alarms that it raises.

        Args:
            step: Number of the step, counted from 1 or as the files have it.
            table: Responses of the batch.
            age: Updates since the weights that generated each response, [N]; None if unknown.
            knows_limit: Whether `table.truncated` is known.
        """
        if not len(table):
            return []
        if step <= self.last_step:
            return self.add_late_rows(step, table)
        summary = summarize_step(step, table, age, knows_limit, self.in_use.aggregation if self.in_use else "")
        ended = table.active & ~table.truncated
        version = np.zeros(len(table)) if age is None else age
        group = number_keys(np.column_stack([table.prompt, version.astype(np.int64)]))
        _, statistics = compare_groups(group[ended], table.correct[ended].astype(np.float64), table.length[ended])
        self.steps.append(summary)
        self.evidence.add_step(statistics)
        if self.keep:
            self.kept.append(np.zeros((0, 5)))
        return self.raise_alarms()

    def add_late_rows(self, step: int, table: Responses) -> list[Alarm]:
        """Count responses of a step that was already counted, unless they are the same batch again."""
        position = bisect_left(self.steps, step, key=lambda summary: summary.number)
        counted = self.steps[position]
        if counted.number == step and counted.fingerprint == find_fingerprint(table):
            return []
        if not self.num_late:
            self.notes.append(
                f"{len(table):,} responses of step {step} arrived after step {self.last_step} was counted. Late responses are "
                "not part of the statistics; if they are many, the alarm `verdicts` is raised. If this is another run, start a "
                "new watch (`LengthWatch.reset`)"
            )
        return self.count_late(len(table), float(table.length.sum()))

    def count_late(self, number: int, tokens: float) -> list[Alarm]:
        """Count a number of late responses with this many tokens in total, and return the alarms that they raise.

        Readers that skip late rows call this; it needs at least one counted step.
        """
        newest = self.steps[-1]
        late_tokens = newest.num_late * newest.late_length + tokens
        num_late = newest.num_late + number
        self.num_late += number
        self.steps[-1] = replace(newest, num_late=num_late, late_length=late_tokens / num_late)
        return self.raise_alarms()

    def raise_alarms(self) -> list[Alarm]:
        """Return the alarms that the steps so far raise and that were not raised before."""
        raised = {alarm.kind if alarm.kind != EFFECT else alarm.size > 0 for alarm in self.alarms}
        new: list[Alarm] = []
        if self.exchangeable and EFFECT in self.kinds:
            for side in (0, 1):
                alarm = None if (side == 0) in raised else self.find_effect(side)
                new += [alarm] if alarm else []
        new += find_crossed(self.steps, {*self.kinds} - raised)
        self.alarms += new
        return new

    def find_effect(self, side: int) -> Alarm | None:
        """Return the alarm of a direction, 0 for longer and 1 for shorter; None if the evidence does not suffice."""
        found = self.evidence.detect(side, self.error / 2)
        if found is None:
            return None
        onset, sizes = found
        shows_length = is_on_side(sizes.raw_gap, side)
        quantity: Literal["length", "pairs"] = "length" if shows_length else "pairs"
        size = as_ratio(sizes.raw_gap) if shows_length else sizes.order
        since = self.steps[onset].number
        text = self.describe_effect(sizes, side, size, since)
        sequences = {"clipped_gap": tuple(sizes.clipped_gap), "order": tuple(sizes.order)}
        return Alarm(EFFECT, self.last_step, size.value, (size.low, size.high), text, since, quantity, sequences)

    def describe_effect(self, sizes: EffectSizes, side: int, size: Estimate, since: int) -> str:
        """Return the text of the alarm "effect"."""
        sign = int(SIDES[side])
        word = LENGTH.words[side]
        clauses: list[str] = []
        if is_on_side(sizes.raw_gap, side):
            clauses.append(LENGTH.gap.format(show_size("gap", sizes.raw_gap, sign), word))
        if is_on_side(sizes.order, side):
            clauses.append(LENGTH.order.format(show_size("order", sizes.order, sign), word) + " (50%: no effect)")
        advice = advise("within.length", size, self.in_use)
        remedy = f"With {self.method}: {advice.text}" if advice else "The audit's page shows which prompts it is"
        if not self.method:
            remedy = f"Name the method (method=, or --method) for advice. {remedy}"
        return (
            f"{LENGTH.subject} {' and '.join(clauses)}, since about step {since}. The 95% intervals hold at every look. "
            f"{INFLATED}. At most {self.error:.0%} of runs without an effect raise this alarm. {ASSOCIATION}. {remedy}"
        )

    def summary(self) -> dict[str, Any]:
        """Return the numbers so far: steps, responses, e-values, sizes since the onset, alarms."""
        evalues = {"longer": self.evidence.find_evalue(0), "shorter": self.evidence.find_evalue(1)}
        found: dict[str, Any] = {
            "steps": len(self.steps),
            "responses": sum(step.size for step in self.steps),
            "late": self.num_late,
            "effect": {"evalues": evalues, "alarm_at": 2 / self.error} if self.exchangeable else "not tested",
            "alarms": [asdict(alarm) for alarm in self.alarms],
        }
        if self.steps:
            onset = self.evidence.find_onset(int(evalues["shorter"] > evalues["longer"]))
            sizes = self.evidence.estimate_sizes(onset)
            found |= {"last": asdict(self.steps[-1]), "since": self.steps[onset].number}
            found |= {name: size._asdict() for name, size in vars(sizes).items()}
        return found

    def page(self, path: str | Path) -> Path:
        """Write the page of the watch: alarms, length and accuracy over steps, and the audit of the kept responses.

        Raises ValueError if no response was kept.
        """
        from fairlen.watch.page import audit_kept, write_page

        if not any(map(len, self.kept)):
            raise ValueError(
                "page: no response was kept; LengthWatch(keep=True) keeps lengths and outcomes of what add() receives"
            )
        audits = audit_kept(self.steps, self.kept, self.in_use, self.evidence.margins)
        return write_page(Path(path), self.alarms, *audits, steps=self.steps, kept_share=self.kept_share)

    def thin_kept(self) -> None:
        """Halve the share of prompts that are kept until at most `max_kept` responses are."""
        while sum(map(len, self.kept)) > self.max_kept:
            self.kept_share /= 2
            numbers = [step.number for step in self.steps]
            self.kept = [
                select_prompts(rows, step, self.kept_share) for rows, step in zip(self.kept, numbers, strict=True)
            ]

    def state(self) -> dict[str, Any]:
        """Return everything that `restore` needs, as values that JSON keeps exactly."""
        return {
            "steps": [asdict(step) for step in self.steps],
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "notes": [*self.notes],
            "num_late": self.num_late,
            "evidence": self.evidence.state(),
            "kept": [pack_array(rows) for rows in self.kept],
            "kept_share": self.kept_share,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace everything this watch has seen by a state, as if it had watched that run from its start.

        An empty state gives a new watch. Settings such as `method` and `error` are not part of a state.

        Raises:
            ValueError: The state is not one that `state` returned. The watch is unchanged.
        """
        if not state:
            self.reset()
            return
        try:
            steps = [StepSummary(**summary) for summary in state["steps"]]
            alarms = [Alarm.from_state(alarm) for alarm in state["alarms"]]
            evidence = EProcess.from_state(state["evidence"], self.evidence.margins)
            kept = [unpack_array(text, 5) for text in state["kept"]]
            notes = [str(note) for note in state["notes"]]
            num_late, kept_share = int(state["num_late"]), float(state["kept_share"])
            if len(evidence.sums) != len(steps) or len(kept) not in (0, len(steps)):
                raise ValueError(f"{len(steps)} steps, {len(evidence.sums)} with evidence, {len(kept)} with responses")
            if self.keep and not kept:  # the state of a watch with keep=False
                kept = [np.zeros((0, 5)) for _ in steps]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"state={state!r:.60}: {error!r}; give what state() returned, whole") from None
        self.steps, self.alarms, self.evidence = steps, alarms, evidence
        self.notes, self.num_late = notes, num_late
        self.kept = kept if self.keep else []
        self.kept_share = kept_share


def as_ratio(gap: Estimate) -> Estimate:
    """Return a difference of log lengths as a relative difference of lengths."""
    return Estimate(*(math.expm1(min(value, 50.0)) for value in gap))


def select_prompts(rows: Floats, step: int, share: float) -> Floats:
    """Return the rows of a random share of a step's prompts. A smaller share selects a subset of a larger one."""
    if share >= 1.0:
        return rows
    # mix the bits of prompt and step (splitmix64); numpy wraps around without a warning for arrays
    bits = rows[:, 0].astype(np.uint64) ^ np.uint64(step * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return rows[bits < np.uint64(int(share * 2**64))]


def read_column(name: str, column: ArrayLike, size: int) -> Floats:
    """Return a column as float64, [size]. Raises ValueError for another size and for impossible numbers."""
    try:
        values = np.asarray(column, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={column!r:.60}: give one number per response") from None
    if values.shape != (size,):
        raise ValueError(f"{name} has the shape {list(values.shape)}, prompts [{size}]: give one number per response")
    if name == "outcomes":
        is_bad = abs(values) > 1e100
        remedy = "give at most 1e+100, nan if there is no verdict"
    else:
        is_bad = ~((values >= 0) & (values <= 2**53) & (values == np.floor(values)))
        remedy = "give whole numbers from 0"
    if is_bad.any():
        place = int(is_bad.argmax())
        raise ValueError(f"{name}[{place}]={values[place]}: {remedy}")
    return values
