"""A length watch beside TRL's own trainer: what it sees, what it says, and that training goes on whatever happens in it."""

import json
import math

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from transformers import TrainerCallback
from trl_runs import ScriptedFair, ScriptedStock, graded, scripted

from fairlen import LengthWatch


def short(completion_ids, **_):
    """Responses of at most 3 tokens are correct: length decides."""
    return [float(len(ids) <= 3) for ids in completion_ids]


def make(folder, reward=graded, **settings):
    return ScriptedStock(**scripted(folder, **settings) | {"reward_funcs": reward})


def test_a_rollout_batch_counts_once_whatever_is_made_of_it(tmp_path):
    """Two iterations over 16 responses to 4 prompts, twice: 32 responses, and the outcomes that the trainer saw."""
    seen = []

    def count(completion_ids, **_):
        seen.extend((len(ids), float(sum(ids) % 3 == 0)) for ids in completion_ids)
        return graded(completion_ids)

    trainer, watch = make(tmp_path, count, num_iterations=2, max_steps=4, loss_type="dr_grpo"), LengthWatch()
    watch.attach(trainer)
    trainer.train()
    assert watch.method == "loss_type=dr_grpo" and [one.number for one in watch.steps] == [1, 3]
    assert [tuple(row[1:3]) for part in watch.kept for row in part.tolist()] == seen and len(seen) == 32
    prompts = [part[:, 0].reshape(4, 4) for part in watch.kept]
    assert all((part == part[:, :1]).all() and len(set(part[:, 0])) == 4 for part in prompts)


@pytest.mark.slow
def test_an_alarm_is_said_kept_and_not_said_again_after_a_resume(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = {"save_strategy": "steps", "save_steps": 8, "max_steps": 10, "report_to": "tensorboard"}
    trainer, watch, pages = make(tmp_path, short, **settings), LengthWatch(), set()
    watch.attach(trainer)

    class Look(TrainerCallback):
        """Sees after each step whether the page is there."""

        def on_step_begin(self, args, state, control, **_):
            pages.add((state.global_step >= 8, (tmp_path / "length_watch.html").exists()))

    trainer.add_callback(Look())
    trainer.train()
    assert pages == {(False, False), (True, True)}  # from the first checkpoint on
    (alarm,) = [one for one in watch.alarms if one.kind == "effect"]
    assert alarm.step < 8 and alarm.quantity == "length" and 0.05 < alarm.interval[0] <= alarm.size
    assert alarm.sequences["order"][0] == 0.5  # the incorrect response is longer in all pairs
    assert f"effect, step {alarm.step}" in capsys.readouterr().err
    assert "watch/log10_evalue_longer" in trainer.state.log_history[0]
    assert "the longer ones in 100%" in (tmp_path / "length_watch.html").read_text()
    events = EventAccumulator(str(next(tmp_path.rglob("events.*")).parent)).Reload()
    assert any("alerts" in tag for tag in events.Tags()["tensors"])

    again = LengthWatch()
    trainer = make(tmp_path, short, **settings)
    again.attach(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert again.alarms[0] == alarm and [one.number for one in again.steps] == list(range(1, 11))
    assert "effect, step" not in capsys.readouterr().err


def list_steps(watch):
    """Numbers of the watched steps, and how many steps have evidence and kept responses."""
    return [step.number for step in watch.steps], len(watch.evidence.sums), len(watch.kept)


@pytest.mark.slow
def test_resuming_in_one_process_continues_the_watch_of_the_checkpoint(tmp_path, capsys):
    """Training ends at step 6 with checkpoints at 3 and 6. Resuming from either counts the steps after it again, once."""
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    trainer, watch = make(tmp_path, short, **settings), LengthWatch()
    watch.attach(trainer)
    trainer.train()
    assert list_steps(watch) == ([1, 2, 3, 4, 5, 6], 6, 6)
    before = watch.evidence.find_evalue(0)
    trainer.args.max_steps = 8
    trainer.train(resume_from_checkpoint=True)
    assert list_steps(watch) == ([1, 2, 3, 4, 5, 6, 7, 8], 8, 8)
    # the evidence of steps 1 to 6 counts once: it is that of the first run
    at_six = LengthWatch()
    at_six.restore(json.loads((tmp_path / "checkpoint-6" / "length_watch.json").read_text()))
    assert at_six.evidence.find_evalue(0) == before and at_six.steps == watch.steps[:6]
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert list_steps(watch) == ([1, 2, 3, 4, 5, 6, 7, 8], 8, 8)
    assert "the watch stops" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_second_run_of_one_trainer_starts_a_new_watch_and_says_so(tmp_path, capsys):
    trainer, watch = make(tmp_path, short, max_steps=3), LengthWatch()
    watch.attach(trainer)
    trainer.train()
    first = list_steps(watch)
    assert "a new watch" not in capsys.readouterr().err
    trainer.train()
    assert list_steps(watch) == first == ([1, 2, 3], 3, 3)
    errors = capsys.readouterr().err
    assert errors.count("a new watch; 3 steps of the run before are dropped") == 1 and "the watch stops" not in errors


@pytest.mark.slow
def test_the_watch_inside_the_fair_trainer_counts_from_1_and_starts_again(tmp_path):
    """Training, training again, and resuming from the checkpoint of step 2. A run folder would refuse a second run."""
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 3}
    trainer = ScriptedFair(**scripted(tmp_path, **settings), method="dapo", run_folder=False)
    for checkpoint in (None, None, str(tmp_path / "checkpoint-2")):
        trainer.train(resume_from_checkpoint=checkpoint)
        assert [step.number for step in trainer.signal.watch.steps] == [1, 2, 3]
        assert len(trainer.signal.watch.evidence.sums) == 3


def test_training_continues_if_the_watch_fails(tmp_path, capsys):
    """An infinite verdict is none that a watch knows."""
    watch, trainer = (
        LengthWatch(),
        make(tmp_path, [graded, lambda completion_ids, **_: [math.inf] * len(completion_ids)]),
    )
    trainer.reward_weights[1] = 0.0
    watch.attach(trainer, verdict=trainer.reward_func_names[1])
    trainer.train()
    assert trainer.state.global_step == 2 and not watch.steps
    out = capsys.readouterr().err
    assert out.count("the watch stops") == 1 and "outcomes[0]=inf" in out


def test_an_alert_that_cannot_be_sent_ends_no_watch(tmp_path, capsys):
    class Full(TrainerCallback):
        """A tracker whose disk is full."""

        @property
        def tb_writer(self):
            return self

        def add_text(self, *_):
            raise OSError("no space left")

    trainer, watch = make(tmp_path, short, max_steps=9), LengthWatch()
    watch.attach(trainer)
    trainer.add_callback(Full())
    trainer.train()
    assert watch.alarms and len(watch.steps) == 9 and (tmp_path / "length_watch.html").exists()
    assert "no alert was sent: OSError: no space left" in capsys.readouterr().err


def test_the_verdict_is_asked_for_and_other_trainers_are_refused(tmp_path):
    trainer = make(tmp_path, [graded, short])
    for name in ("", "shorts"):
        with pytest.raises(ValueError, match="one of graded, short"):
            LengthWatch().attach(trainer, verdict=name)
    with pytest.raises(ValueError, match=r"Path is not a GRPOTrainer.*fairlen watch PATH"):
        LengthWatch().attach(tmp_path)
