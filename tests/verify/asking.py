"""One text to a form of answers, and one question to a pool of them, from any thread."""

import asyncio

from fairlen.channels import after_thinking
from fairlen.verify.answer import FORMS
from fairlen.verify.answer_pool import AnswerPool


def find_answer(text: str, letters: str = "", starts_inside: bool = False) -> str | None:
    """The answer after the thinking, of `letters` the one chosen."""
    return FORMS["auto"].read(after_thinking(text, starts_inside) or "", letters)


def compare(pool: AnswerPool, gold, answer: str, tolerance: float = 0.0) -> str:
    """Wait for the verdict in an event loop of its own."""
    return asyncio.run(pool.compare(gold, answer, tolerance=tolerance))
