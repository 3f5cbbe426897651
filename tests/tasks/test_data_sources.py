"""How sources are written, and which files of a folder they mean."""

import datetime

import pytest
from loops import over

from fairlen.tasks.card import parse_card
from fairlen.tasks.source import DataSource, Filter, choose_files, locate, read_source


@over(
    "text, expected",
    [
        ("owner/name", DataSource("", "owner/name", False)),
        ("owner/name/main", DataSource("", "owner/name", False, config="main")),
        ("owner/name@abc:test=2", DataSource("", "owner/name", False, revision="abc", split="test", weight=2.0)),
        ("owner/name:train=0.125", DataSource("", "owner/name", False, split="train", weight=0.125)),
        ("owner/n?Year=..2023", DataSource("", "owner/n", False, filters=(Filter("Year", "", "2023"),))),
        ("owner/n/c@r:s?a=1..2,b=x=0.5",
         DataSource("", "owner/n", False, "c", "r", "s", (Filter("a", "1", "2"), Filter("b", "x", "x")), 0.5)),
    ],
)  # fmt: skip
def test_the_grammar_of_hub_ids(text, expected):
    found = read_source(text)
    assert found == DataSource(text, *(getattr(expected, name) for name in list(DataSource.__dataclass_fields__)[1:]))


def test_a_path_that_exists_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name").mkdir()
    (tmp_path / "a=3:b?c=d.jsonl").write_text("{}\n")
    assert read_source("owner/name").is_local
    split = DataSource("owner/name:test=2", "owner/name", True, split="test", weight=2.0)
    assert read_source("owner/name:test=2") == split
    assert read_source("a=3:b?c=d.jsonl") == DataSource("a=3:b?c=d.jsonl", "a=3:b?c=d.jsonl", True)
    assert not read_source("owner/other").is_local


def test_a_name_after_a_copy_of_a_data_set_is_its_configuration(tmp_path):
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "README.md").write_text("")
    found = read_source(f"{tmp_path}/name/en:test")
    assert (found.place, found.config, found.split, found.name) == (f"{tmp_path}/name", "en", "test", "name-en-test")


@over(
    "text, message",
    [
        ("missing.jsonl", "no file or folder 'missing.jsonl'"), ("", "no file or folder ''"),
        ("owner/name=half", "weight 'half': give a number above 0"), ("owner/name=0", "weight '0'"),
        ("owner/name=0.0001", "at most three decimals"), ("owner/name?year", "filter 'year': write COLUMN=VALUE"),
        ("owner/name?year=..", "filter 'year=..'"),
    ],
)  # fmt: skip
def test_mistakes_in_sources_are_named(text, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        read_source(text)


@over(
    "bounds, value, accepted",
    [
        (("", "2023"), 2023, True), (("", "2023"), 2024, False),
        (("9", ""), "10", True),  # numbers, though as text "10" < "9"
        (("9", ""), 8.5, False),
        (("2024-08", "2024-08"), "2024-08-31T12:00:00", True),  # the upper bound includes all that begins with it
        (("2024-08-01", "2024-09"), "2024-10-01T00:00:00", False),
        (("2024-08-01", ""), datetime.datetime(2024, 8, 1), True), (("English", "English"), "English", True),
        (("English", "English"), "Chinese", False),
        (("Level 1", "Level 1"), "Level 10", False),  # no date, so that nothing but the value itself is meant
        (("5", "5"), "5.0", True), (("", "5"), None, False),
    ],
)  # fmt: skip
def test_filters(bounds, value, accepted):
    assert Filter("x", *bounds).accepts(value) is accepted


CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files: socratic/*.parquet
---
# A set
"""
NAMES = ["README.md", "main/train-0.parquet", "main/test-0.parquet", "socratic/x.parquet", "script.py"]


def choose(names=NAMES, card="", config="", split=""):
    return choose_files("owner/name", names, parse_card(card, "README.md"), config, split)


def test_files_by_the_card():
    assert choose(card=CARD, config="main", split="test") == ["main/test-0.parquet"]
    assert choose(card=CARD, config="socratic") == ["socratic/x.parquet"]
    for text in ("", "no front", "---\n[unclosed\n---\n", "---\n- a list\n---\n"):
        assert parse_card(text, "README.md") == ()
    with pytest.raises(ValueError, match=r"several configurations; give one of main, socratic"):
        choose(card=CARD)
    with pytest.raises(ValueError, match=r"no configuration 'mian' there; give one of main, socratic"):
        choose(card=CARD, config="mian")
    with pytest.raises(ValueError, match=r"it has the splits test, train; add :SPLIT"):
        choose(card=CARD, config="main")
    with pytest.raises(ValueError, match=r"no split 'dev' there; give one of test, train"):
        choose(card=CARD, config="main", split="dev")


def test_files_by_their_names():
    names = [f"data/{part}.parquet" for part in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")]
    assert choose(names, split="train") == names[:2]
    with pytest.raises(ValueError, match="it has the splits test, train"):
        choose(names)
    inside = ["hard-train/train.jsonl", "hard-train/test.jsonl", "train/0.jsonl"]
    assert choose(inside, split="train") == [inside[0], inside[2]], (
        "the test file of a folder named train is no train file"
    )
    assert choose(inside, split="test") == [inside[1]]
    assert choose(inside, split="hard") == [inside[1], inside[0]]
    parts = ["part-1.jsonl", "part-2.jsonl", "part-10.jsonl"]
    assert choose(parts[::-1]) == parts
    assert choose(["en/a.parquet", "cn/a.parquet"], config="en") == ["en/a.parquet"]
    assert choose(["a.jsonl", "a.parquet", "dataset_infos.json"]) == ["a.parquet"]  # the same twice: Parquet
    with pytest.raises(ValueError, match=r"loading script \(a.py\), which is never run"):
        choose(["a.py", "README.md"])


def test_livecodebench_by_release():
    names = ["code_generation_lite.py", *(f"test{n}.jsonl" for n in ("", 2, 3, 4, 5, 6))]
    assert choose(names, config="release_v2") == ["test.jsonl", "test2.jsonl"]
    assert choose(names, config="v6") == ["test6.jsonl"]
    assert choose(names, config="v1") == ["test.jsonl"]
    with pytest.raises(ValueError, match="published in 6 parts; name a release"):
        choose(names)
    with pytest.raises(ValueError, match="/release_v6 is all of them, /v6 the newest alone"):
        choose(names, config="v7")


def test_a_local_folder_is_read_like_a_hub_set(tmp_path):
    (tmp_path / "main").mkdir()
    for name in ("train", "test"):
        (tmp_path / "main" / f"{name}-0.jsonl").write_text("{}\n")
    (tmp_path / "README.md").write_text(CARD.replace("parquet", "jsonl"))
    assert locate(read_source(f"{tmp_path}/main:test")) == ((tmp_path / "main" / "test-0.jsonl",), "")
    with pytest.raises(ValueError, match="a single file has no splits"):
        locate(read_source(f"{tmp_path}/main/test-0.jsonl:test"))
