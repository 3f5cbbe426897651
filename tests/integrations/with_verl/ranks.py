"""One rank of verl's own actor without Ray: builds our worker of an actor, updates it on every case of a folder.

`ranks.py FOLDER RANK RANKS`; DIST_INIT_METHOD says where they meet. Every case starts from the same weights: the learning
rate is 0, or plain SGD makes as many updates of its rows as it has epochs; gradients are not clipped.
"""

import json
import os
import sys
from functools import reduce
from pathlib import Path

folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # verl notes them; nobody listens there
os.environ["VERL_USE_EXTERNAL_MODULES"] = "fairlen.integrations.verl.cpu,fairlen.integrations.verl.guards"

import torch  # noqa: E402
import verl  # noqa: E402, F401  loads the platform and the plug-in
from hydra import compose, initialize_config_module  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch.optim import SGD  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402

from fairlen.integrations.verl.launch import VerlConfig, collect  # noqa: E402
from fairlen.integrations.verl.loss import COLUMN, COUNTS, FairLoss, FairWorker  # noqa: E402
from fairlen.loop.tally import merge, update_metrics  # noqa: E402

ACTOR = "actor_rollout_ref.actor"
BASE = (
    f"{ACTOR}.optim.lr=0.0", f"{ACTOR}.optim.clip_grad=1e9", f"{ACTOR}.optim.total_training_steps=10",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", "data.max_response_length=9",
    f"{ACTOR}.use_dynamic_bsz=False", "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
)  # fmt: skip


def read_settings():
    """verl's settings as `fairlen verl` has them, which cases change."""
    config = VerlConfig(method="grpo", model=str(folder / "model"), cpu=True)
    chosen = [text for text in collect(config, BASE, folder) if not text.startswith("hydra.")]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", chosen).actor_rollout_ref


def tensordict(rows, mini_rows, epochs, shape):
    """Rows as verl's trainer sends them, without padding; `shape` says how micro-batches are made."""

    def nested(columns):
        return torch.nested.as_nested_tensor(columns, layout=torch.jagged)

    mask = [torch.tensor(row["mask"]) for row in rows]
    found = tu.get_tensordict({
        "input_ids": nested([torch.tensor(row["ids"]) for row in rows]),
        "position_ids": nested([torch.arange(len(row["ids"])) for row in rows]),
        "prompts": nested([torch.tensor(row["ids"][: row["num_prompt"]]) for row in rows]),
        "responses": nested([torch.tensor(row["ids"][row["num_prompt"] :]) for row in rows]),
        "response_mask": nested(mask),
        "loss_mask": nested(mask),
        "old_log_probs": nested([torch.tensor(row["old"]) for row in rows]),
        "advantages": nested([m * row["plan"]["advantage"] for m, row in zip(mask, rows, strict=True)]),
        **{COLUMN + name: torch.tensor([row["plan"][name] for row in rows]) for name in rows[0]["plan"]},
    })  # fmt: skip
    tu.assign_non_tensor(
        found, **shape, temperature=1.0, calculate_entropy=False, global_batch_size=mini_rows, mini_batch_size=mini_rows,
        epochs=epochs, seed=0, dataloader_kwargs={"shuffle": False}, compute_loss=False,
    )  # fmt: skip
    return found


def main() -> None:
    worker = FairWorker(read_settings(), role="actor")
    worker.init_model()
    train(worker)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def watch(engine):
    """Gradients of the last update."""
    gradients = {}
    make_step = engine.optimizer_step

    def keep_and_step():  # verl drops gradients after an update
        gradients.update({name: p.grad.full_tensor() for name, p in engine.module.named_parameters()})
        return make_step()

    engine.optimizer_step = keep_and_step
    return gradients


def train(worker) -> None:
    engine = worker.actor.engine
    parameters, adam, gradients = dict(engine.module.named_parameters()), engine.optimizer, watch(engine)
    results = []
    cases = json.loads((folder / "cases.json").read_text())
    for number, case in enumerate(cases):
        start = {name: p.detach().clone() for name, p in parameters.items()}
        chosen = {"method": case["names"], "overrides": case["overrides"]}
        worker.actor.set_loss_fn(FairLoss(chosen, case["state"], is_fresh=False))
        rows, size = case["rows"], len(case["rows"]) // ranks
        engine.optimizer = SGD(engine.module.parameters(), case["lr"]) if case["lr"] else adam
        own = rows[rank * size : (rank + 1) * size]
        batch = tensordict(own, case["mini_rows"], case["epochs"], case["shape"])
        out = worker.update_actor(batch)
        metrics = dict(out["metrics"])
        results.append({name: metrics[name] for name in ("loss", "grad_norm")})
        results[-1]["update"] = update_metrics(reduce(merge, (counts for _, counts, _ in metrics[COUNTS])))
        results[-1]["updates"] = sorted({update for update, *_ in metrics[COUNTS]})
        results[-1]["state"] = worker.actor.loss_fn.method.state
        moved = {name: (p.detach() - start[name]).full_tensor() for name, p in parameters.items()}
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(start[name])
        if rank == 0:
            for kind, found in (("gradients", gradients), ("moved", moved)):
                save_file({k: v.contiguous() for k, v in found.items()}, folder / f"{kind}-{number}.safetensors")
        engine.optimizer = adam
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results, default=float))


if __name__ == "__main__":
    main()
