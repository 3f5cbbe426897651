"""Attention along trees by blocks: the mask against its definition, and FlexAttention compiled for a CPU, forward only."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as flex
from loops import over
from shapes import CONFIGS
from small_policies import differences, forked_rollouts, learn, make_policy, random_plan, readers
from test_tree import forest_of, random_rows
from test_tree_attention import attend_row_by_row, states
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM
from waits import DEVICE, counted_waits

from fairlen.methods.compose import compose
from fairlen.policy import tree
from fairlen.policy.head import Head
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy
from fairlen.policy.tree import BLOCK, NAME, Forest, attend, build_block_mask, compile_flex

CPU = torch.device("cpu")


def long_forest(seed: int) -> Forest:
    """Forests of 1 to 9 blocks; some are a tree of few branches, some hundreds of trees."""
    rows = random_rows(seed, number=8 + 2 * seed, longest=60 + 50 * seed)
    return forest_of(rows, (1, 4, 60)[seed % 3])[1]


def whole_blocks() -> Forest:
    """A trunk of two blocks with two branches of one block each: 512 positions."""
    trunk = np.full(2 * BLOCK, 1)
    return forest_of([np.r_[trunk, np.full(BLOCK, branch)] for branch in (2, 3)])[1]


def forests() -> list[Forest]:
    return [*map(long_forest, range(9)), whole_blocks(), forest_of([np.array([5])])[1]]


def seen_by_definition(forest: Forest) -> np.ndarray:
    """A token sees those that come before it on a row, and itself: row by row, [N, N]."""
    seen = np.zeros((len(forest), len(forest)), bool)
    for path in forest.paths:
        for end, place in enumerate(path):
            seen[place, path[: end + 1]] = True
    return seen


def blocks_of(mask: BlockMask, of_keys: bool = False) -> Iterator[tuple[int, int, bool]]:
    """Every block that a kernel visits, (queries, keys, whether it looks at no entry), by the lists of queries or of keys."""
    names = ("q_num_blocks", "q_indices") if of_keys else ("kv_num_blocks", "kv_indices")
    for prefix in ("", "full_"):
        counts, lists = (getattr(mask, prefix + name)[0, 0] for name in names)
        for row, (count, columns) in enumerate(zip(counts.tolist(), lists.tolist(), strict=True)):
            for column in columns[:count]:
                yield (column, row, prefix != "") if of_keys else (row, column, prefix != "")


def seen_by_blocks(mask: BlockMask, of_keys: bool) -> np.ndarray:
    """What a kernel would let a token see, as it reads the mask, [N, N]; a block that is visited twice counts twice."""
    length = mask.seq_lengths[0]
    seen = np.zeros((length, length), np.int64)
    places = torch.arange(length)
    zero = torch.tensor(0)
    for row, column, is_whole in blocks_of(mask, of_keys):
        queries, keys = (places[side * BLOCK : (side + 1) * BLOCK] for side in (row, column))
        entries = torch.ones(len(queries), len(keys), dtype=torch.bool)
        if not is_whole:
            entries = mask.mask_mod(zero, zero, queries[:, None], keys)
        seen[np.ix_(queries.numpy(), keys.numpy())] += entries.numpy()
    return seen


@over("number", [0, 3, 6, 9, 10])
def test_the_blocks_are_those_that_torch_finds_in_the_dense_mask_and_their_entries_its_own(number):
    """By the lists of queries (forward, gradients of queries) and by those of keys (gradients of keys and values)."""
    forest = forests()[number]
    mask, expected = build_block_mask(forest.until, CPU), seen_by_definition(forest)
    dense = torch.from_numpy(expected)
    torchs = create_block_mask(
        lambda batch, head, query, key: dense[query, key], 1, 1, len(forest), len(forest), device="cpu"
    )
    for of_keys in (False, True):
        np.testing.assert_array_equal(seen_by_blocks(mask, of_keys), expected)
        assert set(blocks_of(mask, of_keys)) == set(blocks_of(torchs, of_keys))
    assert mask.shape == torchs.shape and mask.BLOCK_SIZE == torchs.BLOCK_SIZE


def test_a_mask_is_made_without_waiting_and_without_an_entry_for_each_pair():
    """8,192 positions on a device that has no contents: 64 x 64 blocks, and the bytes that the account has."""
    rows = [np.r_[np.full(1024, 1), np.full(1024, branch)] for branch in range(2, 9)]
    forest = forest_of(rows)[1]
    assert len(forest) == 8192
    with counted_waits() as waits:
        mask = build_block_mask(forest.until, DEVICE)
        assert waits.found == [] and waits.num_uploads == 9
        tensors = [tensor for tensor in mask.as_tuple() if isinstance(tensor, Tensor)]
        assert {tensor.device for tensor in tensors} == {DEVICE} and len(tensors) == 8
        taken = sum(tensor.nbytes for tensor in tensors) + 4 * len(forest)  # and the ends
    # 4 lists of 64 x 64 numbers of 4 bytes with 64 counts each, and 8,192 ends: 66,560 + 32,768
    assert taken == 4 * 4 * (64 * 64 + 64) + 4 * 8192 == 99_328


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way of CUDA."""
    monkeypatch.setattr(tree, "serves", lambda *_: True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_gradients_of_flexattention_uncompiled_are_those_of_rows(monkeypatch):
    """torch's own forward and backward pass over all entries, which it can run on a CPU and refuses to: it reads `sees` alone."""
    rows, trees = readers("qwen3")
    rollouts, method = forked_rollouts(segment=40), compose("grpo+entropy")
    plan = random_plan(rollouts)
    expected = learn(rows, rollouts, plan, method, False)
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(
        tree, "compile_flex",
        lambda scale: lambda q, k, v, mask: flex.flex_attention(q, k, v, None, mask, scale, enable_gqa=True),
    )  # fmt: skip
    logprobs, gradient = differences(learn(trees, rollouts, plan, method, True), expected)
    print(f"torch's own, uncompiled: log-probs {logprobs:.1e}, gradient {gradient:.1e}")
    assert logprobs < 1e-5 and gradient < 1e-4


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
    """As `attend` does on CUDA."""
    return compile_flex(scale)(query, key, value, build_block_mask(forest.until, CPU)).transpose(1, 2)


@pytest.mark.slow
def test_compiled_for_a_cpu_it_is_attention_row_by_row_in_one_graph():
    """A first forest with as many blocks as there are heads would be compiled for apart: torch takes equal sizes for one."""
    compile_flex.cache_clear()
    torch._dynamo.reset()
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    for forest in forests()[:-1]:  # not that of one position
        query, key, value = (tensor.detach() for tensor in states(forest, (6, 3, 32, 32), torch.float32))
        found = attend_blocks(query, key, value, forest, 0.3)
        expected = attend_row_by_row(query, key, value, forest, 0.3)
        assert (found - expected).abs().max() < 1e-5, len(forest)
    print(f"{counts['unique_graphs'] - before} graphs for {len({len(forest) for forest in forests()[:-1]})} lengths")
    assert counts["unique_graphs"] - before == 1


class HeadsOfAttention(TorchFunctionMode):
    """Notes (heads of queries, heads of keys, whether groups are asked for) of every call of torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, int, bool]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            self.found.add((args[0].shape[1], args[1].shape[1], (kwargs or {}).get("enable_gqa", False)))
        return func(*args, **(kwargs or {}))


@over("kind", [(torch.float32, (4, 4, False)), (torch.bfloat16, (4, 2, True))])
def test_rows_on_cuda_ask_for_grouped_heads_in_half_precision_only(kind):
    """In float32 the one kernel of CUDA that takes groups is quadratic in memory."""
    dtype, expected = kind
    module = nn.Module()
    module.num_key_value_groups = 2  # pyright: ignore
    with counted_waits() as waits:
        query, key = (torch.empty(1, heads, 40, 32, dtype=dtype, device=DEVICE) for heads in (4, 2))
        with HeadsOfAttention() as calls:
            attend(module, query, key, key, None, scaling=0.25)
        assert calls.found == {expected} and waits.found == []
    query, key = (torch.randn(1, heads, 40, 32) for heads in (4, 2))  # on the CPU groups are asked for, as sdpa does
    with HeadsOfAttention() as calls:
        attend(module, query, key, key, None, scaling=0.25)
    assert calls.found == {(4, 2, True)}


def test_a_model_on_cuda_that_reads_rows_has_the_same_attention():
    """In the place of sdpa; another that a model was given stays."""
    with counted_waits():
        for name, expected in (("sdpa", NAME), ("eager", "eager")):
            model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"]()).to(DEVICE)
            model.set_attn_implementation(name)
            policy = Policy(model, None, Head(model.get_output_embeddings()))
            assert choose_layout("rows", policy, 30).kind == "rows"
            assert model.config._attn_implementation == expected


def test_where_the_kernel_cannot_be_compiled_a_run_takes_rows(monkeypatch):
    """As where Triton finds no C compiler, or a device has too little shared memory: no error that torch has a class for."""

    def fail(_: float) -> Any:
        raise KeyError("shared memory")

    on_the_cpu(monkeypatch)
    monkeypatch.setattr(tree, "compile_flex", fail)
    policy = make_policy("qwen3")
    layout = choose_layout("auto", policy, 200)
    assert (layout.kind, layout.reason) == ("rows", "Qwen3ForCausalLM cannot read trees: 'shared memory'")
    assert policy.model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=r"layout=trees: .*shared memory"):
        choose_layout("trees", policy, 200)
