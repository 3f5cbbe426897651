"""Every setting of a training run in its group, and which of them may change at a resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from fairlen import settings
from fairlen.checks import Amount, Count, Natural, Positive, Seed
from fairlen.methods.compose import DEFAULT_METHOD
from fairlen.methods.method import Method
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PolicyGradient, TokenClip
from fairlen.methods.stages.terms import NoCorrection
from fairlen.tasks.playground import PLAYGROUND
from fairlen.verify.answer import PATTERN

CHOSEN = ("learning_rate", "max_response_length", "max_prompt_length", "max_tokens_per_microbatch", "max_num_seqs")
"""Settings that a run chooses where they are 0; run.json has what it chose."""
TRACKERS = ("wandb", "trackio", "tensorboard")


@dataclass(frozen=True)
class BatchSettings(settings.SamplingSettings):
    """How the responses of a rollout batch are drawn."""

    prompts_per_batch: Count = 16
    """Kept prompts in a rollout batch; each has sampling.n responses."""
    max_extra_batches: Natural = 4
    """Times that prompts which the method rejects are replaced by new ones in a rollout batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature}: give more than 0: greedy decoding has no gradient")
        if self.truncations and self.engine == "vllm":
            raise ValueError(
                f"{self.truncations[0]} with engine=vllm: vLLM is not asked which tokens truncated sampling left, so that every "
                "ratio is wrong; give --engine embedded, or leave it off"
            )


@dataclass(frozen=True)
class UpdateSettings(settings.Settings):
    """How a rollout batch becomes updates of the policy."""

    updates_per_batch: Count = 1
    """Updates that a rollout batch is split into; prompts stay whole. Above 1, clipping acts."""
    epochs_per_batch: Count = 1
    """Times that a rollout batch is gone through."""
    learning_rate: Amount = 0.0
    """Of AdamW, after the warm-up; then constant. 0 chooses by the model: 3e-4 below 50M parameters, 1e-5 below a billion, 1e-6
    from there on; 1e-4 for adapters."""
    warmup_updates: Natural = 5
    """Updates over which the learning rate rises."""
    weight_decay: Amount = 0.0
    """Of AdamW."""
    max_gradient_norm: Positive = 1.0
    """The gradient is scaled down to this norm."""
    max_tokens_per_microbatch: Annotated[Natural, settings.ROUNDING] = 0
    """Positions in a micro-batch; less needs less memory and changes no result. 0 is 16,384, or fewer that fit memory."""
    layout: Annotated[Literal["auto", "trees", "rows"], settings.ROUNDING] = "auto"
    """Layout of a micro-batch: "trees" computes tokens that sequences share once, with the same log-probs and gradients;
    "rows" pads; "auto" is trees where the model can read them and an update gets cheaper."""
    try_memory: Annotated[Literal["auto", "on", "off"], settings.HARMLESS] = "auto"
    """Run the largest micro-batch that the settings allow before anything else; "auto": where memory may not suffice."""
    deterministic: Annotated[bool, settings.ROUNDING] = False
    """Make updates repeatable to the bit on CUDA, where they are slower for it; on the CPU they always are."""


@dataclass(frozen=True)
class RunSettings(settings.Settings):
    """How long a run is, what it evaluates, saves and reports, and where."""

    out: Annotated[str, settings.HARMLESS] = ""
    """Run folder; by default a new one under runs/."""
    resume: Annotated[bool, settings.HARMLESS] = False
    """Go on with the newest checkpoint of the run folder."""
    seed: Seed = 0
    """Of the run: order of problems, generation, shuffling."""
    rollout_batches: Annotated[Count, settings.HARMLESS] = 16
    """Collections in the run, at most."""
    max_updates: Annotated[Natural, settings.HARMLESS] = 0
    """Updates after which no further rollout batch begins; 0 is no limit."""
    max_generated: Annotated[Natural, settings.HARMLESS] = 0
    """Generated tokens in training after which the run ends; 0 is no limit."""
    max_seconds: Annotated[Amount, settings.HARMLESS] = 0.0
    """Seconds of training, evaluations apart, after which the run ends; 0 is no limit. Such a run cannot be repeated exactly."""
    problems: Count = 128
    """Held-out problems of an evaluation."""
    samples: Count = 4
    """Responses to each held-out problem."""
    eval_every: Annotated[Natural, settings.HARMLESS] = 8
    """Rollout batches between held-out evaluations; 0 evaluates before and after only."""
    save_every: Annotated[Natural, settings.HARMLESS] = 8
    """Rollout batches between checkpoints; 0 saves at the end only."""
    save_every_updates: Annotated[Natural, settings.HARMLESS] = 0
    """Updates between checkpoints, within a rollout batch too; 0 is none but those of save_every."""
    keep_checkpoints: Annotated[Count, settings.HARMLESS] = 2
    """Newest checkpoints that are kept."""
    tracker: Annotated[tuple[str, ...], settings.Repeated, settings.HARMLESS] = ()
    """Sends metrics and alerts to "wandb", "trackio" or "tensorboard" too; may be repeated."""
    stall_seconds: Annotated[Amount, settings.HARMLESS] = 300.0
    """Seconds without progress after which what the run waits for is reported, with all stacks; 0 is never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for tracker in self.tracker:
            if tracker not in TRACKERS:
                raise ValueError(f"tracker={tracker}: give one of {', '.join(TRACKERS)}")
        if self.resume and not self.out:
            raise ValueError("resume=True without out: name the run folder to resume with --out")


@dataclass(frozen=True)
class TrainConfig(settings.RolloutConfig, settings.TaskConfig):
    """Train a causal language model with a length-fair method on one device."""

    method: str = DEFAULT_METHOD
    """Names joined by +: one base and any modifiers; `fairlen methods` lists them, one of your own is FILE.py:NAME."""
    overrides: settings.Overrides = ()
    """A field of the method, such as surrogate.clip_high=0.3; may be repeated."""
    model: settings.PolicySettings = field(default=settings.PolicySettings())
    data: settings.DataSettings = field(default=settings.DataSettings())
    verifier: settings.RewardSettings = field(default=settings.RewardSettings())
    sampling: BatchSettings = BatchSettings()
    update: UpdateSettings = UpdateSettings()
    run: RunSettings = RunSettings()

    @property
    def needs_support(self) -> bool:
        return bool(self.sampling.truncations)


MAX_RESPONSES = 1_000_000
"""In a rollout batch or an evaluation: with their records a few GB at least, and many times what anyone trains on at once."""


def refuse_too_many(config: TrainConfig, tracks: int) -> None:
    """Raise ValueError for a rollout batch of `tracks` responses to each prompt, or an evaluation, beyond any sense."""
    prompts = config.sampling.prompts_per_batch
    for name, number, each, where, remedy in (
        ("prompts_per_batch", prompts, tracks, "a rollout batch", "prompts_per_batch, sampling.n or sampling.streams"),
        ("problems", config.run.problems, config.run.samples, "an evaluation", "problems or samples"),
    ):
        if number * each > MAX_RESPONSES:
            raise ValueError(
                f"{name}={number} with {each} responses each: {number * each:,} responses in {where}, which is kept in memory, "
                f"are more than {MAX_RESPONSES:,}; give a smaller {remedy}"
            )


def effect_of(name: str) -> settings.ResumeEffect | None:
    """Return what changing a setting means at a resume; None where it would change the mathematics."""
    setting = settings.names_of(TrainConfig).get(name)
    return setting.effect if setting else None


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return differences of two descriptions of a run, the gravest first.

    Raises ValueError with all of them where one would change the mathematics.
    """
    old, new = decisions(before), decisions(now)
    if old["method"] != new["method"]:
        old["method"], new["method"] = ("{name} ({hash})".format_map(one["method"]) for one in (before, now))
    effects = {name: effect_of(name) for name, value in new.items() if old.get(name, value) != value}
    changes = [
        f"{name}: {old[name]} -> {new[name]} ({effect.name if effect else 'changes the mathematics'})"
        for name, effect in sorted(
            effects.items(), key=lambda one: (None, settings.ROUNDING, settings.HARMLESS).index(one[1])
        )
    ]
    if None in effects.values():
        raise ValueError(
            "resume with other settings would not continue the same run:\n"
            + "\n".join(f"  {change}" for change in changes)
            + "\nleave out what changes the mathematics, or start another run with another --out"
        )
    return changes


def hash_configuration(description: Mapping[str, Any]) -> str:
    """Return twelve hex digits of all that decides an update: equal for descriptions without a refused change."""
    binding = {k: v for k, v in decisions(description).items() if effect_of(k) is None}
    return hashlib.sha256(json.dumps(binding, sort_keys=True).encode()).hexdigest()[:12]


def decisions(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return by name all that decides a run: settings, the method, problems, and the user's own files and packages.

    The method is its choices, however they were given.
    """
    found = settings.flatten(json.loads(json.dumps(description["config"]))) | {"method": description["method"]["hash"]}
    for name in ("overrides", "resume"):
        found.pop(name, None)
    for one in description.get("data", {}).get("sets", ()):
        found[f"problems of {one['name']}"] = one["fingerprint"]
    if shots := description.get("data", {}).get("prompt", {}).get("shots"):
        found["solved examples"] = hashlib.sha256(json.dumps(shots).encode()).hexdigest()[:12]
    for one in description.get("plugins", ()):
        found[f"{one['setting']} {one['name']}"] = one["sha256"]
    return found


def takes_vllm(config: TrainConfig) -> bool:
    """Return whether vLLM generates where there is a CUDA device."""
    size = 0 if config.model.name == PLAYGROUND else settings.LARGE + 1
    return settings.choose_engine(config, "cuda", size) == "vllm"


def find_undoing(config: TrainConfig, method: Method) -> Iterator[tuple[str, str]]:
    """Yield what in the settings undoes what the method does, keeps it from it or flatters a run, and what to do."""
    data, surrogate = config.data, method.surrogate
    if config.verifier.without_verdict == "incorrect":
        yield (
            "without_verdict=incorrect: long responses take verifiers longer, and what missed a deadline counts as incorrect",
            "--without-verdict inactive, and look at verifier/timeout",
        )
    is_single = config.update.updates_per_batch * config.update.epochs_per_batch == 1
    if is_single and surrogate not in (PolicyGradient(), TokenClip()):
        yield (
            f"updates_per_batch=1: every ratio is 1, so that {type(surrogate).__name__} bounds nothing and a plain policy "
            "gradient is trained",
            "--updates-per-batch 4",
        )
    if isinstance(surrogate, FairBand) and config.model.dtype == "bfloat16":
        yield (
            "dtype=bfloat16 with FairBand: rounding moves the sum of a long response's log ratios by as much as the band is wide",
            "--dtype float32, or a wider --set surrogate.width",
        )
    if takes_vllm(config) and method.correction == NoCorrection():
        yield (
            "engine=vllm without a correction: the sampler's log-probs differ from the trainer's, in sums over long responses "
            "most",
            "--method …+mismatch",
        )
    prompt, response = data.max_prompt_length, config.sampling.max_response_length
    if data.places and 0 < config.update.max_tokens_per_microbatch < prompt + response:
        yield (
            f"max_tokens_per_microbatch={config.update.max_tokens_per_microbatch}: a prompt of {prompt} with {response} tokens "
            "is longer, and is read whole: memory is not bounded",
            f"--max-tokens-per-microbatch {prompt + response} or more, or a smaller --max-response-length",
        )
    if config.verifier.answer.startswith(PATTERN) and data.instruction == "auto" and not data.shots:
        yield (
            f"answer={config.verifier.answer}: nothing in a prompt asks for this form",
            "--instruction, or --shots with examples of it",
        )
    if {Path(place) for place in data.places} & {Path(place) for place in data.held_out}:
        yield "a set is trained on and evaluated on", "leave --eval-data out: a part of --data is then held out"
