"""An update by the Learner, on rows and on trees, and by TRL's loss on the padded batch: same model, tokens and optimizer.

The learning rate is 0: the optimizer does all of its work and the weights stay, so that every turn of every side has the same
gradient, and its norm is compared.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from _device import Rates, Turn, run
from _shapes import NEVER, Counts, build_model, count
from _speed import peak_flops, update_flops
from torch import Tensor
from transformers import PreTrainedModel

from fairlen import playground
from fairlen.batch import Plan
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy, make_head
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.sampling.extend import Sampling
from fairlen.train.step import Learner

GROUP = 8
"""Responses a prompt."""
MAX_NORM = 1.0
CHECKED = 64
"""Tokens of each of 16 responses whose log-probs are compared."""
METHOD = compose("grpo")
SIDES = ("Learner, rows", "Learner, trees", "TRL")


@dataclass(frozen=True)
class Updates:
    """The workload of every side."""

    sequences: int
    prompt: int
    """Tokens of each prompt."""
    max_response_length: int
    """Tokens of the longest response that may be."""
    max_tokens_per_microbatch: int
    """Positions in a micro-batch."""
    repeats: int
    shortest: int = 0
    """Tokens of the shortest response that may be; 0 is a quarter of the longest."""


@dataclass(frozen=True)
class Trained:
    """The rates of one side, medians over turns."""

    side: str
    seconds: float
    tokens_per_second: float
    """Trained tokens, which are the same on every side."""
    flops: float
    """A second; of trees, which compute a shared prompt once, of what they compute."""
    share: float
    """Of the rate of large matrix products."""
    positions_per_second: float
    """Tokens of prompts and responses, which are the same on every side."""
    mfu: float | None
    """As others publish it: benchmarks/_speed.py, over the peak of the data sheet; None for a device without one there."""
    gradient_norm: float
    peak_bytes: int


@dataclass(frozen=True)
class Agreement:
    """|log-prob by the engine - by the trainer| of sampled tokens, nats."""

    trainer: str
    """Arithmetic of the trainer; the engine computes with the weights as they are, in float32."""
    largest: float
    mean: float
    tokens: int


@dataclass(frozen=True)
class Batch:
    """Random sequences in groups that share a prompt."""

    rollouts: Rollouts
    plan: Plan
    prompt: int

    @property
    def lengths(self) -> list[int]:
        return self.plan.length.tolist()

    def flops(self, counts: Counts, shared: bool) -> float:
        """Useful arithmetic of one update."""
        groups = (self.lengths[start : start + GROUP] for start in range(0, len(self.plan), GROUP))
        return sum(counts.update_flops(self.prompt, lengths, shared) for lengths in groups)


def make_batch(work: Updates, vocabulary: int) -> Batch:
    """Responses of a quarter of the budget up to all of it; the plan is GRPO's, for random rewards."""
    rng = np.random.default_rng(0)
    responses = []
    for group in range(work.sequences // GROUP):
        shared = rng.integers(2, vocabulary, work.prompt).tolist()
        shortest = work.shortest or max(work.max_response_length // 4, 1)
        for length in rng.integers(shortest, work.max_response_length + 1, GROUP).tolist():
            tokens = (*shared, *rng.integers(2, vocabulary, length).tolist())
            responses.append(Response(group, tokens, work.prompt, (-2.0,) * length, "stop", 0))
    return as_batch(responses, work.prompt, work.max_response_length)


def as_batch(responses: list[Response], prompt: int, max_response_length: int) -> Batch:
    """Every response as one segment, of weight 1 / (responses * length)."""
    segments = tuple(Segment(row, prompt, len(r.token_ids), r.prompt) for row, r in enumerate(responses))
    length = np.array([response.length for response in responses])
    weight = 1 / (len(length) * length)
    advantage = np.random.default_rng(1).normal(size=len(length))
    plan = Plan(np.arange(len(length)), length, advantage, weight, weight)
    return Batch(Rollouts(tuple(responses), segments, max_response_length), plan, prompt)


def compare_training(
    shape: str, work: Updates, rates: Rates, device: torch.device, sides: tuple[str, ...] = SIDES
) -> tuple[list[Trained], list[Agreement]]:
    """Rates of the sides, in turn, and whether engine and trainer agree. bfloat16 on CUDA is autocast over float32 weights."""
    model = build_model(shape, torch.float32, device)
    exact = Policy(model, None, make_head(model))
    policy = replace(exact, autocast=device.type == "cuda")
    policies = (exact, policy) if policy.autocast else (exact,)
    length = min(work.max_response_length, CHECKED)
    agreements = [check_agreement(one, work.prompt, length) for one in policies if sides == SIDES]
    batch = make_batch(work, model.config.vocab_size)
    model.train()
    updates = make_updates(policy, batch, work.max_tokens_per_microbatch, sides)
    norms = {side: update() for side, update in updates.items()}
    turns: dict[str, list[Turn]] = {side: [] for side in updates}
    for _ in range(work.repeats):
        for side, update in updates.items():
            turns[side].append(run(update, device))
    return [summarize(side, turns[side], norms[side], batch, model, rates) for side in updates], agreements


def make_updates(
    policy: Policy, batch: Batch, max_tokens_per_microbatch: int, sides: tuple[str, ...]
) -> dict[str, Callable[[], float]]:
    """The sides: each makes one update and returns the norm of the gradient before clipping."""
    optimizer = make_optimizer(policy)
    updates = {
        f"Learner, {kind}": update_of(make_learner(policy, optimizer, batch, max_tokens_per_microbatch, kind), batch)
        for kind in ("rows", "trees")
        if f"Learner, {kind}" in sides
    }
    trl = trl_side(policy.model, optimizer, batch, max_tokens_per_microbatch) if "TRL" in sides else None
    return updates | ({"TRL": trl} if trl else {})


def make_optimizer(policy: Policy) -> torch.optim.Optimizer:
    """As in training, but that its rate is 0."""
    fused = policy.device.type == "cuda" or None
    return torch.optim.AdamW(policy.model.parameters(), lr=0.0, betas=(0.9, 0.95), fused=fused)


def summarize(side: str, turns: list[Turn], norm: float, batch: Batch, model: PreTrainedModel, rates: Rates) -> Trained:
    """Medians over turns."""
    seconds = statistics.median(turn.seconds for turn in turns)
    ends = [batch.prompt + length for length in batch.lengths]
    speed, peak = batch.flops(count(model), side.endswith("trees")) / seconds, peak_flops(rates.name)
    return Trained(
        side=side,
        seconds=seconds,
        tokens_per_second=sum(batch.lengths) / seconds,
        flops=speed,
        share=speed / rates.flops,
        positions_per_second=sum(ends) / seconds,
        mfu=update_flops(model, ends) / seconds / peak if peak else None,
        gradient_norm=norm,
        peak_bytes=max(turn.peak for turn in turns),
    )


def make_learner(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, max_tokens_per_microbatch: int, kind: Any
) -> Learner:
    """The trainer's own."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    longest = batch.prompt + max(batch.lengths)
    layout = choose_layout(kind, policy, longest)
    return Learner(policy, optimizer, schedule, MAX_NORM, max_tokens_per_microbatch, layout=layout)


def update_of(learner: Learner, batch: Batch) -> Callable[[], float]:
    """One update by the Learner."""

    def update() -> float:
        result = learner.step(METHOD, batch.rollouts, batch.plan, {}, True)
        assert not result.quantity, f"{result.quantity} is not finite"
        return result.gradient_norm

    return update


def trl_side(
    model: Any, optimizer: torch.optim.Optimizer, batch: Batch, max_tokens_per_microbatch: int
) -> Callable[[], float] | None:
    """One update with TRL's own loss on one padded batch in equal parts, as its trainer forms them; None without TRL."""
    try:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        print(f"TRL is left out: {error}; pip install 'fairlen[trl]'")
        return None
    on_cuda = model.device.type == "cuda"
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), num_generations=GROUP, per_device_train_batch_size=GROUP, loss_type="grpo", beta=0.0,
        max_completion_length=max(batch.lengths), report_to=[], logging_strategy="no", save_strategy="no", disable_tqdm=True,
        use_cpu=not on_cuda, bf16=on_cuda, fp16=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer: Any = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["1"] * GROUP}),
        processing_class=AutoTokenizer.from_pretrained(playground.PATH),
    )
    inputs, micro = pad(batch, model.device), equal_part(batch, max_tokens_per_microbatch)
    trainer.current_gradient_accumulation_steps = len(batch.plan) // micro

    def update() -> float:
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(batch.plan), micro):
            part = {name: tensor[start : start + micro] for name, tensor in inputs.items()}
            trainer._compute_loss(model, part).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return float(norm)

    return update


def equal_part(batch: Batch, max_tokens_per_microbatch: int) -> int:
    """Sequences in each of TRL's micro-batches: as many as fit in when all of them are equal, as its loss needs them."""
    total, width = len(batch.plan), batch.prompt + max(batch.lengths)
    return max(
        (size for size in range(1, total + 1) if total % size == 0 and size * width <= max_tokens_per_microbatch),
        default=1,
    )


def pad(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """The tokens as TRL's loss takes them: prompts of one length, responses padded on the right."""
    responses, longest = batch.rollouts.responses, max(batch.lengths)
    rows = [[*r.token_ids[batch.prompt :], *[0] * (longest - r.length)] for r in responses]
    prompts = torch.tensor([r.token_ids[: batch.prompt] for r in responses], device=device)
    lengths = torch.tensor(batch.lengths, device=device)
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": torch.tensor(rows, device=device),
        "completion_mask": (torch.arange(longest, device=device) < lengths[:, None]).long(),
        "advantages": torch.tensor(batch.plan.advantage, dtype=torch.float32, device=device),
    }


def check_agreement(policy: Policy, prompt: int, max_response_length: int) -> Agreement:
    """Samples with the engine and computes the log-probs again with the trainer."""
    drawn = np.random.default_rng(2).integers(2, policy.model.config.vocab_size, (16, prompt)).tolist()
    prompts = [tuple(tokens) for tokens in drawn]
    engine = Engine(
        policy.model,
        eos_token_id=NEVER,
        max_length=prompt + max_response_length,
        max_num_seqs=16,
        kept_rows=32,
        compile=False,
    )
    made = engine.generate(prompts, [Sampling(max_response_length, seed=seed) for seed in range(16)])
    responses = [
        Response(row, (*tokens, *one.token_ids), prompt, one.logprobs, one.finish, row)
        for row, (tokens, one) in enumerate(zip(prompts, made, strict=True))
    ]
    batch = as_batch(responses, prompt, max_response_length)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    found = Learner(policy, optimizer, schedule, MAX_NORM, 1 << 14).old_logprobs(batch.rollouts, batch.plan)
    trainer = torch.cat([found[row] for row in range(16)]).double().cpu()
    error = (trainer - torch.tensor([x for one in made for x in one.logprobs], dtype=torch.float64)).abs()
    arithmetic = "bfloat16" if policy.autocast else "float32"
    return Agreement(arithmetic, float(error.max()), float(error.mean()), len(error))
