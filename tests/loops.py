"""One test over many values: what is cheap and alike is one case, of which a failure names the value; what is dear, several."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def over(arguments: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every value of an argument, or of several ("a, b"), in one case. Fixtures are shared by all values."""
    names = [name.strip() for name in arguments.split(",")]

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(check)

        def test(**given: Any) -> None:
            for value in values:
                row = (value,) if len(names) == 1 else value
                try:
                    check(**given, **dict(zip(names, row, strict=True)))
                except BaseException as error:
                    error.add_note(f"where {arguments} is {value!r}")
                    raise

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        rest = [one for one in signature.parameters.values() if one.name not in names]
        vars(test).update(
            {"__signature__": signature.replace(parameters=rest), "pytestmark": vars(check).get("pytestmark", [])}
        )
        return test

    return decorate


def first_quickly(values: Iterable[Any], num: int = 1, others: str = "slow") -> list[Any]:
    """Give the parameters of a test whose first values are tested each time, the others where slow or nightly tests are."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[getattr(pytest.mark, others)] * (n >= num)) for n, row in enumerate(rows)]
