"""Samples that others drew: Parquet, JSON lines, JSON or CSV with a text in each row, by the usual names of columns.

Texts are enough where --data names the problems and rows say which one they answer; without --data, reference answers are needed.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlen.diagnostics.readers.chunk import describe_no_text, text_of
from fairlen.diagnostics.readers.generic import CUT, choose, count_of
from fairlen.evaluate.samples import Sample
from fairlen.files.formats import Chunk, container_of, stream

GOLDS = ("gold", "gold_answer", "ground_truth", "reference_answer", "answer", "target", "reference", "gts", "label")
IDS = ("problem_id", "prompt_id", "question_id", "unique_id", "doc_id", "id")


def read_foreign(path: Path) -> tuple[Sample, ...]:
    """The samples of a file of any kind. Raises ValueError for broken rows, and naming the columns where there are no texts."""
    samples, tally = [], Counter[str]()
    for chunk in stream(path, container_of(path), counts=True):
        samples += [number(sample, tally) for sample in read_rows(chunk)]
    if not samples:
        raise ValueError(f"{path}: no rows")
    return tuple(samples)


def number(sample: Sample, tally: Counter[str]) -> Sample:
    """The sample with its place among those of its problem."""
    tally[sample.problem_id] += 1
    return replace(sample, sample=tally[sample.problem_id] - 1)


def read_rows(chunk: Chunk) -> list[Sample]:
    """Rows by the usual names of their columns."""
    columns = set(chunk.columns)
    gold = next((name for name in GOLDS if name in columns), "")
    ident = next((name for name in IDS if name in columns), "")
    chosen = choose(columns - {gold, ident}, {})
    if "response" not in chosen:
        raise ValueError(
            f"{chunk.file}: no column of texts among {', '.join(sorted(columns))}: call it text, response or completion"
        )
    prompts = chunk.get(chosen.get("prompt", ""))
    values = chunk.get(chosen["response"])
    texts = [text_of(value) for value in values]
    if None in texts:
        row = texts.index(None)
        raise ValueError(f"{chunk.file}:{chunk.lines[row]}: the text {describe_no_text(values[row])}")
    golds, ids = chunk.get(gold), chunk.get(ident)
    tokens = [count_of(value) for value in chunk.get(chosen.get("tokens", ""))]
    finish = chunk.get(chosen.get("finish", ""))
    return [
        read_row(chunk, row, texts[row] or "", prompts[row], golds[row], ids[row], tokens[row], finish[row])
        for row in range(len(chunk))
    ]


def read_row(chunk: Chunk, row: int, text: str, prompt: Any, gold: Any, ident: Any, tokens: Any, finish: Any) -> Sample:
    """One row; a problem is known by its id, else by its text, else by its answer and place."""
    problem, answer = written(prompt), written(gold)
    name = written(ident) or problem or f"row {chunk.lines[row]}"
    has_tokens = isinstance(tokens, int | float) and tokens >= 1
    return Sample(
        problem_id=name,
        problem=problem,
        answer=answer,
        sample=0,
        text=text,
        length=int(tokens) if has_tokens else None,
        finish=None if finish is None else "length" if str(finish).strip().lower() in CUT else "stop",
    )


def written(value: Any) -> str:
    """A cell as text; a list of one is that one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
