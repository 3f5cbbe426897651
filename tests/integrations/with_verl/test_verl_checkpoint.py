"""Checkpoints of verl hold the method, whichever trainer of verl's runs; no Ray: workers and data loader are stand-ins."""

import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

import fairlen.integrations.verl.plugin  # noqa: F401  registers
from fairlen.integrations.verl.trainer import REMEDIES
from fairlen.loop.learning_signal import LearningSignal
from fairlen.methods.compose import compose


class Workers:
    """verl's worker group, data loader and callbacks, as far as checkpoints go."""

    def save_checkpoint(self, *_, **__): ...

    def load_checkpoint(self, **_): ...

    def load_state_dict(self, _): ...

    def set_loss_fn(self, _): ...

    def on_save(self, **_): ...

    def state_dict(self):
        return {}


def make(kind: str, folder, method: str | None, overrides=()):
    """A trainer by its name that is about to save or load, and no more; verl's own without a method."""
    trainer = object.__new__(get_trainer_cls(f"fairlen_{kind}" if method else kind))
    trainer.config = OmegaConf.create({
        "trainer": {
            "default_local_dir": str(folder), "default_hdfs_dir": None, "resume_mode": "auto", "del_local_ckpt_after_load": False,
        },
        "actor_rollout_ref": {"actor": {"checkpoint": {"async_save": False}}}, "algorithm": {"fairlen": {}},
    })  # fmt: skip
    trainer.actor_rollout_wg = trainer.train_dataloader = trainer.checkpoint_callback = Workers()
    trainer.use_critic, trainer.trainer_mode, trainer.global_steps = False, "sync", 3
    if method:
        trainer.method, trainer.signal = compose(method, list(overrides)), LearningSignal(REMEDIES)
    return trainer


def complaint(trainer) -> str:
    """Why it does not go on from the checkpoint that is there."""
    try:
        trainer._load_checkpoint()
        return ""
    except (ValueError, FileNotFoundError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize("kind, before, after, differs", [
    ("sync", "dapo+balanced", "dapo", "aggregation {'kind': 'Balanced'"),
    ("colocate_async", "dapo+balanced", "grpo", "surrogate {'kind': 'TokenClip'"),
    ("separate_async", "fspo", "dapo", "surrogate {'kind': 'FairBand'"),
])  # fmt: skip
def test_another_method_does_not_go_on_from_a_checkpoint(kind, before, after, differs, tmp_path):
    make(kind, tmp_path, before)._save_checkpoint()
    told = complaint(make(kind, tmp_path, after))
    assert "resuming with another method would not continue the same run" in told and differs in told
    assert "give the method that the checkpoint was trained with, or start a new run" in told and "\n" not in told
    assert complaint(make(kind, tmp_path, before)) == ""


def test_the_state_comes_back_and_jobs_without_a_method_are_as_before(tmp_path):
    first = make("sync", tmp_path / "fspo", "fspo")
    names = list(first.method.state)
    first.method = first.method.with_state({name: 0.25 if not name.endswith("num_updates") else 3 for name in names})
    first._save_checkpoint()
    again = make("sync", tmp_path / "fspo", "fspo")
    again._load_checkpoint()
    assert again.method == first.method and again.method.state != compose("fspo").state
    plain = make("sync", tmp_path / "plain", None)
    plain._save_checkpoint()
    assert not list((tmp_path / "plain").rglob("fairlen.json"))
    assert complaint(make("sync", tmp_path / "plain", None)) == ""
    for method in ("grpo", "fspo"):  # nobody knows what trained it
        assert "no state of the method" in complaint(make("sync", tmp_path / "plain", method))


@pytest.mark.parametrize(
    "prompts, mini, ranks, updates", [(512, 128, 8, 4), (1000, 256, 8, 4), (96, 64, 8, 2), (4, 8, 2, 1)]
)
def test_a_rollout_batch_is_split_evenly_over_updates_and_ranks(prompts, mini, ranks, updates, tmp_path):
    """verl takes any batch of at least ppo_mini_batch_size prompts: the number of updates is rounded up, as verl's own is."""
    trainer = make("sync", tmp_path, "grpo")
    trainer.config.data = {"train_batch_size": prompts}
    trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size = mini
    trainer.parameter_sync_step = 1
    assert trainer.num_updates == updates
    assert trainer._get_required_batch_multiple(ranks) == ranks * updates
