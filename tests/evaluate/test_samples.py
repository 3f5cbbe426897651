"""Samples on disk: nothing is lost on the way, and what is not whole is not taken for it."""

from dataclasses import replace

import pytest
from loops import over

from fairlen.evaluate.samples import (
    Sample,
    SampleProgress,
    file_name,
    read_samples,
    read_tokens,
    sample_path,
    write_samples,
)

DRAWN = Sample(
    "s/1", "What?", "2", 0, "\\boxed{2}", 1.0, "correct", "2", 0.25, (1, 2, 3), 1, 2, "stop", 2**62, 0.6, True
)
READ = Sample("s/2", "", "2", 0, "", status="timeout")


def test_samples_come_back_as_they_were(tmp_path):
    path = tmp_path / "samples" / "s.parquet"
    write_samples([DRAWN, READ], path)
    assert read_samples(path) == (replace(DRAWN, token_ids=None), READ)
    assert read_tokens(path).to_pylist() == [[1, 2, 3], None]
    write_samples([replace(DRAWN, token_ids=None), READ], path, read_tokens(path))
    assert read_tokens(path).to_pylist() == [[1, 2, 3], None]


def test_parts_are_put_in_order_and_removed(tmp_path):
    """Problems b and a are done in this order, each with its samples in another; the set has a first."""
    path = tmp_path / "samples" / "s.parquet"
    first = SampleProgress(path)
    first.add([replace(DRAWN, problem_id="b", sample=1), replace(DRAWN, problem_id="b", sample=0)])
    again = SampleProgress(path)
    again.add([replace(DRAWN, problem_id="a", sample=n, token_ids=(9, n)) for n in (1, 0)])
    found = again.finish({"a": 0, "b": 1})
    assert [(s.problem_id, s.sample) for s in found] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert read_samples(path) == found
    assert read_tokens(path).to_pylist() == [[9, 0], [9, 1], [1, 2, 3], [1, 2, 3]]
    assert [file.name for file in path.parent.iterdir()] == ["s.parquet"]


def test_a_damaged_file_is_an_error(tmp_path):
    path = tmp_path / "s.parquet"
    write_samples([DRAWN], path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"s\.parquet: .*not a whole table of samples"):
        read_samples(path)


@over(
    "name, file", [("aime_2025-train", "aime_2025-train"), ("../../etc/x", "etc-x"), ("a b:c", "a-b-c"), ("..", "set")]
)
def test_names_of_sets_stay_in_the_folder(tmp_path, name, file):
    assert file_name(name) == file
    assert sample_path(tmp_path, name).parent == tmp_path / "samples"
