"""The command line as a user meets it."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from loops import first_quickly

from fairlen import cli
from fairlen.cli import COMMANDS, main, read_train_config
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from recipes.guess import PATH


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fairlen", *arguments], capture_output=True, text=True, check=False)


def test_methods_lists_every_preset_and_modifier(capsys):
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed["bases"]) == list(BASES)
    assert list(listed["modifiers"]) == list(MODIFIERS)
    assert listed["bases"]["dapo"]["choices"]["surrogate"]["clip_high"] == 0.28
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*BASES, *MODIFIERS))


def measure(start: Callable[[], object]) -> float:
    """Seconds of the processor that a command takes, which other programs lengthen less than those of the wall."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


OTHERS = (((name,), 6.0) for name in COMMANDS if name != "train")


@pytest.mark.parametrize(("command", "limit"), first_quickly([((), 1.0), (("train",), 6.0), *OTHERS], 2))
def test_help_is_quick(command, limit):
    """0.05 s, and 0.3 to 0.6 s for commands, on an idle machine, where numpy and pyarrow are imported in 0.17 s, the unit."""
    assert f"fairlen {command[0] if command else 'train'}" in run(*command, "--help").stdout
    base = [sys.executable, "-c", "import numpy, pyarrow.parquet"]
    units = measure(lambda: subprocess.run(base, check=True)), measure(lambda: run(*command, "--help"))
    assert units[1] < limit * units[0]


def test_the_table_of_commands_is_all_of_them():
    assert {f"run_{name}" for name in COMMANDS} == {name for name in vars(cli) if name.startswith("run_")}


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path):
    path = write(
        tmp_path,
        'method = "dapo"\nset = ["surrogate.clip_high=0.3"]\n[update]\nlearning_rate = 1e-4\n[run]\nseed = 3\n',
    )
    config = read_train_config(["--config", path, "--seed", "7"])
    assert (config.method, config.update.learning_rate, config.run.seed) == ("dapo", 1e-4, 7)
    assert config.overrides == ("surrogate.clip_high=0.3",)
    assert config.sampling.prompts_per_batch == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[update]\nlerning_rate = 1e-4", "unknown key 'lerning_rate': did you mean 'learning_rate'"),
        ("learning_rate = 1e-4", "learning_rate: write it under [update], as learning_rate = 0.0001"),
        ("[run]\nverify_workers = 2", "verify_workers: write it under [verifier], as workers = 2"),
        ('[run]\nmethod = "grpo"', 'method: write it before all tables, as method = "grpo"'),
        ('[run]\nseed = "three"', "seed = 'three': give int"),
        ("[run]\nseed = ", "Invalid value"),
        ("[sampling]\ntemperature = 0", "temperature=0.0: give more than 0"),
        ('[sampling]\nengine = "vlm"', "engine='vlm': give one of auto, embedded, vllm"),
        ('[data]\nplaces = "x.jsonl"', "places = 'x.jsonl': give a list of texts, such as [\"x.jsonl\"]"),
    ],
)
def test_mistakes_in_the_file_name_the_key_and_the_fix(tmp_path, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_train_config(["--config", write(tmp_path, text)])


def test_lists_of_the_file_give_way_to_flags_but_fields_of_the_method_are_added_to(tmp_path):
    path = write(tmp_path, 'set = ["surrogate.clip_high=0.3"]\n[data]\nplaces = ["a", "b"]\nheld_out = ["e"]\n')
    config = read_train_config(["--config", path, "--data", "c", "--set", "sampling.n=4"])
    assert (config.data.places, config.data.held_out) == (("c",), ("e",))
    assert config.overrides == ("surrogate.clip_high=0.3", "sampling.n=4")


def test_one_file_and_no_more(tmp_path):
    path = write(tmp_path, "[run]\nseed = 1\n")
    with pytest.raises(ValueError, match="name one TOML file"):
        read_train_config(["--config", path, "--config", path])


def test_a_model_that_does_not_read_the_task_is_refused_by_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in (["train"], ["compare", "grpo", "dapo"], ["eval"]):
        assert main([*command, "--model", str(PATH)]) == 2
        assert "or give --model playground, whose tokenizer does" in capsys.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(monkeypatch, capsys):
    """By its folder; before there is one, that it starts again."""
    stop = KeyboardInterrupt()

    def interrupt(_: list[str]) -> int:
        raise stop

    monkeypatch.setattr("fairlen.cli.run_train", interrupt)
    assert main(["train"]) == 130 and "the same command starts again" in capsys.readouterr().err
    stop.folder = "runs/mine"  # type: ignore[attr-defined]
    assert main(["train"]) == 130 and "--resume --out runs/mine" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code"), [(["methods"], 0), (["eval", "--suite", "list"], 141)])
def test_a_closed_output_ends_a_listing_well_and_a_run_not(words, code):
    """128 + 13 of SIGPIPE: what a run has still to do is not done."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "fairlen", *words], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == code and ("its output was closed before the end" in done.stderr) is bool(code)
