"""Every setting of an evaluation, and the evaluations of the four papers with the source of each number: where a paper has
none, it is ours and says so. Hub ids are ours throughout; a file of a set's name goes before them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from fairlen.checks import Count, Natural, Seed
from fairlen.console import suggest
from fairlen.settings import HARMLESS, Alone, RolloutConfig, Settings


@dataclass(frozen=True)
class Benchmark:
    """One set of problems."""

    name: str
    """As the paper calls it."""
    hub: str
    """The copy on the hub, as `--data` takes it, which is our choice; empty where there is none."""
    num_problems: int
    """Number of problems that the copy is said to hold; a run records the number it found."""
    note: str = ""
    """Details that the paper leaves open."""

    @property
    def key(self) -> str:
        """The name for `--suite`, and of its file."""
        return self.name.lower().replace("-", "")

    @property
    def place(self) -> str:
        """The file KEY.jsonl in the folder of benchmarks, where it is there or nowhere else, or the hub's copy."""
        file = Path(os.environ.get("FAIRLEN_DATA", "data/contests")) / f"{self.key}.jsonl"
        return str(file) if file.is_file() or not self.hub else self.hub


@dataclass(frozen=True)
class Suite:
    """The evaluation of one paper, or of sets by name."""

    paper: str
    reports: str
    """The numbers of the paper, by the names of this library."""
    sets: tuple[str, ...]
    """Names of its benchmarks."""
    settings: Mapping[str, tuple[float, str]]
    """How responses are drawn, by the name of the setting: the number, and its place in the paper or "ours" with the reason."""

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        return tuple(BENCHMARKS[name] for name in self.sets)

    @property
    def values(self) -> dict[str, Any]:
        """Settings by name, the sets included."""
        places = tuple(benchmark.place for benchmark in self.benchmarks)
        return {"data": places, **{name: value for name, (value, _) in self.settings.items()}}


BENCHMARKS = {one.key: one for one in (
    Benchmark("AIME24", "HuggingFaceH4/aime_2024:train", 30),
    Benchmark("AIME25", "MathArena/aime_2025:train", 30),
    Benchmark("HMMT25", "MathArena/hmmt_feb_2025:train", 30, "February is ours: the paper names no month"),
    Benchmark("MATH-500", "HuggingFaceH4/MATH-500:test", 500),
    Benchmark("AMC23", "math-ai/amc23:test", 40),
    Benchmark("Minerva", "math-ai/minervamath:test", 272),
    Benchmark("OlympiadBench", "Hothan/OlympiadBench/OE_TO_maths_en_COMP:train", 674,
              "the part (English, open, text) is ours"),
    Benchmark("GSM8K", "openai/gsm8k/main:test", 1319),
    Benchmark("GPQA", "Idavidrein/gpqa/gpqa_diamond:train", 198, "Diamond is ours: the abstract says GPQA"),
    Benchmark("LiveCodeBench", "lighteval/code_generation_lite/release_v6:test", 1055,
              "dates, and for balanced release 6, are ours"),
    Benchmark("HMMT", "", 196, "November 2024, February 2024 and 2025"),
    Benchmark("HumanEval", "openai/openai_humaneval:test", 164),
)}  # fmt: skip

TRAINED = "ours: the distribution that is trained"
UNTRUNCATED = {"top_p": (1.0, TRAINED), "top_k": (0, TRAINED), "min_p": (0.0, TRAINED)}
QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
"""Sampling that Qwen3 recommends for thinking."""
UNREAD = "ours: no number in what we could read of the paper"

SUITES = {
    "eqlen": Suite(
        "2604.17328",
        "avg@32",
        ("aime25", "hmmt25", "livecodebench"),
        {
            "samples": (32, "Appendix A and B"),
            **{key: (value, "Appendix B") for key, value in QWEN.items()},
            "max_response_length": (
                32768,
                "Appendix B, the longest sequence in training; Appendix A: inference is alike",
            ),
        },
    ),
    "fspo": Suite(
        "2509.09177",
        "avg@32, at the best and at the last checkpoint",
        ("math500", "amc23", "aime24", "aime25"),
        {
            "samples": (32, "section 4.1"),
            "temperature": (1.0, TRAINED),
            **UNTRUNCATED,
            "max_response_length": (8192, "ours: Appendix D, which would say so, is empty"),
        },
    ),
    "balanced": Suite(
        "2605.04077",
        "avg@8 and best@8, at the best and at the last checkpoint",
        ("math500", "aime24", "aime25", "olympiadbench", "minerva", "livecodebench"),
        {
            "samples": (8, "section 4.1, evaluation protocol"),
            "temperature": (1.0, "section 4.1, evaluation protocol"),
            **UNTRUNCATED,
            "max_response_length": (8192, "section 4.1, responses of Qwen3-1.7B in training; 2048 for Qwen2.5-Math-7B"),
        },
    ),
    "grpo_lambda": Suite(
        "2505.18086",
        "accuracy and mean length",
        ("gsm8k", "gpqa", "math500", "amc23", "aime24"),
        {
            "samples": (8, UNREAD),
            **{key: (value, "ours: what Qwen3 recommends for thinking") for key, value in QWEN.items()},
            "max_response_length": (16384, UNREAD),
        },
    ),
}


def find_suite(name: str) -> Suite:
    """Return a paper's suite, or that of a list of sets. Raises ValueError naming the nearest."""
    found = SUITES.get(name) or Suite("", "avg@n", tuple(name.split(",")), {})
    for one in found.sets:
        if one not in BENCHMARKS:
            raise ValueError(
                f"--suite {name}: no paper and no set is named {one!r}: {suggest(one, [*SUITES, *BENCHMARKS])}; "
                "`fairlen eval --suite list` shows both"
            )
    return found


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """How much is evaluated, and where it is written."""

    suite: Annotated[str, Alone] = ""
    """A paper's benchmarks and settings, or benchmarks by name (aime24,humaneval); "list" shows them. Your own flags win."""
    problems: Natural = 0
    """Held-out problems: the first of each set; 0 is all (of the playground, which has no end, 128)."""
    samples: Count = 8
    """Responses to each held-out problem, the n of avg@n; 1 with --temperature 0."""
    seed: Seed = 0
    """Of the responses; each has its own by its problem's and its own position."""
    budgets: str = ""
    """Tokens, such as 256,512,1024, at which each response is cut and asked for its answer; the largest is the limit."""
    ask: str = "auto"
    """Text that asks a cut response for its answer, in the form that --answer names; open thinking is closed before it."""
    from_samples: Annotated[str, Alone, HARMLESS] = ""
    """Responses to grade without a model: an evaluation's folder, or a file with problem (or id), text and gold."""
    out: Annotated[str, HARMLESS] = ""
    """Folder of the evaluation; by default a new one under eval/. Problems that are done there are not sampled again."""

    @property
    def cuts(self) -> tuple[int, ...]:
        """Return the budgets from the smallest. Raises ValueError for what is no number of tokens."""
        given = self.budgets.replace(" ", "").split(",") if self.budgets else []
        if wrong := [text for text in given if not text.isdecimal() or int(text) < 1]:
            raise ValueError(
                f"--budgets {self.budgets}: {wrong[0] or 'nothing'} is no number of tokens; write 256,512,1024"
            )
        return tuple(sorted({int(text) for text in given}))


@dataclass(frozen=True)
class EvalConfig(RolloutConfig):
    """Grade a model on held-out problems, with intervals over problems; or grade saved ones: an evaluation's, or a file's."""

    run: EvaluationSettings = EvaluationSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        run = self.run
        if self.sampling.temperature == 0 and run.samples > 1:
            raise ValueError(
                f"--temperature 0 with --samples {run.samples}: greedy responses to one problem are all the same; "
                "give --samples 1, or a temperature above 0"
            )
        if run.cuts and not run.from_samples and self.sampling.max_response_length not in (0, run.cuts[-1]):
            raise ValueError(
                f"--budgets {run.budgets} with --max-response-length {self.sampling.max_response_length}: the largest budget is "
                "the limit; leave --max-response-length out"
            )
        if run.suite and find_suite(run.suite) and not self.data.places and not run.from_samples:
            raise ValueError(
                f"--suite {run.suite} without its sets: give --suite as a flag; in Python, suite_settings({run.suite!r})"
            )


def suite_settings(name: str, **changes: Any) -> EvalConfig:
    """Return the settings of a suite: its sets and how responses are drawn, with `changes`. Refuses unknown ones."""
    return EvalConfig.of(**{"suite": name, **find_suite(name).values, **changes})


def print_suites() -> None:
    """Print the suites, their sets, and their settings with sources; wide where the output is no terminal."""
    from fairlen.console import make_console, print_table

    suites = [(name, suite.paper, suite.reports) for name, suite in SUITES.items()]
    sets = [
        (key, ", ".join(name for name, suite in SUITES.items() if key in suite.sets), one.place,
         str(one.num_problems), one.note)
        for key, one in BENCHMARKS.items()
    ]  # fmt: skip
    settings = [
        (
            name,
            ", ".join(f"{setting} {value:g}" for setting, (value, _) in alike),
            source if source.startswith("ours") else f"{suite.paper}, {source}",
        )
        for name, suite in SUITES.items()
        for source, alike in groupby(suite.settings.items(), key=lambda item: item[1][1])
    ]
    print_table(make_console(160), "suites", ("suite", "paper", "it reports"), suites)
    print_table(make_console(160), "sets", ("set", "suites", "place", "problems", "open in the paper"), sets)
    print_table(make_console(160), "settings", ("suite", "settings", "source"), settings)
