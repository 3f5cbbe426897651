"""What the study runs, as values: two worlds, their variants in order of importance, sizes, and the grids of the search; and two
plans at one learning rate: small worlds for EqLen, and a real language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairlen.compare.config import parse_variant
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.fair_band import FairBand
from research.longhand import SMALL as WEIGHTS
from research.longhand import SMALL_LENGTH
from research.longhand import task as longhand

Search = Literal["rate", "rate+width", ""]
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
FACTORS = (0.03, 0.1, 1 / 3, 1.0, 10 / 3, 10.0, 33.0)
"""Of the published width."""
START = (1e-4, 1.0)
"""The middle of both grids: a search begins with it and its two neighbours, at this rate and at this width."""
DIRECTIONS = "directions"
BANDS = ("fspo_v3", "rloo", "gspo")
"""Rules whose bands are compared along one run, each as wide as accepts the same share of an update."""


@dataclass(frozen=True)
class Sizes:
    """How large the runs of a world are."""

    max_response_length: int
    rollout_batches: int
    search_batches: int
    eval_every: int
    """Rollout batches between evaluations; there is one before and one after anyway."""
    seeds: tuple[int, ...]
    prompts_per_batch: int = 8
    updates_per_batch: int = 4
    eval_problems: int = 64
    final_problems: int = 256
    """In the last evaluation, those of the others among them."""
    eval_samples: int = 4
    search_seeds: tuple[int, ...] = (101, 102, 103)
    """Are none of the seeds; searches are judged on other held-out problems, too."""
    timed_batches: int = 3
    timed_seeds: tuple[int, ...] = (1, 2, 3)


@dataclass(frozen=True)
class Variant:
    """One method, or a control, in one world."""

    text: str
    """As for `fairlen compare`: METHOD or METHOD:PATH=VALUE,…"""
    world: str
    core: bool = False
    """Its seeds run in turn with those of the other core variants, before all others."""
    search: Search = "rate"
    settings_of: str = ""
    """The variant of this world whose learning rate and width it takes; by default its own are searched."""
    label: str = ""
    """Of a control, or of runs with gradients (DIRECTIONS)."""
    batches: int = 0
    """Rollout batches instead of the world's; 0: those."""
    seeds: tuple[int, ...] = ()
    """Instead of the world's; empty: those."""
    shift: int = 0
    """Added to the seed that it is trained with; it is paired by the seed without it."""
    share: float = 1.0
    """Of the learning rate."""

    @property
    def method(self) -> Method:
        """The composed method."""
        parsed = parse_variant(self.text)
        return compose(parsed.method, parsed.settings)

    @property
    def name(self) -> str:
        """What the search and messages call it: unique."""
        return " ".join(filter(None, (self.world, self.text, self.label)))


CORE = ("dr_grpo", "dapo", "dapo+balanced", "fspo_v3", "rloo", "eqlen_unbiased")
LONG = (
    "gspo", "dapo:aggregation=SequenceMean", "eqlen+grpo", "grpo", "grpo+toplambda", "grpo+lp", "luspo", "fspo",
    "eqlen+grpo:sampling.max_rounds=1", "eqlen+grpo:sampling.prefix_gradient=true", "eqlen+grpo:sampling.survivor_reward=mean",
    "eqlen+dr_grpo", "eqlen+dapo",
)  # fmt: skip
SHORT = (
    "grpo", "rloo", "gspo", "fspo", "fspo_v3", "dr_grpo", "dapo", "dapo:aggregation=SequenceMean", "dapo+balanced", "eqlen+grpo",
    "eqlen_unbiased", "grpo+lp", "grpo+toplambda",
)  # fmt: skip
WIDTHS = ("rloo", "gspo", "luspo", "fspo", "fspo_v3", "eqlen_unbiased")
"""Methods that clip whole sequences: their width is searched too."""
CONTROLS = (
    Variant("dr_grpo", "long", label="again", shift=20),
    Variant("dr_grpo", "long", search="", settings_of="dr_grpo", label="slow", share=0.1),
)
"""A method against itself, with seeds and a search of its own, and a planted effect: no verdict stands without them."""
PENALTIES = ("grpo+lp", "grpo+toplambda")
"""Take the settings of `grpo`: a search by accuracy would choose a rate at which a penalty on length does nothing."""
GRADIENTS = Variant(
    "dr_grpo", "long", search="", settings_of="dr_grpo", label=DIRECTIONS, batches=12, seeds=(1, 2, 3, 4, 5)
)
"""The gradients of every sequence along runs."""


def searched(text: str, world: str, core: bool = False) -> Variant:
    """Return a variant with the search that it gets."""
    if text in PENALTIES:
        return Variant(text, world, core, search="", settings_of="grpo")
    return Variant(text, world, core, "rate+width" if text in WIDTHS else "rate")


VARIANTS = (
    *(searched(text, "long", core=True) for text in CORE),
    *CONTROLS,
    *(searched(text, "long") for text in LONG),
    GRADIENTS,
    *(searched(text, "short") for text in SHORT),
)
SIZES = {
    "long": Sizes(
        longhand.MAX_RESPONSE_LENGTH, rollout_batches=32, search_batches=12, eval_every=4, seeds=tuple(range(1, 9))
    ),
    "short": Sizes(160, rollout_batches=8, search_batches=6, eval_every=2, seeds=tuple(range(1, 21))),
}


EQLEN = "eqlen+grpo:sampling.survivor_reward="
HALVING = f"{EQLEN}halving"
RULES = (f"{EQLEN}max", f"{EQLEN}mean", HALVING, "eqlen_unbiased")
LONGER = 30
"""Rollout batches of `grpo` in the small worlds, which takes it past EqLen's seconds."""
RATE = 1e-4
"""Learning rate of all variants in the small worlds, by a pilot of `grpo` (docs/study/protocol.md)."""
SMALL = Sizes(
    SMALL_LENGTH, rollout_batches=12, search_batches=0, eval_every=6, seeds=tuple(range(1, 7)), search_seeds=()
)


def small_variants(world: str) -> tuple[Variant, ...]:
    """Return the rules that are compared in a small world, seed by seed, and its controls."""
    rules = tuple(Variant(text, world, core=True, search="") for text in RULES)
    slow = Variant(HALVING, world, core=True, search="", label="slow", share=0.1)
    again = Variant(HALVING, world, core=True, search="", label="again", shift=20)
    return (*rules, Variant("grpo", world, core=True, search="", batches=LONGER), slow, again)


REAL = "smollm2"
REAL_RATE = 2e-5
"""Learning rate of `make real`."""
TRAINED = (
    Variant("grpo", REAL, core=True, search=""),
    Variant("dr_grpo", REAL, core=True, search=""),
    Variant("grpo", REAL, core=True, search="", label="slow", share=0.1, seeds=(1, 2, 3)),
    Variant("grpo", REAL, core=True, search="", label="again", shift=20, seeds=(1, 2, 3)),
)
"""A pair of methods and its controls."""
REAL_SIZES = Sizes(
    128, rollout_batches=24, search_batches=0, eval_every=0, seeds=tuple(range(1, 7)), prompts_per_batch=4,
    updates_per_batch=1, eval_problems=32, eval_samples=16, search_seeds=(),
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The whole study, or the part of it that is wanted."""

    variants: tuple[Variant, ...] = VARIANTS
    """In order of importance."""
    sizes: Mapping[str, Sizes] = field(default_factory=lambda: SIZES)
    world: str = ""
    """Only this one; empty: both."""
    only: tuple[str, ...] = ()
    """Only variants with these texts; empty: all."""
    rate: float = 0.0
    """Learning rate of all variants; 0: a search gives each its own, and its width."""
    folder: str = "docs/study/evidence"
    """Where the evidence is kept."""

    def __post_init__(self) -> None:
        if self.world and self.world not in self.sizes:
            raise ValueError(f"world={self.world}: the plan has {', '.join(self.sizes)}")
        if unknown := sorted(set(self.only) - {v.text for v in self.variants}):
            known = ", ".join(dict.fromkeys(v.text for v in self.variants))
            raise ValueError(f"only={unknown[0]}: no variant of the study; give one of {known}")

    @property
    def wanted(self) -> tuple[Variant, ...]:
        """The variants to run."""
        return tuple(v for v in self.variants if self.world in ("", v.world) and (not self.only or v.text in self.only))

    def source(self, variant: Variant) -> Variant:
        """Return the variant whose search gives a variant its settings."""
        if variant.search or self.rate:
            return variant
        wanted = variant.world, variant.settings_of, ""
        return next(v for v in self.variants if (v.world, v.text, v.label) == wanted)

    def seeds(self, variant: Variant, role: str = "study") -> tuple[int, ...]:
        """Return the seeds of a variant's runs by role."""
        sizes = self.sizes[variant.world]
        found = {"study": variant.seeds or sizes.seeds, "search": sizes.search_seeds, "timed": sizes.timed_seeds}
        return found.get(role, ())


PLANS = {
    "papers": Plan(),
    "worlds": Plan(
        tuple(variant for world in WEIGHTS for variant in small_variants(world)), dict.fromkeys(WEIGHTS, SMALL),
        rate=RATE, folder="docs/study/worlds",
    ),
    REAL: Plan(TRAINED, {REAL: REAL_SIZES}, rate=REAL_RATE, folder="docs/study/smollm2"),
}  # fmt: skip


def clip_fields(method: Method) -> dict[str, float]:
    """Return the fields of the surrogate that say how far an update may go, with their published values."""
    surrogate = method.surrogate
    names = ("width",) if isinstance(surrogate, FairBand) else ("clip_low", "clip_high")
    return {f"surrogate.{name}": float(getattr(surrogate, name)) for name in names if hasattr(surrogate, name)}


def width_settings(variant: Variant, factor: float) -> tuple[str, ...]:
    """Return the published width times a factor as settings; none for the published one. Lower edges stay below 1."""
    if factor == 1.0:
        return ()
    widths = clip_fields(variant.method).items()
    return tuple(
        f"{name}={min(value * factor, 0.99) if 'low' in name else value * factor:.4g}" for name, value in widths
    )
