"""The battery that every method of fairlen passes, for stages of your own."""

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.trial import check as check_named


def check(method: Method | str) -> None:
    """Raise ValueError for the first part that a method fails, such as "grpo+mine.py:Mine", naming the stage and what to do.

    On a small ragged batch: what each stage returns, twice, and in float64; rows in another order, prompts by other numbers, rows
    that do not count; log-probs at ratio 1, log ratios of 800, tokens that do not train, any split into micro-batches, gradients
    where `clipped` is set; and two updates of a state, saved and restored. Columns have the examples of `reads` alone.
    """
    is_name = isinstance(method, str)
    check_named(compose(method) if is_name else method, method if is_name else "of a test")
