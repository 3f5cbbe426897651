"""The table of tasks that come with a model."""

import pytest

from fairlen.tasks.shipped import SHIPPED, make_shipped, place_model, shipped_settings


def test_the_table_of_shipped_tasks_names_what_there_is():
    assert {name: make_shipped(name).name for name in SHIPPED} == {name: name for name in SHIPPED}
    assert make_shipped("playground:cups").describe()["families"] == ["cups"]
    for place in ("gsm8k", "guess:sums", "playground:hats"):
        with pytest.raises(ValueError, match=f"--task {place}: there are playground, playground:sums, .*, guess;"):
            make_shipped(place)
    assert shipped_settings("guess") == {"model": "guess", "max_response_length": 192}
    assert shipped_settings("playground:sums") == {"model": "playground", "max_response_length": 160}
    assert shipped_settings("tasks.py:Mine") == {}


def test_a_shipped_model_has_one_revision_and_its_weights():
    assert place_model("guess").endswith("fairlen/guess") and place_model("owner/name", "main") == "owner/name"
    with pytest.raises(ValueError, match="model=guess with revision or random_init: name a model folder or hub id"):
        place_model("guess", random_init=True)
