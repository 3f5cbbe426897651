"""NeMo-RL's samples of training and validation, and rollouts of NeMo-Gym."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from fairlen.audit.readers.columns import inside
from fairlen.audit.readers.finish import read_finish
from fairlen.audit.readers.formats import Format, count_turns, expand, has_all, split_chat
from fairlen.audit.readers.messages import open_output
from fairlen.audit.readers.rows import Found, Part
from fairlen.files.formats import Row


def read_sample(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    """Give a sample, whose cells are lists of one; its step is in the name of the file, and a mask says what was sampled."""
    sample: Row = {name: cell[0] if isinstance(cell, list) and cell else cell for name, cell in row.items()}
    said, mask, step = sample["content"], sample.get("token_loss_mask"), re.search(r"step(\d+)\.", file)
    if not isinstance(mask, list):
        prompt, response = split_chat(said)
        yield {"prompt": prompt, "response": response, "reward": sample["rewards"], "step": step and int(step[1])}
        return
    turns, last = count_turns(mask) or 0, mask[int(sample["input_lengths"]) - 1]
    first = len(said) - 2 * turns + bool(last)  # the environment has the last word where the last token was not sampled
    credit = np.broadcast_to(np.asarray(sample.get("advantages"), np.float64), len(mask))[np.asarray(mask, np.bool_)]
    roles = ("assistant", "tool")
    yield {
        "prompt": said[:first], "reward": sample["rewards"], "step": step and int(step[1]), "turns": turns, "tokens": sum(mask),
        "response": [{"role": roles[place % 2], "content": text} for place, text in enumerate(said[first:])],
        "advantage": float(credit.mean()) if len(credit) else None,
    }  # fmt: skip


def read_rollout(row: Row, file: str, line: int, found: Found) -> Iterator[Row]:
    output = open_output(row.get("response"))
    truncated, is_failed = read_finish(output.finish, found) if output else (None, False)
    asked = inside(row, "responses_create_params", "input")
    yield {
        "prompt": [inside(row, "agent_ref", "name"), row.get("_ng_task_index"), asked], "reward": row.get("reward"),
        "response": output.messages if output else inside(row, "response", "output_text"),
        "tokens": output and output.tokens, "truncated": truncated,
        "dropped": is_failed or inside(row, "response", "error") is not None,
    }  # fmt: skip


def infer_ended(part: Part, found: Found) -> Part:
    """Return rollouts of which those without a reason ended by themselves where others have one: its server says no other."""
    return replace(part, truncated=np.nan_to_num(part.truncated)) if (part.truncated == 1).any() else part


NEMO_RL = Format(
    "nemo_rl", "NeMo-RL samples", "policy.generation.max_new_tokens", has_all("content rewards idx"),
    partial(expand, read=read_sample), {"truncated": "NeMo-RL's samples hold no finish reason"},
)  # fmt: skip
NEMO_GYM = Format(
    "nemo_gym", "NeMo-Gym rollouts", "max_output_tokens", has_all("responses_create_params response reward"),
    partial(expand, read=read_rollout), {"advantage": "rollouts have no advantages"}, infer_ended,
)  # fmt: skip
