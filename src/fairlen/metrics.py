"""Metrics that a run logs, with unit, meaning and what to look for; `python -m fairlen.metrics` makes docs/metrics.md of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from fairlen.console import log
from fairlen.rollouts import RESPONSES, SEGMENTS
from fairlen.schema import format_columns


@dataclass(frozen=True)
class Metric:
    names: str
    """Separated by blanks."""
    unit: str
    meaning: str
    """In Markdown."""
    look: str = ""
    """Signs of trouble; empty where there are none in particular."""


SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Progress and evaluations": (
        Metric("update rollout_batch", "count", "updates, rollout batches done; the latter before this one"),
        Metric("update/skipped", "text", "what was not finite, or that no prompt was selected"),
        Metric("updates/skipped", "count", "so far, for numbers that were not finite"),
        Metric("tokens/generated_total", "tokens", "generated in training so far"),
        Metric("time/training", "s", "collecting and learning so far"),
        Metric("time/evaluation", "s", "one held-out evaluation"),
        Metric("eval/accuracy", "share", "held-out responses that are correct, mean over problems"),
        Metric("eval/accuracy_low eval/accuracy_high", "share", "ends of its 95% interval over problems"),
        Metric("eval/length eval/length_correct eval/length_incorrect", "tokens", "mean of held-out responses, of correct "
               "ones, of all others"),
        Metric("eval/truncated", "share", "held-out responses that were truncated"),
    ),
    "Rewards and verdicts": (
        Metric("accuracy/mean", "share", "responses that the verifier calls correct"),
        Metric("outcome/mean", "reward", "verdict and reward functions, weighted, before shaping"),
        Metric("rewards/NAME/mean", "reward", "what the reward function NAME returned, before its weight; in `fairlen train` "
               "also `verifier`, the verdict"),
        Metric("reward/mean reward/std", "reward", "after shaping, mean and population standard deviation"),
        Metric("responses/active", "share", "responses that count", "below 1: no verdict, or truncated ones filtered"),
        Metric("responses/verified", "count", "responses that went to the verifier"),
        Metric("verifier/no_answer", "share", "graded responses without an answer in the form asked for",
               "high: `--instruction` says the form"),
        Metric("verifier/timeout", "share", "responses not graded within the deadline", "rising: `--without-verdict incorrect`"),
        Metric("verifier/error", "share", "responses that the verifier failed to grade", "above 0: see `status` in the records"),
    ),
    "Prompts": (
        Metric("prompts/asked prompts/selected", "count", "of the rollout batch, rejected ones included; those kept"),
        Metric("prompts/extra_batches", "count", "times that rejected prompts were replaced", "at its limit: too easy or "
               "too hard"),
        Metric("prompts/all_correct prompts/all_incorrect", "share", "prompts whose graded responses are all correct, all "
               "incorrect"),
        Metric("prompts/skipped", "share", "prompts of which nothing trains", "near 1: much generation, little learned"),
        Metric("dropped/filtered_responses", "count", "in TRL and verl, responses to prompts that the filter dropped"),
        Metric("dropped/filtered_tokens", "tokens", "generated in them"),
    ),
    "Lengths and turns": (
        Metric("length/mean length/max", "tokens", "of responses"),
        Metric("length/correct length/incorrect", "tokens", "mean of correct, of incorrect responses",
               "different: length and verdict are coupled"),
        Metric("length/truncated", "share", "responses that reached the max response length", "a rise: it is too small, or "
               "responses run away"),
        Metric("length/variation", "ratio", "standard deviation over mean of length within a prompt, averaged",
               "large: sequence means weigh tokens unequally"),
        Metric("channels/thinking channels/answer channels/tool_call channels/observation", "tokens", "of a response, mean, by "
               "what they were spent on; observations were read"),
        Metric("length/turn", "tokens", "of a turn, mean"),
        Metric("turns/mean turns/max turns/correct turns/incorrect", "count", "turns of a response, mean and most; mean of "
               "correct, of incorrect ones"),
    ),
    "Streams and pairs": (
        Metric("streams/rounds", "count", "pairs of a stream, mean"),
        Metric("streams/tie streams/one_truncated streams/both_truncated streams/max_rounds", "share",
               "by how they ended: tracks stopped at one position, one or both truncated, limit of rounds",
               "both_truncated rises: the max response length is too small"),
        Metric("pairs/formed pairs/trained", "count", "pairs, before any is skipped; those that train"),
        Metric("pairs/skipped", "share", "pairs that do not train"),
        Metric("pairs/length pairs/length_max", "tokens", "new tokens of either segment, mean and largest"),
        Metric("pairs/survivor_wins pairs/finisher_wins", "share", "pairs whose survivor, whose finisher has the higher "
               "value, of those with a survivor", "equal where values are fair"),
        Metric("pairs/optimism", "reward", "what `max` would value survivors above `halving`", "far from 0: `max` rewards "
               "not stopping"),
    ),
    "The update": (
        Metric("tokens/trained sequences/trained", "count", "in the update"),
        Metric("tokens/forwarded", "positions", "computed in the update, with prompts and padding"),
        Metric("advantage/eos", "", "sum of advantages at EOS", "below 0: stopping is penalised"),
        Metric("advantage/another_turn", "", "sum of advantages over turns that another followed", "above 0: taking more "
               "turns is reinforced"),
        Metric("weight/positive weight/negative", "", "sum of weight times size of the advantage over tokens of advantage "
               "above 0, below 0", "equal under balanced rules"),
        Metric("coupling/sign_length", "", "mean advantage of a trained token", "far from 0: a token mean pushes all "
               "log-probs one way (2605.04077)"),
        Metric("loss/total", "", "sum of weight times token loss, plus terms"),
        Metric("gradient/norm", "", "before clipping"),
        Metric("learning_rate", "", "of the next update"),
        Metric("entropy/mean", "nats", "of the distributions that trained tokens were drawn from", "falls to 0: no exploration"),
        Metric("ratio/mean ratio/max", "ratio", "what the surrogate bounds, over tokens"),
        Metric("ratio/clipped", "share", "trained tokens whose gradient a bound made zero", "0 on-policy"),
        Metric("ratio/inside", "share", "trained tokens within the two-sided bound", "1 on-policy"),
        Metric("sequences/clipped sequences/inside", "share", "the same share of a sequence's tokens, mean over sequences"),
        Metric("kl/old", "nats per token", "mean of old minus current log-prob", "0 on-policy"),
        Metric("kl/reference", "nats per token", "k3 estimate of KL to the reference"),
        Metric("mismatch/mean mismatch/max", "nats", "engine's minus trainer's log-prob", "mean 1e-6 in float32 on the CPU"),
        Metric("mismatch/kl", "nats per token", "KL(engine, trainer), mean of exp(l) - 1 - l, l trainer's minus engine's",
               "above 0.01: `+mismatch`"),
        Metric("mismatch/short mismatch/long", "nats", "mean over sequences of their mean, long weighted by length "
               "squared", "long far above short: a correction by the sequence sum hits long responses"),
        Metric("state/surrogate.drift_average", "nats per token", "FSPO's running mean of minus the log ratio"),
        Metric("state/surrogate.variance_average", "nats^2", "FSPO's running variance of log ratios per token"),
        Metric("state/surrogate.num_updates", "count", "off-policy updates that FSPO has seen"),
    ),
    "Time, speed and memory": (
        Metric("tokens/generated", "tokens", "in the rollout batch; of a fork, its own"),
        Metric("time/rollout time/verify", "s", "generating and grading; of it, while the verifier had a text"),
        Metric("time/push time/sleep", "s", "copying weights into vLLM, its sleeping and waking, within `time/rollout` or "
               "`time/evaluation`", "sleep as long as generating: `--sleep-level 0`"),
        Metric("time/plan time/pack", "s", "planning updates, building micro-batches"),
        Metric("time/forward time/backward", "s", "forward passes and losses, backward passes; on CUDA the device's time"),
        Metric("engine/occupancy", "share", "slots of the engine that were busy", "low: fewer would do"),
        Metric("engine/preemptions", "count", "sequences that vLLM computed again", "above a few: fewer `--max-num-seqs`, "
               "larger `--gpu-memory-utilization`"),
        Metric("engine/pushed_bytes", "bytes", "weights copied into vLLM"),
        Metric("memory/max_tokens_per_microbatch", "positions", "most of a micro-batch so far",
               "below `--max-tokens-per-microbatch`: memory ran out"),
    ),
}  # fmt: skip
UNKNOWN = Metric("", "", "")


@cache
def index_metrics() -> dict[str, Metric]:
    return {name: metric for metrics in SECTIONS.values() for metric in metrics for name in metric.names.split()}


def find_metric(name: str) -> Metric:
    """A metric without the marks of Markdown; an empty one for an unknown name."""
    found = index_metrics().get("rewards/NAME/mean" if name.startswith("rewards/") else name, UNKNOWN)
    plain = (re.sub(r"`|\[(.*?)\]\(.*?\)", r"\1", text) for text in (found.meaning, found.look))
    return Metric(name, found.unit, *plain)


def format_metric(metric: Metric) -> str:
    names = ", ".join(f"`{name}`" for name in metric.names.split())
    unit, look = f" ({metric.unit})" if metric.unit else "", f"; *{metric.look}*" if metric.look else ""
    return f"- {names}{unit}: {metric.meaning}{look}"


def format_metrics() -> str:
    parts = ("\n".join((f"## {title}\n", *map(format_metric, metrics))) for title, metrics in SECTIONS.items())
    return "\n\n".join(parts)


def format_records() -> str:
    return f"{format_columns('responses', RESPONSES)}\n\n{format_columns('segments', SEGMENTS)}"


if __name__ == "__main__":
    log(f"{format_metrics()}\n\n# Records\n\n{format_records()}")
