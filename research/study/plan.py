"""What the study runs, as values: variants, sizes, seeds and the search that every method gets.

A variant is a method in an experiment's conditions. Two that come to the same settings are run once (`cells.Cell`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairlen.compare.config import parse_variant
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import SequenceClip

Match = Literal["updates", "tokens"]
FACTORS = (1 / 3, 1.0, 10 / 3)
"""Of the published width, tried for every method; FSPO's become 0.01, 0.03 and 0.1."""
FACTORS_OF_GSPO = (1.0, 10 / 3, 10.0)
"""Its published width is that of a model of 30B parameters; in the pilot half of all sequences moved three times as far."""
PUBLISHED_OF_GSPO = SequenceClip().clip_low


@dataclass(frozen=True)
class Sizes:
    """How large every run is."""

    rollout_batches: int = 8
    long_batches: int = 16
    """Of experiment 4, which asks when a method stops being trainable."""
    clock_batches: int = 3
    """Of the runs that are timed, one at a time."""
    prompts_per_batch: int = 8
    updates_per_batch: int = 4
    eval_every: int = 2
    eval_problems: int = 64
    eval_samples: int = 4
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    search_seed: int = 101
    """Is none of the seeds; the search is judged on other held-out problems, too."""
    rates: tuple[float, ...] = (1e-4, 3e-5, 3e-4)
    """Learning rates tried; the first is that of the search for the width."""
    widths: int = 3
    """Factors tried."""


@dataclass(frozen=True)
class Variant:
    """One method in the conditions of an experiment."""

    text: str
    """As for `fairlen compare`: METHOD or METHOD:PATH=VALUE,…"""
    experiments: tuple[int, ...]
    match: Match = "updates"
    """tokens: ends with the rollout batch that passes what `grpo` generated with the same seed."""
    task: str = "mixed"
    long: bool = False
    settings_of: str = ""
    """The variant whose learning rate and width it takes; by default its own are searched."""
    rate: float = 0.0
    """Learning rate instead of the one that was chosen, to see whether a result hangs on it; 0: the chosen one."""
    is_timed: bool = False
    """Run alone, for its time."""

    @property
    def name(self) -> str:
        """What it is called in results: unique."""
        marks = (self.match if self.match == "tokens" else "", self.task if self.task != "mixed" else "")
        more = (
            *marks,
            "long" if self.long else "",
            f"rate {self.rate:g}" if self.rate else "",
            "timed" if self.is_timed else "",
        )
        return " ".join((self.text, *filter(None, more)))

    @property
    def method(self) -> Method:
        parsed = parse_variant(self.text)
        return compose(parsed.method, parsed.settings)


ABLATIONS = ("sampling.max_rounds=1", "sampling.prefix_gradient=true", "sampling.survivor_reward=mean")
TOKEN = "dapo+std_ba"
SEQUENCE = "dapo+std_ba:aggregation=SequenceMean"
BALANCED = "dapo+std_ba+balanced"
AGGREGATIONS = (TOKEN, SEQUENCE, BALANCED)
FAMILIES = ("varied", "gapped")
WIDTHS = (0.01, 0.03, 0.1)
SHARED = ("grpo", "eqlen+grpo tokens")
SLOW = 1e-4
SLOWER = ("eqlen+grpo", *(f"eqlen+grpo:{text}" for text in ABLATIONS))
"""Again at the rate that the search found as good for `eqlen+grpo`, to one answer in 256, as the one that it chose. Experiment 3
has two at that rate, which is what the third was given."""
COMBINATIONS = (
    "eqlen+fspo", "eqlen+grpo+balanced_update", "fspo+balanced", "eqlen+grpo+toplambda",
    "eqlen+fspo+balanced_update+toplambda",
)  # fmt: skip


def eqlen_variants() -> list[Variant]:
    """Experiment 1, and the pair that is timed."""
    others = ("dr_grpo", "dapo", "luspo", "eqlen_unbiased", "eqlen+dr_grpo", "eqlen+dapo")
    return [
        Variant("grpo", (1, 2, 5)),
        Variant("eqlen+grpo", (1, 5), "tokens"),
        Variant("gspo", (1,), "tokens"),
        *(Variant(text, (1,), "tokens") for text in others),
        *(Variant(f"eqlen+grpo:{text}", (1,), "tokens", settings_of=SHARED[1]) for text in ABLATIONS),
        *(Variant(text, (1,), "tokens", settings_of=SHARED[1], rate=SLOW) for text in SLOWER),
        Variant("grpo", (1,), settings_of=SHARED[0], is_timed=True),
        Variant("eqlen+grpo", (1,), settings_of=SHARED[1], is_timed=True),
    ]


def fspo_variants() -> list[Variant]:
    """Experiment 2; the versions of FSPO take the settings of the first, so that they differ in the drift alone."""
    return [
        *(Variant(text, (2,)) for text in ("rloo", "gspo", "fspo")),
        *(Variant(text, (2,), settings_of="fspo") for text in ("fspo_v3", "fspo_centred")),
        *(Variant(f"fspo:surrogate.width={width}", (2,), settings_of="fspo") for width in WIDTHS),
    ]


def balanced_variants() -> list[Variant]:
    """Experiment 3."""
    slower = [Variant(text, (3,), task="varied", settings_of=f"{text} varied", rate=SLOW) for text in (TOKEN, SEQUENCE)]
    return [*(Variant(text, (3,), task=task) for task in FAMILIES for text in AGGREGATIONS), *slower]


def toplambda_variants() -> list[Variant]:
    """Experiment 4."""
    fields = ("alpha=0.2", "fraction=0.1", "fraction=0.5")
    return [
        Variant("grpo", (4,), long=True, settings_of="grpo"),
        Variant("grpo+lp", (4,), long=True),
        Variant("grpo+toplambda", (4,), long=True),
        *(Variant(f"grpo+toplambda:reward.TopLambda.{field}", (4,), long=True, settings_of="grpo+toplambda long")
          for field in fields),
    ]  # fmt: skip


def all_variants() -> tuple[Variant, ...]:
    """Every variant of every experiment, once."""
    combinations = [Variant(text, (5,), "tokens") for text in COMBINATIONS]
    groups = (eqlen_variants(), fspo_variants(), balanced_variants(), toplambda_variants(), combinations)
    return tuple(variant for group in groups for variant in group)


@dataclass(frozen=True)
class Plan:
    """The whole study, or a part of it."""

    sizes: Sizes = Sizes()
    experiments: tuple[int, ...] = (1, 2, 3, 4, 5)
    only: tuple[str, ...] = ()
    """Names of variants, to run no others of the experiments; empty: all."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of the experiments, and those whose settings or tokens they go by."""
        every = {variant.name: variant for variant in all_variants()}
        chosen = {n: v for n, v in every.items() if set(v.experiments) & set(self.experiments)}
        chosen = {n: v for n, v in chosen.items() if not self.only or n in self.only}
        needed = {v.settings_of for v in chosen.values() if v.settings_of} | {"grpo"}
        return tuple(v for n, v in every.items() if n in chosen or n in needed)


def clip_fields(method: Method) -> dict[str, float]:
    """The fields of the surrogate that say how far an update may go, with their published values."""
    surrogate = method.surrogate
    names = ("width",) if isinstance(surrogate, FairBand) else ("clip_low", "clip_high")
    return {f"surrogate.{name}": float(getattr(surrogate, name)) for name in names if hasattr(surrogate, name)}


def factors_of(method: Method) -> tuple[float, ...]:
    """What the published width is multiplied by in the search."""
    surrogate = method.surrogate
    is_gspo = isinstance(surrogate, SequenceClip) and surrogate.clip_low == PUBLISHED_OF_GSPO
    return FACTORS_OF_GSPO if is_gspo else FACTORS
