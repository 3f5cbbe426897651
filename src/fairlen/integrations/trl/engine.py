"""fairlen's engine around TRL's own model: streams whose forks reuse keys and values, and truncated sampling.

A fork starts when the shorter track has ended. Log-probs of truncated samples are over what each token was drawn from, as in
policy/support.py: a row of a batch has room for `top_k` ids of each token. Evaluations are TRL's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_trainer import GRPOTrainer

from fairlen.engine import Engine
from fairlen.engine.engine import StateError
from fairlen.integrations.trl.generation import Run
from fairlen.integrations.trl.rows import CurrentBatch
from fairlen.policy.support import FLOOR
from fairlen.rollouts import Response
from fairlen.sampling.extend import gather


def has_whole_model(trainer: Any) -> bool:
    """Whether this process generates by itself, by transformers and as the model says: nothing is served, sharded or added."""
    is_gathered = trainer.args.ds3_gather_for_generation or not is_deepspeed_zero3_enabled()
    is_plain = not (trainer.use_vllm or trainer.use_transformers_continuous_batching or trainer.args.generation_kwargs)
    return is_plain and is_gathered and not trainer.is_fsdp_enabled


def run_on_engine(trainer: Any, coroutines: Sequence[Run], prompt_ids: Sequence[Any]) -> list[Response] | None:
    """Return the responses of all coroutines, in their order; None for a model that the engine cannot run.

    `prompt_ids` has a row for every track that starts from its prompt.
    """
    arguments: Any = {
        "eos_token_id": tuple(trainer.eos_token_ids),
        "max_length": max(map(len, prompt_ids)) + trainer.max_completion_length,
        "max_num_seqs": len(prompt_ids),
        "compile": False,  # an engine for each rollout batch: it would not earn its compilation
    }
    with ExitStack() as stack:
        model: Any = stack.enter_context(unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ))  # fmt: skip
        stack.enter_context(torch.no_grad())
        try:
            engine = Engine(model.get_base_model() if hasattr(model, "get_base_model") else model, **arguments)
        except StateError:
            return None
        # on a thread of their own, so that TRL may run in an event loop, as in notebooks
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(lambda: asyncio.run(gather(one(engine.extend) for one in coroutines))).result()
    return [response for responses in found for response in responses]


GENERATING = ("tools", "rollout_func", "environment_factory")
"""Parts of a GRPOTrainer that generate on their own."""


def find_obstacle(config: Any, truncations: Sequence[str], parts: Mapping[str, Any]) -> str:
    """Return, after a comma, why what samples under these settings, name=value, cannot be trained; or nothing."""
    if config.use_vllm:
        return ", and TRL does not ask vLLM which tokens it left"
    if config.generation_kwargs or config.use_transformers_continuous_batching:
        return ", and transformers does not return which tokens generation_kwargs or continuous batching left"
    if any(parts.get(name) is not None for name in GENERATING):
        return f", and {', '.join(GENERATING)} generate by TRL's own means"
    if not all(given.startswith(("top_p=", "top_k=", "min_p=")) for given in truncations):
        return ", and nobody returns how but for top_p, top_k and min_p"
    return "" if (config.top_k or 0) > 0 else ", unless top_k too bounds how many tokens are left"


class TruncatedGRPOTrainer(GRPOTrainer):
    """A GRPOTrainer whose policy is what `top_p`, `top_k` and `min_p` leave, unless it `allows_mismatch`."""

    allows_mismatch: bool
    current: CurrentBatch

    @property
    def keeps_support(self) -> bool:
        is_truncated = self.top_p < 1.0 or self.top_k > 0 or bool(self.min_p)
        return is_truncated and not self.allows_mismatch

    def keep_supports(self: Any, supports: Sequence[Sequence[bytes]]) -> None:
        """Take those of generated tokens, row by row; empty bytes are the whole vocabulary."""
        if not self.keeps_support:
            return
        found = np.zeros((len(supports), max(1, *map(len, supports)), self.top_k), np.int64)
        for row, tokens in enumerate(supports):
            for place, one in enumerate(tokens):
                found[row, place, : len(one) // 4] = np.frombuffer(one, np.int32) + 1
        self.current.support = torch.from_numpy(found).flatten(1).to(self.accelerator.device)

    def _get_per_token_logps_and_entropies(
        self: Any, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        if self.current.support is None:
            places = input_ids, attention_mask, logits_to_keep
            return super()._get_per_token_logps_and_entropies(model, *places, *args, **kwargs)
        size = (args[0] if args else kwargs.get("batch_size")) or len(input_ids)
        router = {"output_router_logits": True} if kwargs.get("compute_aux_loss") else {}
        ids = self.current.support.unflatten(1, (-1, self.top_k))
        ids = pad(ids, (0, 0, 0, logits_to_keep - ids.shape[1]))
        found = []
        for rows in torch.arange(len(input_ids), device=input_ids.device).split(size):
            with self.accelerator.autocast():
                asked = {"attention_mask": attention_mask[rows], "logits_to_keep": logits_to_keep + 1}
                output = model(input_ids=input_ids[rows], **asked, **router)
            logits = output.logits[:, -logits_to_keep - 1 : -1]
            target = input_ids[rows, -logits_to_keep:]
            found.append([*read_left(logits, target, ids[rows], self.temperature), getattr(output, "aux_loss", None)])
        logprobs, entropy, aux_losses = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(entropy), torch.stack(aux_losses).mean() if router else None


def read_left(logits: Tensor, target: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of `target` [N, L] by `logits` [N, L, V] of the tokens in `ids` [N, L, K], plus one.

    A token that is not in its own set is read over the whole vocabulary.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    is_left = torch.zeros(*scores.shape[:-1], scores.shape[-1] + 1, dtype=torch.bool, device=ids.device)
    is_left = is_left.scatter_(-1, ids, True)[..., 1:]
    is_left |= ~is_left.gather(-1, target[..., None])
    law = torch.log_softmax(scores.masked_fill(~is_left, FLOOR), -1)
    return law.gather(-1, target[..., None])[..., 0], -(law.exp() * law).sum(-1)
