"""The numbers of one update, by the names of docs/metrics.md: those that every home has are in methods/tally.py."""

from __future__ import annotations

from collections.abc import Sequence

from fairlen.batch import Floats, Ints, Plan, Response
from fairlen.diagnostics.uncertainty import length_bins
from fairlen.methods.method import Method, Scored
from fairlen.methods.tally import scored_metrics, update_metrics
from fairlen.train.collect import Collected
from fairlen.train.result import StepResult

THIRDS = ("short", "middle", "long")
"""Of the sequences of an update, by length."""


def rollout_metrics(collected: Collected, scored: Scored, method: Method) -> dict[str, float]:
    """What one rollout batch is like and what it took."""
    everything = collected.rollouts.responses
    return (
        scored_metrics(scored, method)
        | verifier_metrics(everything)
        | {
            "prompts/extra_batches": float(collected.num_extra_batches),
            "tokens/generated": float(sum(response.length - response.inherited for response in everything)),
            "responses/verified": float(sum(response.status != "unverified" for response in everything)),
        }
    )


def verifier_metrics(responses: Sequence[Response]) -> dict[str, float]:
    """Shares of graded responses that gave no answer, and that the verifier could not grade."""
    graded = [response.status for response in responses if response.status != "unverified"]
    return {f"verifier/{name}": graded.count(name) / max(len(graded), 1) for name in ("no_answer", "timeout", "error")}


def describe_update(plan: Plan, result: StepResult, learning_rate: float) -> dict[str, float]:
    """What one update did: the metrics that every home has, and ours."""
    return (
        mismatch_by_length(plan.length, result.mismatch)
        | update_metrics(result.counts)
        | {
            "gradient/norm": result.gradient_norm,
            "learning_rate": learning_rate,
            "tokens/forwarded": float(result.num_forwarded),
        }
    )


def mismatch_by_length(length: Ints, mismatch: Floats) -> dict[str, float]:
    """Mean mismatch of a token in sequences of each third of lengths; sums over sequences and lengths come as [B].

    Sequences of one length are in one third; nan where a third has none.
    """
    bins = length_bins(length, num_bins=len(THIRDS), least=1)
    names = {1: THIRDS[1:2], 2: THIRDS[::2], 3: THIRDS}[len(bins)]
    found = {
        name: float(mismatch[bins.index == i].sum() / length[bins.index == i].sum()) for i, name in enumerate(names)
    }
    return {f"mismatch/{name}": found.get(name, float("nan")) for name in THIRDS}
