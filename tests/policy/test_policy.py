"""What a model must bring, and that its head is computed as the model itself does."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from fairlen import playground
from fairlen.policy.model import body, load_policy, make_head


def test_a_model_without_eos_says_where_to_set_it(policy):
    model = copy.deepcopy(policy.model)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match=r"eos_token_id=None.*generation_config.json"):
        _ = replace(policy, model=model, tokenizer=NoEos()).eos_token_ids


class NoEos:
    eos_token_id = None


def test_a_model_whose_generation_config_transformers_would_not_save_is_saved(tmp_path):
    folder = shutil.copytree(playground.PATH, tmp_path / "model")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": False, "temperature": 0.6}))
    load_policy(folder, "float32", "cpu", False).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/generation_config.json").read_text())["temperature"] == 0.6


def test_the_head_of_a_model_with_a_soft_cap_is_the_models_own():
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        found = make_head(model)(body(model)(input_ids=ids)[0])
    assert torch.allclose(found, expected, atol=1e-6)
    assert expected.abs().max() < 0.5  # the cap acts


def test_a_head_that_is_not_linear_in_the_hidden_states_is_refused():
    class Scaled(GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            found.logits = 2 * found.logits + 1
            return found

    with pytest.raises(ValueError, match="Scaled: its logits are not"):
        make_head(Scaled(GPT2Config(vocab_size=21, n_embd=16, n_layer=1, n_head=2, n_positions=32)))
