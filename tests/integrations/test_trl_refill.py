"""Dynamic sampling in TRL: dropped prompts are replaced by further ones, the same on every run, and what that costs is logged."""

import json
from collections import Counter

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from trl_runs import ScriptedFair, problems, scripted, weights_of


def make(folder, method="grpo+dynamic", most=4, **settings):
    return ScriptedFair(**scripted(folder, **settings), method=method, max_extra_batches=most)


def rollout(trainer, num_prompts: int = 4):
    """One planned rollout batch."""
    trainer.model.train()
    return trainer._generate_and_score_completions([row for row in problems(num_prompts) for _ in range(4)])


def trained_rows(output) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and completion of each row that trains, without padding."""
    found = []
    for row in output["fair_trains"].nonzero()[:, 0].tolist():
        parts = (output[f"{name}_ids"][row][output[f"{name}_mask"][row] > 0] for name in ("prompt", "completion"))
        found.append(tuple(tuple(part.tolist()) for part in parts))
    return found


@pytest.mark.parametrize("method", ["grpo+dynamic", "dapo+balanced"])
def test_a_rollout_batch_has_as_many_selected_prompts_as_asked(method, tmp_path):
    trainer = make(tmp_path, method, most=40)
    output = rollout(trainer, 8)
    metrics = trainer._metrics["train"]
    assert metrics["prompts/selected"] == [8.0] and metrics["prompts/extra_batches"][0] >= 1
    # a prompt may be drawn twice: its responses are then of two groups, each with both verdicts
    assert int(output["fair_trains"].sum()) == 8 * 4 == len(output["fair_trains"])
    verdicts: dict[tuple[int, ...], set[bool]] = {}
    for prompt, ids in trained_rows(output):
        verdicts.setdefault(prompt, set()).add(sum(ids) % 3 == 0)
    assert all(len(said) == 2 for said in verdicts.values()) and len(verdicts) > 1
    asked, dropped = metrics["prompts/asked"][0], metrics["dropped/filtered_responses"][0]
    assert asked == 8 + trainer.refill.drawn and dropped == 4 * (asked - 8) > 0
    assert metrics["dropped/filtered_tokens"][0] >= dropped
    # the plan is of all rows together: weights of a mean, over sequences or tokens, add up to 1 over tokens
    mass = float((output["fair_weight"][:, 0] * output["completion_mask"].sum(1)).sum())
    assert mass == pytest.approx(1.0, rel=1e-6) or method == "dapo+balanced"


def test_outcomes_of_further_prompts_are_known_and_what_needs_log_probs_is_refused(tmp_path):
    overrides = ["advantage.outcomes=graded=1"]
    trainer = ScriptedFair(**scripted(tmp_path), method="gdpo+dynamic", overrides=overrides, max_extra_batches=40)
    assert int(rollout(trainer, 8)["fair_trains"].sum()) == 8 * 4
    with pytest.raises(ValueError, match="recount=True with Independent, max_extra_batches=4: plans"):
        make(tmp_path, "verl:grpo+seq_mean_k1+dynamic")


def test_rows_that_were_kept_are_those_of_the_first_round_and_what_was_drawn(tmp_path):
    """A row keeps its prompt and its completion, whatever the widths of the rounds."""
    once, refilled = rollout(make(tmp_path / "a", most=0)), rollout(make(tmp_path / "b", most=40))
    first, both = Counter(trained_rows(once)), Counter(trained_rows(refilled))
    assert first <= both and first.total() < both.total() == 16


def test_the_bound_is_kept_and_then_the_batch_trains_with_what_it_has(tmp_path):
    """Every response is correct: no prompt is ever selected."""
    trainer = make(tmp_path, most=3)
    trainer.reward_funcs = [lambda completion_ids, **_: [1.0] * len(completion_ids)]
    output = rollout(trainer)
    assert trainer._metrics["train"]["prompts/extra_batches"] == [3.0] and trainer.refill.drawn == 12
    assert not output["fair_trains"].any() and not output["fair_weight"].any()
    assert len(output["fair_trains"]) % trainer.args.steps_per_generation == 0


@pytest.mark.parametrize(("method", "most"), [("grpo", 4), ("grpo+dynamic", 0)])
def test_nothing_is_drawn_without_a_filter_or_where_it_is_switched_off(method, most, tmp_path):
    trainer = make(tmp_path, method, most)
    output = rollout(trainer, 8)
    assert trainer.refill.drawn == 0 and len(output["fair_trains"]) == 32
    assert ("prompts/extra_batches" in trainer._metrics["train"]) == (method != "grpo")


@pytest.mark.slow
def test_a_run_that_is_resumed_draws_what_it_would_have_drawn(tmp_path):
    """Weights after four updates, and the position of the stream, with a checkpoint after the second one and without."""
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.05}
    whole = make(tmp_path / "whole", **settings)
    whole.train()
    assert whole.refill.drawn > 0
    resumed = make(tmp_path / "whole", **settings)
    script = {prefix: count for prefix, count in whole.script.seen.items()}
    half = make(tmp_path / "half", **(settings | {"max_steps": 2}))
    half.train()
    resumed.script = half.script  # the script answers by how often a prompt came
    assert 0 < half.refill.drawn < whole.refill.drawn
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.refill.drawn == whole.refill.drawn and dict(resumed.script.seen) == script
    assert torch.equal(weights_of(resumed), weights_of(whole))


def rare(completion_ids, **_):
    """One in six texts is correct, so that about half of the prompts with 4 texts have nothing to compare."""
    return [float(sum(ids) % 6 == 0) for ids in completion_ids]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo+dynamic", "eqlen+dapo"])
def test_the_run_folder_says_what_the_log_says(method, tmp_path):
    trainer = make(tmp_path, method, max_steps=1)
    trainer.reward_funcs = [rare]
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "prompts/extra_batches" in entry)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    names = ("prompts/extra_batches", "dropped/filtered_responses", "dropped/filtered_tokens")
    assert logged["prompts/extra_batches"] > 0 and [line[name] for name in names] == [logged[name] for name in names]


@pytest.mark.slow
def test_the_table_of_eqlen_has_the_advantages_of_its_prompts(tmp_path):
    """No response is correct of the four prompts asked: they were dropped, and their advantages are 0."""
    trainer = make(tmp_path, "eqlen+dapo", most=40)
    asked = {row["prompt"] for row in list(problems(4))}  # type: ignore[index]

    def never_at_first(prompts, completion_ids, **_):
        values = zip(prompts, rare(completion_ids), strict=True)
        return [0.0 if prompt in asked else value for prompt, value in values]

    trainer.reward_funcs = [never_at_first]
    rollout(trainer)
    assert set(trainer._logs["prompt"]) == asked and trainer._metrics["train"]["prompts/selected"] == [4.0]
    assert list(trainer._logs["advantages"]) == [0.0] * 16
    assert trainer._metrics["train"]["prompts/extra_batches"][0] >= 1
