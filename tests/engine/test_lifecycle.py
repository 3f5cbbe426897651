"""Being borrowed leaves no trace on the model; errors and cancellations reach exactly those whom they concern."""

import asyncio

import pytest
import torch
from loops import over
from small_engines import EOS, VOCAB, ask, build, engine_of, prompts
from transformers import AutoModelForCausalLM, BloomConfig, LlamaConfig, MambaConfig, PreTrainedModel

from fairlen.engine import Engine
from fairlen.sampling.extend import Continuation, Sampling

PROMPT = (2, 5, 9, 4)


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Of a training loss, in training mode, with dropout from a fixed seed."""
    model.zero_grad()
    torch.manual_seed(3)
    tokens = torch.tensor(prompts(8)[0] + PROMPT * 3)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def with_dropout() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        attention_dropout=0.5, initializer_range=0.3, eos_token_id=EOS,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.slow
def test_training_is_unaffected_and_dropout_is_off():
    model = with_dropout()
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    before = gradients(model)
    assert any(not torch.equal(before[name], other) for name, other in gradients_without_dropout(model).items())
    samples = engine_of(model).generate([PROMPT] * 9, ask(9))
    after = gradients(model)
    assert all(torch.equal(before[name], after[name]) for name in before) and before.keys() == after.keys()
    assert [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == "sdpa"
    assert samples == engine_of(model.eval()).generate([PROMPT] * 9, ask(9))


def gradients_without_dropout(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The control: dropout would show."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    result = gradients(model)
    for module, mode in modes.items():
        module.training = mode
    return result


@pytest.mark.slow
def test_training_may_run_between_steps(qwen3):
    engine, expected = engine_of(qwen3), gradients(qwen3)
    alone = engine_of(qwen3).generate([PROMPT], [Sampling(12, seed=0, temperature=0.0)])

    async def both() -> tuple[Continuation, int]:
        running = asyncio.ensure_future(engine.extend(PROMPT, Sampling(12, seed=0, temperature=0.0)))
        rounds = 0
        while not running.done():
            assert all(torch.equal(expected[name], grad) for name, grad in gradients(qwen3).items())
            rounds += 1
            await asyncio.sleep(0)
        return await running, rounds

    made, rounds = asyncio.run(both())
    assert made == alone[0] and rounds > len(made.token_ids)


def test_an_error_reaches_everyone_who_waits_and_the_engine_recovers(qwen3):
    engine, calls = engine_of(qwen3, max_num_seqs=3), []
    qwen3.train()

    def fail_later(*_: object) -> None:
        calls.append(1)
        if len(calls) == 6:
            raise OSError("out of order")

    async def outcomes() -> list[Continuation | BaseException]:
        return await asyncio.gather(
            *(engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0)) for _ in range(10)), return_exceptions=True
        )

    hook = qwen3.model.layers[1].register_forward_pre_hook(fail_later)
    seen = asyncio.run(outcomes())
    hook.remove()
    assert len(seen) == 10 and all(isinstance(one, OSError) for one in seen)
    assert qwen3.config._attn_implementation == "sdpa" and all(module.training for module in qwen3.modules())
    assert engine.generate([PROMPT], ask(1)) == engine_of(qwen3).generate([PROMPT], ask(1))


@over("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_raise(qwen3, value):
    engine = engine_of(qwen3)
    good = qwen3.model.norm.weight.data.clone()
    qwen3.model.norm.weight.data[3] = value
    with pytest.raises(FloatingPointError, match="logits of Qwen3ForCausalLM are not finite after"):
        engine.generate([PROMPT], ask(1))
    qwen3.model.norm.weight.data.copy_(good)
    assert engine.generate([PROMPT], ask(1)) == engine_of(qwen3).generate([PROMPT], ask(1))


def test_cancelling_frees_the_slot(qwen3):
    engine = engine_of(qwen3, max_num_seqs=2)

    async def cancel_some() -> tuple[list[Continuation], int]:
        endless = [
            asyncio.ensure_future(engine.extend(PROMPT, Sampling(50, seed=s, temperature=0.0))) for s in range(4)
        ]
        for _ in range(6):
            await asyncio.sleep(0)
        steps = engine.stats.num_steps
        assert steps > 0
        for task in endless:  # two run, two wait
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*endless, return_exceptions=True)
        )
        made = await asyncio.gather(*(engine.extend(PROMPT, s) for s in ask(2, 3, temperature=0.0)))
        return made, engine.stats.num_steps - steps

    made, steps = asyncio.run(cancel_some())
    assert made == engine_of(qwen3).generate([PROMPT] * 2, ask(2, 3, temperature=0.0))
    assert steps <= 5  # three tokens each, both slots free at once


def test_survivors_of_a_cancellation_go_on_unchanged(qwen3):
    engine, prefixes, samplings = engine_of(qwen3), prompts(12), ask(12, 30, temperature=0.0)

    async def cancel_every_third() -> list[Continuation | BaseException]:
        tasks = [asyncio.ensure_future(engine.extend(*pair)) for pair in zip(prefixes, samplings, strict=True)]
        for _ in range(7):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    seen = asyncio.run(cancel_every_third())
    expected = engine_of(qwen3).generate(prefixes, samplings)
    for place, (one, other) in enumerate(zip(seen, expected, strict=True)):
        if isinstance(one, asyncio.CancelledError):
            assert place % 3 == 0
        else:
            assert one.token_ids == other.token_ids
    assert any(isinstance(one, asyncio.CancelledError) for one in seen)


@pytest.mark.slow
def test_one_engine_serves_one_loop_after_the_other(qwen3):
    engine = engine_of(qwen3)
    abandoned = asyncio.new_event_loop()

    async def wait() -> Continuation:
        return await engine.extend(PROMPT, Sampling(40, seed=0))

    task = abandoned.create_task(wait())
    for _ in range(6):
        abandoned.run_until_complete(asyncio.sleep(0))
    with pytest.raises(RuntimeError, match="serves another event loop"):
        engine.generate([PROMPT], ask(1))
    task.cancel()
    abandoned.run_until_complete(asyncio.gather(task, return_exceptions=True))
    abandoned.run_until_complete(asyncio.sleep(0.01))
    abandoned.close()
    assert engine.generate([PROMPT], ask(1)) == engine_of(qwen3).generate([PROMPT], ask(1))


REQUESTS = (
    ((), Sampling(4, 0), "prefix is empty: give at least one token"),
    ((2, VOCAB), Sampling(4, 0), "prefix holds token id 32, outside the model's vocabulary of 32"),
    ((2, -1), Sampling(4, 0), "prefix holds token id -1"), ((2, 3), Sampling(0, 0), "max_new_tokens=0: ask for at least 1"),
    ((2, 3), Sampling(63, 0), "max_new_tokens=63 exceeds max_length=64: ask for at most 62"),
    ((2, 3), Sampling(4, 0, temperature=-1.0), "temperature=-1.0: give 0 for greedy"),
    ((2, 3), Sampling(4, 0, temperature=float("nan")), "temperature=nan"), ((2, 3), Sampling(4, 0, top_p=0.0), "top_p=0.0"),
    ((2, 3), Sampling(4, 0, top_k=-1), "top_k=-1"), ((2, 3), Sampling(4, 0, min_p=1.5), "min_p=1.5"),
)  # fmt: skip
ENGINES = (
    ({"max_num_seqs": 0}, "max_num_seqs=0"), ({"kept_rows": 0}, "kept_rows=0"), ({"max_length": 1}, "max_length=1"),
    ({"eos_token_id": ()}, "eos_token_id=()"), ({"eos_token_id": None}, "eos_token_id=None"),
    ({"eos_token_id": 32}, "eos_token_id=32: outside the model's vocabulary of 32"), ({"compile": "yes"}, "compile='yes'"),
)  # fmt: skip


@over("request_", REQUESTS)
def test_requests_that_cannot_be_served(qwen3, request_):
    prefix, sampling, message = request_
    with pytest.raises(ValueError, match=message):
        engine_of(qwen3).generate([prefix], [sampling])


@over("options", ENGINES)
def test_engines_that_cannot_be_built(qwen3, options):
    with pytest.raises(ValueError) as error:
        engine_of(qwen3, **options[0])
    assert options[1] in str(error.value)


def test_models_whose_state_is_not_attention_alone():
    for config in (
        MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1),
        BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2),
    ):
        model = AutoModelForCausalLM.from_config(config)
        with pytest.raises(ValueError, match=f"{type(model).__name__}.*cannot run it: give --engine vllm .*TRL"):
            Engine(model, eos_token_id=EOS, max_length=16)


def test_a_model_that_ignores_its_cache_is_noticed():
    model = build("qwen3")
    forward = model.forward
    model.forward = lambda **inputs: forward(**{**inputs, "position_ids": None})
    with pytest.raises(ValueError, match="differs from its plain forward"):
        engine_of(model)
