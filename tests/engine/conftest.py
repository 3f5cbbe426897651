"""A small random model, new for each test."""

import pytest
from small_engines import build
from transformers import PreTrainedModel


@pytest.fixture
def qwen3() -> PreTrainedModel:
    return build("qwen3")
