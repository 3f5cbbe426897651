"""Does the audit tell the truth? Logs whose truth is known, and what it concludes from them.

    python benchmarks/audit_truth.py             1,000 logs of each kind, marks checked: exit code 1 where one is missed
    python benchmarks/audit_truth.py --logs 100  fewer

Eight kinds have no effect of length within prompts, two of them read from files that do not tell what they would need; in five
there is one. In one kind the effect changes from step to step and is 0 on average over steps; the audit does not promise to call
it none, and no mark is set. A response is correct with a probability that its prompt
decides (logits normal around 0 with standard deviation 1.2); lengths are lognormal with standard deviation 0.5 around the
prompt's. Coverage is of the difference of log lengths and of the share of pairs, both known exactly where lengths are lognormal.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
from _checks import demand, read_size

from fairlen.audit.conclusion import conclude, within_log
from fairlen.audit.log import Log
from fairlen.audit.readers import read
from fairlen.audit.readers.context import Choices
from fairlen.audit.readers.grouped_log import split_groups
from fairlen.audit.readers.grouping import decide_grouping
from fairlen.batch import build_responses, build_segments

SPREAD = 0.5
"""Standard deviation of log lengths within a prompt."""
NULL = ("independent", "difficulty", "drift", "few correct", "unequal groups", "truncation")
PLANTED = {"20% longer": math.log(1.2), "40% longer": math.log(1.4), "40% shorter": -math.log(1.4), "peak": 0.0}
PLANTED["absolute peak"] = 0.0
"""At one length for all prompts, whose own lengths spread by 0.8."""
UNTOLD = {"steps not told": "drift", "limit not told": "truncation"}
"""Without columns of steps and of finish reasons; prompts come back in every step."""
BY_STEP = ("changes by step",)
"""The difference of log lengths is drawn for each of 8 steps, with mean 0 and standard deviation log 1.2."""
SMALL, LARGE = 80, 400
"""Prompts; 8 responses each."""
MOST_FALSE, LEAST_FOUND, LEAST_PEAK, LEAST_NONE, COVERED = 0.065, 0.95, (0.80, 0.60), 0.90, (0.93, 0.97)


def make_log(kind: str, num_prompts: int, rng: np.random.Generator, size: int = 8) -> Log:
    """A log of one kind."""
    if kind in UNTOLD:
        return tell_less(
            make_log(UNTOLD[kind], num_prompts, rng, size), num_prompts // 4 if "steps" in kind else num_prompts
        )
    hard = rng.normal(0.0, 1.2, num_prompts)[:, None]
    num_steps = {"drift": 4, "changes by step": 8}.get(kind, 1)
    step = (np.arange(num_prompts) * num_steps // num_prompts)[:, None]
    logit = -hard + (0.8 * step - 1.2 if kind == "drift" else 0.0) - (1.8 if kind == "few correct" else 0.0)
    chance = np.broadcast_to(1.0 / (1.0 + np.exp(-logit)), (num_prompts, size))
    centre = 5.0 + (0.0 if kind in ("independent", "peak") else 0.45 * hard) + (0.25 * step if kind == "drift" else 0.0)
    gap = PLANTED.get(kind, 0.0)
    if kind in BY_STEP:
        gap = rng.normal(0.0, math.log(1.2), num_steps)[step]
    if kind == "absolute peak":
        centre = rng.normal(5.0, 0.8, hard.shape)
    noise = rng.normal(0.0, SPREAD, chance.shape)
    if "peak" in kind:
        off = noise if kind == "peak" else centre + noise - 5.0
        chance = np.minimum(chance * np.where(np.abs(off) < 0.7 * SPREAD, 1.5, 0.35), 1.0)
    correct = rng.random(chance.shape) < chance
    length = np.round(np.exp(centre + noise + gap * ~correct)).astype(np.int64) + 1
    limit = int(np.exp(5.6)) if kind == "truncation" else int(length.max()) + 1
    truncated = length >= limit
    keep = rng.random(chance.shape) > 0.4 if kind == "unequal groups" else np.ones(chance.shape, np.bool_)
    prompt, steps = (np.broadcast_to(x, chance.shape)[keep] for x in (np.arange(num_prompts)[:, None], step))
    verdict = (correct & ~truncated)[keep].astype(np.float64)
    responses = build_responses(
        prompt.astype(np.int64), np.minimum(length, limit)[keep], verdict, verdict, truncated[keep], limit
    )
    return Log(
        "simulation", "tokens", responses, steps.astype(np.int64), build_segments(responses, responses.length),
        known=frozenset(("correct", "truncated", "reward")),
    )  # fmt: skip


def tell_less(log: Log, num_problems: int) -> Log:
    """The same rollouts, read from a file that has lengths and rewards alone, and so many prompts in turn."""
    table = log.responses
    columns = (table.prompt.tolist(), table.length.tolist(), table.outcome.tolist())
    rows = [{"prompt": f"{p % num_problems}", "num_tokens": n, "reward": r} for p, n, r in zip(*columns, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read([str(path)]).sources[0].log


@dataclass
class Tally:
    """The verdicts on the logs of one kind."""

    logs: int = 0
    effect: int = 0
    none: int = 0
    gap_covered: int = 0
    order_covered: int = 0

    def add(self, kind: str, log: Log) -> None:
        """Count what is concluded of one log."""
        grouping = decide_grouping(log, [], Choices())
        log = split_groups(log, grouping.code)
        within = within_log(log)
        found = conclude(within)
        if grouping.question:
            found = replace(found, status="unknown")
        gap = PLANTED.get(kind, 0.0)
        order = NormalDist().cdf(gap / (SPREAD * math.sqrt(2.0))) - 0.5
        self.logs += 1
        self.effect += found.status == "effect"
        self.none += found.status == "none"
        for name, effect, truth in (("gap", within.gap, gap), ("order", within.order, order)):
            low, high = effect.interval()
            setattr(self, f"{name}_covered", getattr(self, f"{name}_covered") + (low <= truth <= high))

    def share(self, name: str) -> float:
        """The share of logs."""
        return getattr(self, name) / self.logs


def measure(kind: str, num_prompts: int, num_logs: int) -> Tally:
    """Conclude from `num_logs` logs of one kind."""
    rng, tally = np.random.default_rng((num_prompts, [*NULL, *PLANTED, *UNTOLD, *BY_STEP].index(kind))), Tally()
    for _ in range(num_logs):
        tally.add(kind, make_log(kind, num_prompts, rng))
    return tally


def find_missed(small: dict[str, Tally], large: dict[str, Tally]) -> list[str]:
    """Every mark that was missed, in words."""
    marks = [(f"{kind}: effect", small[kind].share("effect"), 0.0, MOST_FALSE) for kind in (*NULL, *UNTOLD)]
    marks += [
        (f"{kind}: effect", small[kind].share("effect"), LEAST_FOUND, 1.0) for kind in ("40% longer", "40% shorter")
    ]
    peaks = zip(("peak", "absolute peak"), LEAST_PEAK, strict=True)
    marks += [(f"{kind}: effect", small[kind].share("effect"), least, 1.0) for kind, least in peaks]
    marks += [(f"{kind}: none", large[kind].share("none"), LEAST_NONE, 1.0) for kind in ("independent", "difficulty")]
    marks += [
        (f"{kind}: {name}", small[kind].share(name), *COVERED)
        for kind in (*NULL, "20% longer", "40% longer", "40% shorter") for name in ("gap_covered", "order_covered")
    ]  # fmt: skip
    return [
        f"{name} {share:.1%}, not {low:.1%} to {high:.1%}"
        for name, share, low, high in marks
        if not low <= share <= high
    ]


def main() -> None:
    """Print what the audit concludes of each kind, and check the marks."""
    (num_logs, is_asked), found = read_size("--logs", 1000, smoke=20, help="of each kind and size"), {}
    print(
        f"{'kind':16} {'prompts':>7} {'effect':>7} {'none':>7} {'unknown':>8} {'gap in interval':>16} {'share of pairs':>15}"
    )
    for size in (SMALL, LARGE):
        kinds = (*NULL, *PLANTED, *BY_STEP, *(UNTOLD if size == SMALL else ()))
        found[size] = {kind: measure(kind, size, num_logs) for kind in kinds}
        for kind, tally in found[size].items():
            effect, none, gap, order = (tally.share(n) for n in ("effect", "none", "gap_covered", "order_covered"))
            print(f"{kind:16} {size:7} {effect:7.1%} {none:7.1%} {1 - effect - none:8.1%} {gap:16.1%} {order:15.1%}")
    if is_asked:
        missed = find_missed(found[SMALL], found[LARGE])
        demand(not missed, "; ".join(missed))
        print(f"all marks are met by {num_logs:,} logs of each kind")


if __name__ == "__main__":
    main()
