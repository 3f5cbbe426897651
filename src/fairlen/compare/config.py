"""Every setting of a comparison, checked at construction; the settings of its runs are those of `fairlen train`."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fairlen.files.limits import name_special
from fairlen.methods.compose import explain
from fairlen.methods.peers import PEERS
from fairlen.settings import Positional, flatten
from fairlen.train.run.config import TrainConfig

Match = Literal["generated", "seconds", "updates"]
FEW_SEEDS = {
    1: "one seed: intervals are over problems alone and say nothing of another seed; --seeds 3 or more does",
    2: "two seeds: what lies between seeds is hardly in the intervals, which are too narrow; --seeds 3 or more",
}
"""Caveat on intervals, by the number of seeds."""


@dataclass(frozen=True)
class Variant:
    """One method of a comparison."""

    text: str
    """As it was asked for, such as "fspo:surrogate.width=0.01"."""
    method: str
    settings: tuple[str, ...]

    @property
    def folder(self) -> str:
        """A name for its folder."""
        return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", self.text)


@dataclass(frozen=True)
class CompareConfig:
    """Train several methods on the same prompts spending the same, and compare their results; or compare runs that are there."""

    refused: ClassVar = ("method", "overrides", "resume", "max_updates", "max_generated", "max_seconds")
    """Settings of its runs that a comparison makes."""

    methods: Annotated[tuple[str, ...], Positional]
    """Names as for `fairlen train`, with settings after a colon: grpo dapo+balanced fspo:surrogate.width=0.01,surrogate.z=2; or
    run folders of fairlen train, trl and verl."""
    match: Match = "generated"
    """Budget of all methods: the generated tokens, seconds of training, or updates of the reference."""
    reference: str = ""
    """The method that sets what is spent and that others are compared with; by default the first."""
    seeds: int = 3
    """Runs of each method; they differ in prompts, samples and nothing else."""
    train: TrainConfig = field(default=TrainConfig())
    """Settings of every run. rollout_batches is the reference's; out is the folder of the comparison: what is done there
    already is not done again."""

    def __post_init__(self) -> None:
        other = next((text for text in self.methods if "/" in text and Path(text).exists() and not is_run(text)), "")
        if other:
            if special := name_special(Path(other) / "run.json"):
                raise ValueError(f"methods={other}: {Path(other) / 'run.json'}: {special}")
            remedy = "rollouts of other programs are compared by: fairlen audit A --against B"
            raise ValueError(f"methods={other}: no run of fairlen's, which has a run.json; {remedy}")
        texts = [variant.text for variant in self.variants]
        if len(texts) < 2:
            raise ValueError(
                f"methods={' '.join(self.methods)}: name at least two, such as: fairlen compare grpo grpo+balanced"
            )
        if len({v.text if self.are_runs else v.folder for v in self.variants}) < len(texts):
            raise ValueError(f"methods={' '.join(self.methods)}: two of them would share a folder; leave one out")
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds}: give at least 1; intervals over seeds need 3 or more")
        if self.reference and self.reference not in texts:
            raise ValueError(f"reference={self.reference}: it is none of the methods; there are {', '.join(texts)}")
        given, usual = (flatten(asdict(o.train)) | {"match": o.match, "seeds": o.seeds} for o in (self, CompareConfig))
        for name in given if self.are_runs else self.refused:
            if (value := given[name]) != usual[name]:
                how = "a comparison sets " + ("limits by --match" if name.startswith("max_") else "this for each run")
                how = "runs are compared as they are" if self.are_runs else how
                raise ValueError(f"{name}={value}: {how}; leave it out")
        for variant in () if self.are_runs else self.variants:
            explain(variant.method, variant.settings)

    @property
    def are_runs(self) -> bool:
        """Whether run folders are named, whoever trained them, which are compared as they are."""
        return all(map(is_run, self.methods))

    @property
    def all_seeds(self) -> range:
        """The seeds of the runs of each method."""
        return range(self.train.run.seed, self.train.run.seed + self.seeds)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The methods, the reference first."""
        found = [parse_variant(text) for text in self.methods]
        first = self.reference or (self.methods[0] if self.methods else "")
        return tuple(sorted(found, key=lambda variant: variant.text != first))


def is_run(folder: str) -> bool:
    """Return whether a folder is one of a run."""
    return (Path(folder) / "run.json").is_file()


def parse_variant(text: str) -> Variant:
    """ "fspo:surrogate.width=0.01,surrogate.z=2" -> the method and its settings."""
    own = rf"[^:+]*\.py:\w+|(?:{'|'.join(PEERS)}):[^:]*"  # FILE.py:NAME and verl:NAME have a colon of their own
    found = re.fullmatch(rf"((?:{own}|[^:])*)(:?)(.*)", text)
    method, colon, settings = found.groups() if found else (text, "", "")
    if colon and not settings.strip(", "):
        raise ValueError(f"{text}: no setting after the colon; write METHOD:PATH=VALUE, or the method alone")
    return Variant(text, method, tuple(part for part in settings.split(",") if part))
