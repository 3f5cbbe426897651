"""One question to a pool of answers, from any thread."""

import asyncio

from fairlen.verify.answer_pool import AnswerPool, AnswerVerdict


def compare(pool: AnswerPool, gold, answer: str, tolerance: float = 0.0) -> AnswerVerdict:
    """Wait for the verdict in an event loop of its own."""
    return asyncio.run(pool.compare(gold, answer, tolerance=tolerance))
