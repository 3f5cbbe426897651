"""verl's rollouts and validations: one JSON file a step, as `trainer.rollout_data_dir` and `validation_data_dir` ask for.

input, output, gts, score, step, and what the reward function returned besides. Source: verl 0.9.1, `_write_generations`.
"""

from __future__ import annotations

from fairlen.diagnostics.readers.chunk import Chunk, Found, Meter, Part, Raw, make_part

NAME = "verl"
TITLE = "verl rollouts"
NEEDS = frozenset({"input", "output", "score", "step"})
BUDGET = "data.max_response_length"
REMEDY = {
    "truncated": "verl decodes answers without their EOS token; its metric response_length/clip_ratio has the share of a step",
    "advantage": "verl's rollout_data_dir holds no advantages",
}


def fits(columns: set[str]) -> bool:
    return columns >= NEEDS


def read(chunk: Chunk, meter: Meter, found: Found) -> Part:
    """One chunk of generations; `acc` is the verifier's word."""
    extra = {name: values for name, values in chunk.columns.items() if name not in {*NEEDS, "gts", "uid", "request_id"}}
    correct = chunk.columns.get("acc")
    if correct is not None:
        found.note("right or wrong is what `acc` says")
    raw = Raw(
        chunk.get("input"), chunk.get("output"), chunk.get("score"), chunk.get("step"), correct=correct, extra=extra
    )
    return make_part(chunk, raw, meter, found)
