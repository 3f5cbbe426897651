"""One thread for every test: results depend on the thread count, and the machine has other work."""

import pytest
import torch
from fixtures import Batch, ragged_batch

torch.set_num_threads(1)


@pytest.fixture
def ragged() -> Batch:
    return ragged_batch()
