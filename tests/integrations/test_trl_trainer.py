"""What a user of GRPOTrainer relies on, with a method: verdicts, metrics, checkpoints, adapters, evaluation, tables."""

import json
import math
from random import Random

import numpy as np
import pytest
import torch
from loops import first_quickly

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
import pandas
from peft import LoraConfig, PromptTuningConfig
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl_runs import Scripted, ScriptedFair, graded, parts, problems, scripted, weights_of
from trl_runs import warnings as listen

from fairlen.audit.audit import audit
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.integrations.trl.generation import has_whole_model
from fairlen.metrics import index_metrics

DOCUMENTED = set(index_metrics())


def make(folder, method="grpo", trainer=ScriptedFair, options=(), **settings):
    reward = {key: settings.pop(key) for key in ("reward_funcs", "eval_dataset", "peft_config") if key in settings}
    return trainer(**(scripted(folder, **settings) | reward), method=method, **dict(options))


def rollout(trainer, num_prompts: int = 4):
    """One planned rollout batch."""
    trainer.model.train()
    inputs = [row for row in problems(num_prompts) for _ in range(trainer.num_generations)]
    return trainer._generate_and_score_completions(inputs)


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_a_row_without_a_reward_does_not_count(tmp_path):
    def picky(completion_ids, **_):
        return [None if sum(ids) % 3 == 2 else float(sum(ids) % 3 == 0) for ids in completion_ids]

    output = rollout(make(tmp_path, reward_funcs=picky))
    sums = (output["completion_ids"] * output["completion_mask"]).sum(1)
    trains, weight = output["fair_trains"][:, 0], output["fair_weight"][:, 0]
    assert (trains == (sums % 3 != 2)).all()
    # SequenceMean: the weights of a row's tokens sum to 1 / N, N the rows that count
    mass = (weight * output["completion_mask"].sum(1))[trains]
    assert mass.tolist() == pytest.approx([1 / len(mass)] * len(mass))


def test_every_metric_of_ours_is_documented_and_trls_own_stay(tmp_path):
    trainer = make(tmp_path, "eqlen+fspo", max_steps=2, num_iterations=2)
    trainer.train()
    names = {name for entry in trainer.state.log_history for name in entry if not name.startswith("train_")}
    ours = {name for name in names if "/" in name and not name.startswith(("completions/", "rewards/", "clip_ratio/"))}
    assert len(ours) > 40
    assert not ours - DOCUMENTED
    assert {"completions/mean_length", "rewards/graded/mean", "reward", "entropy", "clip_ratio/region_mean"} <= names
    assert logged(trainer, "ratio/inside")[0] == 1.0 > logged(trainer, "ratio/inside")[1]


def test_every_finished_text_is_scored_once(tmp_path):
    seen = []

    def count(completion_ids, **_):
        seen.extend(map(tuple, completion_ids))
        return graded(completion_ids)

    trainer = make(tmp_path, "eqlen+grpo", reward_funcs=count)
    rollout(trainer)
    tracks = 8 * 2 + int(trainer._metrics["train"]["pairs/formed"][0])  # each round but a stream's last starts a track
    assert 16 < len(seen) <= tracks
    max_response_length = trainer.max_completion_length
    assert all(len(ids) == max_response_length or ids[-1] == 1 for ids in seen)  # never a cut piece


@pytest.mark.slow
def test_more_rows_than_trl_asked_for_are_trained_a_part_at_a_time(tmp_path):
    """With room for 16 rows the pieces of 4 prompts are one part; with room for 2 they are many. The update is the same."""
    moved = []
    for rows, micro in ((16, 1), (2, 8)):
        settings = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": micro}
        trainer = make(tmp_path / str(rows), "eqlen+dapo", max_steps=1, **settings)
        trainer.reader.is_installed = False  # a row a piece, as for models that read no trees
        start = weights_of(trainer)
        trainer.train()
        moved.append(weights_of(trainer) - start)
        assert logged(trainer, "sequences/trained")[0] > 4
    assert moved[0].abs().max() > 1e-6
    assert float((moved[0] - moved[1]).abs().max() / moved[0].abs().max()) < 1e-5


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run_with_the_state_of_its_method(tmp_path):
    settings = {
        "num_iterations": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "shuffle_dataset": False,
    }  # fmt: skip
    whole = make(tmp_path / "whole", "fspo", **settings)
    whole.train()
    assert whole.method.state["surrogate.num_updates"] == 2
    assert (tmp_path / "whole" / "checkpoint-2" / "fairlen.json").is_file()
    again = make(tmp_path / "again", "fspo", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert again.method.state == pytest.approx(whole.method.state, rel=1e-9)
    assert float((weights_of(again) - weights_of(whole)).abs().max()) < 1e-9
    (tmp_path / "whole" / "checkpoint-2" / "fairlen.json").unlink()
    third = make(tmp_path / "third", "fspo", **settings)
    with pytest.raises(FileNotFoundError, match="no state of the method"):
        third.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))


def test_adapters_are_trained_and_the_reference_is_the_model_without_them(tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make(tmp_path, "fspo+kl", peft_config=lora, max_steps=2, num_iterations=2, learning_rate=1.0)
    assert trainer.ref_model is None and trainer.beta == 0.001
    trainer.train()
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0.0, abs=1e-12) and kl[1] > 0


def test_the_card_has_the_method_its_papers_and_the_audit_of_the_rollouts(tmp_path):
    trainer = make(tmp_path, "dapo+balanced", save_strategy="steps", save_steps=1)
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "trained using [TRL]" in card and "> not made: the run has not ended" in card
    trainer.train()
    card, (one,) = (tmp_path / "README.md").read_text(), audit([str(tmp_path)])[0]
    assert f"> {one.conclusion.status}: {one.conclusion.sentence}\n" in card and card.count("## Method") == 1
    assert "`dapo+balanced`" in card and "[arXiv:2605.04077](https://arxiv.org/abs/2605.04077)" in card


def grade_by_model(low: float, high: float):
    """Rewards as those of a reward model, between two numbers."""

    def reward_model(completion_ids, **_):
        return [low + (high - low) * (sum(ids) % 7) / 6 for ids in completion_ids]

    return reward_model


NOTHING = "nothing was trained in 3 rollout batches"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, rewards, said, remedy",
    [
        ("dapo", (-7.0, -2.0), f"{NOTHING} (48 responses: 0 correct, 48 incorrect", "set correct_threshold"),
        ("grpo", (0.0, 1.0), "every ratio of 3 rollout batches was 1", "num_iterations=2"),
        ("eqlen+dapo", (2.0, 9.0), NOTHING, "set correct_threshold"),
        ("grpo", (0.0, 0.0), f"{NOTHING} (48 responses: 0 correct, 48 incorrect", "easier problems"),
        ("grpo", (-7.0, -2.0), "every response of 3 rollout batches counts as incorrect (48", "set correct_threshold"),
    ],
)  # fmt: skip
def test_runs_that_learn_nothing_say_so_after_some_rollout_batches(method, rewards, said, remedy, tmp_path):
    """4 prompts of 4 responses in a rollout batch: 48 in three."""
    with listen() as warnings:
        options = {"max_extra_batches": 0}
        make(tmp_path, method, reward_funcs=grade_by_model(*rewards), max_steps=3, options=options).train()
    told = [text for text in warnings if said in text]
    assert len(told) == 1 and remedy in told[0]
    assert all(f" {choice} " in warnings[0] for choice in ("filter", "advantage", "surrogate", "aggregation"))
    assert "loss is near 0" in warnings[1] and "reward/mean is after" in warnings[1]


@pytest.mark.slow
def test_generation_that_leaves_the_model_in_training_ends_no_evaluation(tmp_path, monkeypatch):
    """As TRL's does with use_transformers_continuous_batching: the second part of the evaluation looked like training."""

    def leave_in_training(trainer, *arguments):
        trainer.first_occurrence = 0
        found = Scripted._generate_single_turn(trainer, *arguments)
        trainer.model.train()
        return found

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", leave_in_training)
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "per_device_eval_batch_size": 8}
    trainer = make(tmp_path, "grpo", FairGRPOTrainer, eval_dataset=problems(8), **settings)
    trainer.train()
    assert len(logged(trainer, "eval_reward")) == 2 and not trainer.model.training
    assert 0.0 <= logged(trainer, "eval_reward")[0] <= 1.0 and logged(trainer, "eval_completions/mean_length")


@pytest.mark.slow
def test_of_several_evaluation_sets_the_run_folder_has_the_first(tmp_path):
    sets = {"easy": problems(4, ("sums",)), "hard": problems(4, ("cups",))}
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1, "per_device_eval_batch_size": 8}
    trainer = make(tmp_path, eval_dataset=sets, options={"run_folder": True}, **settings)
    trainer.train()
    found = [line for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "eval/accuracy" in line]
    assert len(found) == 1 and logged(trainer, "eval_hard_loss")


def test_what_the_model_alone_does_not_say_is_left_to_trls_generation(tmp_path):
    kept = make(tmp_path / "one", options={"allow_truncated_sampling": True})
    assert has_whole_model(kept)
    other = make(tmp_path / "two", options={"allow_truncated_sampling": True}, repetition_penalty=5.0)
    assert not has_whole_model(other)
    tuned = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    prompted = make(tmp_path / "three", "eqlen+grpo", peft_config=tuned)
    assert not has_whole_model(prompted) and not prompted.reader.is_installed


@pytest.mark.parametrize("method", first_quickly(["grpo", "eqlen+grpo"]))
def test_the_table_of_completions_has_the_methods_advantages_and_what_reward_functions_log(method, tmp_path):
    def graded_and_logged(completion_ids, completions, log_extra, **_):
        log_extra("letters", [len(text) for text in completions])
        return graded(completion_ids)

    trainer = make(tmp_path, method, reward_funcs=graded_and_logged, max_steps=1, log_completions=True)
    trainer.train()
    (path,) = (tmp_path / "completions").glob("*.parquet")
    table = pandas.read_parquet(path)
    assert len(table) == 16 and (table["letters"] == table["completion"].str.len()).all()
    assert (table["advantage"] != 0).any()
    if method == "grpo":
        groups = table["graded_and_logged"].to_numpy().reshape(4, 4)
        spread = groups.std(1, keepdims=True)
        expected = np.divide(groups - groups.mean(1, keepdims=True), spread, out=np.zeros((4, 4)), where=spread > 0)
        assert table["advantage"].to_numpy() == pytest.approx(expected.ravel())


@pytest.mark.parametrize("method", first_quickly(["grpo", "eqlen+grpo"]))
def test_prompts_may_be_messages(method, tmp_path):
    def check(prompts, completions, **_):
        assert all(prompt[0]["role"] == "user" for prompt in prompts)
        return [float("1" in message["content"]) for (message,) in completions]

    made = scripted(tmp_path) | {"reward_funcs": check}
    made["processing_class"].chat_template = "{{ messages[0]['content'] }}"
    made["train_dataset"] = made["train_dataset"].map(
        lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]}
    )
    trainer = ScriptedFair(**made, method=method)
    trainer.train()
    assert 0.0 < logged(trainer, "accuracy/mean")[0] < 1.0


class Broken(ScriptedFair):
    """One forward pass of each update in `bad` gives a log-prob that is not finite."""

    bad: tuple[int, ...] = ()

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if not (torch.is_grad_enabled() and self.state.global_step in self.bad):
            return found
        return (torch.cat([found[0][:, :1] * 0 + math.nan, found[0][:, 1:]], 1), *found[1:])


@pytest.mark.slow
def test_a_forward_pass_that_is_not_finite_changes_no_weight_no_moment_and_no_state(tmp_path):
    """The second of four updates, two of each rollout batch, by AdamW with weight decay."""
    settings = {"num_iterations": 2, "max_steps": 4, "optim": "adamw_torch", "weight_decay": 0.1, "learning_rate": 1e-3}
    trainer = Broken(**scripted(tmp_path, **settings), method="fspo")
    trainer.bad = (1,)
    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, *_, **__):
            moments = [value.clone() for state in trainer.optimizer.state.values() for value in state.values()]
            seen.append((weights_of(trainer), moments, trainer.method.state))

    trainer.add_callback(Watch())
    trainer.train()
    assert torch.equal(seen[0][0], seen[1][0]) and seen[0][2] == seen[1][2]
    assert all(torch.equal(one, other) for one, other in zip(seen[0][1], seen[1][1], strict=True))
    assert all(weights.isfinite().all() for weights, _, _ in seen) and not torch.equal(seen[1][0], seen[3][0])
    assert all(math.isfinite(value) for _, _, state in seen for value in state.values())
    # of the four the second is skipped, the first and third are on-policy
    assert seen[3][2]["surrogate.num_updates"] == 1
    assert logged(trainer, "updates/skipped") == [0, 1, 1, 1]


SEVERAL = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "steps_per_generation": 1}
"""Four rollout batches of a prompt for each update."""


def test_rollout_batches_of_one_update_are_drawn_apart_and_all_watched(tmp_path):
    """Two updates of four batches are eight; one problem asked four times in an update, at temperature 1.5, is no four copies."""
    trainer = make(tmp_path / "watched", method="dr_grpo", max_steps=2, **SEVERAL)
    trainer.train()
    assert [one.size for one in trainer.signal.watch.steps] == [4] * 8
    asked = parts(tmp_path / "drawn", max_steps=1, max_completion_length=24, temperature=1.5, **SEVERAL)
    FairGRPOTrainer(**asked | {"train_dataset": problems().select([0] * 8)}, method="eqlen+grpo").train()
    files = sorted((tmp_path / "drawn" / "records").glob("responses-*.parquet"))
    drawn = [str(pandas.read_parquet(file)["token_ids"].map(list).tolist()) for file in files]
    assert len(drawn) == len(set(drawn)) == 4


def test_the_table_has_the_advantage_of_each_response_where_turns_are_segments(tmp_path):
    """Responses of one to three turns: that of the first, which is above 0 just where the reward is above its prompt's mean."""

    def roll(prompts, trainer):
        draw, rows = Random(3), []
        for prompt in prompts:
            turns = [[draw.choice(range(3, 21)), 1] for _ in range(draw.choice((1, 2, 3)))]
            ids = [token for turn in turns for token in (5, *turn)][1:]
            mask = [bit for _ in turns for bit in (0, 1, 1)][1:]
            rows.append((trainer._tokenizer(prompt)["input_ids"], ids, [-1.0] * len(ids), mask))
        return dict(zip(("prompt_ids", "completion_ids", "logprobs", "env_mask"), zip(*rows, strict=True), strict=True))

    def odd(completion_ids, **_):
        return [float(sum(ids) % 2) for ids in completion_ids]

    given = scripted(tmp_path, max_steps=1, log_completions=True) | {"reward_funcs": odd, "rollout_func": roll}
    trainer = FairGRPOTrainer(**given, method="grpo+balanced_turns")
    rollout(trainer)
    logs = (trainer._logs["advantages"], trainer._logs["rewards"]["odd"])
    advantage, reward = (np.array(one).reshape(4, 4) for one in logs)
    assert np.abs(advantage).sum() > 0 and (np.sign(advantage) == np.sign(reward - reward.mean(1, keepdims=True))).all()


def test_a_checkpoint_is_whole_when_it_is_pushed(tmp_path):
    pushed = []

    class Pushing(ScriptedFair):
        def _push_from_checkpoint(self, checkpoint_folder):
            pushed.append({path.name for path in (tmp_path / "checkpoint-1").iterdir()})

    trainer = make(tmp_path, trainer=Pushing, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.args.push_to_hub = True
    trainer.push_to_hub = lambda *_, **__: None
    trainer.train()
    assert len(pushed) == 1 and {"fairlen.json", "trainer_state.json"} <= pushed[0]


def test_other_sets_and_predictions_are_no_point_of_the_held_out_curve(tmp_path):
    """All right in a prediction before, all wrong afterwards: two evaluations of 4 problems, and of 6 others none."""
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "num_generations_eval": 2}
    trainer = make(tmp_path, eval_dataset=problems(4), **settings)
    for value, act in ((1.0, lambda: trainer.predict(problems(8))), (0.0, trainer.train)):
        trainer.reward_funcs = [lambda completion_ids, value=value, **_: [value] * len(completion_ids)]
        act()
    trainer.evaluate(problems(6))
    lines = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["update"], line["correct"]) for line in lines] == [(1, [[0, 0]] * 4), (2, [[0, 0]] * 4)]


def test_padding_to_a_multiple_makes_no_further_pass(tmp_path):
    """10 tokens are padded to 64, past the limit: one micro-batch of 8 rows is one pass all the same."""
    passes = []

    class Counting(ScriptedFair):
        def _compute_loss(self, model, inputs):
            passes.append(len(inputs["completion_ids"]))
            return super()._compute_loss(model, inputs)

    settings = {"max_steps": 1, "pad_to_multiple_of": 64, "gradient_accumulation_steps": 1}
    make(tmp_path, trainer=Counting, **settings).train()
    assert passes == [8]
