"""Dropout is off in training: ratios begin at 1 for a model whose config asks for it, and the control is a model with it on."""

import json

import pytest
import torch
from loops import over
from shapes import SHAPE, TOKENIZER, write_reward, write_shape
from train.runs import small, updates_of
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, OPTConfig

from fairlen.policy import model as loading
from fairlen.policy.model import find_dropout, load_policy, turn_off_dropout
from fairlen.settings import PolicySettings
from fairlen.train.start import start_training

ENDS = dict(
    bos_token_id=TOKENIZER.bos_token_id, eos_token_id=TOKENIZER.eos_token_id, pad_token_id=TOKENIZER.pad_token_id
)
GPT2 = GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=4, n_positions=512, **ENDS)
CONFIGS = {
    "modules": GPT2,
    "numbers": LlamaConfig(**SHAPE, attention_dropout=0.3),
    "layers": OPTConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        word_embed_proj_dim=32, max_position_embeddings=512, layerdrop=0.5, dropout=0.1, **ENDS,
    ),
}  # fmt: skip


@over("name", CONFIGS)
def test_in_training_a_model_says_what_it_says_when_it_draws(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    token_ids = torch.randint(0, len(TOKENIZER), (2, 40))

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(token_ids).logits

    drawn = model.eval() and logits()
    assert not torch.equal(model.train() and logits(), drawn)  # the control: with dropout it says something else
    turn_off_dropout(model)
    assert torch.equal(model.train() and logits(), drawn)
    assert list(find_dropout(model)) == []


def test_the_config_that_is_saved_stays(tmp_path):
    place = write_shape(tmp_path / "model", GPT2)
    policy = load_policy(place, "float32", "cpu", False, random_init=True, adapters=PolicySettings(lora_rank=4))
    policy.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/config.json").read_text())["resid_pdrop"] == 0.1
    assert list(find_dropout(policy.model)) == []


@pytest.mark.slow
def test_a_run_that_learns_nothing_has_ratios_of_1(tmp_path, monkeypatch):
    """Two updates of each rollout batch at a rate of 1e-12, so that the second one is off-policy by nothing."""

    def run(name: str) -> dict[str, float]:
        changes = dict(
            method="fspo",
            rollout_batches=1,
            eval_every=0,
            save_every=0,
            problems=1,
            samples=1,
            learning_rate=1e-12,
            max_response_length=30,
        )
        config = small(tmp_path / name, model=place, random_init=True, rewards=(write_reward(tmp_path),), **changes)
        start_training(config)
        return updates_of(tmp_path / name)[-1]

    place = write_shape(tmp_path / "model", GPT2)
    still = run("still")
    assert still["ratio/max"] == pytest.approx(1.0, abs=1e-4) and still["ratio/clipped"] == 0.0
    monkeypatch.setattr(loading, "turn_off_dropout", lambda model: None)
    assert run("noisy")["ratio/max"] > 1.05  # the control
