"""The C loops and the matrix products are one function, and either alone serves an engine."""

from __future__ import annotations

import pytest
import torch
from small_engines import CONFIGS, ask, build, engine_of, prompts

from fairlen.engine import attention
from fairlen.engine.attention import attend_rows

POSITIONS = torch.tensor([[0], [1], [7], [30], [12], [5], [21]])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 2.0}, {"sliding_window": 6}, {"scaling": 0.7, "softcap": 5.0, "sliding_window": 1}]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_loops_against_products(monkeypatch, dtype, tolerance, options, threads):
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    query = torch.randn(7, 6, 1, 8, dtype=dtype)
    rows = [torch.randn(9, 2, 40, dim, dtype=dtype)[:7, :, :31] for dim in (8, 12)]  # views, values of another width
    assert attention.has_kernel(query, *rows)
    loops, _ = attend_rows(torch.nn.Identity(), query, *rows, None, query_positions=POSITIONS, **options)
    monkeypatch.setattr(attention, "has_kernel", lambda *_: False)
    products, _ = attend_rows(torch.nn.Identity(), query, *rows, None, query_positions=POSITIONS, **options)
    assert loops.shape == products.shape == (7, 1, 6, 12)
    assert (loops - products).abs().max() <= tolerance
    # what lies beyond a position does not count, what lies before it does
    for tensor in rows:
        tensor[0, :, 1:] = 1e6
    assert torch.equal(
        attend_rows(torch.nn.Identity(), query, *rows, None, query_positions=POSITIONS, **options)[0][0], products[0]
    )
    monkeypatch.undo()
    assert torch.equal(
        attend_rows(torch.nn.Identity(), query, *rows, None, query_positions=POSITIONS, **options)[0][0], loops[0]
    )


def test_positions_beyond_the_columns_are_cut():
    query, rows = torch.randn(1, 2, 1, 8), torch.randn(1, 1, 5, 8)
    beyond, last = (
        attention.attend_single(query, rows, rows, torch.tensor([[p]]), 1.0, 0.0, attention.UNBOUNDED)
        for p in (1000, 4)
    )
    assert torch.equal(beyond, last)


def test_without_a_compiler_products_serve(monkeypatch):
    prefixes, samplings = prompts(12), ask(12, temperature=0.0)
    expected = engine_of(build("gemma2")).generate(prefixes, samplings)
    monkeypatch.setenv("CC", "no-such-compiler")
    attention.build.cache_clear()
    assert attention.build(torch.float32, 2, 8, 8) is None
    made = engine_of(build("gemma2")).generate(prefixes, samplings)
    attention.build.cache_clear()
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]


def test_a_model_with_a_cap_follows_the_attention_it_trains_with():
    """transformers' sdpa leaves the cap out, its eager attention does not: so does the engine."""
    prefixes, samplings = prompts(6), ask(6, temperature=0.0)
    made = {}
    for kind in ("eager", "sdpa"):
        model = build("gemma2")
        model.config.attn_logit_softcapping = 0.5
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = 0.5
        model.set_attn_implementation(kind)
        made[kind] = engine_of(model).generate(prefixes, samplings)
        for prefix, one in zip(prefixes, made[kind], strict=True):
            tokens = torch.tensor([prefix + one.token_ids])
            with torch.no_grad():
                greedy = model(tokens, use_cache=False).logits[0, len(prefix) - 1 : -1].argmax(-1)
            assert tuple(greedy.tolist()) == one.token_ids
    assert "gemma2" in CONFIGS and made["eager"] != made["sdpa"]
