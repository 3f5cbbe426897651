"""The search of a large vocabulary in blocks, against running sums over all of it."""

import torch
from loops import over
from torch import Tensor

from fairlen.engine.sampler import BLOCK, MAX_SCANNED, invert


def scan(probabilities: Tensor, shares: Tensor) -> Tensor:
    """The definition: the first token at which the running sum passes the share of the whole."""
    reached = probabilities.cumsum(-1, dtype=torch.float64)
    return (reached > shares[:, None] * reached[:, -1:]).int().argmax(-1)


@over("size", [MAX_SCANNED, MAX_SCANNED + 1, 8 * BLOCK + 7, 151_936])
@over("spread", [0.5, 5.0])
def test_blocks_find_what_a_scan_finds(size, spread):
    generator = torch.Generator().manual_seed(size)
    probabilities = torch.softmax(spread * torch.randn(64, size, generator=generator), -1)
    shares = torch.rand(64, generator=generator, dtype=torch.float64)
    assert torch.equal(invert(probabilities, shares), scan(probabilities, shares))


def test_boundaries_of_blocks_and_tokens_without_probability():
    # 1/4 on the last token of block 0, 1/2 on the first of block 3, 1/4 on the last of the vocabulary; sums are exact
    size = 6 * BLOCK + 5
    probabilities = torch.zeros(1, size)
    places = [BLOCK - 1, 3 * BLOCK, size - 1]
    probabilities[0, places] = torch.tensor([0.25, 0.5, 0.25])
    expected = {0.0: 0, 0.2499: 0, 0.25: 1, 0.7499: 1, 0.75: 2, 1.0 - 2.0**-53: 2}
    for share, number in expected.items():
        assert invert(probabilities, torch.tensor([share], dtype=torch.float64)).tolist() == [places[number]]
