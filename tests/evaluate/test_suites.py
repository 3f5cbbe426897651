"""The suites are what the page and the papers' files say, and each of them makes settings."""

import json
import re
from pathlib import Path

import pytest
from loops import over

from fairlen.evaluate.config import SUITES, EvalConfig, find_suite, suite_settings
from fairlen.evaluate.folder import describe_suite
from fairlen.evaluate.sets import check_places
from fairlen.tasks.source import read_source

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()


def test_the_page_has_every_suite_with_its_sets():
    for name, suite in SUITES.items():
        assert (
            f"\n- `{name}` ({suite.paper}), {suite.reports}: {', '.join(one.name for one in suite.benchmarks)}\n"
            in PAGE
        )
    assert re.findall(r"^- `(\w+)` \(", PAGE, re.M) == list(SUITES)


@over("name", SUITES)
def test_every_suite_makes_settings_of_sets_that_parse(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRLEN_DATA", str(tmp_path))
    config = suite_settings(name, model="x", seed=3)
    assert (config.run.suite, config.model.name, config.run.seed) == (name, "x", 3)
    assert config.data.places == tuple(one.place for one in find_suite(name).benchmarks)
    for place in config.data.places:
        source = read_source(place)
        assert not source.is_local and source.split


def test_sets_are_named_in_lists_and_a_file_goes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRLEN_DATA", str(tmp_path))
    (file := tmp_path / "aime24.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    config = suite_settings("humaneval,aime24", samples=4)
    assert config.data.places == ("openai/openai_humaneval:test", str(file))
    assert (config.run.samples, config.sampling) == (4, EvalConfig().sampling)
    assert suite_settings("fspo").data.places[2] == str(file)
    with pytest.raises(ValueError, match="did you mean 'humaneval'"):
        suite_settings("aime24,humanevl")


def test_no_part_of_a_suite_is_evaluated(tmp_path, monkeypatch):
    """HMMT as a whole is on no hub, so that this asks none."""
    monkeypatch.setenv("FAIRLEN_DATA", str(tmp_path))
    (tmp_path / "aime24.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    check_places(suite_settings("aime24"))
    with pytest.raises(ValueError, match=r"hmmt missing .*hmmt.jsonl.*; aime24 there"):
        check_places(suite_settings("aime24,hmmt"))


def test_what_differs_from_the_suite_is_recorded():
    assert describe_suite(suite_settings("fspo")) == {"name": "fspo", "paper": "2509.09177", "changed": {}}
    changed = suite_settings("fspo").replace(samples=4, max_response_length=100)
    assert describe_suite(changed)["changed"] == {"samples": 4, "max_response_length": 100}
    json.dumps(describe_suite(changed))
