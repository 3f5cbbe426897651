"""What the audit finds beside the rollouts of TRL's own runs and of ours: the method that made them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from trl import RLOOConfig
from trl_runs import ScriptedFair, ScriptedStock, config, scripted

from fairlen.audit.method_in_use import InUse, find_method
from fairlen.audit.readers import read
from fairlen.methods.compose import compose, explain

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
