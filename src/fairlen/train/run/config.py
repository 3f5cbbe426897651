"""Every setting of a training run with what it does, its unit and its range, and which of them may change at a resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fairlen.checks import check_finite, check_not_negative, check_positive, check_seed
from fairlen.evaluate.folder import NOT_INSTALLED, find_version
from fairlen.methods.compose import DEFAULT_METHOD
from fairlen.methods.method import Method
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PolicyGradient, TokenClip
from fairlen.methods.stages.terms import NoCorrection
from fairlen.settings import DataSettings, Overrides, PolicySettings, Repeated, SamplingSettings, VerifierSettings
from fairlen.tasks.shipped import SHIPPED

TRACKERS = ("wandb", "trackio", "tensorboard")


@dataclass(frozen=True)
class TrainConfig(SamplingSettings, DataSettings, PolicySettings):
    """Train a causal language model with a length-fair method on one device."""

    method: str = DEFAULT_METHOD
    """Names joined by +: one base and any modifiers; `fairlen methods` lists them, one of your own is FILE.py:NAME."""
    overrides: Overrides = ()
    """A field of the method, such as surrogate.clip_high=0.3; may be repeated."""
    rewards: Annotated[tuple[str, ...], Repeated] = ()
    """A reward function of your own as FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT, added to the verifier's; may be repeated."""
    verifier_weight: float = 1.0
    """Weight of the verifier's verdict in the outcome."""
    reward_deadline: float = 60.0
    """Seconds for one call of a reward function, past which the response has no verdict; 0 is none."""
    environment_deadline: float = 60.0
    """Seconds for one call of an environment, past which its trajectory has no verdict; 0 is none."""

    rollout_batches: int = 16
    """Collections in the run, at most."""
    max_updates: int = 0
    """Updates after which no further rollout batch begins; 0 is no limit."""
    max_generated: int = 0
    """Generated tokens in training after which the run ends; 0 is no limit."""
    max_seconds: float = 0.0
    """Seconds of training, evaluations apart, after which the run ends; 0 is no limit. Such a run cannot be repeated exactly."""
    prompts_per_batch: int = 16
    """Kept prompts in a rollout batch; each has sampling.n responses."""
    updates_per_batch: int = 1
    """Updates that a rollout batch is split into; prompts stay whole. Above 1, clipping acts."""
    epochs_per_batch: int = 1
    """Times that a rollout batch is gone through."""
    max_extra_batches: int = 4
    """Times that prompts which the method rejects are replaced by new ones in a rollout batch."""

    optim: Literal["adamw", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"] = "adamw"
    """"adamw" is torch's; the others are bitsandbytes': moments of 8 bits, or paged from the host's memory to CUDA."""
    learning_rate: float = 3e-4
    """Of AdamW, after the warm-up; then constant."""
    warmup_updates: int = 5
    """Updates over which the learning rate rises."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_gradient_norm: float = 1.0
    """The gradient is scaled down to this norm."""

    eval_every: int = 8
    """Rollout batches between held-out evaluations; 0 evaluates before and after only."""
    eval_problems: int = 128
    """Held-out problems."""
    eval_samples: int = 4
    """Responses to each held-out problem."""
    save_every: int = 8
    """Rollout batches between checkpoints; 0 saves at the end only."""
    save_every_updates: int = 0
    """Updates between checkpoints, within a rollout batch too; 0 is none but those of save_every."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""

    max_tokens_per_microbatch: int = 16384
    """Positions in a micro-batch; less needs less memory and changes no result."""
    layout: Literal["auto", "trees", "rows"] = "auto"
    """What the model reads in training: "trees" computes tokens that sequences share once, with the same log-probs and gradients;
    "rows" pads; "auto" is trees where the model can read them and an update gets cheaper."""
    try_memory: Literal["auto", "on", "off"] = "auto"
    """Run the largest micro-batch that the settings allow before anything else; "auto": where memory may not suffice."""

    deterministic: bool = False
    """Make updates repeatable to the bit on CUDA, where they are slower for it; on the CPU they always are."""

    tracker: Annotated[tuple[str, ...], Repeated] = ()
    """Sends metrics and alerts to "wandb", "trackio" or "tensorboard" too; may be repeated."""
    stall_seconds: float = 300.0
    """Seconds without progress after which what the run waits for is reported, with all stacks; 0 is never."""

    out: str = ""
    """Run folder; by default a new one under runs/."""
    resume: bool = False
    """Go on with the newest checkpoint of the run folder."""

    def __post_init__(self) -> None:
        for part in (PolicySettings, VerifierSettings, SamplingSettings):
            part.__post_init__(self)
        if not self.temperature > 0:
            raise ValueError(
                f"temperature={self.temperature}: give more than 0; greedy decoding has no gradient to learn from"
            )
        check_positive(self, "max_prompt_length", "rollout_batches", "prompts_per_batch", "updates_per_batch", "epochs_per_batch",
                       "eval_problems", "eval_samples", "keep_checkpoints", "max_tokens_per_microbatch", "max_gradient_norm",
                       "learning_rate", "temperature")  # fmt: skip
        check_finite(self, "weight_decay", "verifier_weight", "max_seconds", "reward_deadline",
                     "environment_deadline", "stall_seconds")  # fmt: skip
        check_not_negative(self, "max_updates", "max_generated", "max_seconds", "max_extra_batches", "warmup_updates",
                           "weight_decay", "eval_every", "save_every", "save_every_updates", "reward_deadline",
                           "environment_deadline", "stall_seconds", "lora_rank", "lora_alpha")  # fmt: skip
        check_seed(self)
        for tracker in self.tracker:
            if tracker not in TRACKERS:
                raise ValueError(f"tracker={tracker}: give one of {', '.join(TRACKERS)}")
        if self.needs_support and self.engine == "vllm":
            raise ValueError(
                f"{self.truncations[0]} with engine=vllm: vLLM is not asked which tokens truncated sampling left, so that every "
                "ratio is wrong; give --engine embedded, or leave it off"
            )
        if self.resume and not self.out:
            raise ValueError("resume=True without out: name the run folder to resume with --out")

    @property
    def needs_support(self) -> bool:
        return bool(self.truncations)


MAX_RESPONSES = 1_000_000
"""In a rollout batch or an evaluation: with their records a few GB at least, and many times what anyone trains on at once."""


def refuse_too_many(config: TrainConfig, tracks: int) -> None:
    """Raise ValueError for a rollout batch of `tracks` responses to each prompt, or an evaluation, beyond any sense."""
    for name, each, where, remedy in (
        ("prompts_per_batch", tracks, "a rollout batch", "prompts_per_batch, sampling.n or sampling.streams"),
        ("eval_problems", config.eval_samples, "an evaluation", "eval_problems or eval_samples"),
    ):
        number = getattr(config, name)
        if number * each > MAX_RESPONSES:
            raise ValueError(
                f"{name}={number} with {each} responses each: {number * each:,} responses in {where}, which is kept in memory, "
                f"are more than {MAX_RESPONSES:,}; give a smaller {remedy}"
            )


HARMLESS = {
    "out", "rollout_batches", "max_updates", "max_generated", "max_seconds", "eval_every", "save_every",
    "save_every_updates", "keep_checkpoints", "verify_workers", "stall_seconds", "tracker", "try_memory",
    "reward_deadline", "environment_deadline",
}  # fmt: skip
"""Settings that change nothing of what an update computes."""
ROUNDING = {
    "threads", "compile", "device", "layout", "max_num_seqs", "max_tokens_per_microbatch", "gradient_checkpointing",
    "gpu_memory_utilization", "sleep_level", "deterministic",
}  # fmt: skip
"""Settings with the same mathematics and another order of sums: close results, not the same bits."""


@dataclass(frozen=True)
class Change:
    """One setting."""

    name: str
    before: Any
    now: Any

    @property
    def is_refused(self) -> bool:
        return self.name not in HARMLESS | ROUNDING

    def __str__(self) -> str:
        effect = "harmless" if self.name in HARMLESS else "rounds differently"
        return f"{self.name}: {self.before} -> {self.now} ({'changes the mathematics' if self.is_refused else effect})"


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return differences of two descriptions of a run, the gravest first."""
    old, new = decisions(before), decisions(now)
    if old["method"] != new["method"]:
        old["method"], new["method"] = ("{name} ({hash})".format_map(one["method"]) for one in (before, now))
    changes = [Change(name, old[name], value) for name, value in new.items() if old.get(name, value) != value]
    return sorted(changes, key=lambda change: (not change.is_refused, change.name in HARMLESS))


def refuse_changes(changes: list[Change]) -> None:
    """Raise ValueError with all changes where one would change the mathematics."""
    if any(change.is_refused for change in changes):
        raise ValueError(
            "resume with other settings would not continue the same run:\n"
            + "\n".join(f"  {change}" for change in changes)
            + "\nleave out what changes the mathematics, or start another run with another --out"
        )


def hash_configuration(description: Mapping[str, Any]) -> str:
    """Return twelve hex digits of all that decides an update: equal for descriptions without a refused change."""
    binding = {k: v for k, v in decisions(description).items() if k not in HARMLESS | ROUNDING}
    return hashlib.sha256(json.dumps(binding, sort_keys=True).encode()).hexdigest()[:12]


def decisions(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return by name all that decides a run: settings, the method, problems, and the user's own files and packages.

    The method is its choices, however they were given.
    """
    found = json.loads(json.dumps(description["config"])) | {"method": description["method"]["hash"]}
    for name in ("overrides", "resume"):
        found.pop(name, None)
    for one in description.get("data", {}).get("sets", ()):
        found[f"problems of {one['name']}"] = one["fingerprint"]
    for one in description.get("plugins", ()):
        found[f"{one['setting']} {one['name']}"] = one["sha256"] or one["source"]
    return found


def takes_vllm(config: TrainConfig) -> bool:
    """Return whether vLLM generates where there is a CUDA device."""
    is_automatic = config.engine == "auto" and config.model not in SHIPPED and not config.needs_support
    return config.engine == "vllm" or (is_automatic and find_version("vllm") != NOT_INSTALLED)


RULES: tuple[tuple[Callable[[TrainConfig, Method], object], str, str], ...] = (
    (
        lambda c, m: c.without_verdict == "incorrect",
        "without_verdict=incorrect: long responses take verifiers longer, and what missed a deadline counts as incorrect",
        "--without-verdict inactive, and look at verifier/timeout",
    ),
    (
        lambda c, m: (
            c.updates_per_batch * c.epochs_per_batch == 1 and m.surrogate not in (PolicyGradient(), TokenClip())
        ),
        "updates_per_batch=1: every ratio is 1, so that {surrogate} bounds nothing and a plain policy gradient is trained",
        "--updates-per-batch 4",
    ),
    (
        lambda c, m: isinstance(m.surrogate, FairBand) and c.dtype == "bfloat16",
        "dtype=bfloat16 with FairBand: rounding moves the sum of a long response's log ratios by as much as the band is wide",
        "--dtype float32, or a wider --set surrogate.width",
    ),
    (
        lambda c, m: takes_vllm(c) and m.correction == NoCorrection(),
        "engine=vllm without a correction: the sampler's log-probs differ from the trainer's, in sums over long responses most",
        "--method …+mismatch",
    ),
    (
        lambda c, m: c.data and c.max_tokens_per_microbatch < c.max_prompt_length + c.max_response_length,
        "max_tokens_per_microbatch={c.max_tokens_per_microbatch}: a prompt of {c.max_prompt_length} with {c.max_response_length} "
        "tokens is longer, and is read whole: memory is not bounded",
        "--max-tokens-per-microbatch {longest} or more, or a smaller --max-response-length",
    ),
    (
        lambda c, m: {Path(p) for p in c.data} & {Path(p) for p in c.eval_data},
        "a set is trained on and evaluated on",
        "leave --eval-data out: a part of --data is then held out",
    ),
)
"""When settings would undo what the method does, or flatter a run; what is wrong, what to do."""


def find_undoing(config: TrainConfig, method: Method) -> list[tuple[str, str]]:
    """Return what settings bring back of what the method takes away, or keep it from doing, and what to do."""
    facts = {
        "c": config, "longest": config.max_prompt_length + config.max_response_length,
        "surrogate": type(method.surrogate).__name__,
    }  # fmt: skip
    return [(wrong.format(**facts), remedy.format(**facts)) for holds, wrong, remedy in RULES if holds(config, method)]
