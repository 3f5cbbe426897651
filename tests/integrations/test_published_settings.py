"""Settings of five training scripts that people published for TRL: one list of refusals each, by whose remedies they train."""

import ast
import re
import tomllib
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from trl import GRPOConfig
from trl_runs import parts, problems, right

from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.integrations.trl.settings import prepare

SCRIPTS = tomllib.loads((Path(__file__).parent / "published_settings.toml").read_text())["trl"]
HERE = {"use_cpu": True, "bf16": False, "tf32": None, "report_to": "none"}
"""Settings of this machine."""
SMALL = {"max_steps": 2, "max_completion_length": 60, "save_strategy": "no", "disable_tqdm": True}
"""The size of a run in a test."""


def make_config(script: dict[str, Any], settings: dict[str, Any], out: Path, **changes: Any) -> GRPOConfig:
    """Return TRL's configuration on one process, which has the batches of all processes of the script."""
    known = {name: value for name, value in settings.items() if name not in script["of_old_versions"]}
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size"):
        if name in known:
            known[name] *= script.get("processes", 1)
    return GRPOConfig(**{**known, **HERE, "output_dir": str(out), **changes})


def list_problems(error: ValueError) -> list[str]:
    """Return the problems that an error lists; a single one has no number."""
    _, *numbered = re.split(r"\n  \d+\. ", str(error))
    return numbered or [str(error)]


def apply_remedies(problems: list[str], method: str, settings: dict[str, Any]) -> tuple[str, list[str], dict[str, Any]]:
    """Return the method, its overrides and the settings after every remedy that the problems name, and nothing else."""
    settings, overrides = dict(settings), list[str]()
    for problem in problems:
        if found := re.search(r"give (\w+)=(True|False)", problem):
            settings[found[1]] = ast.literal_eval(found[2])
        elif found := re.search(r"leave (\w+) out, and add '(\+\w+)' to the method with overrides=(\[.*\])", problem):
            del settings[found[1]]
            method += found[2]
            overrides += ast.literal_eval(found[3])
        else:
            raise AssertionError(f"no remedy that can be applied: {problem}")
    return method, overrides, settings


def refuse(script: dict[str, Any], out: Path) -> list[str]:
    """Return the problems of a script's settings; none if they are taken."""
    try:
        prepare(script["method"], (), make_config(script, script["settings"], out), False)
    except ValueError as error:
        return list_problems(error)
    return []


@pytest.fixture(params=SCRIPTS, ids=[script["id"] for script in SCRIPTS])
def script(request) -> dict[str, Any]:
    return request.param


def test_every_script_has_its_source(script):
    repository, path, commit = script["source"].split()
    assert repository.count("/") == 1 and path and re.fullmatch("[0-9a-f]{40}", commit)


def test_settings_that_are_not_tried_are_those_that_trl_does_not_take(script, tmp_path):
    """One of them is a setting of GRPOConfig that it refuses beside another one."""
    unknown = script["settings"].keys() - {field.name for field in fields(GRPOConfig)}
    assert unknown <= set(script["of_old_versions"])
    for name in set(script["of_old_versions"]) - unknown:
        with pytest.raises(ValueError, match=name):
            make_config(script, script["settings"], tmp_path, **{name: script["settings"][name]})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed, which the scripts ask for")
def test_all_refusals_are_one_list_by_whose_remedies_the_settings_are_taken(script, tmp_path):
    problems = refuse(script, tmp_path)
    assert [problem.partition("=")[0] for problem in problems] == script["refused"]
    method, overrides, settings = apply_remedies(problems, script["method"], script["settings"])
    composition, config = prepare(method, overrides, make_config(script, settings, tmp_path), False)
    assert composition.method.sampling.num_tracks == settings["num_generations"] == config.num_generations
    assert composition.method.mask_truncated == settings.get("mask_truncated_completions", False)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed, which the script asks for")
def test_a_script_trains_after_its_remedies(tmp_path):
    """The one with a KL, which has two refusals; its batch, learning rate, schedule and seed stay."""
    script = next(one for one in SCRIPTS if one["id"] == "countdown")
    method, overrides, settings = apply_remedies(refuse(script, tmp_path), script["method"], script["settings"])
    assert (method, overrides) == ("grpo+kl", ["terms.ReferenceKL.coefficient=0.04"])
    made = parts(tmp_path) | {"args": make_config(script, settings, tmp_path, **SMALL), "train_dataset": problems()}
    trainer = FairGRPOTrainer(**made | {"reward_funcs": right}, method=method, overrides=overrides)
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert trainer.state.global_step == 2 and norms and max(norms) > 0
    assert trainer.args.beta == 0.04 and trainer.ref_model is not None
