"""What each setting of GRPOConfig comes to: kept, taken over by the method with a word, or refused with the fix."""

from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
import numpy as np
import torch
from loops import over
from transformers import GenerationConfig
from trl_runs import ScriptedFair, config, parts, problems, right, scripted

from fairlen.integrations.trl.rows import Outcomes, choose_verdict, describe_verdict, refuse_infinite
from fairlen.integrations.trl.settings import as_list, find_data_problems, prepare, refuse_defaults
from fairlen.integrations.trl.trainer import FairGRPOTrainer, check_threshold
from fairlen.methods.method import Method
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.independent import Independent


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A package of that name, as far as looking for it goes."""
    if find_spec("vllm") is None:
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)


class Ready(NamedTuple):
    method: Method
    config: Any
    notes: tuple[str, ...]


def ready(method="grpo", overrides=(), allow=False, **changes):
    composition, adapted = prepare(method, overrides, config("unused", **changes), allow)
    return Ready(composition.method, adapted, composition.notes)


def notes(**changes) -> str:
    return "\n".join(ready(**changes).notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"top_p": 0.9, "top_k": 50, "min_p": 0.05},
            "top_p=0.9, top_k=50, min_p=0.05: .*over the whole vocabulary, so that ratios are off before any update; "
            "leave it at its default, give allow_truncated_sampling=True, or use `fairlen train`",
        ),
        ({"top_k": 50, "use_vllm": True}, "top_k=50: tokens are drawn from another distribution"),
        (
            {"generation_kwargs": {"max_new_tokens": 5}},
            "max_new_tokens=5: leave it out; max_completion_length is the limit",
        ),
        (
            {"method": "eqlen+grpo", "generation_kwargs": {"stop_token_ids": [7]}},
            r"stop_token_ids=\[7\] with EqLen.*: tracks go on until EOS or the max response length",
        ),
        (
            {"generation_kwargs": {"eos_token_id": 7}},
            "eos_token_id=7: .*padding behind it trains; leave it out, and set model",
        ),
        (
            {"beta": 0.04, "top_p": 0.9, "entropy_coef": 0.01, "generation_kwargs": {"eos_token_id": 7}},
            r"^4 settings cannot be taken:\n  1. beta=0.04 .*\n  2. .*eos_token_id=7.*\n  3. entropy_coef=0.01.*\n  4. top_p=0.9",
        ),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"generation_kwargs": {"typical_p": 0.9}}, "typical_p=0.9"),
        ({"use_vllm": True, "vllm_structured_outputs_regex": "a"}, "vllm_structured_outputs_regex=a"),
        ({"generation_kwargs": {"temperature": 0.5}}, r"temperature=0.5 with GRPOConfig\(temperature=1.0\)"),
        ({"generation_kwargs": {"do_sample": False}}, "do_sample=False"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold=0.5: leave it out"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2"),
        ({"entropy_coef": 0.01}, r"entropy_coef=0.01: leave it out and add '\+entropy'"),
        ({"beta": 0.04}, r"beta=0.04 but the method's KL coefficient is 0.0.*\+kl"),
        ({"method": "grpo+kl", "beta": 0.04}, "beta=0.04 but the method's KL coefficient is 0.001"),
    ],
)
def test_what_no_method_keeps_is_refused_with_the_fix(changes, message):
    with pytest.raises(ValueError, match=message):
        ready(**changes)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_missing_vllm_is_refused_with_all_else_before_a_model_is_loaded(tmp_path):
    """A model that does not exist would be the error if it were loaded first."""
    given = config(tmp_path, use_vllm=True, beta=0.04)
    with pytest.raises(
        ValueError, match=r"^2 settings.*\n  1. use_vllm=True: the package vllm is not installed.*\n  2. beta=0.04"
    ):
        FairGRPOTrainer(str(tmp_path / "none"), right, given, method="grpo", train_dataset=problems())


def test_what_contradicts_the_samplers_number_is_one_problem_among_others():
    """EqLen takes even numbers alone."""
    expected = r"^2 settings.*\n  1. num_generations=3: EqLen needs an even number.*\n  2. beta=0.04"
    with pytest.raises(ValueError, match=expected):
        ready("eqlen+grpo", num_generations=3, per_device_train_batch_size=6, beta=0.04)


def test_settings_that_state_what_happens_anyway_are_taken(tmp_path):
    """The tokens that end a response in TRL, its limit and its temperature; another value of each is refused."""
    made = parts(tmp_path)
    ends = {made["processing_class"].eos_token_id, *as_list(made["model"].generation_config.eos_token_id or [])}
    same = {"eos_token_id": sorted(ends), "max_new_tokens": 60, "max_tokens": 60, "temperature": 1.0}
    prepare("grpo", (), config(tmp_path, generation_kwargs=same), False, made)
    for name, value in (("eos_token_id", [*ends, 7]), ("max_new_tokens", 59), ("temperature", 0.9)):
        with pytest.raises(ValueError, match=f"{name}="):
            prepare("grpo", (), config(tmp_path, generation_kwargs={**same, name: value}), False, made)


def test_generation_settings_that_change_no_probability_are_kept_and_others_where_they_are_insisted_on():
    kept = {"temperature": 0.7, "do_sample": True, "num_beams": 1, "repetition_penalty": 1, "top_p": 1.0, "top_k": 0}
    assert ready(temperature=0.7, generation_kwargs={**kept, "use_cache": True, "stop_strings": ["#"]})
    assert ready(allow=True, top_p=0.9, generation_kwargs={"num_beams": 2})


def test_a_method_by_name_takes_the_number_of_answers_from_trl():
    assert ready("fspo", num_generations=8).method.sampling == Independent(8)
    assert ready("fspo", ["sampling.n=4"]).method.sampling == Independent(4)
    settings = ["sampling.survivor_reward=halving", "sampling.max_rounds=3"]
    assert ready("eqlen+grpo", settings, num_generations=8).method.sampling == EqLen(
        4, survivor_reward="halving", max_rounds=3
    )
    with pytest.raises(ValueError, match="num_generations=3: EqLen needs an even number"):
        ready("eqlen+grpo", num_generations=3, per_device_train_batch_size=6)


def test_what_a_models_generation_config_adds_is_refused():
    given, defaults = GenerationConfig(top_k=0, min_p=None), GenerationConfig(top_k=20, num_beams=1)
    refuse_defaults(given, defaults)  # top_k is the trainer's own
    defaults.min_p = 0.1
    with pytest.raises(
        ValueError, match=r"min_p=0.1 in the model's generation_config.*generation_kwargs=\{'min_p': 0.0\}"
    ):
        refuse_defaults(given, defaults)
    defaults.min_p, defaults.suppress_tokens = None, [3]
    with pytest.raises(ValueError, match=r"suppress_tokens=\[3\] in the model's.*take it out there"):
        refuse_defaults(given, defaults)


def test_the_threshold_is_half_of_what_a_row_could_be_worth():
    """Weights 1, 1 and -2. A function of mathematics and one of code: with one of them 0.5 is half, with both 1, with none 0."""
    nan = float("nan")
    rewards = torch.tensor(
        [[1, nan, nan], [nan, 0.4, nan], [1, 0.5, nan], [1, 0, nan], [nan, nan, -1], [nan, nan, nan]]
    )
    found = Outcomes.read(rewards, torch.tensor([1.0, 1.0, -2.0]), None, "abc")
    assert found.verdict[:5].tolist() == [1, 0, 1, 0, 1] and np.isnan(found.verdict[5])
    found = Outcomes.read(rewards, torch.tensor([1.0, 1.0, -2.0]), 1.2, "abc")
    assert found.verdict[:5].tolist() == [0, 0, 1, 0, 1] and np.isnan(found.verdict[5])


def test_a_function_named_accuracy_decides_what_is_correct():
    """Accuracy 0 and two of form 1: the sum, 2 of 3, is above half, and the response is incorrect."""
    rewards, names = (
        torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [float("nan"), 1.0, 1.0]]),
        ["accuracy_reward", "form", "tags"],
    )
    found = Outcomes.read(rewards, torch.ones(3), None, names, choose_verdict("", names))
    assert found.verdict[:2].tolist() == [0.0, 1.0] and np.isnan(found.verdict[2])
    assert found.outcome.tolist() == [2.0, 1.0, 2.0]
    found = Outcomes.read(rewards, torch.ones(3), None, names, choose_verdict("sum", names))
    assert found.verdict.tolist() == [1.0, 0.0, 1.0]  # the last applies to two, of which half is 1
    assert Outcomes.read(rewards, torch.ones(3), None, names, "form").verdict.tolist() == [1.0, 0.0, 1.0]


@over(
    "given, names, verdict",
    [
        ("", ["accuracy_reward", "form"], "accuracy_reward"), ("", ["correctness_reward_func", "xml"], "correctness_reward_func"),
        ("", ["right", "form"], "sum"), ("", ["accuracy"], "sum"), ("form", ["accuracy", "form"], "form"),
        ("sum", ["accuracy", "form"], "sum"), ("", ["inaccuracy", "form"], "sum"),
    ],
)  # fmt: skip
def test_which_function_decides(given, names, verdict):
    assert choose_verdict(given, names) == verdict


def test_a_run_states_what_counts_as_correct():
    assert describe_verdict("accuracy", ["accuracy", "form"], [1.0, 0.5], None) == "correct: accuracy is above 0.5"
    line = describe_verdict("sum", ["right", "form"], [1.0, 0.5], None)
    assert line.startswith("correct: 1 * right + 0.5 * form is above 0.75")
    with pytest.raises(ValueError, match="verdict='style': name one reward function of right, form"):
        choose_verdict("style", ["right", "form"])
    with pytest.raises(ValueError, match="accuracy_a and accuracy_b could each decide"):
        choose_verdict("", ["accuracy_a", "accuracy_b"])


def test_a_threshold_is_a_number_and_needed_without_a_positive_weight():
    check_threshold(None, torch.tensor([1.0, 0.5, -2.0]))
    check_threshold(0.2, torch.tensor([-1.0]))
    with pytest.raises(ValueError, match=r"correct_threshold=.*give a finite number"):
        check_threshold(float("nan"), torch.ones(1))
    with pytest.raises(ValueError, match=r"none is positive.*correct_threshold"):
        check_threshold(None, torch.tensor([0.0, -0.5]))


def test_the_playground_brings_its_length_unless_it_is_given():
    from recipes.trl_verified import TrlConfig, choose_length, read_trl_arguments

    def length(*flags: str, **settings: Any) -> int:
        chosen = choose_length(TrlConfig.of(**settings))
        return read_trl_arguments([*chosen, "--output_dir", "unused", "--bf16", "False", *flags], 0)[
            0
        ].max_completion_length

    assert length(task="playground:sums") == length() == 160
    assert length("--max-completion-length", "300") == 300
    assert choose_length(TrlConfig.of(data=("sums.jsonl",))) == choose_length(TrlConfig.of(task="mine.py:Sums")) == []


def test_a_bias_correction_of_the_kl_that_is_not_applied_is_said():
    """TRL's default; only where the method has a KL."""
    assert "use_bias_correction_kl=True" in "\n".join(ready("grpo+kl").notes)
    assert "use_bias_correction_kl" not in "\n".join(ready("grpo+kl", use_bias_correction_kl=False).notes)


def test_the_users_configuration_is_left_as_it_was():
    given = config("unused", mask_truncated_completions=True)
    composition, adapted = prepare("grpo+kl", (), given, False)
    assert given.mask_truncated_completions and given.beta == 0.0
    assert composition.method.mask_truncated and not adapted.mask_truncated_completions
    assert adapted.beta == 0.001  # TRL loads the reference model by it


def test_the_correction_for_vllm(vllm):
    assert "'+mismatch' to the method for a correction of each token" in notes(use_vllm=True)
    assert ready("grpo+mismatch", use_vllm=True).notes == ()
    bound = ready("grpo+mismatch", use_vllm=True, vllm_importance_sampling_clip_max=5.0).notes
    assert "vllm_importance_sampling_clip_max=5.0 is not used" in "\n".join(bound)
    assert ready(use_vllm=True, vllm_importance_sampling_correction=False).notes == ()


def test_streams_and_tools_do_not_go_together(tmp_path):
    with pytest.raises(ValueError, match="rollout_func with EqLen"):
        ScriptedFair(**scripted(tmp_path), method="eqlen+grpo", rollout_func=lambda prompts, trainer: {})


TURNED = """
from fairlen.tasks.playground import Playground, encode


class Turned(Playground):
    max_turns = 2

    def environment(self, problem, seed):
        raise AssertionError("not asked for")

    def encode_observation(self, text):
        return encode(text)


def make(tokenizer):
    return Turned()
"""


def test_a_task_in_turns_is_refused_before_anything_trains(tmp_path):
    """As responses of one turn its trajectories would be graded by a text that nobody asked for."""
    from recipes.trl_verified import TrlConfig, start_trl

    (tmp_path / "turned.py").write_text(TURNED)
    config = TrlConfig.of(model="playground", task=f"{tmp_path / 'turned.py'}:make")
    with pytest.raises(ValueError, match="solved in turns, which `fairlen train` plays"):
        start_trl(config, ["--output_dir", str(tmp_path / "out"), "--bf16", "False"])


def test_data_without_rows_or_prompts_is_refused_before_anything_trains():
    from datasets import Dataset

    good = Dataset.from_list([{"prompt": "1+1=", "answer": "2"}])
    assert not list(find_data_problems({"train_dataset": good, "eval_dataset": {"sums": good}}))
    routed = Dataset.from_list([{"environment": "maze"}])  # which asks by itself
    assert not list(find_data_problems({"train_dataset": routed, "environment_factory": {"maze": object}}))
    for name, given, words in (
        ("train_dataset", good.select([]), "train_dataset has no rows"),
        ("eval_dataset", {"sums": good, "none": good.select([])}, "eval_dataset has no rows"),
        (
            "train_dataset",
            good.rename_column("prompt", "question"),
            "columns question, answer and no `prompt`.*rename_column",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            prepare("grpo", (), config("unused"), False, {name: given})


def test_an_infinite_reward_is_told_by_function_and_response():
    with pytest.raises(ValueError, match="length gave -inf to response 1; give finite numbers, or None"):
        refuse_infinite(torch.tensor([[1.0, 0.0], [float("nan"), -float("inf")]]), ["accuracy", "length"])
