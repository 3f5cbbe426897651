"""TRL's environments with our methods: the shape of its echo example, whose tool calls and answers are played by a script."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from loops import first_quickly
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl_runs import config, weights_of

from fairlen.integrations.trl import FairGRPOTrainer

trl = pytest.importorskip("trl")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
WORDS = ("Hello World!", "TRL is great!")


class EchoEnvironment:
    """What TRL's own example has (trl, examples/scripts/openenv/echo_env_factory.py), with the server's answer computed here."""

    def reset(self, **_: Any) -> None:
        self.reward = 0.0

    def step(self, message: str) -> str:
        """Echo a message.

        Args:
            message: The message to echo.

        Returns:
            The echoed message.
        """
        self.reward = len(message) / 10
        return message

    def get_reward(self) -> float:
        """What the last step earned."""
        return self.reward


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the template of Qwen3 that TRL knows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({symbol: place for place, symbol in enumerate(alphabet)}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([*SPECIALS[:3]])
    core.add_tokens([*SPECIALS[3:]])
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        padding_side="left",
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )).double()  # fmt: skip


class Played(FairGRPOTrainer):
    """The first turn of every second response calls the tool; all others say something."""

    turns = 0

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        texts = []
        for place, ids in enumerate(prompt_ids):
            has_answer = "<tool_response>" in self.processing_class.decode(ids).rpartition("<|im_start|>user")[2]
            call = json.dumps({"name": "step", "arguments": {"message": WORDS[place % 4 // 2]}})
            texts.append(
                "done" if has_answer else f"<tool_call>\n{call}\n</tool_call>" if place % 2 else "no" * (place + 1)
            )
        self.turns += 1
        return [self.processing_class(f"{text}<|im_end|>")["input_ids"] for text in texts], None


def make(out: Path, method: str, **settings: Any) -> FairGRPOTrainer:
    tokenizer = build_tokenizer()
    asked = [[{"role": "user", "content": f"Make the environment echo {word!r}"}] for word in WORDS]
    return Played(
        model=build_model(tokenizer), processing_class=tokenizer, train_dataset=Dataset.from_dict({"prompt": asked * 2}),
        args=config(out, max_completion_length=400, num_generations=4, per_device_train_batch_size=4, max_steps=2, **settings),
        environment_factory=EchoEnvironment, method=method,
    )  # fmt: skip


@pytest.mark.parametrize("method", first_quickly(["dapo+balanced_turns", "dapo+balanced", "fspo", "grpo+toplambda"]))
def test_trls_environment_trains(method, tmp_path):
    """Only what the model wrote is counted and trained; the rewards are the environment's."""
    trainer = make(tmp_path, method)
    before, seen = weights_of(trainer), list[dict[str, Any]]()
    scored = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        seen.append(scored(inputs))
        return seen[-1]

    trainer._generate_and_score_completions = keep
    trainer.train()
    assert trainer.turns >= 2 * len(seen) > 0, "a first turn and one after the answer"
    assert not torch.equal(weights_of(trainer), before)
    tokenizer = trainer.processing_class
    for output in seen:
        ids, written = output["completion_ids"], (output["completion_mask"] * output["tool_mask"]).bool()
        read = output["completion_mask"].bool() & ~written
        for row in range(len(ids)):
            own, answer = tokenizer.decode(ids[row][written[row]]), tokenizer.decode(ids[row][read[row]])
            if row % 2:
                assert own.count("<|im_end|>") == 2 and "<tool_call>" in own and own.endswith("done<|im_end|>")
                assert "<tool_response>" in answer and WORDS[row % 4 // 2] in answer
            else:
                assert own.startswith("no") and answer == ""
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    # of four responses two call the tool, with 12 and 13 characters: (1.2 + 1.3) / 4
    assert [entry["reward"] for entry in history] == pytest.approx([0.625] * len(history))
    assert history[0]["tools/call_frequency"] == pytest.approx(0.5)
    assert history[0]["turns/mean"] == 1.5 and history[0]["length/truncated"] == 0.0


@pytest.mark.slow
def test_a_call_that_is_not_answered_is_truncated(tmp_path):
    """As a trajectory is in our own trainer that the limit on turns ends, though its last token is an EOS."""
    trainer = make(tmp_path, "grpo", max_tool_calling_iterations=0)
    trainer.train()
    assert next(entry for entry in trainer.state.log_history if "reward" in entry)["length/truncated"] == 0.5
