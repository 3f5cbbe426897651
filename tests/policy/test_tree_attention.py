"""Attention along trees: the C kernel, attention with a mask and attention row by row are one function."""

import numpy as np
import pytest
import torch
from loops import over
from test_tree import forest_of, random_rows
from torch import Tensor, nn

from fairlen.engine.cache import LIKE_SDPA
from fairlen.policy.tree import NAME, Forest, ForestMask, attend, build

CPU = torch.device("cpu")
SHAPES = [(4, 2, 32, 32), (6, 1, 80, 48)]
"""Heads, key heads, dimensions of keys and of values."""


def states(forest: Forest, shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and values as transformers' layers pass them: transposed views."""
    heads, key_heads, dim, value_dim = shape
    generator = torch.Generator().manual_seed(len(forest))
    sizes = ((heads, dim), (key_heads, dim), (key_heads, value_dim))
    drawn = (torch.randn(1, len(forest), h, d, dtype=torch.float64, generator=generator) for h, d in sizes)
    return tuple(tensor.to(dtype).transpose(1, 2).requires_grad_() for tensor in drawn)


def attend_row_by_row(query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
    """Each row by itself, by definition; what rows share is computed for the last that has it."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = [torch.zeros(())] * len(forest)
    for path in forest.paths:
        for end, place in enumerate(path.tolist()):
            seen = torch.from_numpy(path[: end + 1])
            weights = (key[0, :, seen] @ query[0, :, place, :, None] * scale).softmax(1)
            out[place] = (weights * value[0, :, seen]).sum(1)
    return torch.stack(out)[None]


def attend_masked(query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
    """The whole forest at once: a token sees those from which on it lies before their `until`."""
    places, until = torch.arange(len(forest)), torch.from_numpy(forest.until)
    seen = (places <= places[:, None]) & (places[:, None] < until)
    out = nn.functional.scaled_dot_product_attention(query, key, value, seen, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def with_gradients(out: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The result and the gradients of its product with fixed numbers."""
    factors = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * factors).sum(), inputs)]


def worst(found: list[Tensor], expected: list[Tensor]) -> float:
    """Largest difference, relative to the largest number of each."""
    pairs = zip(found, expected, strict=True)
    return max(float((a.double() - b.double()).abs().max() / b.double().abs().max()) for a, b in pairs)


@pytest.mark.slow
@over("shape", SHAPES)
def test_the_kernel_is_attention_row_by_row(shape):
    _, forest = forest_of(random_rows(5, number=9, longest=20))
    inputs = states(forest, shape, torch.float64)
    assert build(torch.float64, *shape[2:]) is not None
    expected = with_gradients(attend_row_by_row(*inputs, forest, shape[2] ** -0.5), inputs)
    found = with_gradients(attend(nn.Identity(), *inputs, None, tree=ForestMask(forest, CPU))[0], inputs)
    assert worst(found, expected) < 1e-13


@pytest.mark.slow
@over("seed", range(2))
@over("precision", [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_the_kernel_is_attention_with_a_mask_on_ragged_forests(seed, precision):
    dtype, tolerance = precision
    shape = SHAPES[seed % 2 if dtype == torch.float64 else 0]
    _, forest = forest_of(random_rows(seed, number=10 + 2 * seed, longest=20 + 20 * seed), 1 if seed % 3 else 9)
    inputs, tree, scale = states(forest, shape, dtype), ForestMask(forest, CPU), 0.3
    found = with_gradients(attend(nn.Identity(), *inputs, None, tree=tree, scaling=scale)[0], inputs)
    precise = tuple(tensor.detach().double().requires_grad_() for tensor in inputs)
    assert worst(found, with_gradients(attend_masked(*precise, forest, scale), precise)) < tolerance


def test_any_layout_of_the_states_serves():
    """Heads cut out of one tensor, heads outermost, and elements that do not lie back to back."""
    _, forest = forest_of(random_rows(2))
    query, key, value = (tensor.detach() for tensor in states(forest, (2, 2, 16, 16), torch.float64))
    tree = ForestMask(forest, CPU)
    expected = attend(nn.Identity(), query, key, value, None, tree=tree)[0]
    fused = torch.cat([query, key, value], -1)
    assert torch.equal(attend(nn.Identity(), *fused.split(16, -1), None, tree=tree)[0], expected)
    outer = (tensor.contiguous() for tensor in (query, key, value))
    assert torch.equal(attend(nn.Identity(), *outer, None, tree=tree)[0], expected)
    apart = (tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (query, key, value))
    assert torch.equal(attend(nn.Identity(), *apart, None, tree=tree)[0], expected)


def test_threads_do_not_change_a_bit():
    _, forest = forest_of(random_rows(4, number=40), 9)
    inputs = states(forest, (4, 2, 16, 16), torch.float32)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(with_gradients(attend(nn.Identity(), *inputs, None, tree=ForestMask(forest, CPU))[0], inputs))
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@over("factor", [30.0, 3000.0])
def test_large_scores_do_not_overflow(factor):
    _, forest = forest_of(random_rows(6))
    inputs = states(forest, (2, 1, 16, 16), torch.float32)
    tree = ForestMask(forest, CPU)
    found = attend(nn.Identity(), inputs[0] * factor, *inputs[1:], None, tree=tree)[0]
    expected = attend_masked(inputs[0] * factor, *inputs[1:], forest, 0.25)
    assert torch.isfinite(found).all()
    assert (found - expected).abs().max() < 2e-4


@over("which", [0, 1, 2])
def test_what_is_not_a_number_reaches_all_who_see_it(which):
    rows = [np.r_[np.arange(20), np.full(20, 30 + i)] for i in range(3)]
    _, forest = forest_of(rows)
    inputs = [tensor.detach().clone() for tensor in states(forest, (2, 2, 16, 16), torch.float32)]
    inputs[which][0, :, 45] = float("nan")  # the sixth token of the second branch: 40..59
    found = attend(nn.Identity(), *inputs, None, tree=ForestMask(forest, CPU))[0]
    broken = set(torch.nonzero(~torch.isfinite(found[0]).flatten(1).all(1))[:, 0].tolist())
    assert broken >= ({45} if which == 0 else set(range(45, 60)))
    assert not broken & set(range(32))  # the first tile is over before it


def test_without_a_tree_it_is_sdpa_and_the_engine_takes_it_for_sdpa():
    query, key, value = (torch.randn(2, 4, 9, 16) for _ in range(3))
    found = attend(nn.Identity(), query, key, value, None)[0]
    expected = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(found, expected.transpose(1, 2))
    assert NAME in LIKE_SDPA


def test_what_a_tree_would_get_wrong_is_refused():
    _, forest = forest_of([np.arange(6)])
    inputs = states(forest, (2, 2, 16, 16), torch.float32)
    with pytest.raises(ValueError, match=r"dropout of 0\.1"):
        attend(nn.Identity(), *inputs, None, tree=ForestMask(forest, CPU), dropout=0.1)
    with pytest.raises(ValueError, match="sliding window of 5 tokens is shorter than a row of 6"):
        attend(nn.Identity(), *inputs, None, tree=ForestMask(forest, CPU), sliding_window=5)
    attend(nn.Identity(), *inputs, None, tree=ForestMask(forest, CPU), sliding_window=6, dropout=0.0)
