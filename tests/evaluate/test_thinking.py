"""Thinking between special tokens: an evaluation, a run, the recipe for TRL and verl's reward grade what follows `</think>`."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lines import write_lines
from loops import over
from small_eval import small
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from fairlen.channels import after_thinking, decode_response, list_hidden_ids
from fairlen.evaluate.start import start_evaluation
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

WORDS = ["<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "so", r"\boxed{1}", r"\boxed{2}"]
SPECIALS = WORDS[1:5]
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}<|im_start|> <think>"


def make_tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token="<unk>",
        additional_special_tokens=[word for word in SPECIALS if word != "<|im_end|>"], chat_template=TEMPLATE,
    )  # fmt: skip


def write_model(folder: Path, response: list[str], logit: float = 1.0) -> Path:
    """Write a Qwen3 whose greedy response is given, after a prompt that ends with `<think>`.

    Its layer adds nothing: embeddings are one-hot, and row j of the output matrix is `logit` times the embedding of the word
    before j. The norm of a one-hot vector of 16 numbers makes its 1 a 4, so that the next word leads by 4 * `logit` nats.
    """
    make_tokenizer().save_pretrained(folder)
    size = 16
    config = Qwen3Config(
        vocab_size=len(WORDS), hidden_size=size, intermediate_size=size, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=size, max_position_embeddings=64, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(len(WORDS), size))
        model.lm_head.weight.zero_()
        for before, after in zip(["<think>", *response], response, strict=False):
            model.lm_head.weight[WORDS.index(after), WORDS.index(before)] = logit
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "response, correct",
    [
        (["so", "</think>", r"\boxed{2}", "<|im_end|>"], 1.0),
        ([r"\boxed{2}", "</think>", r"\boxed{1}", "<|im_end|>"], 0.0),  # the right one within the thinking
        (["so", r"\boxed{2}", "<|im_end|>"], 0.0),  # the thinking is not closed
    ],
    ids=["closed", "incorrect", "open"],
)
def test_an_evaluation_grades_what_follows_the_thinking(tmp_path, response, correct):
    model = write_model(tmp_path / "model", response)
    data = write_lines(tmp_path / "sums.jsonl", {"problem": "so", "answer": "2"})
    settings = {"model": str(model), "data": (str(data),), "samples": 1, "temperature": 0.0, "max_response_length": 8}
    summary = start_evaluation(small(tmp_path / "out", **settings))
    assert summary["sets"]["sums"]["scores"]["avg@1"]["value"] == correct


RIGHT, WRONG = ["so", "</think>", r"\boxed{2}", "<|im_end|>"], [r"\boxed{2}", "</think>", r"\boxed{1}", "<|im_end|>"]


@pytest.mark.slow
@pytest.mark.parametrize("response, accuracy", [(RIGHT, 1.0), (WRONG, 0.0)], ids=["closed", "incorrect"])
def test_a_run_grades_what_follows_the_thinking(tmp_path, response, accuracy):
    """The next word leads by 40 nats, so that sampling at temperature 1 draws it."""
    model = write_model(tmp_path / "model", response, logit=10.0)
    data = write_lines(tmp_path / "sums.jsonl", *({"problem": f"so {i}", "answer": "2"} for i in range(8)))
    config = TrainConfig.of(
        model=str(model), data=(str(data),), method="grpo", overrides=("sampling.n=2",), prompts_per_batch=2,
        rollout_batches=1, max_response_length=8, problems=1, save_every=0, eval_every=0, threads=1, max_num_seqs=4,
        out=str(tmp_path / "run"),
    )  # fmt: skip
    start_training(config)
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [entry["accuracy/mean"] for entry in entries if "accuracy/mean" in entry] == [accuracy]


@pytest.mark.slow
def test_the_recipe_for_trl_grades_what_follows_the_thinking(tmp_path):
    """TRL's completions lack special tokens, `</think>` among them: the recipe reads the token ids."""
    pytest.importorskip("trl")
    from recipes.trl_verified import TrlConfig, start_trl

    model = write_model(tmp_path / "model", RIGHT, logit=10.0)
    data = write_lines(tmp_path / "sums.jsonl", *({"problem": f"so {i}", "answer": "2"} for i in range(8)))
    config = TrlConfig.of(model=str(model), data=(str(data),), method="grpo", verifier_weight=1.0, train_problems=2)
    flags = (
        "--output_dir", str(tmp_path / "out"), "--bf16", "False", "--max_steps", "1", "--num_generations", "2",
        "--per_device_train_batch_size", "4", "--max_completion_length", "8", "--report_to", "none", "--logging_steps", "1",
    )  # fmt: skip
    start_trl(config, list(flags))
    entries = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert entries[0]["accuracy/mean"] == 1.0


@over(
    "words, starts_inside, answer",
    [
        ("so </think> x <|im_end|>", True, "x"), ("so x <|im_end|>", True, None), ("<think> x <|im_end|>", False, None),
        ("<think> so </think> x", False, "x"), ("x <|im_end|>", False, "x"),
    ],
)  # fmt: skip
def test_marks_of_thinking_stay_and_other_special_tokens_do_not(words, starts_inside, answer):
    tokenizer = make_tokenizer()
    token_ids = tokenizer(words.replace("x", r"\boxed{1}"))["input_ids"]
    text = decode_response(tokenizer, token_ids, list_hidden_ids(tokenizer))
    assert "<|im_end|>" not in text
    assert after_thinking(text, starts_inside) == (answer and answer.replace("x", r"\boxed{1}"))


@over(
    "text, rest",
    [
        ("[THINK]a[/THINK]b", "b"), ("[THINK]a", None), ("<seed:think>a</seed:think>b", "b"),
        ("<|channel|>analysis a<|end|>assistant<|channel|>final b", " b"), ("<|channel|>analysis a", None),
        ("[1, 2] and <b>", "[1, 2] and <b>"),
    ],
)  # fmt: skip
def test_marks_of_several_models_are_known(text, rest):
    assert after_thinking(text) == rest


@pytest.mark.slow
def test_verls_reward_grades_what_follows_the_thinking(tmp_path):
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

    import fairlen.integrations.verl.reward_manager  # noqa: F401  registers it
    from fairlen.integrations.verl.data import compute_score, data_rows
    from fairlen.integrations.verl.settings import REWARD_MANAGER

    data = write_lines(tmp_path / "sums.jsonl", {"problem": "so", "answer": "2"})
    (row,) = data_rows((str(data),), starts_inside=True)
    columns = {name: np.array([row[name]], object) for name in ("data_source", "reward_model", "extra_info")}
    tokenizer = make_tokenizer()

    async def grade(words: str) -> float:
        token_ids = torch.tensor([tokenizer(words)["input_ids"]])
        mask = torch.ones(1, 1 + token_ids.shape[1], dtype=torch.int64)
        tensors = {"prompts": token_ids[:, :1], "responses": token_ids, "attention_mask": mask}
        manager = get_reward_manager_cls(REWARD_MANAGER)(OmegaConf.create({}), tokenizer, compute_score)
        return (await manager.run_single(DataProto.from_dict(tensors, columns)))["reward_score"]

    async def grade_all() -> list[float]:
        return [
            await grade(text) for text in (r"so </think> \boxed{2}", r"\boxed{2} </think> \boxed{1}", r"so \boxed{2}")
        ]

    assert asyncio.run(grade_all()) == [1.0, 0.0, 0.0]
