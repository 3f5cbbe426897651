"""A model's folder is hostile: no code of it runs, nobody is asked, and nothing but its own safetensors is read as weights."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loops import first_quickly
from safetensors.torch import load_file

from fairlen import playground
from fairlen.cli import main
from fairlen.policy.model import load_policy

EVIL = """open({mark!r}, "w").write("ran")
from transformers import PreTrainedTokenizerFast as T, Qwen3Config as C, Qwen3ForCausalLM as M
"""
ROOT = Path(__file__).parents[2]
SMALL = {
    "eval": "--max-response-length 8 --samples 1 --problems 4 --threads 1 --out",
    "train": "--rollout-batches 1 --prompts-per-batch 2 --max-response-length 8 --problems 2 --samples 1 "
    "--threads 1 --set sampling.n=2 --out",
    "trl": "--train-problems 2 --num-generations 2 --per-device-train-batch-size 2 --max-completion-length 8 --report-to none "
    "--bf16 False --max-steps 1 --output-dir",
    "verl": "--cpu --dry-run --out",
}
ALONE = "weights are read from *.safetensors in the model's own folder alone"


def change(path: Path, **values) -> None:
    """Sets values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def copied(tmp_path) -> Path:
    """A copy of the shipped model."""
    return Path(shutil.copytree(playground.PATH, tmp_path / "model"))


def hide_code(folder: Path, model_type: str) -> Path:
    """Lets the folder name code of its own, which leaves a mark; returns where."""
    mark = folder / "MARK"
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    change(
        folder / "config.json",
        model_type=model_type,
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"},
    )
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    return mark


@pytest.mark.parametrize("model_type", ["qwen3", "of_its_own"])
def test_code_of_a_model_is_not_run_whatever_standard_input_says(copied, tmp_path, capsys, monkeypatch, model_type):
    """qwen3 is a type that transformers has a class for; the other one only the folder has."""
    mark = hide_code(copied, model_type)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    flags = SMALL["eval"].split()
    code = main(["eval", "--model", str(copied), *flags, str(tmp_path / "out")])
    said = capsys.readouterr()
    assert not mark.exists() and "Do you wish" not in said.out
    assert code == (0 if model_type == "qwen3" else 2)
    assert model_type == "qwen3" or ("model=" in said.err and len(said.err.splitlines()) == 1)


DAILY = [("of_its_own", "eval"), ("qwen3", "train"), ("of_its_own", "trl"), ("qwen3", "verl")]
NIGHTLY = [("qwen3", "eval"), ("of_its_own", "train"), ("qwen3", "trl"), ("of_its_own", "verl")]


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "command"), first_quickly([*DAILY, *NIGHTLY], len(DAILY), "nightly"))
def test_nobody_is_asked_by_any_command(copied, tmp_path, command, model_type):
    mark = hide_code(copied, model_type)
    program = f"-m fairlen {command}" if command != "trl" else ROOT / "recipes/trl_verified.py"
    line = f"yes y | {sys.executable} {program} --model {copied} {SMALL[command]} {tmp_path / 'out'}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert not mark.exists() and "Do you wish" not in done.stdout + done.stderr
    if model_type == "qwen3" and command != "verl":
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        told = [text for text in done.stderr.splitlines() if text.startswith(f"fairlen {command}")]
        assert done.returncode == 2 and len(told) == 1 and "Traceback" not in done.stderr


def shard(folder: Path, place: str) -> None:
    """Stores the weights in torch's own format at `place`, named by an index for safetensors."""
    weights = load_file(folder / "model.safetensors")
    (folder / place).parent.mkdir(exist_ok=True)
    torch.save(weights, folder / place)
    (folder / "model.safetensors").unlink()
    write_index(folder, dict.fromkeys(weights, place))


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refusal(folder: Path) -> str:
    """Why a folder is refused; empty where it is loaded."""
    try:
        load_policy(folder, "float32", "cpu", False)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("place", ["weights.bin", "../other/weights.bin"])
def test_torchs_own_format_is_not_read(copied, place):
    shard(copied, place)
    assert f"names {place!r}: {ALONE}" in refusal(copied)


@pytest.mark.parametrize("place", ["../other/model.safetensors", "sub/model.safetensors", "{root}/model.safetensors"])
def test_weights_outside_of_the_folder_are_not_read(copied, tmp_path, place):
    place = place.format(root=tmp_path / "other")
    (copied / place).parent.mkdir(exist_ok=True)
    names = list(load_file(copied / "model.safetensors"))
    shutil.move(copied / "model.safetensors", copied / place)
    write_index(copied, dict.fromkeys(names, place))
    assert ALONE in refusal(copied)
    (copied / "model.safetensors.index.json").unlink()
    change(copied / "config.json", transformers_weights="../elsewhere.safetensors")
    assert ALONE in refusal(copied)
    # adapters would be read from adapter_model.bin, where there is one
    change(copied / "config.json", transformers_weights=None)
    (copied / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "some/model"})
    )
    assert "adapter_config.json is there" in refusal(copied)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("random_init", [False, True])
def test_a_config_does_not_choose_the_attention(copied, name, random_init):
    change(copied / "config.json", **{name: "somebody/kernel"})
    try:
        policy = load_policy(copied, "float32", "cpu", False, random_init=random_init)
        found = policy.model.config._attn_implementation
    except Exception as error:
        found = str(error)
    assert found == "sdpa"
