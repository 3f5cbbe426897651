"""Metrics of a rollout batch and an update, by the names of docs/metrics.md: one tally for our trainer, TRL and verl.

Each micro-batch adds sums, which add up over any split and all ranks (of MAXIMA the largest counts); they are divided once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairlen.batch import Responses, count_by, mean_by, mean_or_nan, sum_by
from fairlen.methods.method import Method, MicroLoss, Scored
from fairlen.methods.stages.micro import Micro, Outputs, TokenLoss
from fairlen.methods.stages.surrogate import MAX_LOG_RATIO
from fairlen.rollouts import Response
from fairlen.sampling.stream_metrics import count_continued, eos_advantage

MAXIMA = ("ratio/max", "mismatch/max")
TOTALS = ("loss/total", "tokens/trained", "sequences/trained", "weight/positive", "weight/negative", *MAXIMA)
PER_SEQUENCE = ("sequences/clipped", "sequences/inside", "mismatch/short")
"""Counts go by the names of the metrics that they become: these as they are, these divided by sequences, others by tokens."""
SQUARES = "squares"
"""The sum of squared lengths, by which mismatch/long is divided."""
OBSERVED = "observed."
"""Begins the names of what the method's state learns from."""
BROKEN = "broken."
"""Begins the names of numbers that are not finite."""
Counts = Mapping[str, float]


def sum_counts(counts: Iterable[Mapping[str, Any]], gather: Callable[[Tensor], Tensor] | None = None) -> Counts:
    """Return the counts of an update's micro-batches as numbers, over all processes; waits for the device once.

    `gather` is [n] -> [processes * n].
    """
    found = reduce(merge, counts, {})
    if not found:
        return {}
    device = next((value.device for value in found.values() if isinstance(value, Tensor)), torch.device("cpu"))
    names = sorted(found)  # by name, in one order on all processes
    own = torch.stack([torch.as_tensor(found[name], dtype=torch.float64, device=device) for name in names])
    ranks = own[None] if gather is None else gather(own).reshape(-1, len(names))
    return reduce(merge, (dict(zip(names, rank, strict=True)) for rank in ranks.cpu().tolist()))


@torch.no_grad()
def measure_sequences(outputs: Outputs, micro: Micro, token: TokenLoss) -> Tensor:
    """Return what records have of each sequence, [3, B]: S in nats, and the shares of its tokens that are clipped and inside."""
    old = outputs.logprobs if micro.is_on_policy else micro.old_logprobs
    sums = [micro.sum_per_sequence(x.double()) for x in (outputs.logprobs - old, token.clipped, token.inside)]
    return torch.stack([sums[0], sums[1] / micro.length, sums[2] / micro.length])


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for name, value in other.items():
        larger = torch.maximum if isinstance(value, Tensor) else max
        join = larger if name in MAXIMA else operator.add
        found[name] = join(found[name], value) if name in found else value
    return found


@torch.no_grad()
def count(method: Method, outputs: Outputs, micro: Micro, loss: MicroLoss) -> dict[str, Any]:
    """The counts of one micro-batch, what the method's state learns from among them; they wait on the device."""
    seen = {OBSERVED + name: value for name, value in method.observe(outputs, micro).items()}
    return count_tokens(method, outputs, micro, loss) | seen | {BROKEN + name: n for name, n in loss.broken.items()}


def count_tokens(method: Method, outputs: Outputs, micro: Micro, loss: MicroLoss) -> dict[str, Tensor]:
    """Sums over the tokens and sequences of one micro-batch, float64, and the largest of MAXIMA, by names of metrics."""
    logprobs, token = outputs.logprobs.detach(), loss.token
    old = logprobs if micro.is_on_policy else micro.old_logprobs
    mismatch = old - micro.rollout_logprobs
    signed = micro.weight * micro.advantage * micro.length
    length, apart = micro.length.double(), micro.sum_per_sequence(mismatch.double().abs())
    tokens = {
        "entropy/mean": outputs.entropy.detach(),
        "ratio/mean": token.ratio,
        "ratio/clipped": token.clipped,
        "ratio/inside": token.inside,
        "kl/old": old - logprobs,
        "mismatch/mean": mismatch.abs(),
        "mismatch/kl": mismatch.clamp(max=MAX_LOG_RATIO).expm1() - mismatch,
    }
    if method.needs_ref and micro.ref_logprobs is not None:
        gap = (micro.ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        tokens["kl/reference"] = gap.expm1() - gap
    sequences = {
        "tokens/trained": micro.length,
        "sequences/trained": torch.ones_like(length),
        "sequences/clipped": micro.sum_per_sequence(token.clipped.double()) / micro.length,
        "sequences/inside": micro.sum_per_sequence(token.inside.double()) / micro.length,
        "mismatch/short": apart / length,
        "mismatch/long": apart * length,
        SQUARES: length**2,
        "weight/positive": signed.clamp(min=0.0),
        "weight/negative": (-signed).clamp(min=0.0),
        "coupling/sign_length": micro.advantage * micro.length,
    }
    sums = {name: micro.of_trained(values).double().sum() for name, values in tokens.items()}
    sums |= {name: micro.total_of_sequences(values) for name, values in sequences.items()}
    for name, values in zip(MAXIMA, (token.ratio, mismatch.abs()), strict=True):
        sums[name] = pad(micro.of_trained(values).double(), (0, 1)).max()  # 0 of no tokens
    return sums | {"loss/total": loss.total.detach().double()}


def update_metrics(counts: Counts) -> dict[str, float]:
    """The metrics of an update from its counts; means over trained tokens unless a name says otherwise."""
    tokens, sequences = (max(counts.get(f"{name}/trained", 0.0), 1.0) for name in ("tokens", "sequences"))
    divisors: dict[str, float] = {**dict.fromkeys(TOTALS, 1.0), **dict.fromkeys(PER_SEQUENCE, sequences)}
    divisors["mismatch/long"] = max(counts.get(SQUARES, 0.0), 1.0)
    return {k: v / divisors.get(k, tokens) for k, v in counts.items() if not k.startswith((OBSERVED, BROKEN, SQUARES))}


def observed(counts: Counts) -> dict[str, float]:
    return {name.removeprefix(OBSERVED): value for name, value in counts.items() if name.startswith(OBSERVED)}


def find_broken(counts: Counts) -> str:
    """Return what was not finite in an update, the first of it in the order of the arithmetic, or nothing."""
    broken = {name.removeprefix(BROKEN): value for name, value in counts.items() if name.startswith(BROKEN)}
    broken["loss"] = float(not math.isfinite(counts.get("loss/total", 0.0)))
    order = ("rollout_logprobs", "logprobs", "old_logprobs", "ref_logprobs", "loss", *broken)
    return next((name for name in order if broken.get(name)), "")


def state_metrics(method: Method) -> dict[str, float]:
    return {f"state/{name}": value for name, value in method.state.items()}


def scored_metrics(scored: Scored, method: Method) -> dict[str, float]:
    """The metrics of one rollout batch; rejected prompts included, unless a name says otherwise.

    Accuracies, rewards and lengths are over responses that started from their prompt, which are plain samples of the policy: a
    fork continues what survived, so that forks are longer than the policy's responses. Those without a verdict are neither
    correct nor incorrect.
    """
    responses = scored.responses.take(scored.responses.round == 0)
    trained = np.zeros(responses.num_prompts, np.bool_)
    trained[scored.responses.prompt[scored.segments.response[scored.trains]]] = True
    own = method.sampling.metrics(scored.responses, scored.segments, scored.reward, scored.value, scored.trains)
    return (
        own
        | turn_metrics(scored)
        | outcome_metrics(scored)
        | {f"channels/{name}": float(tokens.mean()) for name, tokens in responses.channels.items()}
        | {
            "length/mean": float(responses.length.mean()),
            "length/max": float(responses.length.max()),
            "length/truncated": float(responses.truncated.mean()),
            "length/variation": length_variation(responses),
            "responses/active": float(responses.active.mean()),
            "prompts/asked": float(responses.num_prompts),
            "prompts/selected": float(scored.selected.sum()),
            "prompts/skipped": float((~trained).mean()),
            "advantage/eos": eos_advantage(scored.responses, scored.segments, scored.advantage),
        }
    )


def reward_metrics(responses: Sequence[Response]) -> dict[str, float]:
    """Return the mean of each reward function by its name, over the responses that it applied to.

    Empty if the verdict is the only part of every outcome.
    """
    said: dict[str, list[float]] = {}
    for response in responses:
        for name, value in response.outcomes.items() if response.inherited == 0 else ():
            said.setdefault(name, []).append(value)
    if len(said) < 2:
        return {}
    return {f"rewards/{name}/mean": float(np.mean(values)) for name, values in sorted(said.items())}


def turn_metrics(scored: Scored) -> dict[str, float]:
    """The metrics of trajectories; none where every response is one turn."""
    responses, segments = scored.responses, scored.segments
    if responses.num_turns.max(initial=1) == 1:
        return {}
    turns, correct = responses.num_turns, responses.correct
    return {
        "turns/mean": float(turns.mean()),
        "turns/max": float(turns.max()),
        "turns/correct": mean_or_nan(turns[responses.active & correct]),
        "turns/incorrect": mean_or_nan(turns[responses.active & ~correct]),
        "length/turn": float(responses.length.sum() / turns.sum()),
        "advantage/another_turn": float((scored.advantage * count_continued(responses, segments)).sum()),
    }


def outcome_metrics(scored: Scored) -> dict[str, float]:
    """Correct and incorrect among graded responses from their prompt; truncated ones that are left out may be graded too."""
    graded = scored.graded & (scored.responses.round == 0)
    responses, reward = scored.responses.take(graded), scored.reward[graded]
    correct, num = responses.correct, scored.responses.num_prompts  # the last prompt may have no graded response
    per_prompt, size = sum_by(responses.prompt, correct, num), count_by(responses.prompt, num)
    return {
        "accuracy/mean": mean_or_nan(correct),
        "outcome/mean": mean_or_nan(responses.outcome),
        "reward/mean": mean_or_nan(reward),
        "reward/std": float(reward.std()) if len(reward) else float("nan"),
        "length/correct": mean_or_nan(responses.length[correct]),
        "length/incorrect": mean_or_nan(responses.length[~correct]),
        "prompts/all_correct": float(((per_prompt == size) & (size > 0)).mean()),
        "prompts/all_incorrect": float(((per_prompt == 0) & (size > 0)).mean()),
    }


def length_variation(responses: Responses) -> float:
    """Coefficient of variation of length within prompts, averaged over prompts (population std)."""
    num, length = responses.num_prompts, responses.length.astype(np.float64)
    mean = mean_by(responses.prompt, length, num)
    std = np.sqrt(mean_by(responses.prompt, (length - mean[responses.prompt]) ** 2, num))
    return float((std / np.maximum(mean, 1.0)).mean())
