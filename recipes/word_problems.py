"""Writes word problems in plain English, with solved examples as messages before each: data for a small instruction-tuned model.

    python recipes/word_problems.py words.jsonl [NUMBER]
    fairlen train --model models/smollm2 --data words.jsonl --instruction ''

A problem is a story of one to three steps; more steps take a longer response and are harder. Rows have `prompt` (messages) and
`answer`; the same number of rows gives the same file.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

NAMES = (
    "Ana",
    "Ben",
    "Chloe",
    "Dev",
    "Emma",
    "Finn",
    "Grace",
    "Hugo",
    "Iris",
    "Jack",
    "Kira",
    "Leo",
    "Maya",
    "Noah",
    "Rosa",
)
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "plums", "shells", "stamps", "stickers")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday")
VERBS = ("buys", "collects", "finds", "gets")
NUMBER = 4000


def tell(rng: random.Random, num_steps: int) -> tuple[str, str, int]:
    """Return a problem, its solution step by step, and its answer."""
    who, what = rng.choice(NAMES), rng.choice(THINGS)
    total, *others = numbers = [rng.randint(1, 9) for _ in range(num_steps + 1)]
    story = [f"On {day} {who} {rng.choice(VERBS)} {number} {what}." for day, number in zip(DAYS, numbers, strict=False)]
    solution = [f"{DAYS[0]}: {total}."]
    for day, number in zip(DAYS[1:], others, strict=False):
        solution.append(f"{day}: {total} + {number} = {total + number}.")
        total += number
    question = f"How many {what} does {who} have in all?"
    return " ".join([*story, question]), " ".join([*solution, f"The answer is \\boxed{{{total}}}."]), total


def make_shots() -> list[dict[str, str]]:
    """Return three solved problems as messages, the longest first: what comes last is imitated most."""
    rng, shots = random.Random("shots"), []
    for num_steps in (3, 1, 2):
        problem, solution, _ = tell(rng, num_steps)
        shots += [{"role": "user", "content": problem}, {"role": "assistant", "content": solution}]
    return shots


def make_row(number: int) -> dict[str, object]:
    """Return one row of the data: messages, and the answer."""
    rng = random.Random(number)
    problem, _, answer = tell(rng, rng.randint(1, 3))
    return {"prompt": [*make_shots(), {"role": "user", "content": problem}], "answer": str(answer)}


def main(place: str, number: str = str(NUMBER)) -> None:
    """Write the rows, one a line."""
    Path(place).write_text("".join(json.dumps(make_row(one)) + "\n" for one in range(int(number))))
    print(f"{place}: {number} word problems")


if __name__ == "__main__":
    main(*sys.argv[1:])
