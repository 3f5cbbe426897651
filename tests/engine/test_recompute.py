"""The engine for models whose state is not attention alone: what it returns, who runs together, and how it fails."""

import asyncio

import pytest
import torch
from loops import first_quickly
from small_engines import EOS, SHAPE, ask, build, differences, engine_of, prompts
from transformers import AutoModelForCausalLM, Lfm2Config, Mamba2Config, PreTrainedModel, Qwen3NextConfig

from fairlen.engine import Engine, RecomputingEngine
from fairlen.engine.engine import StateError
from fairlen.sampling.extend import Sampling

CONFIGS = {
    "qwen3_next": lambda: Qwen3NextConfig(
        **SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "mamba2": lambda: Mamba2Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=1, expand=2,
        eos_token_id=EOS, initializer_range=0.3,
    ),
    "lfm2": lambda: Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
}  # fmt: skip
PADS = {"qwen3_next": True, "mamba2": False, "lfm2": True}


def draw(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32).eval()


def anew(model: PreTrainedModel, **options: int) -> RecomputingEngine:
    return RecomputingEngine(model, **{"eos_token_id": EOS, "max_length": 64, "max_num_seqs": 8, **options})


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return draw("qwen3_next")


@pytest.mark.parametrize("name", first_quickly(sorted(CONFIGS, key="mamba2".__eq__), len(CONFIGS) - 1))
def test_logprobs_are_those_of_a_plain_forward(name):
    own, prefixes = draw(name), prompts(20)
    with pytest.raises(StateError):
        Engine(own, eos_token_id=EOS, max_length=64)
    engine = anew(own)
    assert engine.pads == PADS[name]
    made = engine.generate(prefixes, ask(20))
    assert differences(own, prefixes, made).max() <= 1e-4
    assert {one.finish for one in made} == {"stop", "length"}
    assert engine.stats.num_generated_tokens == sum(len(one.token_ids) for one in made)


@pytest.mark.parametrize("pads", first_quickly([False, True]))
def test_it_draws_what_the_embedded_engine_draws(pads):
    """One (seed, position) is one uniform number, whoever asks; both engines run a model of attention alone."""
    own, prefixes = build("qwen3"), prompts(24)
    samplings = [Sampling(24, seed=i, temperature=(1.0, 0.7, 0.0)[i % 3], top_k=5 * (i % 2)) for i in range(24)]
    engine = anew(own)
    engine.pads = pads
    made, expected = (one.generate(prefixes, samplings) for one in (engine, engine_of(own)))
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    for one, other in zip(made, expected, strict=True):
        assert torch.allclose(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-5)


def test_never_more_rows_than_slots_and_rows_are_given_up(model):
    rows: list[int] = []
    engine = anew(model, max_num_seqs=6)
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    made = engine.generate(prompts(20), ask(20))
    hook.remove()
    assert max(rows) <= 6 and len(set(rows)) > 2
    # a cohort keeps at most as many rows that have ended as run: less than twice the tokens are computed
    assert sum(rows) < 2 * sum(len(one.token_ids) for one in made)


def test_whoever_is_cancelled_frees_his_row(model):
    engine = anew(model, max_num_seqs=2)

    async def cancel():
        tasks = [
            asyncio.ensure_future(wait(engine.extend(prefix, Sampling(50, seed=i))))
            for i, prefix in enumerate(prompts(6))
        ]
        await asyncio.sleep(0.05)
        for task in tasks[:5]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        return [type(one).__name__ for one in done]

    async def wait(pending):
        return await pending

    kinds = asyncio.run(cancel())
    assert kinds[-1] == "Continuation" and "CancelledError" in kinds
    engine.refresh(1)  # nothing is in flight


def test_a_cache_that_gives_other_logits_is_refused():
    own = draw("qwen3_next")
    layer = own.model.layers[0].linear_attn
    plain = layer.forward

    def forgetful(hidden_states, cache_params=None, **how):
        found = plain(hidden_states, cache_params=cache_params, **how)
        if cache_params is not None:
            cache_params.layers[0].recurrent_states.zero_()
        return found

    layer.forward = forgetful
    with pytest.raises(ValueError, match="decoded from its own cache differs from its plain forward"):
        anew(own)
