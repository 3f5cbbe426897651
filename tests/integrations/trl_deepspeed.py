"""One scripted run of EqLen in a process of its own, with DeepSpeed or without: `trl_deepspeed.py FOLDER STAGE ROWS MICRO`.

STAGE is that of ZeRO, -1 without DeepSpeed. Prints, as JSON, the norm of the gradient at every update, how far the weights
have moved and how many steps DeepSpeed's engine has made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from trl_runs import ScriptedFair, scripted, weights_of


def run(folder: Path, stage: int, rows: int, micro: int) -> None:
    auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping")
    options = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    deepspeed = (
        {"zero_optimization": {"stage": stage}, **dict.fromkeys(auto, "auto"), **options} if stage >= 0 else None
    )
    settings = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": micro, "max_steps": 2}
    made = scripted(folder, deepspeed=deepspeed, **settings)
    trainer = ScriptedFair(**made | {"model": made["model"].float()}, method="eqlen+dapo")
    start = weights_of(trainer)
    trainer.train()
    moved = float((weights_of(trainer) - start).norm())
    norms = [float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]
    print(json.dumps({"norms": norms, "moved": moved, "steps": getattr(trainer.model_wrapped, "global_steps", None)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]), *map(int, sys.argv[2:]))
