"""Samples on disk: what of them is read, and what of them cannot be."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from loops import over
from small_eval import write_set

from fairlen.evaluate.folder import rescore_settings
from fairlen.evaluate.samples import (
    Sample,
    SampleProgress,
    file_name,
    read_samples,
    read_tokens,
    sample_path,
    write_samples,
)
from fairlen.evaluate.start import start_evaluation


def test_a_folder_without_an_evaluation_is_named(tmp_path, finished):
    for place in (tmp_path / "nothing", finished / "samples"):
        with pytest.raises(ValueError, match=f"--from-samples {place}: no eval.json there; give the folder"):
            rescore_settings(str(place))


@pytest.mark.slow
def test_an_evaluation_without_a_finished_set_is_named(finished, tmp_path):
    shutil.copy(finished / "eval.json", tmp_path)
    with pytest.raises(ValueError, match=f"--from-samples {tmp_path}: no set was finished there"):
        start_evaluation(rescore_settings(str(tmp_path), out=str(tmp_path / "again")))


def test_a_set_or_a_problem_that_is_not_there_is_named(finished, tmp_path):
    """By --data of other problems, or of fewer."""
    with pytest.raises(ValueError, match="playground is none of the sets sums: name its place with --data"):
        rescored(finished, tmp_path / "out", data=(str(write_set(tmp_path / "sums.jsonl", 1)),))
    with pytest.raises(ValueError, match=r"problem '.*' is not in playground"):
        rescored(finished, tmp_path / "out", problems=11)


def rescored(folder: Path, out: Path, **changes) -> dict:
    return start_evaluation(rescore_settings(str(folder), out=str(out), **changes))


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
