"""Pipes and devices in every place in which a command expects a file: an error that names the file, and never a hang."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from evaluate.small_eval import write_set
from lines import write_lines
from made_comparison import make_comparison
from report_runs import write_run

from fairlen import playground
from fairlen.cli import main
from fairlen.files.foreign import (
    MAX_TOML,
    Unreadable,
    open_regular_file,
    read_file_bytes,
    read_file_lines,
    read_file_text,
    read_json_object,
    read_toml_file,
)
from fairlen.files.limits import bounded_seconds
from fairlen.plugins import find_plugin

LIMIT = 60
"""Seconds after which a command counts as hanging; each of them takes a few."""


@pytest.fixture(params=["pipe", "device"])
def special(request):
    """Replace a file by a pipe without a writer, or by a link to a device that never ends; return what errors call it."""

    def replace(path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        return f"{path}: a {request.param}: give a regular file"

    return replace


def run(*arguments: object) -> int:
    """Run a command. A hang ends with TimeoutError, whose message then lacks what the tests look for."""
    with bounded_seconds(LIMIT):
        return main([str(argument) for argument in arguments])


def error_of(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", batches=2, prompts=2)


@pytest.fixture
def run_folder(finished_run, tmp_path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def eval_folder(tmp_path) -> Path:
    folder = tmp_path / "eval"
    write_lines(folder / "eval.json", {"config": {}, "model": None, "sets": {}})
    return folder


# --------------------------------------------------------------------------------------------------------- each command


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_report_of_a_run(name, run_folder, special, capsys):
    expected = special(run_folder / name)
    assert run("report", run_folder) == 2
    assert expected in error_of(capsys)


@pytest.mark.parametrize("name", ["records/responses-000000.parquet", "model/tokenizer.json"])
def test_report_of_a_run_without_a_part(name, run_folder, special):
    """A run with damaged records or without a tokenizer has a report too."""
    special(run_folder / name)
    assert run("report", run_folder) == 0


@pytest.mark.parametrize("name", ["comparison.json", "results.json", "dapo/seed-1/done.json"])
def test_report_of_a_comparison(name, tmp_path, special, capsys):
    folder = make_comparison(tmp_path / "c", {"grpo": 10, "dapo": 30})
    expected = special(folder / name)
    assert run("report", folder) == 2
    assert expected in error_of(capsys)


def test_report_of_an_evaluation(eval_folder, special, capsys):
    expected = special(eval_folder / "summary.json")
    assert run("report", eval_folder) == 2
    assert expected in error_of(capsys)


def test_audit_of_the_file_itself(tmp_path, special, capsys):
    expected = special(tmp_path / "rollouts.jsonl")
    assert run("audit", tmp_path / "rollouts.jsonl") == 1
    assert expected in error_of(capsys)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "records/responses-000000.parquet"])
def test_audit_of_a_run(name, run_folder, special):
    """The other records are read: `run.json` is only needed for the limit on lengths."""
    special(run_folder / name)
    assert run("audit", run_folder) in (0, 1)


def test_audit_finds_the_method_beside_a_pipe(finished_run, tmp_path, special):
    rollouts = tmp_path / "logs" / "rollouts.jsonl"
    rows = ({"prompt": n // 4, "response": "a b c"[: n % 4 + 1], "reward": n % 2} for n in range(64))
    write_lines(rollouts, *rows)
    for name in ("run.json", "method.json", "config.yaml", "training_args.bin"):
        special(tmp_path / "logs" / name)
    assert run("audit", rollouts) == 0


def test_audit_with_a_tokenizer(finished_run, tmp_path, special, capsys):
    special(tmp_path / "tokenizer.json")
    rollouts = write_lines(tmp_path / "rollouts.jsonl", {"prompt": "a", "response": "b", "reward": 1})
    assert run("audit", rollouts, "--tokenizer", tmp_path / "tokenizer.json") == 2
    assert f"--tokenizer {tmp_path / 'tokenizer.json'}" in error_of(capsys)


def test_methods_with_rollouts(tmp_path, special, capsys):
    expected = special(tmp_path / "rollouts.jsonl")
    assert run("methods", "--compare", "grpo", "dapo", "--rollouts", tmp_path / "rollouts.jsonl") == 2
    assert expected in error_of(capsys)


@pytest.mark.parametrize("command", ["train", "doctor", "eval", "compare"])
def test_configuration_files(command, tmp_path, special, capsys):
    expected = special(tmp_path / "settings.toml")
    assert run(command, "--config", tmp_path / "settings.toml") == 2
    assert expected in error_of(capsys)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "evaluations.jsonl"])
def test_compare_of_runs(name, run_folder, special, capsys):
    expected = special(run_folder / name)
    other = shutil.copytree(run_folder, run_folder.with_name("other"), ignore=lambda *_: [name])
    assert run("compare", run_folder, other) == 2
    assert expected in error_of(capsys)


def test_compare_in_a_folder(tmp_path, special, capsys):
    special(tmp_path / "c" / "comparison.json")
    assert run("compare", "grpo", "dapo", "--out", tmp_path / "c") == 2
    assert re.search(r"comparison\.json: a (pipe: give a regular file|link to /dev/zero)", error_of(capsys))


@pytest.mark.parametrize("command", ["train", "eval"])
def test_data_files(command, tmp_path, special, capsys):
    special(tmp_path / "problems.jsonl")
    flags = ("--answer", "last-number", "--out", tmp_path / "out")
    assert run(command, "--data", tmp_path / "problems.jsonl", *flags) == 2
    assert "give a regular file" in error_of(capsys)


@pytest.mark.parametrize("command", ["train", "eval"])
def test_cards_of_data_sets(command, tmp_path, special, capsys):
    write_set(tmp_path / "set" / "train.jsonl", 1)
    expected = special(tmp_path / "set" / "README.md")
    assert run(command, "--data", tmp_path / "set", "--out", tmp_path / "out") == 2
    assert expected in error_of(capsys)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
@pytest.mark.parametrize("command", ["train", "eval"])
def test_files_of_a_model(command, name, tmp_path, special, capsys):
    model = Path(shutil.copytree(playground.PATH, tmp_path / "model", ignore=shutil.ignore_patterns("__pycache__")))
    expected = special(model / name)
    assert run(command, "--model", model, "--out", tmp_path / "out") == 2
    assert expected in error_of(capsys)


@pytest.mark.parametrize("flag", ["--method", "--task"])
def test_files_with_code(flag, tmp_path, special, capsys):
    expected = special(tmp_path / "mine.py")
    place = f"{tmp_path / 'mine.py'}:mine"
    value = f"grpo+{place}" if flag == "--method" else place
    assert run("train", flag, value, "--out", tmp_path / "out") == 2
    assert expected in error_of(capsys)


def test_files_with_rewards(tmp_path, special):
    expected = special(tmp_path / "mine.py")
    with bounded_seconds(LIMIT), pytest.raises(ValueError, match="give a regular file") as raised:
        find_plugin("rewards", f"{tmp_path / 'mine.py'}:mine")
    assert expected in str(raised.value)


def test_a_run_that_is_resumed(run_folder, special, capsys):
    special(run_folder / "run.json")
    assert run("train", "--resume", "--out", run_folder) == 2
    assert re.search(r"run\.json: a (pipe: give a regular file|link to /dev/zero)", error_of(capsys))


@pytest.mark.parametrize("name", ["eval.json", "samples/a.parquet"])
def test_samples_that_are_graded_again(name, eval_folder, special, capsys):
    config = {"data": ["a.jsonl"], "task": ""}
    write_lines(eval_folder / "eval.json", {"config": config, "model": None, "sets": {"a": {"fingerprint": ""}}})
    special(eval_folder / name)
    assert run("eval", "--from-samples", eval_folder, "--out", eval_folder.with_name("again")) == 2
    assert str(eval_folder) in error_of(capsys)


# ------------------------------------------------------------------------------------------------------------ the helper


READERS = (
    open_regular_file,
    read_file_bytes,
    read_file_text,
    read_json_object,
    read_toml_file,
    lambda p: [*read_file_lines(p)],
)


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_refuses_pipes_and_devices(reader, tmp_path, special):
    expected = special(tmp_path / "file")
    with bounded_seconds(LIMIT), pytest.raises(Unreadable) as raised:
        reader(tmp_path / "file")
    assert str(raised.value) == expected


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_leaves_missing_files_and_folders_to_the_system(reader, tmp_path):
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        reader(tmp_path)


def test_a_pipe_with_a_writer_is_refused_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    both_ends = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(both_ends, b"{}")
    with pytest.raises(Unreadable, match="a pipe"):
        read_file_text(tmp_path / "pipe")
    os.close(both_ends)


def test_a_file_larger_than_its_limit_is_refused_without_reading_it(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    for reader in (read_file_bytes, read_file_text, read_json_object, read_toml_file):
        with pytest.raises(Unreadable, match="sparse: larger than"):
            reader(tmp_path / "sparse")


def test_a_file_that_has_no_size_is_read_up_to_the_limit():
    """Files in /proc have size 0 and content."""
    assert read_file_bytes("/proc/self/status").startswith(b"Name:")
    with pytest.raises(Unreadable, match="larger than 4 bytes"):
        read_file_bytes("/proc/self/status", 4)


TOO_DEEP = {
    "lists": f"a = {'[' * 5000}{']' * 5000}",
    "tables": f"a = {'{b = ' * 5000}1{'}' * 5000}",
    "a key": f"{'.'.join('a' * 1000)} = 1",
    "a header": f"[{'.'.join('a' * 1000)}]",
}


@pytest.mark.parametrize("text", TOO_DEEP.values(), ids=TOO_DEEP)
def test_toml_that_is_nested_too_deeply_is_named(text, tmp_path, capsys):
    (tmp_path / "deep.toml").write_text(text)
    assert run("train", "--config", tmp_path / "deep.toml") == 2
    assert "deep.toml: tables or lists nested too deeply" in error_of(capsys)


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2", f"a = {'9' * 5000}", "\0"])
def test_toml_that_is_damaged_is_named(text, tmp_path):
    (tmp_path / "damaged.toml").write_text(text)
    with pytest.raises(Unreadable, match=r"damaged.toml: not TOML"):
        read_toml_file(tmp_path / "damaged.toml")


def test_toml_may_be_as_large_as_its_limit(tmp_path):
    line = "a = 1\n"
    (tmp_path / "large.toml").write_text(line + "#" * (MAX_TOML - len(line)))
    assert read_toml_file(tmp_path / "large.toml") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"[1]", "an object is expected"), (b"{", "not JSON"), (b"\xff", "not UTF-8"), (b"[" * 9000, "nested too deeply")],
)  # fmt: skip
def test_json_that_is_no_object_is_named(content, said, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(Unreadable, match=said) as raised:
        read_json_object(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(raised.value)


def test_a_json_object_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": [1.5]}))
    assert read_json_object(tmp_path / "a.json") == {"a": [1.5]}
