"""Cards of data sets: the forms that are read, and malformed ones, which end in an error or a warning that names the card."""

import pytest

from fairlen.files.limits import bounded_memory, bounded_seconds
from fairlen.tasks.card import CardError, parse_card, parse_yaml, read_splits
from fairlen.tasks.source import DataError, locate, read_source

MIB = 2**20
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n}\n  <<: [{', '.join([f'*m{n - 1}'] * 12)}]\n" for n in range(1, 9))
"""Each mapping merges the one before twelve times: 12^8 = 430 million mappings."""


def front(text: str) -> str:
    return f"---\n{text}\n---\n# A set\n"


def with_files(data_files: str) -> str:
    return front(f"configs:\n- config_name: main\n  data_files: {data_files}")


MALFORMED = {
    "aliases that stand for 10^12 values": front(f"{LAUGHS}configs:\n- config_name: main\n"),
    "merges that stand for 430 million mappings": front(f"{MERGES}configs:\n- config_name: main\n"),
    "a merge without an alias": front("configs:\n- <<: {config_name: main}\n"),
    "an alias to itself": front("configs: &c\n- *c\n"),
    "lists nested 10,000 deep": front(f"configs: {'[' * 10_000}{']' * 10_000}"),
    "mappings nested 10,000 deep": front(f"configs: {'{a: ' * 10_000}1{'}' * 10_000}"),
    "a bracket that is not closed": front("configs: [unclosed"),
    "a tab as indentation": front("configs:\n\t- config_name: main"),
    "an unknown escape": front('configs:\n- config_name: "\\q"'),
    "a control character": front("configs:\n- config_name: a\x07b"),
    "two documents": front("configs: []\n...\na: 1"),
    "a list as a key": front("configs:\n- ? [a, b]\n  : c"),
    "YAML without an end": "---\nconfigs:\n- config_name: main\n",
    "YAML that ends after 4 MiB": f"---\nconfigs: []\nfiller: {'x' * (4 * MIB)}\n---\n",
    "configs as a text": front("configs: main"),
    "configs as a number": front("configs: 3"),
    "configs as a mapping": front("configs:\n  main: {data_files: a.jsonl}"),
    "configs of texts": front("configs: [main, other]"),
    "configs of lists": front("configs: [[main]]"),
    "an empty entry": front("configs:\n-\n- config_name: main"),
    "a name that is a list": front("configs:\n- config_name: [a, b]"),
    "a name that is a mapping": front("configs:\n- config_name: {a: b}"),
    "a name that is empty": front("configs:\n- config_name: ''"),
    "two configurations of one name": front("configs:\n- config_name: a\n- config_name: a"),
    "a default that is no truth value": front("configs:\n- config_name: main\n  default: perhaps"),
    "a default that is a list": front("configs:\n- config_name: main\n  default: [true]"),
    "files that are a list of lists": with_files("[[a.jsonl]]"),
    "files with an empty entry": with_files("[a.jsonl, null]"),
    "files that are an empty list": with_files("[]"),
    "files that are an empty mapping": with_files("{}"),
    "an entry without a path": with_files("[{split: train}]"),
    "a path that is empty": with_files("[{split: train, path: }]"),
    "a path that is a mapping": with_files("[{split: train, path: {a: b}}]"),
    "paths that are an empty list": with_files("[{split: train, path: []}]"),
    "paths of lists": with_files("[{split: train, path: [[a]]}]"),
    "a split that is a list": with_files("[{split: [train], path: a.jsonl}]"),
    "a split that is empty": with_files("[{split: , path: a.jsonl}]"),
    "a split named twice": with_files("[{split: train, path: a}, {split: train, path: b}]"),
    "a pattern of 5,000 characters": with_files("a" * 5000),
    "2,000 patterns with wildcards": with_files(str([f"{n}*" for n in range(2000)])),
    "splits that hold mappings": with_files("{train: {path: a}}"),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_card_is_an_error_that_names_it(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "train.jsonl").write_text("{}\n")
    with bounded_seconds(60), bounded_memory(512 * MIB), pytest.raises(DataError, match=r"README\.md"):
        locate(read_source(str(tmp_path)))


UNUSED = {
    "aliases": front(LAUGHS),
    "merges": front(MERGES),
    "a bracket that is not closed": front("license: [mit"),
    "depth": front("a: " + "[" * 5000),
    "a control character": front("license: \x07"),
}


@pytest.mark.parametrize("text", UNUSED.values(), ids=UNUSED)
def test_a_malformed_card_without_configurations_is_ignored_with_a_warning(tmp_path, capsys, text):
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "train.jsonl").write_text("{}\n")
    with bounded_seconds(60), bounded_memory(512 * MIB):
        assert locate(read_source(str(tmp_path))) == ((tmp_path / "train.jsonl",), "")
    assert "README.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "no YAML", "# A set\n\n---\nconfigs: after a rule\n---\n", "---\n\nA rule first.\n", front(""), front("- a list"),
     front("configs:"), front("configs: []"), front("license: mit"), "\n\n" + front("a: 1")],
)  # fmt: skip
def test_a_card_without_configurations_says_nothing(capsys, text):
    assert parse_card(text, "README.md") == ()
    assert capsys.readouterr().err == ""


def test_bytes_that_are_not_utf8_change_nothing_else(tmp_path):
    (tmp_path / "README.md").write_bytes(
        front("configs:\n- config_name: main\n  data_files: a.jsonl\nby: \xe9").encode("latin-1")
    )
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert locate(read_source(str(tmp_path)))[0] == (tmp_path / "a.jsonl",)


@pytest.mark.parametrize(
    "data_files, splits",
    [
        ("a.jsonl", {"train": ["a.jsonl"]}),
        ("[a.jsonl, b.jsonl]", {"train": ["a.jsonl", "b.jsonl"]}),
        ("{split: test, path: a.jsonl}", {"test": ["a.jsonl"]}),
        ("{path: a.jsonl}", {"train": ["a.jsonl"]}),
        ("[{split: test, path: [a, b]}, {path: c}]", {"test": ["a", "b"], "train": ["c"]}),
        ("{train: a, test: [b, c]}", {"train": ["a"], "test": ["b", "c"]}),
        ("", {}),
    ],
)
def test_forms_of_data_files(data_files, splits):
    assert read_splits("data_files", parse_yaml(f"value: {data_files}")["value"]) == splits


def test_values_stay_texts():
    """YAML reads 1e3, on, 2024-08-01 and 0x10 as a number, a truth value, a date and a number; as names they are texts."""
    card = front(
        "configs:\n" + "".join(f"- config_name: {name}\n" for name in ("1e3", "on", "2024-08-01", "0x10", "1_000"))
    )
    assert [config.name for config in parse_card(card, "README.md")] == ["1e3", "on", "2024-08-01", "0x10", "1_000"]


def test_an_entry_that_was_not_asked_for_may_be_malformed(tmp_path):
    (tmp_path / "README.md").write_text(
        front("configs:\n- config_name: good\n  data_files: a.jsonl\n- config_name: bad\n  data_files: [[x]]")
    )
    (tmp_path / "a.jsonl").write_text("{}\n")
    folder = tmp_path.rename(tmp_path.with_name("owner_set"))
    assert locate(read_source(f"{folder}/good"))[0] == (folder / "a.jsonl",)
    with pytest.raises(DataError, match=r"README\.md: data_files of the configuration 'bad'"):
        locate(read_source(f"{folder}/bad"))


def test_aliases_are_refused_before_they_are_followed():
    with pytest.raises(CardError, match=r"alias \(\*a0\)"):
        parse_yaml(LAUGHS)
