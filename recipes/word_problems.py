"""Writes word problems in plain English, with solved examples as messages before each: data for a small instruction-tuned model.

    python recipes/word_problems.py words.jsonl [NUMBER]
    fairlen train --model models/smollm2 --data words.jsonl --instruction ''

A problem is a story of one to five steps; more steps take a longer response and are harder. Rows have `prompt` (messages) and
`answer`; the same number of rows gives the same file.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
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
NUMBER, MOST_STEPS = 4000, 5
Step = tuple[str, str, int]
"""What is told, its calculation, and what is left after it."""


def gain(rng: random.Random, who: str, what: str, count: int) -> Step:
    """Add a number of things."""
    more = rng.randint(2, 30)
    told = rng.choice(
        (f"{who} buys {more} more {what}.", f"A friend gives {who} {more} {what}.", f"{who} finds {more} more {what}.")
    )
    return told, f"{count} + {more}", count + more


def lose(rng: random.Random, who: str, what: str, count: int) -> Step:
    """Take a number of things away, not all."""
    less = rng.randint(1, count - 1)
    told = rng.choice(
        (f"{who} gives away {less} {what}.", f"{who} loses {less} {what}.", f"{who} sells {less} of the {what}.")
    )
    return told, f"{count} - {less}", count - less


def multiply(rng: random.Random, who: str, what: str, count: int) -> Step:
    """Make two to four times as many."""
    times = rng.randint(2, 4)
    word = {2: "twice", 3: "three times", 4: "four times"}[times]
    return f"Then {who} has {word} as many {what} as before.", f"{count} * {times}", count * times


def divide(rng: random.Random, who: str, what: str, count: int) -> Step:
    """Split into equal piles without a remainder, and keep one."""
    ways = rng.choice([ways for ways in (2, 3, 4, 5) if count % ways == 0])
    told = f"{who} splits the {what} into {ways} equal piles and keeps one pile."
    return told, f"{count} / {ways}", count // ways


def choose_steps(count: int) -> list[Callable[..., Step]]:
    """Return the kinds of step that leave a small whole number above 0."""
    kinds: list[Callable[..., Step]] = [gain]
    kinds += [lose] if count > 3 else []
    kinds += [multiply] if count <= 30 else []
    kinds += [divide] if count > 3 and any(count % ways == 0 for ways in (2, 3, 4, 5)) else []
    return kinds


def tell(rng: random.Random, num_steps: int) -> tuple[str, str, int]:
    """Return a problem, its solution step by step, and its answer."""
    who, what, count = rng.choice(NAMES), rng.choice(THINGS), rng.randint(3, 40)
    story, solution = [f"{who} has {count} {what}."], []
    for _ in range(num_steps):
        told, calculation, count = rng.choice(choose_steps(count))(rng, who, what, count)
        story.append(told)
        solution.append(f"{calculation} = {count}.")
    question = f"How many {what} does {who} have now?"
    return " ".join([*story, question]), " ".join([*solution, f"The answer is \\boxed{{{count}}}."]), count


def make_shots() -> list[dict[str, str]]:
    """Return three solved problems of one, two and three steps as messages."""
    rng, shots = random.Random("shots"), []
    for num_steps in (1, 2, 3):
        problem, solution, _ = tell(rng, num_steps)
        shots += [{"role": "user", "content": problem}, {"role": "assistant", "content": solution}]
    return shots


def make_row(number: int) -> dict[str, object]:
    """Return one row of the data: messages, and the answer."""
    rng = random.Random(number)
    problem, _, answer = tell(rng, rng.randint(1, MOST_STEPS))
    return {"prompt": [*make_shots(), {"role": "user", "content": problem}], "answer": str(answer)}


def main(place: str, number: str = str(NUMBER)) -> None:
    """Write the rows, one a line."""
    Path(place).write_text("".join(json.dumps(make_row(one)) + "\n" for one in range(int(number))))
    print(f"{place}: {number} word problems")


if __name__ == "__main__":
    main(*sys.argv[1:])
