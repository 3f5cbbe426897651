"""What the engine returns is what the module computes; what is shared is computed once, and never outlives its weights."""

import asyncio
import math
from random import Random

import numpy as np
import pytest
import torch
from loops import over
from small_engines import CONFIGS, EOS, VOCAB, ask, build, differences, engine_of, prompts, reference_logprobs

from fairlen.engine import Engine
from fairlen.engine.cache import Prefixes, count_shared
from fairlen.engine.sampler import find_support, sample, uniforms
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Sampling


@pytest.mark.parametrize(("dtype", "largest", "mean"), [(torch.float32, 1e-4, 2e-6), (torch.float64, 1e-5, 1e-7)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward(dtype, largest, mean, temperature):
    model, prefixes = build("qwen3", dtype), prompts(24)
    made = engine_of(model).generate(prefixes, ask(24, temperature=temperature))
    apart = differences(model, prefixes, made, temperature)
    assert len(apart) > 200 and apart.max() <= largest and apart.mean() <= mean
    # the bound can be missed: at another temperature the same tokens have other log-probabilities
    assert differences(model, prefixes, made, temperature * 1.01).max() > 1e-3


@pytest.mark.slow
@over("name", CONFIGS)
def test_greedy_equals_generate(name):
    model, prefixes = build(name), prompts(6)
    made = engine_of(model, max_num_seqs=4).generate(prefixes, ask(6, temperature=0.0))
    for prefix, one in zip(prefixes, made, strict=True):
        tokens = torch.tensor([prefix])
        text = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=24,
            eos_token_id=EOS,
            pad_token_id=0,
        )[0, len(prefix) :].tolist()
        assert list(one.token_ids) == text
    assert len({one.token_ids for one in made}) > 3
    assert differences(model, prefixes, made).max() <= 1e-4  # with windows, caps and experts too


def test_finish_says_why_and_eos_is_returned(qwen3):
    ends = {EOS, 7}
    made = engine_of(qwen3, eos_token_id=(EOS, 7)).generate(prompts(40), ask(40, max_new_tokens=12))
    for one in made:
        assert (one.finish == "stop") == (one.token_ids[-1] in ends) and not ends & set(one.token_ids[:-1])
        assert one.finish == "stop" or len(one.token_ids) == 12
    assert {one.finish for one in made} == {"stop", "length"}
    assert {one.token_ids[-1] for one in made if one.finish == "stop"} == ends


def test_samples_follow_the_softmax():
    """Chi-square of 20,000 draws against the exact law; 99.99% quantile of chi-square with 7 degrees is 29.9."""
    logits, count = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 0.5, -2.0, 1.5]), 20_000
    chance = torch.from_numpy(uniforms(np.arange(count, dtype=np.uint64), np.full(count, 17)))
    law = torch.softmax(logits / 0.7, -1)
    tokens, logprobs, _ = sample(logits.expand(count, -1), chance, torch.full((count,), 0.7))
    seen = torch.bincount(tokens, minlength=8)
    assert ((seen - count * law) ** 2 / (count * law)).sum() < 29.9
    assert torch.allclose(logprobs, law.log()[tokens])


def test_uniforms_do_not_correlate_over_seeds_or_positions():
    seeds, positions = np.meshgrid(np.arange(256, dtype=np.uint64), np.arange(256))
    grid = uniforms(seeds.ravel(), positions.ravel()).reshape(256, 256)
    assert abs(grid.mean() - 0.5) < 5 / math.sqrt(12 * grid.size)
    for shift in ((1, 0), (0, 1), (1, 1), (1, -1)):
        shifted = np.roll(grid, shift, (0, 1))
        assert abs(np.corrcoef(grid.ravel(), shifted.ravel())[0, 1]) < 5 / math.sqrt(grid.size)


def test_truncation_by_hand():
    law = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    for limits, count in (  # top_p, top_k, min_p; how many of 0.4, 0.3, 0.2, 0.1 are left
        ((1.0, 0, 0.0), 4),
        ((1.0, 2, 0.0), 2),
        ((0.7, 0, 0.0), 2),  # 0.4 + 0.3 reaches 0.7
        ((0.71, 0, 0.0), 3),
        ((0.5, 3, 0.0), 2),  # half of the 0.9 that top_k left is 0.45: two tokens
        ((1.0, 0, 0.6), 2),  # at least 0.6 * 0.4 = 0.24
        ((1e-9, 1, 1.0), 1),
    ):
        support = find_support(law, *(torch.tensor([[limit]]) for limit in limits))
        assert support[0, [1, 3, 2, 0]].tolist() == [place < count for place in range(4)], limits


def test_logprobs_of_truncated_sampling_are_over_what_is_left(qwen3):
    """By hand: a sigmoid of the difference of two logits, in each step the two largest of a plain forward."""
    prefixes = prompts(16)
    made = engine_of(qwen3).generate(prefixes, ask(16, top_k=2, temperature=0.7, with_support=True))
    for prefix, one in zip(prefixes, made, strict=True):
        with torch.no_grad():
            logits = qwen3(torch.tensor([prefix + one.token_ids])).logits[0, len(prefix) - 1 : -1]
        score, two = logits.topk(2)
        assert [set(np.frombuffer(ids, np.int32).tolist()) for ids in one.supports] == list(map(set, two.tolist()))
        sign = torch.tensor([1.0 if token == ids[0] else -1.0 for token, ids in zip(one.token_ids, two, strict=True)])
        expected = torch.nn.functional.logsigmoid(sign * (score[:, 0] - score[:, 1]) / 0.7)
        assert torch.allclose(torch.tensor(one.logprobs), expected, atol=1e-4)
    assert not engine_of(qwen3).generate(prefixes[:1], ask(1, top_k=2))[0].supports


def test_one_batch_may_mix_ways_of_sampling(qwen3):
    prefix = prompts(1)[0]
    ways = [{"temperature": 0.0}, {"top_k": 1}, {"temperature": 2.0}, {"temperature": 0.5, "min_p": 0.1}]
    together = engine_of(qwen3).generate([prefix] * 4, [Sampling(16, seed=3, **way) for way in ways])
    alone = [engine_of(qwen3).generate([prefix], [Sampling(16, seed=3, **way)])[0] for way in ways]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert together[0].token_ids == together[1].token_ids != together[2].token_ids
    # greedy log-probabilities are of the untempered policy
    expected = reference_logprobs(qwen3, prefix, together[0])
    assert torch.allclose(torch.tensor(together[0].logprobs, dtype=torch.float64), expected, atol=1e-4)
    assert max(max(one.token_ids) for one in together) < VOCAB


LONG = (2, *range(3, 23))


def long_continuation(engine: Engine, prefix: TokenIds) -> Continuation:
    """One with more than 12 tokens."""
    made = (engine.generate([prefix], [Sampling(24, seed=seed)])[0] for seed in range(40))
    return next(one for one in made if len(one.token_ids) > 12)


@pytest.mark.slow
@over("name", CONFIGS)
def test_fork_from_a_sequence_equals_a_fresh_computation(name):
    model = build(name)
    engine = engine_of(model)
    made = long_continuation(engine, LONG)
    before = engine.stats
    forked = LONG + made.token_ids[:7]
    again = engine.generate([forked] * 6, ask(6, temperature=0.0))
    after = engine.stats
    assert after.num_computed_tokens == before.num_computed_tokens
    assert after.num_prefix_tokens - before.num_prefix_tokens == 6 * (len(forked) - 1)
    fresh = engine_of(model).generate([forked] * 6, ask(6, temperature=0.0))
    assert [one.token_ids for one in again] == [one.token_ids for one in fresh]
    assert differences(model, [forked] * 6, again).max() <= 1e-4


def test_a_prefix_that_leaves_a_kept_one_computes_only_what_differs(qwen3):
    engine = engine_of(qwen3)
    engine.generate([LONG], ask(1))
    before = engine.stats.num_computed_tokens
    other = (*LONG[:15], 30, 31, 30, 31)  # 15 shared, 4 others, of which a step feeds the last
    made = engine.generate([other], ask(1))
    assert engine.stats.num_computed_tokens - before == 3
    assert differences(qwen3, [other], made).max() <= 1e-4


def test_refresh_forgets(qwen3):
    engine, sampling = engine_of(qwen3), [Sampling(24, seed=0, temperature=0.0)]
    old = engine.generate([LONG], sampling)[0]
    changed = [parameter for parameter in qwen3.parameters() if parameter.dim() == 2]
    for parameter in changed:  # .data leaves no trace that the engine could notice
        parameter.data.mul_(0.5)
    stale = engine.generate([LONG], sampling)
    engine.refresh(1)
    fresh = engine.generate([LONG], sampling)
    expected = engine_of(qwen3).generate([LONG], sampling)
    assert fresh[0] == expected[0] and fresh[0] != old
    assert differences(qwen3, [LONG], fresh).max() <= 1e-4
    assert differences(qwen3, [LONG], stale).max() > 1e-2  # the negative control: stale keys and values show
    assert engine.policy_version == 1


def test_a_forgotten_refresh_is_noticed(qwen3):
    engine = engine_of(qwen3)
    engine.generate([LONG], ask(1))
    with torch.no_grad():
        next(qwen3.parameters()).mul_(1.001)
    with pytest.raises(RuntimeError, match=r"weights have changed since policy_version=0.*call engine\.refresh"):
        engine.generate([LONG], ask(1))
    engine.generate([LONG], ask(1))  # nothing is kept any more
    engine.refresh(1)
    assert engine.generate([LONG], ask(1)) == engine_of(qwen3).generate([LONG], ask(1))


def test_a_large_prefill_is_cut_into_pieces(qwen3, monkeypatch):
    prefixes = [LONG, LONG[:9], (2, *LONG[9:]), (2, 5)]
    whole = engine_of(qwen3)
    expected = whole.generate(prefixes, ask(4, temperature=0.0))
    monkeypatch.setattr("fairlen.engine.engine.MAX_PREFILL_TOKENS", 7)
    pieces = engine_of(qwen3)
    assert [one.token_ids for one in pieces.generate(prefixes, ask(4, temperature=0.0))] == [
        one.token_ids for one in expected
    ]
    assert pieces.stats.num_computed_tokens == whole.stats.num_computed_tokens


def test_count_shared_against_a_plain_loop():
    rng = Random(0)
    for _ in range(3_000):
        left, right = (tuple(rng.randrange(2) for _ in range(rng.randrange(9))) for _ in range(2))
        count = next(
            (k for k, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
        )
        assert count_shared(left, right) == count


def test_find_against_a_search_of_everything():
    rng = Random(1)
    prefixes, held = Prefixes(range(10, 30)), {}
    for _ in range(2_000):
        tokens = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 8)))
        row, num_shared = prefixes.find(tokens)
        assert num_shared == max((count_shared(tokens, other) for other in held.values()), default=0)
        assert num_shared == 0 or held[row][:num_shared] == tokens[:num_shared]
        if num_shared < len(tokens):
            held[prefixes.take(tokens)] = tokens
        prefixes.settle()
    assert set(held) == set(range(10, 30))


def test_rows_computed_ahead_stay_until_their_first_use(qwen3):
    """And do not stay for requests that were cancelled: they would fill the store."""
    engine = engine_of(qwen3, max_num_seqs=2, kept_rows=8)
    unique = [(2, *LONG[k:]) for k in range(1, 9)]

    async def cancel_the_rest(first: int) -> None:
        tasks = [asyncio.ensure_future(engine.extend(prompt, Sampling(2, seed=0))) for prompt in unique[first:]]
        await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for first in (0, 1, 2, 3, 0, 1, 2, 3):
        asyncio.run(cancel_the_rest(first))
    made = engine.generate(unique, ask(8, temperature=0.0))
    assert [one.token_ids for one in made] == [
        one.token_ids for one in engine_of(qwen3).generate(unique, ask(8, temperature=0.0))
    ]
    assert not engine.scheduler.prefixes.reserved
