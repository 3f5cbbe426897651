"""Scripted runs, in one process or in several under torchrun: `trl_ranks.py FOLDER METHOD:ROWS:PROMPT_ROWS …`.

FOLDER/METHOD.safetensors gets how far the weights moved, METHOD.json the method's state and the metrics of the last update.
ROWS are those of a micro-batch over all processes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from trl_runs import ScriptedFair, scripted, weights_of

from fairlen.integrations.trl.settings import choose_method

RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))


def run(folder: Path, name: str, rows: int, per_prompt: int) -> None:
    own = rows // WORLD
    settings = {"num_generations": per_prompt, "per_device_train_batch_size": own, "num_iterations": 2, "max_steps": 2}
    made = scripted(folder, **settings, learning_rate=5e-3)
    method = choose_method(name, [], made["args"]).method
    trainer = ScriptedFair(**made, method=method)
    trainer.first_occurrence = RANK * 2 * own % per_prompt  # two micro-batches are one rollout batch
    start = weights_of(trainer)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss/total" in entry][-1]
    if RANK == 0:
        save_file({"moved": weights_of(trainer) - start}, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps({"state": trainer.method.state, "logged": logged}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[2:]:
        name, rows, per_prompt = case.split(":")
        run(Path(sys.argv[1]), name, int(rows), int(per_prompt))
    if WORLD > 1:
        torch.distributed.destroy_process_group()
