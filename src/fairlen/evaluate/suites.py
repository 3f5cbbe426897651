"""The evaluations of the four papers behind this library: their benchmarks and settings, and where each number comes from.

What a paper does not state is our choice and says so; it is never a value of the paper. Hub ids are ours throughout: the papers
name benchmarks, not copies of them. `markdown_suites` is the table of docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from fairlen.methods.describe import suggest

OURS = "ours"


@dataclass(frozen=True)
class Setting:
    """A number and who says so."""

    value: float
    source: str
    """Place in the paper, or "ours" with the reason."""

    @property
    def is_stated(self) -> bool:
        """Whether the paper says it."""
        return not self.source.startswith(OURS)


@dataclass(frozen=True)
class Benchmark:
    """One set of problems."""

    name: str
    """As the paper calls it."""
    place: str
    """As `--data` takes it; the copy is our choice."""
    num_problems: int
    """What the copy is said to hold; a run records what it found."""
    note: str = ""
    """What the paper leaves open about it."""


@dataclass(frozen=True)
class Settings:
    """How the responses are drawn: by the names of EvalConfig's fields."""

    samples: Setting
    temperature: Setting
    top_p: Setting
    top_k: Setting
    min_p: Setting
    max_response_length: Setting

    def values(self) -> Mapping[str, float]:
        """Name to number; whole ones are int."""
        found: dict[str, float] = {f.name: getattr(self, f.name).value for f in fields(self)}
        return found | {name: int(found[name]) for name in ("samples", "top_k", "max_response_length")}


@dataclass(frozen=True)
class Suite:
    """The evaluation of one paper."""

    name: str
    paper: str
    reports: str
    """The numbers of the paper, by the names of this library."""
    benchmarks: tuple[Benchmark, ...]
    settings: Settings


AIME24 = Benchmark("AIME24", "HuggingFaceH4/aime_2024:train", 30)
AIME25 = Benchmark("AIME25", "MathArena/aime_2025:train", 30)
HMMT25 = Benchmark("HMMT25", "MathArena/hmmt_feb_2025:train", 30, "February is ours: the paper names no month")
MATH500 = Benchmark("MATH-500", "HuggingFaceH4/MATH-500:test", 500)
AMC23 = Benchmark("AMC23", "math-ai/amc23:test", 40)
MINERVA = Benchmark("Minerva", "math-ai/minervamath:test", 272)
OLYMPIAD = Benchmark(
    "OlympiadBench", "Hothan/OlympiadBench/OE_TO_maths_en_COMP:train", 674, "the part (English, open, text) is ours"
)
GSM8K = Benchmark("GSM8K", "openai/gsm8k/main:test", 1319)
GPQA = Benchmark("GPQA", "Idavidrein/gpqa/gpqa_diamond:train", 198, "Diamond is ours: the abstract says GPQA")
LCB = Benchmark(
    "LiveCodeBench", "lighteval/code_generation_lite/release_v6:test", 1055, "all dates are ours: no window is stated"
)
LCB_OF_BA = Benchmark(LCB.name, LCB.place, LCB.num_problems, "release 6 and all dates are ours: neither is stated")

UNTRUNCATED = "ours: the distribution that is trained"
QWEN = "ours: what Qwen3 recommends for thinking"
READ = "ours: no number in what we could read of the paper"

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "eqlen",
            "2604.17328",
            "avg@32",
            (AIME25, HMMT25, LCB),
            Settings(
                samples=Setting(32, "Appendix A and B"),
                temperature=Setting(0.6, "Appendix B"),
                top_p=Setting(0.95, "Appendix B"),
                top_k=Setting(20, "Appendix B"),
                min_p=Setting(0.0, "Appendix B"),
                max_response_length=Setting(
                    32768, "Appendix B, the longest sequence in training; Appendix A: inference is alike"
                ),
            ),
        ),
        Suite(
            "fspo",
            "2509.09177",
            "avg@32, at the best and at the last checkpoint",
            (MATH500, AMC23, AIME24, AIME25),
            Settings(
                samples=Setting(32, "section 4.1"),
                temperature=Setting(1.0, UNTRUNCATED),
                top_p=Setting(1.0, UNTRUNCATED),
                top_k=Setting(0, UNTRUNCATED),
                min_p=Setting(0.0, UNTRUNCATED),
                max_response_length=Setting(8192, "ours: Appendix D, which would say so, is empty"),
            ),
        ),
        Suite(
            "balanced",
            "2605.04077",
            "avg@8 and best@8, at the best and at the last checkpoint",
            (MATH500, AIME24, AIME25, OLYMPIAD, MINERVA, LCB_OF_BA),
            Settings(
                samples=Setting(8, "section 4.1, evaluation protocol"),
                temperature=Setting(1.0, "section 4.1, evaluation protocol"),
                top_p=Setting(1.0, UNTRUNCATED),
                top_k=Setting(0, UNTRUNCATED),
                min_p=Setting(0.0, UNTRUNCATED),
                max_response_length=Setting(
                    8192, "section 4.1, responses of Qwen3-1.7B in training; 2048 for Qwen2.5-Math-7B"
                ),
            ),
        ),
        Suite(
            "grpo_lambda",
            "2505.18086",
            "accuracy and mean length",
            (GSM8K, GPQA, MATH500, AMC23, AIME24),
            Settings(
                samples=Setting(8, READ),
                temperature=Setting(0.6, QWEN),
                top_p=Setting(0.95, QWEN),
                top_k=Setting(20, QWEN),
                min_p=Setting(0.0, QWEN),
                max_response_length=Setting(16384, READ),
            ),
        ),
    )
}


def find_suite(name: str) -> Suite:
    """The suite by name. Raises ValueError naming the nearest."""
    if name not in SUITES:
        raise ValueError(f"--suite {name}: {suggest(name, SUITES)}; `fairlen eval --suite list` shows them")
    return SUITES[name]


def setting_rows() -> Iterator[tuple[str, str, str, str]]:
    """(suite, setting, value, source) of every number."""
    for suite in SUITES.values():
        for f in fields(Settings):
            setting = getattr(suite.settings, f.name)
            source = setting.source if not setting.is_stated else f"{suite.paper}, {setting.source}"
            yield suite.name, f.name, f"{setting.value:g}", source


def benchmark_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """(suite, benchmark, place, problems, what is open) of every set."""
    for suite in SUITES.values():
        for one in suite.benchmarks:
            yield suite.name, one.name, one.place, str(one.num_problems), one.note


def markdown_suites() -> str:
    """The tables of docs/evaluation.md."""
    reports = [f"| `{s.name}` | {s.paper} | {s.reports} |" for s in SUITES.values()]
    sets = [
        f"| `{suite}` | {name} | `{place}` | {size} | {note} |" for suite, name, place, size, note in benchmark_rows()
    ]
    numbers = [f"| `{suite}` | `{name}` | {value} | {source} |" for suite, name, value, source in setting_rows()]
    return "\n".join(
        [
            "| suite | paper | it reports |", "| --- | --- | --- |", *reports, "",
            "| suite | set | place | problems | open in the paper |", "| --- | --- | --- | --- | --- |", *sets, "",
            "| suite | setting | value | source |", "| --- | --- | --- | --- |", *numbers,
        ]
    )  # fmt: skip


def print_suites() -> None:
    """The same on the terminal; wide where nobody looks at a screen."""
    from fairlen.console import make_console
    from fairlen.methods.catalogue import print_table

    console = make_console(160)
    reports = [(s.name, s.paper, s.reports) for s in SUITES.values()]
    print_table(console, "suites", ("suite", "paper", "it reports"), reports)
    print_table(console, "sets", ("suite", "set", "place", "problems", "open in the paper"), list(benchmark_rows()))
    print_table(console, "settings", ("suite", "setting", "value", "source"), list(setting_rows()))
