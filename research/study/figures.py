"""Every figure that a claim rests on, by the ids and definitions of claims/data/figures.toml.

They were fixed before the study was run; a test holds the two files together.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlen.batch import Floats
from fairlen.diagnostics.uncertainty import Estimate
from research.ledger.claims import DATA
from research.study import quantities as q
from research.study.intervals import Combine, estimate, known_seeds
from research.study.plan import BALANCED, SEQUENCE, SLOW, TOKEN, WIDTHS

DIRECTIONS = "directions"
"""The name under which runs with gradients are kept."""
Runs = Mapping[str, Sequence[q.Kept]]
"""By name of the variant, what is kept of every seed."""
Input = tuple[tuple[str, ...], q.Quantity]
"""Variants, over which the mean is taken, and what is measured of each."""
POINTS = 100.0


@dataclass(frozen=True)
class Definition:
    """How a figure is computed."""

    inputs: tuple[Input, ...]
    combine: Combine
    scale: float = 1.0

    def measure(self, runs: Runs) -> Estimate | None:
        """With its interval; None where the study has no such runs."""
        if any(name not in runs for names, _ in self.inputs for name in names):
            return None
        found = estimate(self.tables(runs), self.combine)
        return Estimate(*(self.scale * x for x in (found.value, found.low, found.high)))

    def tables(self, runs: Runs) -> list[Floats]:
        """What is measured, [S, P] each."""
        return [table_of(runs, *one) for one in self.inputs]

    def num_seeds(self, runs: Runs) -> int:
        """Seeds for which the figure exists."""
        return int(known_seeds(self.tables(runs)).sum())


def table_of(runs: Runs, names: tuple[str, ...], quantity: q.Quantity) -> Floats:
    """[S, P], the mean over variants."""
    return np.mean([[quantity(run) for run in runs[name]] for name in names], axis=0)


def difference(means: Sequence[Floats]) -> Floats:
    return means[0] - means[1]


def ratio(means: Sequence[Floats]) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(means[0], means[1])


def plain(means: Sequence[Floats]) -> Floats:
    return means[0]


def spread(means: Sequence[Floats]) -> Floats:
    return np.max(means, axis=0) - np.min(means, axis=0)


def drops(means: Sequence[Floats]) -> Floats:
    """(best - last) of one minus that of another."""
    return (means[0] - means[1]) - (means[2] - means[3])


def minus(a: str, b: str, quantity: q.Quantity = q.last, scale: float = POINTS) -> Definition:
    return Definition((((a,), quantity), ((b,), quantity)), difference, scale)


def over(a: str, b: str, quantity: q.Quantity, other: q.Quantity | None = None) -> Definition:
    return Definition((((a,), quantity), ((b,), other or quantity)), ratio)


def own(names: str | tuple[str, ...], quantity: q.Quantity, scale: float = 1.0) -> Definition:
    return Definition((((names,) if isinstance(names, str) else names, quantity),), plain, scale)


def replayed(rule: str) -> Definition:
    """LRE of a rule minus that of FSPO's, on the reference's runs, at equal acceptance."""
    tables = tuple(((GRPO,), q.kept("replay", name, "lre")) for name in (rule, "fspo"))
    return Definition(tables, difference)


def drop_minus(a: tuple[str, ...], b: tuple[str, ...]) -> Definition:
    return Definition(((a, q.best), (a, q.last), (b, q.best), (b, q.last)), drops, POINTS)


def slow(text: str) -> str:
    """The name of a variant of experiment 1 at the smaller rate."""
    return f"{text} tokens rate {SLOW:g}"


GRPO, EQLEN, UNBIASED = "grpo", "eqlen+grpo tokens", "eqlen_unbiased tokens"
ALL_FOUR = "eqlen+fspo+balanced_update+toplambda tokens"
SLOW_EQLEN = slow("eqlen+grpo")
LONG, LP, TOPLAMBDA = "grpo long", "grpo+lp long", "grpo+toplambda long"
ENTROPY = "entropy/mean"


def eqlen_figures() -> dict[str, Definition]:
    """Experiment 1."""
    bases = ("dr_grpo", "dapo", "gspo", "luspo")
    ablations = {"single-pair": "max_rounds=1", "prefix": "prefix_gradient=true", "mean": "survivor_reward=mean"}
    ended = q.length_at(-1)
    return {
        "eqlen-minus-grpo": minus(EQLEN, GRPO),
        **{f"eqlen-minus-{dash(b)}": minus(EQLEN, f"{b} tokens") for b in bases},
        **{f"{dash(b)}-minus-grpo": minus(f"{b} tokens", GRPO) for b in bases},
        **{f"eqlen-minus-{n}": minus(EQLEN, f"eqlen+grpo:sampling.{f} tokens") for n, f in ablations.items()},
        **{f"eqlen-{dash(b)}-minus-eqlen": minus(f"eqlen+{b} tokens", EQLEN) for b in ("dr_grpo", "dapo")},
        "eqlen-unbiased-minus-eqlen": minus(UNBIASED, EQLEN),
        "eqlen-slow-minus-grpo": minus(SLOW_EQLEN, GRPO),
        **{f"eqlen-slow-minus-{n}": minus(SLOW_EQLEN, slow(f"eqlen+grpo:sampling.{f}")) for n, f in ablations.items()},
        "eqlen-unbiased-minus-eqlen-slow": minus(UNBIASED, SLOW_EQLEN),
        "eqlen-slow-length-ratio": over(SLOW_EQLEN, GRPO, ended),
        "eqlen-unbiased-minus-grpo": minus(UNBIASED, GRPO),
        "eqlen-unbiased-generated-ratio": over(UNBIASED, GRPO, q.kept("generated")),
        "eqlen-updates-ratio": over(EQLEN, GRPO, q.num_updates),
        "single-pair-falls": own(f"eqlen+grpo:sampling.{ablations['single-pair']} tokens", q.falls, POINTS),
        "eqlen-falls-minus-grpo": minus(EQLEN, GRPO, q.falls),
        "eqlen-falls-minus-gspo": minus(EQLEN, "gspo tokens", q.falls),
        "eqlen-samples-ratio": over("eqlen+grpo timed", "grpo timed", q.samples_per_second),
        "eqlen-tokens-ratio": over(EQLEN, GRPO, q.tokens_per_prompt),
        "eqlen-generated-ratio": over(EQLEN, GRPO, q.kept("generated")),
        "eqlen-trained-ratio": over(EQLEN, GRPO, q.trained_share),
        "grpo-entropy-ratio": over(GRPO, GRPO, q.quarter("updates", ENTROPY, 3), q.quarter("updates", ENTROPY, 0)),
        "eqlen-entropy-minus-grpo": minus(EQLEN, GRPO, q.quarter("updates", ENTROPY, 3), 1.0),
        "eqlen-length-ratio": over(EQLEN, GRPO, ended),
        "eqlen-unbiased-length-ratio": over(UNBIASED, GRPO, ended),
    }


def fspo_figures() -> dict[str, Definition]:
    """Experiment 2."""
    lre = q.kept("lre", "value")
    others = ("grpo", "rloo", "gspo")
    return {
        "fspo-lre": own("fspo", lre),
        **{
            f"{dash(n)}-lre-minus-fspo": minus(n, "fspo", lre, 1.0) for n in ("rloo", "gspo", "fspo_v3", "fspo_centred")
        },
        "gspo-lre-minus-rloo": minus("gspo", "rloo", lre, 1.0),
        **{f"{n}-lre-equal-minus-fspo": replayed(n) for n in ("rloo", "gspo")},
        "fspo-acceptance-gap": own("fspo", q.kept("quarter_gap")),
        "spread-exponent": own(GRPO, q.kept("growth")),
        **{f"fspo-minus-{n}-best": minus("fspo", n, q.best) for n in others},
        **{f"fspo-minus-{n}-last": minus("fspo", n) for n in others},
        "rloo-drop-minus-fspo": drop_minus(("rloo",), ("fspo",)),
        "rloo-length-ratio": over("rloo", "fspo", q.quarter("batches", "length/mean", 3)),
        "fspo-early-minus-gspo": minus("fspo", "gspo", q.early),
        **{f"fspo-cosine-minus-{n}": own(DIRECTIONS, q.between("fspo", n)) for n in ("rloo", "gspo")},
        **{f"fspo-accepted-minus-{n}": own(DIRECTIONS, q.between("fspo", n, "share")) for n in ("rloo", "gspo")},
        "gspo-cosine-minus-rloo": own(DIRECTIONS, q.between("gspo", "rloo")),
        "direction-paper-violations": own(DIRECTIONS, q.violations("rho_paper")),
        "direction-corrected-violations": own(DIRECTIONS, q.violations("rho_bound")),
        "fspo-width-range": Definition(
            tuple(((f"fspo:surrogate.width={width}",), q.last) for width in WIDTHS), spread, POINTS
        ),
    }


def balanced_figures() -> dict[str, Definition]:
    """Experiment 3."""
    rules, found = {"token": TOKEN, "sequence": SEQUENCE, "balanced": BALANCED}, {}
    for task in ("varied", "gapped"):
        named = {rule: f"{text} {task}" for rule, text in rules.items()}
        found[f"{task}-variation"] = own(tuple(named.values()), q.kept("outcome", "variation"))
        found[f"{task}-gap"] = own(tuple(named.values()), q.kept("outcome", "gap"))
        for one, other in (("token", "sequence"), ("balanced", "token"), ("balanced", "sequence")):
            for when, quantity in (("peak", q.best), ("last", q.last)):
                found[f"{task}-{one}-minus-{other}-{when}"] = minus(named[one], named[other], quantity)
    for rule in ("token", "sequence"):
        found[f"varied-balanced-minus-slow-{rule}-last"] = minus(
            f"{rules['balanced']} varied", f"{rules[rule]} varied rate {SLOW:g}"
        )
    slower = [f"{rules[rule]} varied rate {SLOW:g}" for rule in ("token", "sequence")]
    found["varied-slow-token-minus-sequence-peak"] = minus(slower[0], slower[1], q.best)
    both = {rule: tuple(f"{text} {task}" for task in ("varied", "gapped")) for rule, text in rules.items()}
    gapped = {rule: f"{text} gapped" for rule, text in rules.items()}
    return found | {
        **{f"{rule}-drop-minus-balanced": drop_minus(both[rule], both["balanced"]) for rule in ("token", "sequence")},
        "gapped-loss-token": own(gapped["token"], q.loss),
        **{
            f"loss-{rule}-share": over(gapped[rule], gapped["token"], q.size_of_loss)
            for rule in ("sequence", "balanced")
        },
    }


def toplambda_figures() -> dict[str, Definition]:
    """Experiment 4."""
    ended, length = q.length_at(-1), "length/mean"
    field = "grpo+toplambda:reward.TopLambda."
    return {
        "toplambda-minus-grpo": minus(TOPLAMBDA, LONG),
        "toplambda-length-ratio": over(TOPLAMBDA, LONG, ended),
        "toplambda-length-before-ratio": over(TOPLAMBDA, TOPLAMBDA, ended, q.length_at(0)),
        "lp-length-ratio": over(LP, TOPLAMBDA, q.length_at_best),
        "lp-fall": Definition((((LP,), q.best), ((LP,), q.last)), difference, POINTS),
        "lp-fall-minus-toplambda": drop_minus((LP,), (TOPLAMBDA,)),
        "trainable-ratio": over(TOPLAMBDA, LP, q.collapse),
        "grpo-length-growth": over(LONG, LONG, q.quarter("batches", length, 3), q.quarter("batches", length, 0)),
        "alpha-length-ratio": over(f"{field}alpha=0.2 long", TOPLAMBDA, ended),
        "fraction-length-ratio": over(f"{field}fraction=0.1 long", f"{field}fraction=0.5 long", ended),
    }


def combination_figures() -> dict[str, Definition]:
    """Experiment 5."""
    names = {
        "eqlen-fspo": "eqlen+fspo", "eqlen-balanced": "eqlen+grpo+balanced_update", "fspo-balanced": "fspo+balanced",
        "eqlen-toplambda": "eqlen+grpo+toplambda",
    }  # fmt: skip
    return {
        **{f"{short}-minus-grpo": minus(f"{text} tokens", GRPO) for short, text in names.items()},
        "all-four-minus-grpo": minus(ALL_FOUR, GRPO),
        "all-four-length-ratio": over(ALL_FOUR, GRPO, q.length_at(-1)),
    }


PARTS: tuple[Callable[[], dict[str, Definition]], ...] = (
    eqlen_figures, fspo_figures, balanced_figures, toplambda_figures, combination_figures,
)  # fmt: skip


def definitions() -> dict[str, Definition]:
    """Every figure by its id."""
    return {name: one for part in PARTS for name, one in part().items()}


def dash(text: str) -> str:
    return text.replace("_", "-")


def described() -> dict[str, dict[str, Any]]:
    """Unit and exact definition of every figure, as the ledger of claims has them."""
    return tomllib.loads((DATA / "figures.toml").read_text())["figures"]
