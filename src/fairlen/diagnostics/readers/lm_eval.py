"""lm-eval's samples: one JSON object a document and filter, as `--log_samples` writes them.

doc_id, doc, target, arguments, resps, filtered_resps, filter, metrics, and a column a metric. Source: lm-evaluation-harness
4e7e0d4, evaluator.py and loggers/evaluation_tracker.py. Answers occur once for each filter; those of the first one are read.
"""

from __future__ import annotations

from typing import Any

from fairlen.diagnostics.readers.chunk import Chunk, Found, Meter, Part, Raw, is_number, make_part

NAME = "lm_eval"
TITLE = "lm-eval samples"
BUDGET = "max_gen_toks"
REMEDY = {
    "truncated": "lm-eval's samples hold no finish reason",
    "advantage": "an evaluation has no advantages",
}
NOT_SCORES = {"bypass"}


def fits(columns: set[str]) -> bool:
    return columns >= {"doc_id", "resps"} and bool(columns & {"doc", "target", "arguments"})


def read(chunk: Chunk, meter: Meter, found: Found) -> Part:
    """One chunk of documents, a row for each answer."""
    lines: list[int] = []
    prompts, answers, scores = [], [], []
    names = list(chunk.columns)
    for number, cells in zip(chunk.lines, zip(*chunk.columns.values(), strict=True), strict=True):
        row = dict(zip(names, cells, strict=True))
        chosen = found.reader.setdefault(f"filter of {chunk.file}", row.get("filter"))
        if row.get("filter") != chosen:
            found.note(f"rows of filters other than `{chosen}` repeat its answers and are left out", 1)
            continue
        texts = texts_of(row.get("resps"))
        values, problem = scores_of(row, len(texts or []), found)
        if texts is None or problem:
            found.reject(
                Chunk(chunk.file, [number], {}), 0, problem if texts else "no generated text: a task of log-likelihoods"
            )
            continue
        for text, score in zip(texts, values, strict=True):
            lines.append(number)
            prompts.append([row.get("prompt_hash") or row.get("arguments") or row.get("doc"), row.get("doc_id")])
            answers.append(text)
            scores.append(score)
    binary = all(score in (0, 1) for score in scores)
    raw = Raw(prompts, answers, scores, correct=scores if binary else None)
    return make_part(Chunk(chunk.file, lines, {}), raw, meter, found)


def texts_of(resps: Any) -> list[str] | None:
    """The texts in [[text, …]], one list a request; None where there is no text."""
    flat = [
        text
        for item in (resps if isinstance(resps, list) else [])
        for text in (item if isinstance(item, list) else [item])
    ]
    return flat if flat and all(isinstance(text, str) for text in flat) else None


def scores_of(row: dict[str, Any], num_answers: int, found: Found) -> tuple[list[Any], str]:
    """The first metric that is a number, or a list with one for each answer; else what is wrong."""
    named = row.get("metrics")
    names = [
        name for name in (named if isinstance(named, list) else row) if name not in NOT_SCORES and name != "doc_id"
    ]
    for name in names:
        value = row.get(name) if isinstance(name, str) else None
        if (
            isinstance(value, list)
            and len(value) == num_answers
            and all(map(is_number, value))
            and name in (named or ())
        ):
            found.note(f"outcome: `{name}`")
            return value, ""
        if is_number(value):
            if num_answers > 1:
                return [], f"one score for {num_answers} answers: nothing says which of them was right"
            found.note(f"outcome: `{name}`")
            return [value], ""
    return [], "no metric that is a number"
