"""`python -m research.study`: runs what is missing of the study and writes docs/study.

python -m research.study                     the whole study, two runs at a time; the same command resumes it
python -m research.study --experiments 3     one experiment, and the reference
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from research.study.plan import Plan, Sizes
from research.study.results import write_results
from research.study.schedule import Study

TINY = Sizes(
    rollout_batches=2, long_batches=2, clock_batches=1, prompts_per_batch=2, updates_per_batch=2, eval_every=1, eval_problems=4,
    eval_samples=2, seeds=(1, 2), rates=(1e-4,), widths=1,
)  # fmt: skip
"""For tests: the whole way in seconds, with numbers that say nothing."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.study", description="The study of docs/study/protocol.md."
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/study"), help="where runs are kept: what is there is not run again"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs/study"), help="where results, figures and the page go")
    parser.add_argument("--experiments", type=int, nargs="+", default=[1, 2, 3, 4, 5], choices=[1, 2, 3, 4, 5])
    parser.add_argument("--tiny", action="store_true", help="sizes of the tests: seconds, and numbers that say nothing")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Runs the study."""
    given = parse(arguments)
    if given.jobs < 1:
        raise SystemExit(f"--jobs {given.jobs}: give at least 1")
    start = time.monotonic()

    def tell(line: str) -> None:
        tell(f"[{(time.monotonic() - start) / 60:6.1f} min] {line}")

    plan = Plan(TINY if given.tiny else Sizes(), tuple(sorted(set(given.experiments))))
    study = Study(plan, given.out, given.jobs, tell)
    study.run()
    write_results(study, given.docs)
    tell(f"written: {given.docs}")


if __name__ == "__main__":
    main()
