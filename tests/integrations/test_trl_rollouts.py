"""Files of TRL's runs and of ours in it: what docs/rollouts/programs.md names and says gets lost, and which method made them."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
import pyarrow.parquet as pq
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer, RLOOConfig
from trl_runs import ScriptedFair, ScriptedStock, config, parts, scripted

from fairlen import playground
from fairlen.audit.method_in_use import InUse, find_method
from fairlen.audit.readers import Options, read
from fairlen.methods.compose import compose, explain

PAGE = (Path(__file__).parents[2] / "docs/rollouts/programs.md").read_text().split("\n## TRL\n")[1].split("\n## ")[0]


def settings() -> dict:
    """Of the page's call of GRPOConfig."""
    block = re.search(r"^    (GRPOConfig\(.*?^    \))", PAGE, re.S | re.M)
    assert block
    call = ast.parse(re.sub(r"^    ", "", block[1].replace("…", ""), flags=re.M), mode="eval").body
    assert isinstance(call, ast.Call)
    return {one.arg: ast.literal_eval(one.value) for one in call.keywords}


def test_the_settings_exist():
    fields = set(GRPOConfig.__dataclass_fields__)
    assert set(settings()) == {"output_dir", "log_completions", "logging_steps"} <= fields
    assert GRPOConfig.__dataclass_fields__["logging_steps"].default == 10
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=[^`]*)?`", PAGE)) - {"accuracy_reward", "is_correct"}
    assert {"max_completion_length", "eval_strategy", "num_iterations", "reward_weights"} <= named
    others = {"dapo_verl", "environment_factory", "log_extra"}  # a method, arguments of trainer and reward functions
    assert named - others <= fields
    assert "log_completions" in RLOOConfig.__dataclass_fields__


def run(out: Path, monkeypatch, **changes) -> list[str]:
    """Names of the files of three steps with the page's settings."""
    monkeypatch.chdir(out)
    set_seed(0)
    asked = {"max_steps": 3, "num_completions_to_print": 0, **settings(), **changes}
    made = parts(asked.pop("output_dir"), **asked)
    if "eval_strategy" in changes:
        made["eval_dataset"] = made["train_dataset"].select(range(40, 44))
    GRPOTrainer(**made).train()
    return sorted(path.name for path in Path("out/completions").iterdir())


def prompts_of(name: str) -> set[str]:
    return set(pq.read_table(f"out/completions/{name}")["prompt"].to_pylist())


@pytest.mark.slow
def test_it_writes_every_rollout_batch_and_the_audit_reads_them(tmp_path, monkeypatch):
    names = run(tmp_path, monkeypatch)
    assert names == [f"completions_{step:05d}.parquet" for step in (1, 2, 3)] and f"out/completions/{names[0]}" in PAGE
    folder = str(Path(playground.PATH))
    (source,) = read(["out/completions"], Options(tokenizer=folder, max_response_length=60)).sources
    assert source.format.name == "trl" and source.log.unit == "tokens"
    assert len(source.log) == 3 * 4 * 4 and source.log.responses.num_prompts == 3 * 4
    assert "truncated" in source.log.known and "advantage" in source.log.known


@pytest.mark.slow
def test_logging_less_often_loses_rollout_batches(tmp_path, monkeypatch):
    assert run(tmp_path, monkeypatch, logging_steps=3) == ["completions_00003.parquet"]
    assert len(prompts_of("completions_00003.parquet")) == 4  # of 12


@pytest.mark.slow
def test_an_evaluation_takes_the_place_of_its_steps_rollouts(tmp_path, monkeypatch):
    evaluated = parts(tmp_path)["train_dataset"].select(range(40, 44))["prompt"]
    changes = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 16}
    names = run(tmp_path, monkeypatch, **changes)
    assert [prompts_of(name) == set(evaluated) for name in names] == [False, True, False, True]


SAVING = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "log_completions": True}


def in_use(folder: Path) -> InUse | None:
    """Of the completions that a run has written."""
    sources = read([str(folder / "completions")]).sources
    return find_method([file for source in sources for file in source.files])


@pytest.mark.parametrize(
    ("settings", "name", "aggregation"),
    [
        ({}, "TRL: loss_type=dapo", "token_mean_update"),
        ({"loss_type": "dr_grpo"}, "TRL: loss_type=dr_grpo", "constant_budget"),
    ],
    ids=["default", "dr_grpo"],
)
def test_a_run_of_trl_is_known_by_its_training_arguments(tmp_path, settings, name, aggregation):
    """torch.save writes them into every checkpoint, with the default of that version of TRL."""
    ScriptedStock(**scripted(tmp_path, **SAVING, **settings)).train()
    found = in_use(tmp_path)
    assert found is not None and (found.name, found.aggregation) == (name, aggregation)
    assert found.origin == str(tmp_path / "checkpoint-1" / "training_args.bin")


def test_the_trainer_of_rloo_is_known_by_its_class(tmp_path):
    given = {
        key: value for key, value in config(tmp_path).to_dict().items() if key in ("output_dir", "use_cpu", "bf16")
    }
    torch.save(RLOOConfig(**given), tmp_path / "training_args.bin")
    found = find_method([str(tmp_path / "completions" / "1.parquet")])
    assert found is not None and (found.name, found.aggregation) == ("TRL: loss_type=rloo", "token_sum")


OWN = replace(compose("dapo", ["sampling.n=4"]), aggregation=compose("grpo+balanced").aggregation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "overrides", "name", "aggregation"),
    [
        ("grpo+balanced", ["sampling.n=4"], "grpo+balanced --set sampling.n=4", "balanced"),
        (explain("dapo+balanced", ["sampling.n=4"]), [], "dapo+balanced", "balanced"),
        (OWN, [], "a method of its own with balanced", "balanced"),
    ],
    ids=["name", "composition", "value"],
)
def test_a_run_with_a_method_is_known_by_it(tmp_path, method, overrides, name, aggregation):
    """Not by TRL's loss_type, which stands in the same folder and is not used."""
    ScriptedFair(**scripted(tmp_path, **SAVING), method=method, overrides=overrides).train()
    found = in_use(tmp_path)
    assert found is not None and (found.name, found.aggregation) == (name, aggregation)
    assert (found.method is not None) == (not name.startswith("a method of its own"))
    assert (tmp_path / "checkpoint-1" / "training_args.bin").is_file()
    (tmp_path / "run.json").unlink()
    assert in_use(tmp_path) is None
