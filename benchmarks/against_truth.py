"""Check that `fairlen audit --against` finds no difference between logs that differ only in the number of responses per prompt.

    python benchmarks/against_truth.py             500 pairs of logs of each kind; exit code 1 if a mark is missed
    python benchmarks/against_truth.py --logs 100  fewer

Log A has 4 responses to each of 60 prompts and log B has 16, drawn from one policy: the same chances of a correct response, the
same lengths of correct and of incorrect responses. So every finding is false. In four of the five kinds the lengths of correct
and incorrect responses differ, equally in both logs. In one the number of responses varies from prompt to prompt, and in one the
logs have no prompt in common. The program prints the share of pairs of logs with any finding, then each measure's share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _checks import demand, read_size

from fairlen.audit.comparison import NAMES, compare_logs
from fairlen.audit.log import Log
from fairlen.batch import build_responses, build_segments

NUM_PROMPTS = 60
MOST_FALSE = 0.07


@dataclass(frozen=True)
class Kind:
    name: str
    shift: float = 0.0  # of the log length of incorrect responses
    ratio: float = 1.0  # spread of incorrect responses' log lengths over that of correct ones
    sizes: tuple[tuple[int, int], tuple[int, int]] = (
        (4, 4),
        (16, 16),
    )  # least and most responses to a prompt, in A and in B
    is_paired: bool = True


KINDS = (
    Kind("no effect"),
    Kind("40% longer", shift=0.336),
    Kind("incorrect ones vary 4 times as much", ratio=4.0),
    Kind("2 to 6 against 8 to 24", shift=0.336, ratio=1.5, sizes=((2, 6), (8, 24))),
    Kind("no prompt in both", shift=0.336, ratio=4.0, is_paired=False),
)


def make_log(kind: Kind, side: int, hard: np.ndarray, rng: np.random.Generator) -> Log:
    """Return a log of one side of a comparison; `hard` is the difficulty of each prompt."""
    least, most = kind.sizes[side]
    problem = np.repeat(np.arange(len(hard)), rng.integers(least, most, len(hard), endpoint=True))
    correct = rng.random(len(problem)) < 1.0 / (1.0 + np.exp(hard[problem]))
    noise = rng.normal(0.0, 0.5, len(problem)) * np.where(correct, 1.0, kind.ratio)
    length = np.maximum(np.exp(6.0 + 0.4 * hard[problem] + noise + kind.shift * ~correct), 1.0).astype(np.int64)
    verdict = correct.astype(np.float64)
    limit = int(length.max()) + 1
    responses = build_responses(problem, length, verdict, verdict, np.zeros(len(problem), np.bool_), limit)
    name = problem if kind.is_paired or side == 0 else problem + len(hard)
    known = frozenset(("correct", "truncated"))
    return Log(
        "simulation", "tokens", responses, 0 * problem, build_segments(responses, length), known=known, problem=name
    )


def count_false(kind: Kind, number: int) -> dict[str, float]:
    """Return the share of pairs of logs in which each measure, or "any" of them, is significant."""
    rng, false = np.random.default_rng(KINDS.index(kind)), dict.fromkeys(("any", *NAMES), 0)
    for _ in range(number):
        hard = rng.normal(0.0, 1.2, NUM_PROMPTS)
        others = hard if kind.is_paired else rng.normal(0.0, 1.2, NUM_PROMPTS)
        against = compare_logs(make_log(kind, 0, hard, rng), make_log(kind, 1, others, rng))
        names = {contrast.measure for contrast in against.contrasts if contrast.is_significant}
        for name in names | ({"any"} if names else set()):
            false[name] += 1
    return {name: count / number for name, count in false.items()}


def main() -> None:
    """Print the share of false findings of each kind, and check the marks."""
    (number, is_checked), missed = read_size("--logs", 500, smoke=10), []
    print(f"{'4 against 16 responses':36} " + " ".join(f"{name:>9}" for name in ("any", *NAMES)))
    for kind in KINDS:
        false = count_false(kind, number)
        print(f"{kind.name:36} " + " ".join(f"{share:9.1%}" for share in false.values()), flush=True)
        if false["any"] > MOST_FALSE:
            missed.append(f"{kind.name}: {false['any']:.1%}")
    if is_checked:
        demand(not missed, "; ".join(missed))
        print(f"at most {MOST_FALSE:.0%} false findings in {number:,} pairs of logs of each kind")


if __name__ == "__main__":
    main()
