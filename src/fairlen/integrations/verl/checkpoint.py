"""The method in the checkpoints of verl's trainers, synchronous or not: saved with each, and no other method goes on from there.

Jobs without a method of fairlen's are as before. Importing this module is what makes the change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from fairlen.integrations.method_file import resume_method, save_method
from fairlen.integrations.verl.choice import read_method
from fairlen.methods.method import Method


def method_of(trainer: Any) -> Method | None:
    """The method with its state, None in a job that has none."""
    settings = trainer.config.algorithm.get("fairlen") or {}
    return getattr(trainer, "method", None) or (read_method(settings) if settings.get("method") else None)


def saved_folder(trainer: Any) -> Path:
    """Where the checkpoint lies that is written now."""
    return Path(trainer.config.trainer.default_local_dir) / f"global_step_{trainer.global_steps}"


def resumed_folder(trainer: Any) -> Path:
    """Where the checkpoint lies that was resumed from."""
    settings = trainer.config.trainer
    return Path(settings.resume_from_path) if settings.resume_mode == "resume_path" else saved_folder(trainer)


def keep_method(kind: type[Any]) -> None:
    """Makes a trainer of verl save the method, and read it back into `trainer.method`."""
    save, load = kind._save_checkpoint, kind._load_checkpoint

    def save_with_method(trainer: Any) -> None:
        if method := method_of(trainer):
            save_method(saved_folder(trainer), method)  # first: verl's last file says that all are there
        save(trainer)

    def load_with_method(trainer: Any) -> None:
        load(trainer)
        if trainer.global_steps and (method := method_of(trainer)):
            trainer.method = resume_method(resumed_folder(trainer), method)

    kind._save_checkpoint, kind._load_checkpoint = save_with_method, load_with_method


keep_method(PPOTrainer)
