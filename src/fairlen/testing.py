"""The battery that every method of fairlen passes, for stages of your own."""

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.trial import check as check_named


def check(method: Method | str) -> None:
    """Raise ValueError for the first part that a method fails, such as "grpo+mine.py:Mine", naming the stage and what to do.

    On a small ragged batch: what each stage returns, the slope of the loss at ratio 1, rows in another order, prompts by other
    numbers, rows that do not count, any split into micro-batches, and state that is saved and restored.
    """
    is_name = isinstance(method, str)
    check_named(compose(method) if is_name else method, method if is_name else "of a test")
