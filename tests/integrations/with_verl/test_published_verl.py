"""Settings of five training scripts that people published for verl: one list of refusals each, by whose remedies they run."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from verl_jobs import SETTINGS, run

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from hydra import compose, initialize_config_dir

from fairlen.integrations.verl.keys import find_folder
from fairlen.integrations.verl.launch import VerlConfig, collect, find_missing, find_refusals
from fairlen.integrations.verl.settings import OPTIMIZER, PROMPTS, REHEARSAL, key_of

SCRIPTS = tomllib.loads((Path(__file__).parents[1] / "published_settings.toml").read_text())["verl"]
NOWHERE = Path("/nowhere")
VLLM = "actor_rollout_ref.rollout.name=vllm"
SIZES = (
    "data.train_files", "data.val_files", "data.gen_batch_size", "data.max_prompt_length", "data.max_response_length",
    "actor_rollout_ref.model.path", "actor_rollout_ref.ref.fsdp_config", "actor_rollout_ref.actor.fsdp_config",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.max_num_batched_tokens", "actor_rollout_ref.rollout.gpu_memory_utilization",
    "trainer.default_local_dir", "trainer.total_epochs",
)  # fmt: skip
"""Settings that a rehearsal has no room for, beside those that --cpu sets: what is trained on, its sizes, memory and folders."""


def apply_remedies(problems: list[str], given: list[str]) -> tuple[list[str], list[str]]:
    """Return the overrides of verl and of the method after every remedy that the problems name, and nothing else."""
    given, fields = list(given), list[str]()
    for problem in problems:
        text = next(text for text in given if problem.startswith((f"{text}:", f"{text} ")))
        place = given.index(text)
        fields += re.findall(r"--set (\S+=[\d.e-]+)", problem)
        if found := re.search(r"; write (\S+)=…", problem):
            given[place] = f"{found[1]}={text.partition('=')[2]}"
        else:
            assert "leave it out" in problem, f"no remedy that can be applied: {problem}"
            del given[place]
    return given, fields


@pytest.fixture(params=SCRIPTS, ids=[script["id"] for script in SCRIPTS])
def script(request) -> dict[str, Any]:
    return request.param


def test_every_script_has_its_source(script):
    repository, path, commit = script["source"].split()
    assert repository.count("/") == 1 and path and re.fullmatch("[0-9a-f]{40}", commit)


def test_all_refusals_are_one_list_by_whose_remedies_the_job_is_made(script):
    """hydra then composes verl's settings of all that would start, and every value that was not refused reaches them."""
    config = VerlConfig(method=script["method"])
    with pytest.raises(ValueError) as refused:
        collect(config, script["settings"], NOWHERE)
    problems = re.split(r"\n  \d+\. ", str(refused.value))
    problems = problems[1:] or problems
    assert problems == list(find_refusals(config, script["settings"], NOWHERE))
    assert [problem.partition("=")[0] for problem in problems] == script["refused"]

    given, fields = apply_remedies(problems, script["settings"])
    method = script["method"] + "+dual_clip" * any("dual_clip" in field for field in fields)
    job = collect(VerlConfig(method=method, overrides=tuple(fields)), given, NOWHERE)
    assert set(given) < set(job)
    with initialize_config_dir(str(find_folder()), version_base=None):
        settings = compose("ppo_trainer", [text for text in job if not text.startswith("hydra.")])
    number = next(text for text in script["settings"] if key_of(text) == "actor_rollout_ref.rollout.n").partition("=")[
        2
    ]
    assert settings.actor_rollout_ref.rollout.n == int(number)
    assert settings.algorithm.adv_estimator == "fairlen" and settings.algorithm.fairlen.method == method


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed, which the scripts ask for")
def test_a_rehearsal_lacks_vllm_alone_and_goes_without_it(script):
    config = VerlConfig(method=script["method"], cpu=True)
    missing = list(find_missing(config, script["settings"]))
    assert [problem.partition(":")[0] for problem in missing] == [VLLM]
    given, _ = apply_remedies(missing, script["settings"])
    assert not list(find_missing(config, given))


@pytest.mark.ray
@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed, which the script asks for")
def test_a_script_rehearses_after_its_remedies(tmp_path, monkeypatch):
    """GSPO's: its bounds, sampling, optimizer and data settings stay; the machine and the sizes are those of --cpu."""
    script = next(one for one in SCRIPTS if one["id"] == "gspo-3b")
    config = VerlConfig(method=script["method"], cpu=True)
    problems = [*find_refusals(config, script["settings"], NOWHERE), *find_missing(config, script["settings"])]
    given, fields = apply_remedies(problems, script["settings"])
    assert not fields
    of_rehearsal = {key_of(text) for text in (*REHEARSAL, *PROMPTS, *OPTIMIZER)}
    kept = [text for text in given if key_of(text) not in of_rehearsal and not key_of(text).startswith(SIZES)]
    assert len(kept) > 30 and "actor_rollout_ref.actor.clip_ratio_high=0.0004" in kept
    monkeypatch.setitem(SETTINGS, "gspo", "sampling.n=16")
    metrics = run("gspo", tmp_path / "job", 2, given=("data.train_batch_size=4", *kept))
    assert all(one["actor/grad_norm"] > 0 for one in metrics)
