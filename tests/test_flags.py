"""Flags: how they are read and explained, and where the words of other trainers lead."""

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import pytest

from fairlen.cli import COMMANDS, main, read_eval_config, read_train_config
from fairlen.evaluate.config import EvalConfig
from fairlen.flags import WORDS, explain_unknown, flag_names, read_flags
from fairlen.integrations.verl.launch import VerlConfig
from fairlen.settings import Flag, Positional, flatten, list_settings
from fairlen.train.run.config import TrainConfig

KL, CLIP = "terms.ReferenceKL.coefficient", "surrogate.clip_"
HABITS = {
    "--lr 1e-4": "--learning-rate 1e-4",
    "--steps 3": "--rollout-batches 3",
    "--num_train_epochs 1": "--rollout-batches N, each of --prompts-per-batch problems",
    "--max-new-tokens 5": "--max-response-length 5",
    "--max_completion_length 5": "--max-response-length 5",
    "--num_generations 4": "--set sampling.n=4",
    "--per_device_train_batch_size 3": "--prompts-per-batch N (prompts) and --set sampling.n=N (responses to each)",
    "--beta 0.1": f"--method …+kl --set {KL}=0.1",
    "--kl_coef=0.1": f"--method …+kl --set {KL}=0.1",
    "--epsilon 0.1": f"--set {CLIP}low=0.1 --set {CLIP}high=0.1",
    "--loss_type dapo": "--method NAME; `fairlen methods` lists them",
    "--scale_rewards False": "--method …+no_std",
    "--scale_rewards=group": "--method …+std_trl",
    "scale_rewards=batch": "--set advantage=BatchNormalized --set advantage.spread=value",
    "algorithm.norm_adv_by_std_in_grpo=True": "--method …+std_verl",
    "--output_dir out": "--out out",
    "--save_steps 5": "--save-every N, in rollout batches",
    "--use_vllm": "--engine vllm",
    "--bf16": "--dtype bfloat16",
    "data.train_batch_size=8": "--prompts-per-batch 8",
    "actor_rollout_ref.rollout.n=8": "--set sampling.n=8",
    "actor_rollout_ref.actor.optim.lr=1e-6": "--learning-rate 1e-6",
    "actor_rollout_ref.actor.clip_ratio_high=0.3": f"--set {CLIP}high=0.3",
    "algorithm.adv_estimator=grpo": "--method NAME; `fairlen methods` lists them",
    "algorithm.filter_groups.enable=True": "--method …+dynamic",
    "trainer.total_training_steps=9": "--rollout-batches 9",
}


@pytest.mark.parametrize(("given", "ours"), HABITS.items(), ids=[re.split("[ =]", given)[0] for given in HABITS])
def test_a_habit_of_trl_or_verl_leads_to_a_flag_that_is_taken(given, ours):
    """Where the message is a whole command line, it is read: `…` stands for a base."""
    with pytest.raises(ValueError, match="no flag") as refused:
        read_train_config(given.split())
    said = str(refused.value).removesuffix("; fairlen train --help lists its flags")
    assert said == f"no flag {re.split('[ =]', given)[0]}: here it is {ours}"
    if "N" not in ours:
        read_train_config(ours.replace("…", "grpo").split())


def test_every_word_leads_to_a_flag_of_some_command_and_is_none_of_its_own():
    """Words of train's own flags may lead to those of trl and verl, and the other way."""
    train = {*flag_names(TrainConfig)}
    trl = {"max-steps", "max-completion-length", "num-generations", "output-dir"}
    for ours, theirs in WORDS.items():
        if ours.startswith("-- "):
            continue
        flags = {word[2:].rstrip(",;") for word in ours.split() if re.match("--[a-z]", word)}
        assert flags <= train | trl, ours
        if flags <= train:
            assert not {word.replace("_", "-") for word in theirs.split()} & train, ours


def test_words_lead_to_what_the_command_has():
    verl = ["", *flag_names(VerlConfig)]
    assert (
        explain_unknown(["--lr", "1e-6"], verl) == "no flag --lr: here it is -- actor_rollout_ref.actor.optim.lr=1e-6"
    )
    trl = [*flag_names(TrainConfig), "max-steps"]
    assert explain_unknown(["--lr", "1e-6"], trl) == "no flag --lr: here it is --learning-rate 1e-6"
    assert explain_unknown(["--steps=5"], trl) == "no flag --steps: here it is --max-steps 5"
    with pytest.raises(ValueError, match="no flag --num_generations: here it is --samples 4"):
        read_eval_config(["--num_generations", "4"])


def test_verls_settings_before_the_dashes_are_sent_behind_them(capsys):
    assert main(["verl", "data.train_batch_size=4"]) == 2
    assert "-- data.train_batch_size=4" in capsys.readouterr().err
    assert main(["verl", "--lr", "1e-6"]) == 2
    assert "here it is -- actor_rollout_ref.actor.optim.lr=1e-6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--lr", "1"], "fairlen train: no flag --lr: here it is --learning-rate 1; fairlen train --help lists"),
        (["train", "--seed", "x"], "fairlen train: --seed: 'x': give a whole number"),
        (["train", "--dtype", "half"], "fairlen train: --dtype: 'half': give one of float32, bfloat16, float64"),
        (["train", "--seed"], "fairlen train: --seed: expected one argument"),
        (["report"], "fairlen report: the following arguments are required: RUN"),
        (["train", "--method", "dapo,balanced"], "fairlen train: unknown method 'dapo,balanced': names are joined by +: dapo+"),
        (["train", "--top-p", "0.9", "--engine", "vllm"], "fairlen train: top_p=0.9 with engine=vllm: vLLM is not asked"),
        (["train", "--config", "none.toml"], "fairlen train: --config none.toml: there is no such file"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_every_error_is_one_line_that_begins_with_the_command(arguments, said, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(said) and printed.err.count("\n") == 1 and not printed.out


def test_a_place_that_cannot_be_used_is_named_without_a_number(capsys):
    assert main(["train", "--out", "/proc/x"]) == 2
    said = capsys.readouterr().err
    assert (
        said == "fairlen train: /proc/x: cannot be used (No such file or directory); name a place that can be"
        " read and written\n"
    )


def test_groups_are_small_and_every_setting_has_a_name_of_its_own():
    for config in (TrainConfig, EvalConfig):
        settings = list(list_settings(config))
        assert max(Counter(one.group for one in settings).values()) <= 15
        assert len({one.name for one in settings}) == len({one.spelling for one in settings}) == len(settings)


def test_recorded_settings_are_read_by_name_in_groups():
    config = TrainConfig.of(
        model="m", data=("d",), verify_workers=2, verifier_weight=0.5, problems=3, samples=2, seed=7
    )
    recorded = flatten(asdict(config))
    assert recorded.keys() == {one.name for one in list_settings(TrainConfig)}
    assert TrainConfig.of(**recorded) == config


@dataclass(frozen=True)
class Inner:
    """What is within."""

    many: Annotated[tuple[str, ...], Flag(is_repeated=True)] = ("old",)
    """Several."""


@dataclass(frozen=True)
class Outer:
    """What is read."""

    paths: Annotated[tuple[str, ...], Positional]
    size: Literal[1, 2] = 1
    """How large."""
    shares: tuple[float, ...] = ()
    is_on: bool = True
    inner: Inner = Inner()


def test_values_are_read_as_their_fields_are_declared():
    words = ["a", "--shares", "0.5", "1", "--shares", "2", "--size=2", "--no-is_on", "--many", "x", "--many", "y"]
    found = read_flags(Outer(("z",)), "program", words, "")
    assert found == Outer(("a",), 2, (0.5, 1.0, 2.0), False, Inner(("x", "y")))
    assert read_flags(Outer(("z",)), "program", [], "") == Outer(("z",))
    with pytest.raises(ValueError, match="required: PATHS"):
        read_flags(Outer, "program", [], "")


def test_help_is_readable_on_the_narrowest_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--help"])
    assert ended.value.code == 0 and "--max-response-length N" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_examples_and_every_flag_and_fits_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: fairlen {name} ") and f"\n  fairlen {name}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert ("--config FILE.toml" in shown) == (name in ("train", "eval", "compare", "doctor"))
    if name == "train":
        flags = re.findall(r"^  --(?:\[no-\])?([a-z-]+)", shown, re.M)
        assert sorted(flags) == sorted(flag_names(TrainConfig))
        assert re.findall(r"^\[([a-z]+)\]$", shown, re.M) == ["model", "data", "verifier", "sampling", "update", "run"]
    if name == "compare":  # none that it refuses
        flags = set(re.findall(r"^  --(?:\[no-\])?([a-z-]+)", shown, re.M))
        refused = {"method", "set", "resume", "max-updates", "max-generated", "max-seconds"}
        assert flags == {"match", "reference", "seeds"} | set(flag_names(TrainConfig)) - refused


def test_a_table_on_a_terminal_of_80_columns_has_no_cut_heading():
    """Eleven headings of the table of `fairlen eval` need 130 columns: they become rows."""
    code = (
        "from fairlen.console import make_console, print_table\n"
        "names = ['set', 'problems', 'accuracy, 95% interval', 'pass@n', 'best@n', 'maj@n', 'length', 'correct', 'incorrect',"
        " 'truncated', 'no verdict']\n"
        "print_table(make_console(), 'held-out problems', names, [['playground', *names[1:]]], left=(0, 2))\n"
    )
    read, write = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=write, env=os.environ | {"COLUMNS": "80"}, check=True)
    os.close(write)
    shown = os.read(read, 100_000).decode()
    os.close(read)
    assert "…" not in shown and all(shown.count(name) >= 2 for name in ("accuracy, 95% interval", "no verdict"))


def test_greedy_decoding_needs_one_sample_and_no_flag_for_it():
    assert read_eval_config(["--temperature", "0"]).run.samples == 1
    with pytest.raises(ValueError, match="greedy responses to one problem are all the same"):
        read_eval_config(["--temperature", "0", "--samples", "8"])
