"""Work of a worker for reasoning-gym: make a problem, or score an answer by the `score_answer` of the problem's data set.

No answer reaches an evaluator. Eleven data sets hand answers or texts of their own to Python's `eval`, or to sympy's
`parse_expr`, which evaluates them too: here they find `ast.literal_eval`, which reads plain data, or `read_formula` in its place.
"""

from __future__ import annotations

import decimal
import json
import os
import random
import re
import warnings
from ast import literal_eval
from collections.abc import Callable
from copy import deepcopy
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from math import isclose
from typing import Any

from fairlen.verify.worker import trusted

SIZE = 16  # problems of a data set: some make all of theirs when they are made themselves
MAX_DATASETS, MAX_ENTRIES = 32, 1024  # most of each that a worker keeps
LITERALS = ("algorithmic.binary_matrix", "algorithmic.number_sorting", "algorithmic.spiral_matrix",
            "algorithmic.string_insertion", "games.n_queens")  # fmt: skip
FORMULAS = {"arithmetic.bitwise_arithmetic": "eval", "games.countdown": "parse_expr", "games.puzzle24": "parse_expr"}
"""Modules that evaluate formulas, and by which name; those of algebra call it in sympy."""
Entry = dict[str, Any]


REQUIRED: dict[str, Callable[[str, Entry], bool]] = {
    "coin_flip": lambda answer, entry: isclose(Fraction(answer), Fraction(entry["answer"]), rel_tol=0.01),
    "complex_arithmetic": lambda answer, entry: "nan" not in answer.casefold(),
    "game_of_life_halting": lambda answer, entry: answer.strip().casefold() == entry["answer"].casefold(),
    "puzzle24": lambda answer, entry: (
        sorted(map(int, re.findall(r"\d+", answer))) == sorted(entry["metadata"]["numbers"])
    ),
}
"""Conditions besides the score, for data sets that accept answers regardless of the question: any prefix of
the reference, any word, any formula that is 24."""


def warm_up() -> None:
    """Load the package before workers are forked; what its data sets print goes nowhere."""
    import sympy.physics.units  # noqa: F401  sympy needs it to simplify

    from fairlen.verify.formula import read_formula, replace_evaluator

    replace_evaluator()
    for module in LITERALS:
        vars(import_module(f"reasoning_gym.{module}"))["eval"] = literal_eval
    for module, evaluator in FORMULAS.items():
        vars(import_module(f"reasoning_gym.{module}"))[evaluator] = read_formula
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def grade(**question: Any) -> str:
    """Reply in JSON: the problem of `make`, the score of `score`, or an error."""
    ((what, arguments),) = question.items()
    decimal.setcontext(decimal.Context())  # of which one data set changes the precision, for all
    try:
        return json.dumps({"make": make, "score": score}[what](**arguments))
    except Exception as error:  # data sets raise whatever they like
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def make(name: str, fields: str, seed: int, position: int) -> dict[str, str]:
    """Problem `position` < SIZE of a data set with `fields`, which are JSON."""
    _, entry = open_entry(name, fields, seed, position)
    answer = entry["answer"] if isinstance(entry["answer"], str) else ""  # some know how to score, and no answer
    if "Integral(" in answer:
        raise ValueError("sympy has found no antiderivative")
    return {"question": entry["question"], "answer": answer}


def score(name: str, fields: str, seed: int, position: int, answer: str) -> dict[str, float]:
    """0 where `score_answer` raises, or a required condition fails."""
    dataset, entry = open_entry(name, fields, seed, position)
    try:
        if name in REQUIRED and not REQUIRED[name](answer, entry):
            return {"score": 0.0}
        return {"score": float(dataset.score_answer(answer, deepcopy(entry)))}
    except Exception:
        return {"score": 0.0}


@lru_cache(MAX_ENTRIES)
def open_entry(name: str, fields: str, seed: int, position: int) -> tuple[Any, dict[str, Any]]:
    dataset = open_dataset(name, fields, seed)
    random.seed(seed + position)  # one data set draws from it
    with trusted():
        return dataset, dataset[position]


@lru_cache(MAX_DATASETS)
def open_dataset(name: str, fields: str, seed: int) -> Any:
    import reasoning_gym

    random.seed(seed)
    with trusted():
        return reasoning_gym.create_dataset(name, **json.loads(fields), seed=seed, size=SIZE)
