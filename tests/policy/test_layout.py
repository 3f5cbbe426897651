"""Rows or trees: which models may read trees, what is said of those that may not, and on CUDA the cost that decides."""

from typing import Any

import numpy as np
import pytest
import torch
from loops import over
from small_policies import SIZES, forked_rollouts, make_policy, random_plan
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from fairlen.batch import Plan
from fairlen.policy.head import Head
from fairlen.policy.layout import COST_OF_BLOCKS, Layout, choose_layout, estimate_pair_cost
from fairlen.policy.model import Policy, make_head
from fairlen.policy.pack import pack, sort_spans
from fairlen.rollouts import Response, Rollouts, Segment


def with_rope(**parameters: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10000.0, **parameters}))


def with_attention(name: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.set_attn_implementation(name)
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "linear": (
        lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(
                **SIZES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
                shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
                layer_types=["linear_attention", "full_attention", "linear_attention"], decoder_sparse_step=1,
            )
        ),
        "layers of type linear_attention, whose state is not attention alone",
    ),
    "window": (
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=199)),
        "sliding window of 199 tokens, and sequences have up to 200",
    ),
    "rope": (lambda: with_rope(rope_type="dynamic", factor=2.0), "rotary embeddings of type dynamic"),
    "eager": (lambda: with_attention("eager"), "runs with attention eager"),
    "dropout": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)), "attention dropout of 0.1"),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=256, n_embd=64, n_layer=1, n_head=4)),
        "attention dropout of 0.1",
    ),
}  # fmt: skip


def build(name: str) -> Policy:
    torch.manual_seed(0)
    model = REFUSED[name][0]()
    return Policy(model.train(name == "window"), None, make_head(model))


@over("name", REFUSED)
def test_a_model_that_cannot_read_trees_takes_rows_and_the_reason_is_told(name):
    own, reason = build(name), REFUSED[name][1]
    before, was_training = own.model.config._attn_implementation, own.model.training
    layout = choose_layout("auto", own, 200)
    assert layout.kind == "rows" and reason in layout.reason
    with pytest.raises(ValueError, match=rf"layout=trees: .*{reason}.*; give layout=auto or layout=rows"):
        choose_layout("trees", own, 200)
    assert own.model.config._attn_implementation == before
    assert own.model.training is was_training


def test_a_window_as_long_as_every_sequence_is_no_window():
    assert choose_layout("trees", make_policy("mistral"), 200).kind == "trees"


def test_the_probe_refuses_a_model_whose_numbers_differ(monkeypatch):
    """A model that counts positions itself: trees would be silently wrong."""
    own = make_policy("llama")
    forward = type(own.model.model).forward
    monkeypatch.setattr(
        type(own.model.model), "forward",
        lambda self, position_ids=None, **options: forward(self, **options),
    )  # fmt: skip
    layout = choose_layout("auto", own, 200)
    assert layout.kind == "rows"
    assert "log-probs of LlamaForCausalLM from a tree differ from those of rows by" in layout.reason
    assert own.model.config._attn_implementation == "sdpa"


def test_a_tree_never_reaches_a_model_that_was_not_asked():
    """sdpa would take it for a row in which every token sees every other."""
    own = make_policy("llama")
    rollouts = forked_rollouts()
    (packed,) = pack(rollouts, random_plan(rollouts), 1 << 20, trees=True)
    with pytest.raises(ValueError, match="a tree for a model that reads rows"):
        own.forward(packed.inputs)
    for _ in range(2):  # asking twice changes nothing
        assert choose_layout("auto", own, 200).kind == "trees"
    own.forward(packed.inputs)


UNCUT = 1 << 20
SMALL, LARGE = 2.604e-4, 8.137e-5
"""What a pair of tokens costs in positions, of Qwen3-0.6B and 1.7B."""
WIDTHS = {SMALL: (1024, 3072), LARGE: (2048, 6144)}


def batch(prompt: int, answer: int, number: int) -> tuple[Rollouts, Plan]:
    """One prompt with answers that part at their first token; the last token of each is predicted, and not read."""
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, 100, prompt).tolist()
    rows = [[*trunk, 100 + i, *rng.integers(0, 100, answer).tolist()] for i in range(number)]
    none = (0.0,) * (answer + 1)
    responses = tuple(Response(0, tuple(row), prompt, none, "stop", i) for i, row in enumerate(rows))
    segments = tuple(Segment(i, prompt, prompt + answer + 1, 0) for i in range(number))
    ones = np.ones(number)
    plan = Plan(np.arange(number), np.full(number, answer + 1), ones, ones, ones)
    return Rollouts(responses, segments, answer + 1), plan


def blocks_of(prompt: int, answer: int, number: int) -> int:
    """Blocks of 128 x 128: the prompt sees itself, and each answer the prompt and itself, all causally."""

    def touched(queries: range, keys: range) -> set[tuple[int, int]]:
        sides = (range(side[0] // 128, side[-1] // 128 + 1) for side in (queries, keys))
        rows, columns = map(list, sides)
        return {(row, column) for row in rows for column in columns if column <= row}

    trunk = range(prompt)
    answers = [range(prompt + i * answer, prompt + (i + 1) * answer) for i in range(number)]
    return len(touched(trunk, trunk).union(*(touched(each, side) for each in answers for side in (trunk, each))))


@over("cost", [SMALL, LARGE])
def test_what_a_pair_of_tokens_costs(cost):
    """Qwen3-0.6B: 2 x 28 layers x 16 heads x 128 = 114,688 multiplications a pair.

    A position has in a layer 1024 x (2048 + 2 x 1024) + 2048 x 1024 + 3 x 1024 x 3072 = 15,728,640, with norms 2,304 more:
    114,688 / (28 x 15,730,944 + 1024) = 2.604e-4.
    """
    hidden, inner = WIDTHS[cost]
    shape = Qwen3Config(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=1000,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    found = estimate_pair_cost(Policy(model, None, Head(model.get_output_embeddings())))
    heads, layer = 16 * 128, hidden * (4096 + 2048) + 3 * hidden * inner + 2 * hidden + 2 * 128
    assert found == pytest.approx(2 * 28 * heads / (28 * layer + hidden), rel=1e-9)
    assert found == pytest.approx(cost, rel=1e-3)


@over(
    "shape",
    [
        (1000, 300, 16, SMALL, "trees"),  # one prompt in place of 16
        (1000, 300, 4, SMALL, "trees"),
        (4096, 1024, 8, SMALL, "trees"),
        (256, 256, 8, LARGE, "trees"),
        (12000, 500, 2, LARGE, "trees"),
        (16, 300, 8, LARGE, "trees"),  # 4% fewer positions, of which attention is 2%
        (16, 300, 8, SMALL, "rows"),  # attention is more of the smaller model, and its blocks are not full
        (128, 8064, 16, LARGE, "rows"),  # 1.5% fewer positions; attention is 25% of all, and flash is faster for it
        (300, 5000, 2, LARGE, "rows"),
        (100, 3000, 1, SMALL, "rows"),  # nothing is shared
    ],
)
def test_auto_takes_what_costs_less(shape):
    """Rows have half of all pairs, since causal kernels skip the others; trees 1.2 times those of the blocks that are seen."""
    prompt, answer, number, cost, kind = shape
    rollouts, plan = batch(prompt, answer, number)
    auto = Layout("trees", "", always=False, pair_cost=cost, has_blocks=True)
    width, tokens = prompt + answer, prompt + number * answer
    # answers part at a token of their own, and read `answer` of their tokens: the last is only predicted
    rows = number * width * (1 + cost * width / 2)
    trees = tokens + cost * COST_OF_BLOCKS * 128**2 * blocks_of(prompt, answer, number)
    print(f"{prompt} + {number} x {answer}: rows {rows:,.0f}, trees {trees:,.0f} positions, {trees / rows:.2f}")
    found = sort_spans(rollouts, [rollouts.segments[row] for row in plan.rows])
    assert auto.cost_of_trees(found, slice(0, number)) == pytest.approx(trees, rel=1e-12)
    assert auto.takes_trees(rollouts, plan, UNCUT) is (trees < rows) is (kind == "trees")
