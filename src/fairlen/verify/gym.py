"""What a worker does for reasoning-gym: makes a problem, or scores an answer by the `score_answer` of the problem's data set.

Nine data sets hand answers to Python's `eval`, or to sympy's `parse_expr`, which evaluates them too. They are handed nothing that
could call anything but functions of mathematics.
"""

from __future__ import annotations

import decimal
import json
import os
import random
import re
import warnings
from copy import deepcopy
from functools import lru_cache
from typing import Any

SIZE = 16
"""Problems of a data set: some make all of theirs when they are made themselves."""
MAX_DATASETS, MAX_ENTRIES = 32, 1024
"""That a worker keeps."""
FUNCTIONS = (
    "a?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|[Aa]bs|factorial|binomial|Rational|Integral|pi|oo|erfc?|Ei|Si|Ci"
)
FORMULA = re.compile(rf"(?:[\d\s+\-*/^!,=()]|\.(?=\d)|(?:{FUNCTIONS}|[A-Za-z])(?![A-Za-z_]))*", re.ASCII)
"""Numbers, operators, functions and letters: no attribute, no text, no other name."""
NO_CALL = re.compile(r"[^(]*")
EVALUATED = {
    "binary_matrix": NO_CALL, "n_queens": NO_CALL, "spiral_matrix": NO_CALL, "string_insertion": NO_CALL,
    "countdown": FORMULA, "puzzle24": FORMULA, "polynomial_multiplication": FORMULA,
    "simple_integration": FORMULA, "intermediate_integration": FORMULA,
}  # fmt: skip
"""By data set what an answer that is evaluated is. Of the first four one that has to be is never correct."""


def warm_up() -> None:
    """Load the package before workers are forked; what its data sets print goes nowhere."""
    import reasoning_gym  # noqa: F401

    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def grade(**question: Any) -> str:
    """Return the reply in JSON: of `make` the problem, of `score` the score, of either an error."""
    ((what, arguments),) = question.items()
    decimal.setcontext(decimal.Context())  # of which one data set changes the precision, for all
    try:
        return json.dumps({"make": make, "score": score}[what](**arguments))
    except Exception as error:  # data sets raise whatever they like
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def make(name: str, fields: str, seed: int, position: int) -> dict[str, str]:
    """Return problem `position` < SIZE of a data set with `fields`, which are JSON."""
    _, entry = open_entry(name, fields, seed, position)
    answer = entry["answer"] if isinstance(entry["answer"], str) else ""  # some know how to score, and no answer
    return {"question": entry["question"], "answer": answer}


def score(name: str, fields: str, seed: int, position: int, answer: str) -> dict[str, float]:
    """Return the score of an answer; 0 where `score_answer` raises, or would evaluate what it must not."""
    if name in EVALUATED and not EVALUATED[name].fullmatch(answer):
        return {"score": 0.0}
    dataset, entry = open_entry(name, fields, seed, position)
    try:
        return {"score": float(dataset.score_answer(answer, deepcopy(entry)))}
    except Exception:
        return {"score": 0.0}


@lru_cache(MAX_ENTRIES)
def open_entry(name: str, fields: str, seed: int, position: int) -> tuple[Any, dict[str, Any]]:
    """Return a data set, and what it has at a position."""
    dataset = open_dataset(name, fields, seed)
    random.seed(seed + position)  # one data set draws from it
    return dataset, dataset[position]


@lru_cache(MAX_DATASETS)
def open_dataset(name: str, fields: str, seed: int) -> Any:
    """Return a data set."""
    import reasoning_gym

    random.seed(seed)
    return reasoning_gym.create_dataset(name, **json.loads(fields), seed=seed, size=SIZE)
