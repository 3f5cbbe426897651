"""Whatever is wrong with a model's folder: one line that names it, and no traceback."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlen import playground
from fairlen.cli import main

WEIGHTS = "model.safetensors"


def change(name: str, **values) -> Callable[[Path], None]:
    """Sets values of a JSON file."""

    def apply(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return apply


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        change(weights)
        save_file(weights, folder / WEIGHTS, {"format": "pt"})

    return apply


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content) and None
    )


def cut(size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / WEIGHTS, size)


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


NORM = "model.layers.0.input_layernorm.weight"
INDEX = "model.safetensors.index.json"


def point_elsewhere(index: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        shutil.move(folder / WEIGHTS, folder / "one.safetensors")
        (folder / INDEX).write_text(json.dumps(index))

    return apply


DAMAGES: dict[str, Callable[[Path], None]] = {
    "weights are cut off": cut(100_000), "weights are empty": cut(0), "weights end in the header": cut(40),
    "weights are noise": write(WEIGHTS, bytes(range(256)) * 100), "weights are missing": remove(WEIGHTS),
    "a weight is missing": change_weights(lambda weights: weights.pop(NORM)),
    "a weight has another shape": change_weights(lambda weights: weights.update({NORM: torch.zeros(3)})),
    "weights are whole numbers": change_weights(lambda weights: weights.update({NORM: torch.zeros(128, dtype=torch.int64)})),
    "a weight is nan": change_weights(lambda weights: weights[NORM].fill_(float("nan"))),
    "the index is empty": point_elsewhere({}),
    "the index names what is not there": point_elsewhere({"metadata": {}, "weight_map": {NORM: "two.safetensors"}}),
    "the index has a list": point_elsewhere({"metadata": {}, "weight_map": [NORM]}),
    **{f"{name} is {what}": write(name, text) for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
       for what, text in {"no json": "{", "empty": "", "a list": "[]", "a number": "7", "bytes": b"\xff\xfe\x00"}.items()},
    "generation_config.json is a list": write("generation_config.json", "[]"),
    "config.json is missing": remove("config.json"), "config.json is deep": write("config.json", "[" * 100_000),
    "no tokenizer": remove("tokenizer.json", "tokenizer_config.json"), "no tokenizer.json": remove("tokenizer.json"),
    "another type": change("config.json", model_type="no_such_type"), "no type": change("config.json", model_type=None),
    "a width of text": change("config.json", hidden_size="wide"), "a width of 0": change("config.json", hidden_size=0),
    "another width": change("config.json", hidden_size=256), "no heads": change("config.json", num_attention_heads=0),
    "more layers": change("config.json", num_hidden_layers=5), 
    "a vocabulary of 10**12": change("config.json", vocab_size=10**12),
    "an activation that is none": change("config.json", hidden_act="no_such"),
    "a rope that is none": change("config.json", rope_parameters=7),
    "layer types of another length": change("config.json", layer_types=["full_attention"]),
    "an end beyond the vocabulary": change("generation_config.json", eos_token_id=10**6),
    "another class of tokenizer": change("tokenizer_config.json", tokenizer_class="NoSuchTokenizer"),
    "a quantization that is none": change("config.json", quantization_config={"quant_method": "no_such"}),
    "a quantization without a package": change("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
}  # fmt: skip
LOADED = {
    "weights are whole numbers", "a width of text", "a quantization that is none", "another class of tokenizer",
}  # fmt: skip
"""Damages after which a command may work all the same."""


@pytest.fixture
def copied(tmp_path) -> Path:
    return Path(shutil.copytree(playground.PATH, tmp_path / "model"))


def say(command: list[str], copied: Path, tmp_path: Path, capsys) -> tuple[int | str, str]:
    """The exit code and stderr, or the name of the error that got through."""
    flags = ["--model", str(copied), "--out", str(tmp_path / "out"), *["--threads", "1", "--max-response-length", "8"]]
    capsys.readouterr()
    try:
        code: int | str = main([*command, *flags])
    except Exception as error:
        code = f"{type(error).__name__}: {error}"
    return code, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_model_is_one_line(copied, tmp_path, capsys, damage):
    DAMAGES[damage](copied)
    code, said = say(["eval", "--samples", "1", "--problems", "4"], copied, tmp_path, capsys)
    assert code in ((0, 2) if damage in LOADED else (2,)), said
    assert code == 0 or ([line[:12] for line in said.splitlines()] == ["fairlen eval"] and len(said) < 2000)


@pytest.mark.parametrize(
    "damage", ["weights are cut off", "a weight has another shape", "tokenizer.json is no json", "another width"]
)
def test_a_training_run_says_the_same(copied, tmp_path, capsys, damage):
    DAMAGES[damage](copied)
    code, said = say(["train", "--rollout-batches", "1"], copied, tmp_path, capsys)
    assert code == 2 and [line[:13] for line in said.splitlines()] == ["fairlen train"]


def test_a_quantized_model_is_one_line(copied, tmp_path, capsys):
    """As bitsandbytes leaves it: with the package it loads, as bytes that nothing here trains; without it it does not load."""
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_compute_dtype": "float32"}
    change("config.json", quantization_config=settings)(copied)
    code, printed = say(["train", "--task", "playground"], copied, tmp_path, capsys)
    said = [line for line in printed.splitlines() if line.startswith("fairlen")]
    assert code == 2 and len(said) == 1 and f"model={copied}: " in said[0] and "bitsandbytes" in said[0]
