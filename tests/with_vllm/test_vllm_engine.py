"""Against real vLLM: it generates what the policy would, says how likely that was, and follows new weights."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from fairlen import playground
from fairlen.engine import Engine
from fairlen.engine.vllm import BLOCK_SIZE, VllmEngine
from fairlen.policy.engines import build_engine, checkpoint_weights
from fairlen.policy.head import Head
from fairlen.policy.model import Policy, load_policy
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.settings import PolicySettings, RolloutConfig

pytestmark = pytest.mark.vllm
GREEDY = Sampling(80, seed=0, temperature=0.0)
EOS = 1


def reference(policy: Policy, prefix: TokenIds, made: Continuation, temperature: float) -> torch.Tensor:
    """Log-probabilities of generated tokens by one plain forward of the policy, [length]."""
    policy.model.eval()
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prefix + made.token_ids]), use_cache=False).logits[0]
    logprobs = torch.log_softmax(logits[len(prefix) - 1 : -1].double() / temperature, -1)
    return logprobs.gather(-1, torch.tensor(made.token_ids)[:, None])[:, 0]


def differences(policy: Policy, prefixes: list[TokenIds], made: list[Continuation], temperature: float = 1.0):
    """|vLLM - policy| of every generated token, nats."""
    pairs = zip(prefixes, made, strict=True)
    return torch.cat(
        [(reference(policy, p, m, temperature) - torch.tensor(m.logprobs).double()).abs() for p, m in pairs]
    )


def embedded(policy: Policy, **options: int) -> Engine:
    options = {"max_length": 256, "max_num_seqs": 16} | options
    return Engine(policy.model, eos_token_id=policy.eos_token_ids, compile=False, **options)


def weights_of(policy: Policy) -> Callable:
    return lambda: checkpoint_weights(policy).items()


def test_greedy_is_that_of_the_embedded_engine(policy, engine, prompts):
    ours = embedded(policy).generate(prompts, [GREEDY] * len(prompts))
    theirs = engine.generate(prompts, [GREEDY] * len(prompts))
    assert [one.token_ids for one in theirs] == [one.token_ids for one in ours]
    assert [one.finish for one in theirs] == [one.finish for one in ours]
    assert {one.finish for one in ours} == {"stop", "length"} or all(one.finish == "stop" for one in ours)
    assert float(differences(policy, prompts, theirs).max()) < 1e-4


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_logprobs_are_those_of_the_trainer(policy, engine, prompts, temperature):
    samplings = [Sampling(120, seed=seed, temperature=temperature) for seed in range(len(prompts))]
    found = differences(policy, prompts, engine.generate(prompts, samplings), temperature)
    print(f"temperature {temperature}: {len(found)} tokens, max {found.max():.2e}, mean {found.mean():.2e} nats")
    assert len(found) > 1000 and float(found.max()) < 1e-3 and float(found.mean()) < 1e-4


def test_samples_are_drawn_from_the_policy(policy, engine, prompts):
    """1500 first tokens: each token's count is binomial, and within 4.5 standard deviations of its mean."""
    prefix, number, temperature = prompts[0], 1500, 2.0
    made = engine.generate([prefix] * number, [Sampling(1, seed=s, temperature=temperature) for s in range(number)])
    count = torch.bincount(torch.tensor([one.token_ids[0] for one in made]), minlength=21)
    with torch.no_grad():
        expected = torch.softmax(policy.model(input_ids=torch.tensor([prefix])).logits[0, -1] / temperature, -1)
    deviation = (number * expected * (1 - expected)).sqrt()
    assert int((expected * number > 10).sum()) > 1
    assert bool(((count - number * expected).abs() <= 4.5 * deviation + 1).all())


SHAPE = dict(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=32, max_position_embeddings=128, eos_token_id=EOS, initializer_range=0.2,
)  # fmt: skip


def build_random_model(shape: PreTrainedConfig, folder: Path) -> tuple[Policy, VllmEngine]:
    """A policy with random weights, and vLLM on it; only the config is in the folder."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape).eval()
    shape.architectures = [type(model).__name__]
    shape.save_pretrained(folder)
    policy = Policy(model, tokenizer=None, head=Head(model.get_output_embeddings()))
    return policy, VllmEngine(folder, weights_of(policy), eos_token_id=EOS, max_length=96, max_num_seqs=4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("config", [Qwen3Config, LlamaConfig])
def test_random_models_of_other_shapes(tmp_path, config, tied):
    policy, theirs = build_random_model(config(**SHAPE, tie_word_embeddings=tied), tmp_path)
    prefixes = [(2, 3 + number, 40) for number in range(8)]
    greedy = [Sampling(24, seed=0, temperature=0.0)] * 8
    made = theirs.generate(prefixes, greedy)
    assert float(differences(policy, prefixes, made).max()) < 1e-3
    ours = embedded(policy, max_length=96).generate(prefixes, greedy)
    assert [one.token_ids for one in made] == [one.token_ids for one in ours]


def ending(engine, prompts: list[TokenIds]) -> tuple[TokenIds, Continuation]:
    """A prompt whose greedy answer ends with EOS after several tokens."""
    made = engine.generate(prompts, [GREEDY] * len(prompts))
    return next((p, m) for p, m in zip(prompts, made, strict=True) if m.finish == "stop" and len(m.token_ids) > 8)


def test_eos_and_the_budget(engine, prompts):
    prompt, whole = ending(engine, prompts)
    length = len(whole.token_ids)
    assert whole.token_ids[-1] == EOS and EOS not in whole.token_ids[:-1] and len(whole.logprobs) == length

    def within(max_response_length: int) -> Continuation:
        return engine.generate([prompt], [Sampling(max_response_length, seed=0, temperature=0.0)])[0]

    assert (
        within(length).token_ids == whole.token_ids and within(length).finish == "stop"
    )  # EOS is the last one allowed
    assert within(length - 1).token_ids == whole.token_ids[:-1] and within(length - 1).finish == "length"
    assert within(1).token_ids == whole.token_ids[:1] and within(1).finish == "length"
    full = 256 - len(prompt)
    assert within(full).token_ids == whole.token_ids
    with pytest.raises(ValueError, match=f"max_new_tokens={full + 1} exceeds max_length=256"):
        within(full + 1)


def test_every_eos_ends_and_no_other_token(policy, engine, prompts):
    """With a second EOS id a greedy answer ends where that token first occurs."""
    prompt, whole = ending(engine, prompts)
    place = 5
    other = whole.token_ids[place]
    two = VllmEngine(playground.PATH, weights_of(policy), eos_token_id=(EOS, other), max_length=256, max_num_seqs=2)
    (made,) = two.generate([prompt], [GREEDY])
    assert made.token_ids == whole.token_ids[: whole.token_ids.index(other) + 1] and made.finish == "stop"


def test_forks_reuse_the_whole_blocks_of_their_prefix(engine, prompts):
    """A fork of P tokens needs P - 1; those in whole blocks are there, also while what it forks from still runs."""
    samplings = [Sampling(200, seed=seed) for seed in range(len(prompts))]
    made = engine.generate(prompts, samplings)
    longest = max(range(len(made)), key=lambda number: len(made[number].token_ids))
    prompt, sampling = prompts[longest], samplings[longest]
    engine.refresh(0)

    async def fork() -> tuple[int, int]:
        parent = engine.extend(prompt, sampling)
        begun = await parent.reach(70)
        assert begun == made[longest].first(70) and not parent.future.done()
        before = engine.stats
        prefix = prompt + begun.token_ids
        await parent.fork(70, Sampling(8, seed=6))
        await parent
        made_since = engine.stats.since(before)
        return len(prefix), made_since.num_prefix_tokens - made_since.num_computed_tokens

    length, reused = asyncio.run(fork())
    assert reused == (length - 1) // BLOCK_SIZE * BLOCK_SIZE >= 2 * BLOCK_SIZE


def test_a_fork_is_admitted_before_prompts_that_wait(engine, prompts):
    """Twelve times as many prompts as there are slots wait when it is asked; it would be the last of all."""
    ended: list[int] = []

    async def note(number: int, pending) -> None:
        await pending
        ended.append(number)

    async def ask() -> None:
        parent = engine.extend(prompts[0], Sampling(80, seed=0))
        count = 12 * engine.stats.num_slots
        asked = (engine.extend(prompts[k % len(prompts)], Sampling(10, seed=k)) for k in range(count))
        waiting = [asyncio.ensure_future(note(k, pending)) for k, pending in enumerate(asked)]
        await parent.reach(2)
        await asyncio.gather(note(-1, parent.fork(2, Sampling(3, seed=1))), note(-2, parent), *waiting)

    asyncio.run(ask())
    assert ended.index(-1) < 4 * engine.stats.num_slots


def test_new_weights_are_followed_after_refresh_and_not_before(policy, engine, prompts, moved):
    samplings = [Sampling(60, seed=seed) for seed in range(len(prompts))]
    engine.generate(prompts[:1], samplings[:1])  # whatever was pending has the moved weights now
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.3)
    stale = differences(policy, prompts, engine.generate(prompts, samplings))
    engine.refresh(4)
    fresh = differences(policy, prompts, engine.generate(prompts, samplings))
    print(f"not pushed: mean {stale.mean():.2e}; pushed: max {fresh.max():.2e}, mean {fresh.mean():.2e} nats")
    assert engine.policy_version == 4
    assert float(stale.mean()) > 0.02 and float(fresh.max()) < 1e-3 and float(fresh.mean()) < 1e-4


def test_refresh_forgets_keys_and_values(engine, prompts):
    prefix = prompts[0] + prompts[1] + prompts[2] + prompts[3]
    one = Sampling(4, seed=0)

    def reused() -> int:
        before = engine.stats
        engine.generate([prefix], [one])
        found = engine.stats.since(before)
        return found.num_prefix_tokens - found.num_computed_tokens

    assert [reused(), reused()] == [0, (len(prefix) - 1) // BLOCK_SIZE * BLOCK_SIZE]
    engine.refresh(1)
    assert reused() == 0


def test_adapters_are_pushed_as_merged_weights(prompts):
    policy = load_policy(playground.PATH, "float32", "cpu", False, adapters=PolicySettings(lora_rank=4))
    engine = build_engine(RolloutConfig.of(engine="vllm", max_num_seqs=8), policy, max_length=256)
    samplings = [Sampling(40, seed=seed) for seed in range(8)]
    engine.generate(prompts[:1], samplings[:1])  # it is awake, with the weights of now
    with torch.no_grad():
        for name, weight in policy.trained().items():
            if "lora_B" in name:
                weight.normal_(0.0, 0.05)
    stale = differences(policy, prompts[:8], engine.generate(prompts[:8], samplings))
    engine.refresh(1)
    fresh = differences(policy, prompts[:8], engine.generate(prompts[:8], samplings))
    assert float(stale.max()) > 0.05 and float(fresh.max()) < 1e-3


def test_cancelling_leaves_nothing_behind(engine, prompts):
    samplings = [Sampling(60, seed=0, temperature=0.0)] * len(prompts)
    expected = engine.generate(prompts, samplings)

    async def cancel_every_third() -> list:
        tasks = [asyncio.ensure_future(engine.extend(p, s)) for p, s in zip(prompts, samplings, strict=True)]
        for _ in range(7):
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="sequences in flight: await or cancel them first"):
            engine.refresh(9)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = asyncio.run(cancel_every_third())
    assert all(isinstance(one, asyncio.CancelledError) for one in ended[::3])
    kept = [(one, other) for place, (one, other) in enumerate(zip(ended, expected, strict=True)) if place % 3]
    assert len(kept) == 32 and all(one.token_ids == other.token_ids for one, other in kept)
    assert not engine.in_flight
    assert engine._llm.get_num_unfinished_requests() == 0
    engine.refresh(0)


def test_logprobs_that_are_not_numbers_reach_everyone(policy, engine, prompts):
    weight = policy.model.model.norm.weight.data
    good = weight.clone()
    weight[3] = math.nan
    engine.refresh(1)

    async def ask() -> list:
        return await asyncio.gather(*(engine.extend(p, Sampling(9, seed=0)) for p in prompts), return_exceptions=True)

    seen = asyncio.run(ask())
    weight.copy_(good)
    assert len(seen) == 48 and all(isinstance(one, FloatingPointError) for one in seen)
    engine.refresh(2)
    assert float(differences(policy, prompts, engine.generate(prompts, [GREEDY] * 48)).max()) < 1e-4


def test_starting_leaves_threads_and_random_states_as_they_were(policy):
    set_threads, threads, state = torch.set_num_threads, torch.get_num_threads(), torch.random.get_rng_state()
    VllmEngine(playground.PATH, weights_of(policy), eos_token_id=EOS, max_length=64, max_num_seqs=2)
    assert torch.set_num_threads is set_threads and torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_that_do_not_arrive_are_noticed(policy, monkeypatch):
    """Without the tied output layer's second name vLLM keeps a packed copy of random weights."""
    names = {name for name, _ in policy.named_weights()}
    assert "lm_head.weight" not in names and "lm_head.weight" in checkpoint_weights(policy)
    monkeypatch.setattr("fairlen.policy.engines.checkpoint_weights", lambda policy: dict(policy.named_weights()))
    with pytest.raises(ValueError, match="did not take all of its weights"):
        build_engine(RolloutConfig.of(engine="vllm", max_num_seqs=2), policy, max_length=64)
