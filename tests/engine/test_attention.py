"""Attention over rows of the cache, which is that of a row by itself and of the module that the model trains with."""

import torch
from loops import over
from small_engines import CONFIGS, ask, build, engine_of, prompts

from fairlen.engine.attention import attend_rows

POSITIONS = torch.tensor([[0], [1], [7], [30], [12], [5], [21]])


@over("precision", [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@over("options", [{}, {"softcap": 2.0}, {"sliding_window": 6}, {"scaling": 0.7, "softcap": 5.0, "sliding_window": 1}])
def test_a_query_sees_its_own_row_up_to_its_position(precision, options):
    """Row by row and head by head: softmax(scale * q k) v over the columns up to the position, the last ones of a window."""
    dtype, tolerance = precision
    torch.manual_seed(0)
    query = torch.randn(7, 6, 1, 8, dtype=dtype)
    keys, values = (torch.randn(9, 2, 40, dim, dtype=dtype)[:7, :, :31] for dim in (8, 12))  # values of another width
    found, _ = attend_rows(torch.nn.Identity(), query, keys, values, None, query_positions=POSITIONS, **options)
    assert found.shape == (7, 1, 6, 12)
    scale, cap, window = (options.get(name, otherwise) for name, otherwise in
                          (("scaling", 8**-0.5), ("softcap", None), ("sliding_window", 31)))  # fmt: skip
    for row, (position,) in enumerate(POSITIONS.tolist()):
        seen = slice(max(0, position + 1 - window), position + 1)
        for head in range(6):
            scores = scale * keys[row, head // 3, seen] @ query[row, head, 0]
            weights = torch.softmax(cap * torch.tanh(scores / cap) if cap else scores, -1)
            assert (found[row, 0, head] - weights @ values[row, head // 3, seen]).abs().max() <= tolerance
    for tensor in (keys, values):  # what lies beyond a position does not count
        tensor[0, :, 1:] = 1e6
    again, _ = attend_rows(torch.nn.Identity(), query, keys, values, None, query_positions=POSITIONS, **options)
    assert torch.equal(again[0], found[0])


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
