"""EqLen's pieces in TRL share what they continue: fewer positions, and the same gradient."""

from collections import Counter

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from test_trl_parity import relative
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from trl_runs import ScriptedFair, parts, problems, scripted, weights_of

from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.methods.compose import compose

AttentionInterface.register("of_a_user", sdpa_attention_forward)
AttentionMaskInterface.register("of_a_user", sdpa_mask)
LENGTH = max(Counter(map(len, problems()["prompt"])).items(), key=lambda item: item[1])[0]
SHAPES = {
    "one update": {"per_device_train_batch_size": 8},
    "small micro-batches": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
}


def train(folder, attention: str, name: str, shape: str):
    """Weights after a rollout batch of 4 prompts with two streams each, trained twice, its metrics and positions of updates."""
    made = scripted(folder, **SHAPES[shape], num_iterations=2, max_steps=2, learning_rate=1e-4)
    made["model"].set_attn_implementation(attention)
    # of one length: padding on the left would shift positions, whose rotations are float32
    made["train_dataset"] = made["train_dataset"].filter(lambda row: len(row["prompt"]) == LENGTH)
    trainer = ScriptedFair(**made, method=compose(name, ["sampling.streams=2"]))
    sizes: list[int] = []

    def count(_, args) -> None:
        if torch.is_grad_enabled():
            sizes.append(args[0].numel())

    trainer.model.get_input_embeddings().register_forward_pre_hook(count)
    start = weights_of(trainer)
    trainer.train()
    return trainer, weights_of(trainer) - start, sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eqlen+fspo", "eqlen+dapo+kl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_a_row_a_piece(name, shape, tmp_path):
    """Trees stand in for sdpa alone: with another attention every piece is a row of its own. The second update is off-policy."""
    (rows, moved_by_rows, many), (trees, moved, few) = (
        train(tmp_path / a, a, name, shape) for a in ("of_a_user", "sdpa")
    )
    assert trees.reader.is_installed and not rows.reader.is_installed
    assert moved.abs().max() > 1e-5 and relative(moved, moved_by_rows) < 1e-6
    assert sum(few) < 0.5 * sum(many)
    assert trees.method.state == pytest.approx(rows.method.state, rel=1e-6, abs=1e-6)  # log-probs are float32
    for ours, theirs in zip(trees.state.log_history[:2], rows.state.log_history[:2], strict=True):
        names = [name for name in ours if "/" in name]
        assert len(names) > 15 and names == [name for name in theirs if "/" in name]
        for key in names:
            # A ratio is exp of a sum over a sequence's log-probs, each of which float32 rounds by 1e-7.
            close = 1e-5 if key == "ratio/max" else 1e-6
            assert ours[key] == pytest.approx(theirs[key], rel=close, abs=close, nan_ok=True), key


@pytest.mark.slow
def test_streams_are_cut_as_the_settings_say(tmp_path):
    """Under top_k=1 all texts of a prompt are one: fairlen's engine, which cuts nothing, leaves them to TRL's generation."""
    texts: dict[str, set[str]] = {}

    def note(prompts, completions, **_):
        for prompt, text in zip(prompts, completions, strict=True):
            texts.setdefault(prompt, set()).add(text)
        return [float(len(text) % 2) for text in completions]

    made = parts(tmp_path, top_k=1, max_steps=1) | {"reward_funcs": note}
    FairGRPOTrainer(
        **made, method="eqlen+grpo", overrides=["sampling.streams=2"], allow_truncated_sampling=True
    ).train()
    assert len(texts) == 4 and all(len(found) == 1 for found in texts.values())
