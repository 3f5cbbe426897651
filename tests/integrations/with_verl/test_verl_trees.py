"""Rows of verl as trees: which tokens are wanted, and how prompts are dealt."""

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from verl.utils import tensordict_utils as tu

from fairlen.integrations.verl.trainer import deal
from fairlen.integrations.verl.trees import find_paths, find_wanted


def make_batch(**columns):
    """Two rows: prompt 1 2 3, response 4 5 6 with a mask on its end; prompt 1 2, response 7 8 with a mask on all of it."""

    def nested(*rows):
        return torch.nested.as_nested_tensor(list(map(torch.tensor, rows)), layout=torch.jagged)

    ids, mask = nested([1, 2, 3, 4, 5, 6], [1, 2, 7, 8]), nested([0, 1, 1], [1, 1])
    return tu.get_tensordict({"input_ids": ids, "response_mask": mask, **columns})


def test_with_a_plan_those_that_train_are_wanted():
    """Of a row that does not train nothing is forwarded; where none does, the first token of all responses is wanted."""
    batch = make_batch(plan_trains=torch.tensor([False, True]))
    assert find_wanted(batch).tolist() == [8, 9]
    assert [path.tolist() for path in find_paths(batch)] == [[], [1, 2, 7]]
    assert find_wanted(make_batch(plan_trains=torch.tensor([False, False]))).tolist() == [3]


def test_prompts_are_dealt_whole_and_by_size():
    """Tokens 9, 8, 5, 4, 3 of b, e, a, d, c: b to the first part, e and a to the second, d and c to the first."""
    prompts, sizes = "abacdbe", (2, 4, 3, 3, 4, 5, 8)
    order = deal(prompts, sizes, 2)
    assert "".join(prompts[row] for row in order) == "bbdceaa" and sorted(order) == list(range(7))
