"""verl's FSDP engine in jobs with EqLen: rows that begin alike are read as a tree, so that a prefix is forwarded once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.engine import utils
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

from fairlen.console import warn
from fairlen.engine.device import upload
from fairlen.integrations.rows import find_obstacle, read_forest
from fairlen.integrations.verl.loss import COLUMN, read_plan
from fairlen.integrations.verl.session import NODE
from fairlen.policy.model import body
from fairlen.policy.tree import NAME, ForestMask, sort_rows

STOCK: Any = transformer_impl.FSDPEngineWithLMHead


class TreeEngine(STOCK):
    """verl's engine of language models, which reads trees; it stays verl's where its model cannot."""

    def _build_module(self) -> Any:
        module: Any = super()._build_module()
        decoder: Any = body(module)
        before = module.config._attn_implementation
        module.set_attn_implementation(NAME)
        if not (obstacle := self.find_obstacle(module)):
            decoder.register_forward_pre_hook(lambda _, a, k: (a, k | {"tree": self.tree}), with_kwargs=True)
            decoder.register_forward_hook(lambda _, a, o: replace(o, last_hidden_state=o[0][:, self.source]))
            transformer_impl.prepare_micro_batches = prepare_micro_batches  # pyright: ignore[reportPrivateImportUsage]
            return module
        if self.rank == 0 and not self.engine_config.forward_only:
            warn(f"with rank 0: EqLen's pieces repeat their prefixes: {obstacle}", NODE)
        module.set_attn_implementation(before)
        self.__class__ = STOCK
        return module

    def find_obstacle(self, module: Any) -> str:
        is_ours = self.model_config.override_config.get("attn_implementation", NAME) in ("sdpa", NAME)
        if not is_ours or self.use_ulysses_sp or self.pad_to_length or hasattr(module.config, "vision_config"):
            return "trees need a model of text, no attn_implementation but sdpa, no Ulysses and no pad_to_length"
        return find_obstacle(module)

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens, offsets = micro_batch["input_ids"].values(), micro_batch["input_ids"].offsets()
        places, device = find_wanted(micro_batch), tokens.device
        labels = torch.nested.nested_tensor_from_jagged(tokens[places], torch.searchsorted(places, offsets))
        wanted = micro_batch.copy().update({"input_ids": labels, "position_ids": labels})
        tu.assign_non_tensor(wanted, use_remove_padding=True)
        inputs, outputs = super().prepare_model_inputs(wanted)
        columns = tokens, micro_batch["position_ids"].values(), torch.zeros_like(tokens).index_fill(0, places, 1)
        forest, source = read_forest(*(column.cpu().numpy() for column in columns))
        self.tree, self.source = ForestMask(forest, device), upload(source, device)[places]
        inputs |= {"input_ids": upload(forest.tokens, device)[None], "position_ids": upload(forest.depth, device)[None]}
        inputs["attention_mask"] = tokens.new_ones(1, 1, 1, 1).bool()  # unused: keeps transformers from building one
        if "shift_labels" in inputs:  # of fused kernels
            inputs["shift_labels"] = labels.values()[None]
        return inputs, outputs | {"input_ids_rmpad_rolled": labels.values(), "wanted": wanted, "places": places}

    def prepare_model_outputs(self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any) -> Any:
        found = super().prepare_model_outputs(output, output_args, output_args["wanted"], logits_processor_func)
        tokens, offsets = micro_batch["input_ids"].values(), micro_batch["input_ids"].offsets()
        for name, column in found.items():  # verl looks a place before each token
            rows = column.values().new_zeros(len(tokens)).index_copy(0, output_args["places"] - 1, column.values())
            found[name] = torch.nested.nested_tensor_from_jagged(rows, offsets)
        return found


def find_wanted(data: Any) -> torch.Tensor:
    """Return where tokens of segments are, or of those that train where there is a plan, in all rows together; at least one."""
    mask: Any = torch.nested.as_nested_tensor(list(data["response_mask"].unbind()), layout=torch.jagged)
    length, chosen = mask.offsets().diff(), mask.values().bool()
    if COLUMN + "trains" in data.keys():  # noqa: SIM118  a TensorDict has no other way
        chosen &= read_plan(data, "trains").bool().repeat_interleave(length)
    chosen[:1] |= ~chosen.any()
    shift = (data["input_ids"].offsets() - mask.offsets())[1:]  # rows end with their response
    return (torch.arange(len(chosen), device=mask.device) + shift.repeat_interleave(length))[chosen]


def find_paths(data: Any) -> list[np.ndarray]:
    """Return of each row what has to be forwarded for its wanted tokens; nothing where there are none."""
    columns = data["input_ids"].values(), data["input_ids"].offsets(), find_wanted(data)
    tokens, offsets, places = (column.cpu().numpy() for column in columns)
    cuts = np.searchsorted(places, offsets)
    ends = np.where(np.diff(cuts) > 0, places[cuts[1:] - 1], offsets[:-1])
    return [tokens[start:end] for start, end in zip(offsets[:-1], ends, strict=True)]


def prepare_micro_batches(data: Any, dp_group: Any = None, **options: Any) -> tuple[Any, Any]:
    """Return micro-batches of few positions, as many on all ranks; verl's where their number is fixed."""
    if not tu.get_non_tensor_data(data, "use_dynamic_bsz", True):
        return utils.prepare_micro_batches(data, dp_group=dp_group, **options)
    found = sort_rows(find_paths(data))
    parts = [found.order[part].tolist() for part in found.split(data["max_token_len_per_gpu"])]
    number = torch.tensor(len(parts), device=get_device_id())
    torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, dp_group)
    while len(parts) < number:
        last = parts.pop(max(range(len(parts)), key=lambda place: len(parts[place])))
        parts += [last[: len(last) // 2], last[len(last) // 2 :]]
    return [tu.index_select_tensor_dict(data, part) for part in parts], parts


for engines in map(EngineRegistry._engines["language_model"].__getitem__, ("fsdp", "fsdp2")):
    engines |= {device: TreeEngine for device, engine in engines.items() if engine is STOCK}
