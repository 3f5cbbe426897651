"""What the engine returns is what the module computes: log-probabilities, greedy choices, the law of the samples."""

import math

import numpy as np
import pytest
import torch
from loops import over
from small_engines import CONFIGS, EOS, VOCAB, ask, build, differences, engine_of, prompts, reference_logprobs

from fairlen.engine.sampler import find_support, sample, uniforms
from fairlen.sampling.extend import Sampling


@pytest.mark.parametrize(("dtype", "largest", "mean"), [(torch.float32, 1e-4, 2e-6), (torch.float64, 1e-5, 1e-7)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward(dtype, largest, mean, temperature):
    model, prefixes = build("qwen3", dtype), prompts(24)
    made = engine_of(model).generate(prefixes, ask(24, temperature=temperature))
    apart = differences(model, prefixes, made, temperature)
    assert len(apart) > 200 and apart.max() <= largest and apart.mean() <= mean
    # the bound can be missed: at another temperature the same tokens have other log-probabilities
    assert differences(model, prefixes, made, temperature * 1.01).max() > 1e-3


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
