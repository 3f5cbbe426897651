"""Keys and values that are kept: what is shared is not computed again, and never outlives its weights."""

import asyncio
from random import Random

import pytest
import torch
from loops import over
from small_engines import CONFIGS, ask, build, differences, engine_of

from fairlen.engine import Engine
from fairlen.engine.cache import Prefixes, count_shared
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Sampling

LONG = (2, *range(3, 23))


def long_continuation(engine: Engine, prefix: TokenIds) -> Continuation:
    """One with more than 12 tokens."""
    made = (engine.generate([prefix], [Sampling(24, seed=seed)])[0] for seed in range(40))
    return next(one for one in made if len(one.token_ids) > 12)


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
