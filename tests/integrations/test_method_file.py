"""Which checkpoints of frameworks a method goes on from: those of other processes, not those of other methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from fairlen.integrations.run_folder import resume_method, save_method
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.filters import Everything


@dataclass(frozen=True)
class Own(Everything):
    """A stage of somebody's own, with a function in a field."""

    rule: Callable
    level: float


def make(level: float) -> Method:
    """A method whose function lies elsewhere at each call, as in another process."""

    def choose(*_): ...

    return replace(compose("grpo"), filter=Own(partial(choose, partial(choose, 2)), level))


def test_a_function_in_a_field_is_the_same_in_another_process(tmp_path):
    saved, resumed = make(0.5), make(0.5)
    assert " at 0x" in repr(saved) and repr(saved) != repr(resumed)
    save_method(tmp_path, saved)
    assert resume_method(tmp_path, resumed) == resumed
    with pytest.raises(ValueError, match=r"resuming with another method.*level=0\.75"):
        resume_method(tmp_path, make(0.75))


def test_what_is_saved_comes_back(tmp_path):
    method = compose("fspo")
    learned = method.with_state(dict.fromkeys(method.state, 1))
    save_method(tmp_path, learned)
    assert resume_method(tmp_path, method) == learned
    path = tmp_path / "fairlen.json"
    path.write_text(path.read_text().replace('"surrogate.drift_average": 1', '"surrogate.drift_average": NaN'))
    with pytest.raises(ValueError, match=r"surrogate\.drift_average=nan.*earlier checkpoint"):
        resume_method(tmp_path, method)
    with pytest.raises(ValueError, match=r"aggregation .* -> "):
        resume_method(tmp_path, replace(method, aggregation=compose("dapo").aggregation))
