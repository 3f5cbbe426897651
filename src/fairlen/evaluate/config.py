"""Every setting of an evaluation, with what it does, its unit and its range. Checked at construction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlen.checks import check_finite, check_not_negative, check_positive, check_seed
from fairlen.evaluate.suites import find_suite
from fairlen.settings import ModelSettings, ProblemSettings, SamplingSettings, VerifierSettings


@dataclass(frozen=True)
class EvalConfig(SamplingSettings, ProblemSettings, ModelSettings):
    """Grade a model on held-out problems, with intervals over problems; or rescore responses that are there already."""

    suite: str = ""
    """Benchmarks and settings of one of the four papers; "list" shows them. Your own flags win."""
    data_root: str = ""
    """Folder with copies of hub sets as DIR/<owner>/<name>, for machines without the hub. The rest comes from the hub."""
    samples: int = 8
    """Responses to each problem, the n of avg@n."""
    temperature: float = 1.0
    """Of the policy; 0 is greedy, with --samples 1."""
    limit: int = 0
    """First problems of each set; 0 is all (of the playground, which has no end, 128)."""
    from_samples: str = ""
    """Rescore responses that are there: an evaluation's folder, or any Parquet, JSON lines or CSV with texts and answers."""
    seed: int = 0
    """Of the responses; each has its own by its problem's and its own position."""
    out: str = ""
    """Folder of the evaluation; by default a new one under eval/. Problems that are done there are not sampled again."""

    def __post_init__(self) -> None:
        for part in (ModelSettings, VerifierSettings, SamplingSettings):
            part.__post_init__(self)
        check_positive(self, "samples")
        check_finite(self, "temperature")
        check_not_negative(self, "temperature", "limit")
        check_seed(self)
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"--temperature 0 with --samples {self.samples}: greedy responses to one problem are all the same; "
                "give --samples 1, or a temperature above 0"
            )
        if self.suite and find_suite(self.suite) and not self.data and not self.from_samples:
            raise ValueError(
                f"--suite {self.suite} without its sets: give --suite as a flag; in Python, suite_settings({self.suite!r})"
            )
        if self.data_root and not Path(self.data_root).is_dir():
            raise ValueError(f"--data-root {self.data_root}: there is no such folder")


def suite_settings(name: str, **changes: Any) -> EvalConfig:
    """Return the settings of a suite: its sets and how responses are drawn, with `changes`. Refuses unknown ones."""
    suite = find_suite(name)
    given: dict[str, Any] = {"suite": name, "data": tuple(benchmark.place for benchmark in suite.benchmarks)}
    return replace(EvalConfig(), **(given | {key: value for key, (value, _) in suite.settings.items()} | changes))
