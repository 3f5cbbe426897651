"""An update on trees beside the same update on rows: padded, unpadded, and trunk and branch.

    python benchmarks/tree.py            # one thread; --threads 2, --repeats 9, --only A24
    python benchmarks/tree.py --smoke    # one stream and one prompt on the 0.8M model

Every side trains the same tokens with the same weights, from the packing of token ids to the last gradient; that the gradients
are equal is asserted before anything is timed. Sides take turns within one process; times are medians. The workloads:

A24, A64   EqLen's pairs: six rounds of 24 or 64 tokens after a prompt of 16; the finisher and the survivor of a round both train
B          16 responses of 10 to 160 tokens, 48 on average, that share a prompt of 256

padded        a row for each segment in one padded batch, causal sdpa without a mask
unpadded      the same rows back to back, nothing shared, nothing padded, by the kernel of the trees
trunk+branch  for each stream one row with all survivors' pieces and one for each finisher, unpadded
bound         what the number of forwarded tokens allows
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from _checks import add_smoke, demand, demand_positive
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from fairlen import playground
from fairlen.batch import Plan
from fairlen.engine.device import keep_freed_memory
from fairlen.methods.compose import compose
from fairlen.methods.stages.micro import Micro
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy, load_policy, make_head
from fairlen.policy.pack import CPU, NONE_RECOMPUTED, ModelInput, TreeInput, build_input, build_micro, pack
from fairlen.policy.tree import ForestMask, build_forest
from fairlen.rollouts import Response, Rollouts, Segment

ROUNDS, PROMPT, SHARED_PROMPT, LONG, VOCABULARY = 6, 16, 256, 10_000, 2048
MARKS = {
    "A": {"padded": 5.0, "unpadded": 3.3, "trunk+branch": 2.2},
    "B": {"padded": 5.0, "unpadded": 4.0},
}
SHARE_OF_BOUND = 0.85
METHOD = compose("grpo")
Side = Callable[[], tuple[ModelInput, Micro]]


@dataclass(frozen=True)
class Work:
    """The workload of an update: for each segment a response; a trunk is the last survivor of a stream."""

    rollouts: Rollouts
    plan: Plan
    trunk: tuple[int, ...]
    """For each segment the response on whose row it lies when rows are trunks and branches."""

    @property
    def spans(self) -> list[Segment]:
        return list(self.rollouts.segments)

    def responses(self, rows: Sequence[int]) -> list[Response]:
        return [self.rollouts.responses[row] for row in rows]


def make_work(responses: list[Response], segments: list[Segment], trunk: list[int]) -> Work:
    rng, length = np.random.default_rng(5), np.array([s.stop - s.start for s in segments])
    weight = 1 / (len(length) * length)
    plan = Plan(np.arange(len(length)), length, rng.normal(size=len(length)), weight, weight)
    return Work(Rollouts(tuple(responses), tuple(segments), LONG), plan, tuple(trunk))


def respond(tokens: list[int], num_prompt: int) -> Response:
    return Response(0, tuple(tokens), num_prompt, (-2.0,) * (len(tokens) - num_prompt), "stop", 0)


def eqlen_pairs(streams: int, segment: int, vocabulary: int) -> Work:
    rng = np.random.default_rng(1)
    responses: list[Response] = []
    segments: list[Segment] = []
    trunk: list[int] = []
    for _ in range(streams):
        prefix = rng.integers(0, vocabulary, PROMPT).tolist()
        last = len(responses) + 2 * ROUNDS - 1
        for number in range(ROUNDS):
            finisher, survivor = (prefix + rng.integers(0, vocabulary, segment).tolist() for _ in range(2))
            trunk += [len(responses), last]
            for tokens in (finisher, survivor):
                segments.append(Segment(len(responses), len(prefix), len(tokens), len(segments) // 2, round=number))
                responses.append(respond(tokens, PROMPT))
            prefix = survivor
    return make_work(responses, segments, trunk)


def shared_prompts(prompts: int, vocabulary: int) -> Work:
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.gamma(1.6, 30, 16).astype(int), 10, 160)
    lengths[:2] = 10, 160
    while lengths.sum() != 16 * 48:
        place = rng.integers(2, 16)
        lengths[place] = np.clip(lengths[place] + np.sign(16 * 48 - lengths.sum()), 10, 160)
    responses = []
    for _ in range(prompts):
        prompt = rng.integers(0, vocabulary, SHARED_PROMPT).tolist()
        responses += [respond(prompt + rng.integers(0, vocabulary, n).tolist(), SHARED_PROMPT) for n in lengths]
    segments = [Segment(i, SHARED_PROMPT, len(r.token_ids), 0) for i, r in enumerate(responses)]
    return make_work(responses, segments, [])


def sides_of(work: Work) -> dict[str, Side]:
    """Everything that makes an update's inputs from token ids."""
    spans, every = work.spans, np.arange(len(work.plan))
    responses = work.responses([span.response for span in spans])
    pieces = list(zip(spans, responses, strict=True))

    def micro() -> Micro:
        return build_micro(pieces, work.plan, every, NONE_RECOMPUTED, True, CPU)

    def trees() -> tuple[ModelInput, Micro]:
        (packed,) = pack(work.rollouts, work.plan, 1 << 40, trees=True)
        return packed.inputs, packed.micro

    sides: dict[str, Side] = {
        "trees": trees,
        "padded": lambda: (build_input(pieces, CPU), micro()),
        "unpadded": lambda: (flat_input(spans, responses), micro()),
    }
    if work.trunk:
        sides["trunk+branch"] = lambda: (flat_input(spans, work.responses(work.trunk)), micro())
    return sides


def flat_input(spans: list[Segment], on: list[Response]) -> TreeInput:
    """Rows back to back and nothing shared; each span is read on the row of its response, equal responses being one."""
    stop = {id(row): 0 for row in on}
    for span, row in zip(spans, on, strict=True):
        stop[id(row)] = max(stop[id(row)], span.stop)
    rows = {id(row): np.array(row.token_ids[: stop[id(row)] - 1], np.int64) for row in on}
    forest = build_forest(list(rows.values()), [0] * len(rows))
    path = dict(zip(rows, forest.paths, strict=True))
    source = [path[id(row)][span.start - 1 : span.stop - 1] for span, row in zip(spans, on, strict=True)]
    target = [np.array(row.token_ids[span.start : span.stop], np.int64) for span, row in zip(spans, on, strict=True)]
    return TreeInput(
        torch.from_numpy(forest.tokens)[None],
        torch.from_numpy(np.concatenate(source)),
        torch.from_numpy(np.concatenate(target)),
        1.0,
        torch.from_numpy(forest.depth)[None],
        ForestMask(forest, CPU),
    )


def update(policy: Policy, side: Side) -> float:
    """Seconds from token ids to gradients."""
    policy.model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    inputs, micro = side()
    METHOD.loss(policy.forward(inputs), micro).total.backward()
    return time.perf_counter() - start


def gradient(policy: Policy, side: Side) -> Tensor:
    update(policy, side)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def compare(name: str, policy: Policy, work: Work, repeats: int) -> bool:
    """Prints a row for each side; whether all marks are met."""
    sides = sides_of(work)
    gradients = {side: gradient(policy, make) for side, make in sides.items()}
    for side, found in gradients.items():
        error = float((found - gradients["padded"]).norm() / gradients["padded"].norm())
        demand(error < 1e-5, f"{name}, {side}: the gradient differs from that of padded rows by {error:.1e}")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, make in sides.items():
            seconds[side].append(update(policy, make))
    median = {side: statistics.median(times) for side, times in seconds.items()}
    tokens = {side: make()[0].token_ids.numel() for side, make in sides.items()}
    for side, times in seconds.items():
        demand_positive(f"{name}, {side}", times)
    met = True
    for side, mark in MARKS[name[0]].items():
        faster, bound = median[side] / median["trees"], tokens[side] / tokens["trees"]
        fits = faster >= mark and faster >= SHARE_OF_BOUND * bound
        met &= fits
        print(
            f"{name:10} {side:13} {tokens[side]:7} {1000 * median[side]:9.1f} {1000 * median['trees']:9.1f} "
            f"{faster:8.2f} {bound:7.2f} {faster / bound:6.0%} {mark:6.1f} {'met' if fits else 'missed'}",
            flush=True,
        )
    return met


def random_model() -> Policy:
    """30M parameters in the shape of Qwen3; few of them in the head, whose work is the same on every side."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=9, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    return Policy(model, None, make_head(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads whose name contains this, such as A24 or 30M")
    add_smoke(parser)
    arguments = parser.parse_args()
    keep_freed_memory()
    disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    works = small_works() if arguments.smoke else all_works()
    print(f"{'':24} {'tokens':>7} {'ms':>9} {'trees, ms':>9} {'faster':>8} {'bound':>7} {'share':>6} {'mark':>6}")
    chosen = {name: work for name, work in works.items() if arguments.only in name}
    met = [compare(name, *work, 1 if arguments.smoke else arguments.repeats) for name, work in chosen.items()]
    print(f"{sum(met)} of {len(met)} workloads meet all marks, and {SHARE_OF_BOUND:.0%} of the bound")
    demand(bool(met), f"no workload's name contains {arguments.only!r}")
    demand(all(met) or arguments.smoke, f"{len(met) - sum(met)} of {len(met)} workloads miss a mark")


def small_works() -> dict[str, tuple[Policy, Work]]:
    """The same kinds of work, as little as there can be."""
    small = trained_on_trees(load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False))
    return {"A24 0.8M": (small, eqlen_pairs(1, 24, 21)), "B 0.8M": (small, shared_prompts(1, 21))}


def all_works() -> dict[str, tuple[Policy, Work]]:
    """All workloads on both models."""
    small = trained_on_trees(load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False))
    large = trained_on_trees(random_model())
    return {
        "A24 0.8M": (small, eqlen_pairs(8, 24, 21)),
        "A64 0.8M": (small, eqlen_pairs(8, 64, 21)),
        "B 0.8M": (small, shared_prompts(4, 21)),
        "A24 30M": (large, eqlen_pairs(2, 24, VOCABULARY)),
        "A64 30M": (large, eqlen_pairs(2, 64, VOCABULARY)),
        "B 30M": (large, shared_prompts(1, VOCABULARY)),
    }


def trained_on_trees(policy: Policy) -> Policy:
    """The policy in training, whose attention takes trees."""
    demand(choose_layout("trees", policy, 512).kind == "trees", "the model does not take trees")
    policy.model.train()
    return policy


if __name__ == "__main__":
    main()
