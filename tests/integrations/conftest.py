"""Nothing is looked up on the hub, and what a Trainer of transformers does at each start is done once."""

import logging
import os
from functools import cache
from importlib.util import find_spec

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
logging.getLogger("httpx").setLevel(logging.WARNING)


@pytest.fixture(autouse=True, scope="module")
def quick_starts():
    """accelerate collects garbage among a million objects of all tests, and parses the metadata of packages, at every start."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("accelerate"):
            from accelerate.utils import imports, memory

            patch.setattr(memory, "clear_device_cache", lambda *_, **__: None)
            patch.setattr(imports, "_is_package_available", cache(imports._is_package_available))
        yield
