"""Steps in C are the model's own arithmetic, of each row for itself, and of no model but those they know."""

import numpy as np
import pytest
import torch
from loops import over
from peft import LoraConfig, get_peft_model
from small_engines import EOS, ask, build, differences, engine_of, prompts
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from fairlen.engine import Engine, fused
from fairlen.engine.engine import Runner
from fairlen.sampling.extend import Sampling

LONG = dict(
    vocab_size=41, hidden_size=128, intermediate_size=576, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True, eos_token_id=EOS,
)  # fmt: skip
COLUMNS = 70
UNTIED = {"tie_word_embeddings": False, "vocab_size": 1200, "num_key_value_heads": 4}
LLAMA = dict(
    mlp_bias=False, hidden_size=288, head_dim=32, num_attention_heads=9, num_key_value_heads=3, vocab_size=1200
)


def draw(**changes: object) -> PreTrainedModel:
    """Random weights of the shape that long answers are studied with; norms away from 1, at which they would not count."""
    torch.manual_seed(0)
    kind = LlamaConfig if "mlp_bias" in changes else Qwen3Config
    model = AutoModelForCausalLM.from_config(kind(**{**LONG, **changes})).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return model


def runner_of(model: PreTrainedModel, num_rows: int, autocast: bool = False) -> Runner:
    """A runner of rows whose columns hold numbers of the size of keys and values."""
    runner = Runner(model, num_rows, 1, COLUMNS, autocast)
    generator = torch.Generator().manual_seed(1)
    for tensor in runner.rows.tensors:
        tensor.normal_(generator=generator)
    return runner


def ragged(num_rows: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and positions from the first to the last column."""
    generator = torch.Generator().manual_seed(2)
    positions = torch.randint(0, COLUMNS, (num_rows,), generator=generator)
    positions[0], positions[-1] = 0, COLUMNS - 1
    return torch.randint(0, vocab, (num_rows,), generator=generator), positions


def logprobs_of(runner: Runner, fed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Of the head, by the model's own step."""
    with runner.borrowed():
        logits = runner._logits(fed, positions, runner.columns[:COLUMNS], runner.columns[: len(fed)])
    return torch.log_softmax(logits, -1)


@pytest.mark.slow
@over("num_rows, threads", [(1, 0), (15, 1), (70, 0), (70, 3)])
@over("changes", [{}, UNTIED, {"head_dim": 8, "hidden_size": 36}, LLAMA])
def test_steps_in_c_are_steps_of_the_model(num_rows, threads, changes, monkeypatch):
    """Threads share outputs where there are any; 0: one thread, as for a small model."""
    monkeypatch.setattr(fused, "LARGE", 0 if threads else fused.LARGE)
    torch.set_num_threads(max(threads, 1))
    model = draw(**changes)
    runner, (fed, positions) = runner_of(model, num_rows), ragged(num_rows, model.config.vocab_size)
    assert runner.fused is not None
    made = torch.log_softmax(runner.fused(fed, positions, runner.origins, runner.shared), -1)
    stored = [tensor.clone() for tensor in runner.rows.tensors]
    expected = logprobs_of(runner, fed, positions)
    assert (made - expected).abs().max() <= 1e-5
    assert max((one - two).abs().max() for one, two in zip(stored, runner.rows.tensors, strict=True)) <= 1e-5
    # the bound can be missed: one column less is another distribution
    assert (made - logprobs_of(runner, fed, (positions - 1).clamp(min=1))).abs().max() > 1e-3


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_computed_for_itself_to_the_bit(threads):
    """Whoever else runs, in whatever order, and however many threads share the rows."""
    model, count = draw(), 70
    fed, positions = ragged(count, model.config.vocab_size)
    torch.set_num_threads(threads)
    runner = runner_of(model, count)
    kept = [tensor.clone() for tensor in runner.rows.tensors]
    whole = runner.fused(fed, positions, runner.origins, runner.shared)
    for rows in ([5], [69], list(range(17)), list(reversed(range(70)))):
        for tensor, old in zip(runner.rows.tensors, kept, strict=True):
            tensor[: len(rows)] = old[rows]
        part = runner.fused(fed[rows].contiguous(), positions[rows].contiguous(), runner.origins, runner.shared)
        assert torch.equal(part, whole[rows])


@pytest.mark.slow
def test_what_is_read_elsewhere_is_what_a_row_has(monkeypatch):
    """Prompts and continuations beyond the kept rows, which are evicted and written again; bit by bit, as without sharing."""
    rng, model, seen, decode = np.random.default_rng(0), draw(), [], Runner.decode
    starts = [tuple(rng.integers(3, 41, size).tolist()) for size in (1, 9, 17, 30)]
    requests = [starts[n % 4] + tuple(rng.integers(3, 41, n % 3 * 4).tolist()) for n in range(24)]

    def check_and_decode(self, rows, num_rows):
        self.shared[:num_rows][rows["position"][:num_rows] < self.shared[:num_rows]] = 0
        for slot, (origin, count) in enumerate(zip(self.origins[:num_rows], self.shared[:num_rows], strict=True)):
            seen.append(count)
            assert all(torch.equal(one[slot, :, :count], one[origin, :, :count]) for one in self.rows.tensors)
        return decode(self, rows, num_rows)

    def generate():
        engine = Engine(model, eos_token_id=EOS, max_length=96, max_num_seqs=5, kept_rows=3)
        first = engine.generate(requests, [Sampling(3 + n % 11, seed=n) for n in range(24)])
        again = [prompt + tuple(made.token_ids) for prompt, made in zip(requests, first, strict=True)]
        made = engine.generate(again, [Sampling(9, seed=n) for n in range(24)])
        return [(one.token_ids, one.logprobs) for one in made]

    alone = monkeypatch.setattr(Runner, "_share", lambda self, admission: None) or generate()
    monkeypatch.undo()
    monkeypatch.setattr(Runner, "decode", check_and_decode)
    assert generate() == alone and len(seen) > 100 and np.mean(np.array(seen) >= 8) > 0.3


@pytest.mark.slow
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="tiles of bfloat16 are of few processors")
@over("changes", [{}, LLAMA])
def test_steps_of_tiles_round_their_operands_as_autocast_does(changes, monkeypatch):
    """Under autocast results of products are rounded too: tiles are nearer to float32, of which both are within 2^-8 or so."""
    monkeypatch.setattr(fused, "LARGE", 0)
    torch.set_num_threads(2)
    model = draw(**{"vocab_size": 1200} | changes)
    low, runner, (fed, positions) = runner_of(model, 70, True), runner_of(model, 70), ragged(70, 1200)
    assert low.fused is not None
    exact = logprobs_of(runner, fed, positions)
    made = torch.log_softmax(low.fused(fed, positions, low.origins, low.shared), -1)
    cast = logprobs_of(low, fed, positions)
    assert 0 < (made - exact).abs().mean() <= (cast - exact).abs().mean() <= 0.02
    assert (made - exact).abs().max() <= 0.2


def test_a_copy_in_bfloat16_follows_the_weights_and_leaves_the_model_alone():
    model, prefix = draw(), (3, 5, 7)
    engine = Engine(model, eos_token_id=EOS, max_length=32, max_num_seqs=2, autocast=True)
    weights = list(model.parameters())
    before = engine.generate([prefix], ask(1))[0].logprobs
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    engine.refresh(1)
    after = engine.generate([prefix], ask(1))[0].logprobs
    assert before != after
    assert all(one is two for one, two in zip(weights, model.parameters(), strict=True))
    assert {weight.dtype for weight in weights} == {torch.float32}


@pytest.mark.slow
def test_weights_that_lie_elsewhere_are_read_there():
    model = draw()
    runner, (fed, positions) = runner_of(model, 3), ragged(3, 41)
    before = runner.fused(fed, positions, runner.origins, runner.shared)
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1
    made = torch.log_softmax(runner.fused(fed, positions, runner.origins, runner.shared), -1)
    assert (made - logprobs_of(runner, fed, positions)).abs().max() <= 1e-5
    assert (made - torch.log_softmax(before, -1)).abs().max() > 1e-3


def with_adapter() -> PreTrainedModel:
    model = build("qwen3")
    get_peft_model(model, LoraConfig(target_modules=["q_proj"]))  # puts its layers into the model itself
    return model


def with_own_forward() -> PreTrainedModel:
    model = build("qwen3")
    layer = model.model.layers[0].mlp
    layer.forward = type(layer).forward.__get__(layer)
    return model


UNKNOWN = {
    "another architecture": lambda: build("gemma2"), "float64": lambda: build("qwen3", torch.float64),
    "an adapter": with_adapter, "a forward of its own": with_own_forward, "biases": lambda: draw(attention_bias=True),
    "another activation": lambda: draw(hidden_act="gelu"),
    "a window": lambda: draw(use_sliding_window=True, sliding_window=8, max_window_layers=2),
    "scaled positions": lambda: draw(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
    "heads of 12": lambda: draw(head_dim=12),
}  # fmt: skip


@pytest.mark.slow
@over("name", UNKNOWN)
def test_other_models_run_as_they_are(name):
    model, prefixes = UNKNOWN[name](), prompts(6)
    engine = engine_of(model)
    assert engine._runner.fused is None
    assert differences(model, prefixes, engine.generate(prefixes, ask(6))).max() <= 1e-4


@pytest.mark.slow
def test_an_adapter_is_noticed_at_the_next_refresh():
    model = build("qwen3")
    engine = engine_of(model)
    assert engine._runner.fused is not None
    get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    engine.refresh(1)
    assert engine._runner.fused is None


def test_hooks_see_every_step():
    model, prefix, seen = build("qwen3"), prompts(1)[0], []
    engine = engine_of(model)
    before = engine.generate([prefix], ask(1))[0]
    hook = model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    engine.refresh(1)
    assert engine.generate([prefix], ask(1))[0].token_ids == before.token_ids
    assert len(seen) >= len(before.token_ids)
    hook.remove()
    count = len(seen)
    assert engine.generate([prefix], ask(1))[0] == before and len(seen) == count


def test_without_a_compiler_the_model_runs(monkeypatch):
    model, prefixes = build("qwen3"), prompts(6)
    expected = engine_of(model).generate(prefixes, ask(6))
    monkeypatch.setenv("CC", "no-such-compiler")
    fused.build.cache_clear()
    engine = engine_of(model)
    assert engine._runner.fused is None
    made = engine.generate(prefixes, ask(6))
    fused.build.cache_clear()
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
