"""Evidence of phase A, numbers that say nothing of any text: of a run's folder, or what docs/study/real keeps of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Floats, Responses, Segments, build_responses, build_segments
from fairlen.files.folders import replacing, write_file
from fairlen.rollouts import Rollouts

Columns = Mapping[str, np.ndarray]
ABOUT, DIGESTS = "about.json", "digests"
COMMON = ("prompt", "length", "correct", "truncated", "outcome")
TABLES = {
    "candidates": ("solved",),
    "responses": (*COMMON, "sampled", "before", "after"),
    "tracks": (*COMMON, "stream", "inherited"),
    "pairs": ("response", "group", "round", "survivor", "length"),
    "products": ("product",),
}
"""Columns by table. `solved` is of each problem that was tried; `sampled`, `before` and `after` are log-probs of a response by
engine, trainer and updated model; products are those of two responses' gradients, row by row."""


@dataclass(frozen=True)
class Evidence:
    """All draws of a kind in one table, prompts numbered through."""

    about: Mapping[str, Any]
    tables: Mapping[str, Columns]

    @cached_property
    def independent(self) -> Responses:
        return self.build("responses", 0)

    @cached_property
    def tracks(self) -> Responses:
        return self.build("tracks", self.tables["tracks"]["stream"])

    def build(self, name: str, stream: Any) -> Responses:
        prompt, length, correct, truncated, outcome = (self.tables[name][one] for one in COMMON)
        longest = self.about["max_response_length"]
        return build_responses(prompt, length, outcome, correct.astype(float), truncated, longest, stream=stream)

    @cached_property
    def pairs(self) -> Segments:
        columns = dict(self.tables["pairs"])
        return build_segments(self.tracks, columns.pop("length"), **columns)

    @cached_property
    def products(self) -> Floats:
        """Of the gradients of the first responses, [N, N]."""
        flat = self.tables["products"]["product"].astype(np.float64)
        return flat.reshape(math.isqrt(len(flat)), -1)

    @cached_property
    def log_ratio(self) -> Floats:
        """Of all independent responses, by the one update."""
        return self.tables["responses"]["after"] - self.tables["responses"]["before"]

    @property
    def stepped(self) -> int:
        """Prompts that the update was made on, the first ones."""
        return self.about["sizes"]["chunk"]


def read_run(out: Path) -> Evidence:
    """Return the evidence of a run's folder. Raises ValueError where a part is missing, or a response has no verdict."""
    from research.real.draws import KINDS, read_draws  # which needs what training does

    for name in (*KINDS, "gradients", "before", "after"):
        if not any((out / name).glob("*.parquet")):
            raise ValueError(f"{out}: there is no {name} yet: python -m research.real --out {out} goes on")
    about = json.loads((out / ABOUT).read_text(encoding="utf-8"))
    drawn = {kind: join(read_draws(out / kind, about["max_response_length"])) for kind in KINDS}
    tried = drawn["filter"][0]
    scored = {name: read_parts(out, name, "logprob") for name in ("before", "after")}
    sketches = np.stack(list(read_parts(out, "gradients", "sketch"))).astype(np.float64)
    tables: dict[str, Columns] = {
        "candidates": {"solved": np.bincount(tried["prompt"], tried["correct"]) / np.bincount(tried["prompt"])},
        "responses": drawn["independent"][0] | scored,
        "tracks": drawn["streams"][0],
        "pairs": drawn["streams"][1],
        "products": {"product": (sketches @ sketches.T).astype(np.float32).ravel()},
    }
    return Evidence(about, {name: {one: tables[name][one] for one in TABLES[name]} for name in TABLES})


def read_parts(out: Path, name: str, column: str) -> np.ndarray:
    tables = [pq.read_table(path, columns=[column]) for path in sorted((out / name).glob("*.parquet"))]
    return pa.concat_tables(tables)[column].to_numpy()


def join(parts: Sequence[Rollouts]) -> list[dict[str, np.ndarray]]:
    """Return responses and segments of all files, prompts, rows and groups numbered on."""
    tables, prompts, rows, groups = list[tuple[Columns, Columns]](), 0, 0, 0
    for part in parts:
        drawn, cut = part.response_table, part.segment_table
        if lacking := int((~drawn.active).sum()):
            raise ValueError(f"{lacking} responses have no verdict: leave their problems out, by the protocol")
        own = {"inherited": [r.inherited for r in part.responses], "sampled": [sum(r.logprobs) for r in part.responses]}
        columns = drawn.columns() | own | {"prompt": drawn.prompt + prompts}
        tables.append((columns, cut.columns() | {"response": cut.response + rows, "group": cut.group + groups}))
        prompts, rows, groups = prompts + drawn.num_prompts, rows + len(drawn), groups + cut.num_groups
    return [
        {name: np.concatenate([one[name] for one in kind]) for name in kind[0]} for kind in zip(*tables, strict=True)
    ]


def write_kept(found: Evidence, folder: Path) -> None:
    """Write the tables, and what they were made with beside a digest of every column."""
    for name, columns in found.tables.items():
        with replacing(folder / f"{name}.parquet") as staging:
            pq.write_table(pa.table(dict(columns)), staging, compression="zstd")
    write_file(folder / ABOUT, json.dumps({**found.about, DIGESTS: digest(found)}, indent=1) + "\n")


def read_kept(folder: Path) -> Evidence:
    """Return the evidence that was written."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    tables = {name: pq.read_table(folder / f"{name}.parquet") for name in TABLES}
    return Evidence(about, {name: {one: tables[name][one].to_numpy() for one in TABLES[name]} for name in TABLES})


def digest(found: Evidence) -> dict[str, str]:
    """Return the SHA-256 of the values of every column, by table and column."""
    return {
        f"{name}.{one}": hashlib.sha256(
            values.astype("<f8" if values.dtype.kind == "f" else "<i8").tobytes()
        ).hexdigest()
        for name, columns in found.tables.items()
        for one, values in columns.items()
    }
