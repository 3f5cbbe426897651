"""What else is in flight, how many slots there are and who came first must not show in a result."""

import pytest
import torch
from small_engines import SHAPE, ask, build, engine_of, prompts
from transformers import AutoModelForCausalLM, Qwen3Config

from fairlen.sampling.extend import Continuation, Sampling


def tokens_of(made: list[Continuation]) -> list[tuple[int, ...]]:
    return [one.token_ids for one in made]


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
