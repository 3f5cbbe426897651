"""What else is in flight must not show in a result: batching, the search of a large vocabulary in blocks, attention by rows."""

import pytest
import torch
from loops import over
from small_engines import CONFIGS, SHAPE, ask, build, engine_of, prompts
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from fairlen.engine.cache import attend_rows
from fairlen.engine.sampler import BLOCK, MAX_SCANNED, invert
from fairlen.sampling.extend import Continuation, Sampling


def tokens_of(made: list[Continuation]) -> list[tuple[int, ...]]:
    return [one.token_ids for one in made]


@pytest.mark.slow
def test_samples_do_not_depend_on_the_number_of_slots():
    """In float64 exactly; float32 may part at a near tie: a uniform within rounding of a boundary of the law."""
    prefixes = prompts(18)
    exact = build("qwen3", torch.float64)
    made = [tokens_of(engine_of(exact, max_num_seqs=n).generate(prefixes, ask(18, 16))) for n in (1, 7, 64)]
    assert made[0] == made[1] == made[2]
    single = build("qwen3")
    made = [tokens_of(engine_of(single, max_num_seqs=n).generate(prefixes, ask(18, 16))) for n in (7, 64)]
    assert sum(a != b for a, b in zip(*made, strict=True)) <= 1


def test_a_seed_is_counted_by_position(qwen3):
    """A paused and resumed sequence is the one that was never paused."""
    engine, prefix = engine_of(qwen3), prompts(1)[0]
    whole = next(
        made
        for seed in range(20)
        if len((made := engine.generate([prefix], [Sampling(24, seed=seed)])[0]).token_ids) > 12
    )
    seed = next(s for s in range(20) if engine.generate([prefix], [Sampling(24, seed=s)])[0] == whole)
    rest = engine.generate([prefix + whole.token_ids[:8]], [Sampling(24 - 8, seed=seed)])[0]
    assert rest.token_ids == whole.token_ids[8:]


@pytest.mark.slow
def test_slots_stay_full_while_requests_wait(qwen3):
    """Budgets of 1 to 24 tokens, in turn, without EOS: 8 slots and 96 requests of 12.5 tokens on average."""
    qwen3.get_input_embeddings().weight.data[1] = 0.0  # tied weights: EOS has logit 0, far below the largest
    engine = engine_of(qwen3)
    made = engine.generate(prompts(96), [Sampling(1 + k % 24, seed=k, temperature=0.0) for k in range(96)])
    assert sum(len(one.token_ids) for one in made) == engine.stats.num_generated_tokens
    assert engine.stats.occupancy > 0.85
    # batches of eight that wait for their longest: budgets 1-8, 9-16 and 17-24 take 8, 16 and 24 steps
    in_batches = sum(range(1, 25)) / (8 * (8 + 16 + 24))
    assert engine.stats.occupancy > in_batches


@pytest.mark.slow
def test_compiled_steps_are_the_same_arithmetic():
    """By one graph for all numbers of rows and columns."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**{**SHAPE, "num_hidden_layers": 1})).eval()
    prefixes = prompts(20)
    eager = engine_of(model).generate(prefixes, ask(20, temperature=0.0))
    made = engine_of(model, compile=True, max_num_seqs=12).generate(prefixes, ask(20, temperature=0.0))
    assert tokens_of(made) == tokens_of(eager)
    apart = [
        abs(a - b)
        for one, two in zip(made, eager, strict=True)
        for a, b in zip(one.logprobs, two.logprobs, strict=True)
    ]
    assert 0 < max(apart) <= 1e-4  # not 0: it did run compiled


def scan(probabilities: Tensor, shares: Tensor) -> Tensor:
    """The definition: the first token at which the running sum passes the share of the whole."""
    reached = probabilities.cumsum(-1, dtype=torch.float64)
    return (reached > shares[:, None] * reached[:, -1:]).int().argmax(-1)


@pytest.mark.slow
@over("size", [MAX_SCANNED, MAX_SCANNED + 1, 8 * BLOCK + 7, 151_936])
@over("spread", [0.5, 5.0])
def test_blocks_find_what_a_scan_finds(size, spread):
    generator = torch.Generator().manual_seed(size)
    probabilities = torch.softmax(spread * torch.randn(64, size, generator=generator), -1)
    shares = torch.rand(64, generator=generator, dtype=torch.float64)
    assert torch.equal(invert(probabilities, shares), scan(probabilities, shares))


def test_boundaries_of_blocks_and_tokens_without_probability():
    # 1/4 on the last token of block 0, 1/2 on the first of block 3, 1/4 on the last of the vocabulary; sums are exact
    size = 6 * BLOCK + 5
    probabilities = torch.zeros(1, size)
    places = [BLOCK - 1, 3 * BLOCK, size - 1]
    probabilities[0, places] = torch.tensor([0.25, 0.5, 0.25])
    expected = {0.0: 0, 0.2499: 0, 0.25: 1, 0.7499: 1, 0.75: 2, 1.0 - 2.0**-53: 2}
    for share, number in expected.items():
        assert invert(probabilities, torch.tensor([share], dtype=torch.float64)).tolist() == [places[number]]


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
