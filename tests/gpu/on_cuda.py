"""The marks of every test that needs a CUDA device."""

import pytest
import torch

ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch sees no CUDA device: nothing of it was tested"),
]  # fmt: skip
