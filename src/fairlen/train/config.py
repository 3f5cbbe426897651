"""Every setting of a training run, with what it does, its unit and its range. Checked at construction.

The words of time: a rollout batch is what one collection gives, an update one optimizer step, a micro-batch
one forward and backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

Repeated = tyro.conf.UseAppendAction


@dataclass(frozen=True)
class TrainConfig:
    """Train a causal language model with a length-fair method on one device."""

    method: str = "grpo+balanced"
    """Names joined by +: one base and any modifiers; `fairlen methods` lists them."""
    set: Annotated[tuple[str, ...], Repeated] = ()
    """A field of the method, such as surrogate.clip_high=0.3; may be repeated."""
    model: str = "playground"
    """Folder or hub id of a causal language model; "playground" is the tiny reasoner that is shipped."""
    task: str = "playground"
    """What to train on: "playground", or one of its families as playground:sums or playground:cups."""
    rewards: Annotated[tuple[str, ...], Repeated] = ()
    """A reward function of your own as FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT, added to the verifier's; may be repeated."""
    verifier_weight: float = 1.0
    """Weight of the verifier's verdict in the outcome."""

    rollout_batches: int = 16
    """Collections in the run, at most."""
    max_updates: int = 0
    """Updates after which the run ends; 0 is no limit."""
    max_generated: int = 0
    """Generated tokens in training after which the run ends; 0 is no limit."""
    max_seconds: float = 0.0
    """Seconds of training, evaluations apart, after which the run ends; 0 is no limit. Such a run cannot be repeated exactly."""
    prompts: int = 16
    """Kept prompts in a rollout batch; each has sampling.n responses."""
    updates_per_batch: int = 1
    """Updates that a rollout batch is split into; prompts stay whole. Above 1, clipping acts."""
    epochs_per_batch: int = 1
    """Times that a rollout batch is gone through."""
    max_refills: int = 4
    """Times that prompts which the method rejects are replaced by new ones in a rollout batch."""

    budget: int = 160
    """Most tokens of a response."""
    temperature: float = 1.0
    """Of the policy, in training and in evaluation; above 0."""
    top_p: float = 1.0
    """Below 1 only with --allow-truncated-sampling."""
    top_k: int = 0
    """Above 0 only with --allow-truncated-sampling."""
    min_p: float = 0.0
    """Above 0 only with --allow-truncated-sampling."""
    allow_truncated_sampling: bool = False
    """Train on samples of another distribution than the policy's: every ratio is then wrong. Recorded in run.json."""

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

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 computes in bfloat16 over float32 weights, on CUDA."""
    device: str = "auto"
    """"auto" is CUDA where there is one, else the CPU."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    slots: int = 256
    """Responses that the engine decodes at a time."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the engine's step: "auto" only where a run is long enough to earn it back."""
    micro_tokens: int = 16384
    """Positions in a micro-batch; less needs less memory and changes no result."""
    layout: Literal["auto", "trees", "rows"] = "auto"
    """What the model reads in training: "trees" computes tokens that sequences share once, with the same log-probs and gradients;
    "rows" pads; "auto" is trees where the model can read them and an update gets cheaper."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""

    seed: int = 0
    """Of everything that is drawn."""
    out: str = ""
    """Run folder; by default a new one under runs/."""
    resume: bool = False
    """Go on with the newest checkpoint of the run folder."""

    def __post_init__(self) -> None:
        positive = ("rollout_batches", "prompts", "updates_per_batch", "epochs_per_batch", "budget", "eval_problems",
                    "eval_samples", "slots", "micro_tokens", "max_gradient_norm", "learning_rate", "temperature")  # fmt: skip
        for name in ("learning_rate", "temperature", "weight_decay", "verifier_weight", "max_seconds"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)}: give a finite number")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: give more than 0{WHY.get(name, '')}")
        for name in (
            "max_updates",
            "max_generated",
            "max_seconds",
            "max_refills",
            "warmup_updates",
            "weight_decay",
            "eval_every",
            "save_every",
            "threads",
            "top_k",
            "seed",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more")
        for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if getattr(self, name) != off and not self.allow_truncated_sampling:
                raise ValueError(
                    f"{name}={getattr(self, name)}: truncated sampling draws from another distribution than the policy that is "
                    f"trained, so every ratio is wrong; use {name}={off:g}, or --allow-truncated-sampling (it is recorded)"
                )
        if not 0.0 < self.top_p <= 1.0 or not 0.0 <= self.min_p < 1.0:
            raise ValueError(f"top_p={self.top_p}, min_p={self.min_p}: give top_p in (0, 1] and min_p in [0, 1)")
        if self.resume and not self.out:
            raise ValueError("resume=True without out: name the run folder to resume with --out")


WHY = {"temperature": "; greedy decoding has no gradient to learn from"}
