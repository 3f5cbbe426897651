"""One sandbox for the tests of a module: opened as a run opens it, with its probes."""

import pytest

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.sandbox import open_sandbox


@pytest.fixture(scope="module")
def sandbox() -> Bubblewrap:
    opened = open_sandbox()
    assert isinstance(opened, Bubblewrap)
    return opened
