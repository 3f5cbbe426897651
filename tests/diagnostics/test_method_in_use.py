"""Which method made some rollouts: names, and the files that training leaves beside them."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest
from report_runs import write_run

from fairlen.diagnostics.coupling import ALL_RULES, weight_shares
from fairlen.diagnostics.method import (
    MAX_BYTES,
    SETTINGS,
    USERS,
    InUse,
    find_method,
    in_use,
    parse_method,
)
from fairlen.diagnostics.readers import read
from fairlen.methods.compose import compose
from fairlen.methods.presets import BASES


def place(folder: Path, text: str, *parts: str) -> Path:
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(rollouts: Path) -> InUse | None:
    return find_method([str(rollouts / "1.jsonl")])


def name_of(rollouts: Path) -> str | None:
    method = found(rollouts)
    return method and method.name


@pytest.mark.parametrize("base", BASES)
def test_every_base_is_known_by_its_name(base):
    assert parse_method(base).method == compose(base)


@pytest.mark.parametrize(
    ("text", "name", "aggregation"),
    [
        ("grpo", "grpo", "sequence_mean"),
        ("balanced+dr-grpo", "dr_grpo+balanced", "balanced"),
        ("grpo+balanced_update", "grpo+balanced_update", "balanced_update"),
        ("p_gspo", "p_gspo", "length_power"),
        ("grpo+vl_norm", "grpo+vl_norm", "length_power"),
        ("token_mean", "token_mean", "token_mean"),
        ("constant_budget", "constant_budget", "constant_budget"),
        ("token-mean", "verl: loss_agg_mode=token-mean", "token_mean_update"),
        ("loss_agg_mode=seq-mean-token-sum", "verl: loss_agg_mode=seq-mean-token-sum", "token_sum"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "verl: loss_agg_mode=seq-mean-token-mean", "sequence_mean"),
        ("verl: seq-mean-token-sum-norm", "verl: loss_agg_mode=seq-mean-token-sum-norm", "constant_budget"),
        ("loss_type=grpo", "TRL: loss_type=grpo", "sequence_mean"),
        ("loss_type=dapo", "TRL: loss_type=dapo", "token_mean_update"),
        ("loss_type=vespo", "TRL: loss_type=vespo", "token_mean_update"),
        ("vespo", "vespo", "token_sum"),
        ("TRL: dr_grpo", "TRL: loss_type=dr_grpo", "constant_budget"),
        ("bnpo", "TRL: loss_type=bnpo", "token_mean_update"),
        ("loss_reduction=prompt_mean", "SkyRL: loss_reduction=prompt_mean", "token_mean"),
    ],
    ids=lambda value: value,
)  # fmt: skip
def test_names_of_every_kind(text, name, aggregation):
    """A word that TRL and fairlen share is fairlen's, but after loss_type: TRL's vespo divides by tokens, ours does not."""
    method = parse_method(text)
    assert (method.name, method.aggregation, method.origin) == (name, aggregation, "--method")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("token_men", "did you mean 'token_mean'?"),
        ("dr_grop", "did you mean 'dr_grpo'?"),
        ("loss_type=dpo", "'loss_type=dpo': did you mean 'dapo'?"),
        ("grpo+balancd", "did you mean 'balanced'?"),
        ("grpo+dapo", "two bases"),
        ("", "there are grpo"),
    ],
)
def test_unknown_names_get_the_nearest(text, suggestion):
    with pytest.raises(ValueError, match=f"(?s){re.escape(suggestion)}.*loss_agg_mode=token-mean"):
        parse_method(text)


@pytest.mark.parametrize("method", ["grpo+balanced", "dapo", "rloo", "grpo+toplambda+balanced_update"])
def test_a_run_of_fairlen_names_its_method(tmp_path, method):
    run = write_run(tmp_path / "run", method, batches=2)
    files = [file for source in read([str(run)]).sources for file in source.files]
    method_in_use = find_method(files)
    assert method_in_use is not None and method_in_use.method is not None
    assert method_in_use == in_use(method, ["sampling.n=8"], str(run / "run.json"))
    assert method_in_use.name == f"{method} --set sampling.n=8"


def test_overrides_of_a_run_count(tmp_path):
    described = {
        "method": {"name": "grpo"},
        "config": {"overrides": ["aggregation=TokenMean", "aggregation.scope=update"]},
    }
    place(tmp_path, json.dumps(described), "run.json")
    method = found(tmp_path / "records")
    assert method is not None and method.aggregation == "token_mean_update"
    assert method.name == "grpo --set aggregation=TokenMean --set aggregation.scope=update"


def test_code_that_a_file_names_is_not_run(tmp_path):
    """Its aggregation is known by the choices that stand beside the name."""
    marker = tmp_path / "ran"
    place(tmp_path, f"open({str(marker)!r}, 'w')\ndef mine(): ...", "own.py")
    choices = {"aggregation": {"kind": "TokenMean", "scope": "group"}, "sampling": {"kind": "Independent"}}
    for sampling, aggregation in (("Independent", "token_mean"), ("EqLen", None)):
        choices["sampling"]["kind"] = sampling
        described = {"method": {"name": f"{tmp_path}/own.py:mine\x1b[31m", "choices": choices}}
        place(tmp_path, json.dumps(described), "run.json")
        method = found(tmp_path / "records")
        assert (method and method.aggregation) == aggregation
        assert method is None or (method.method is None and method.name.isprintable())
    assert not marker.exists()


@pytest.mark.parametrize(("mode", "aggregation"), SETTINGS["actor_rollout_ref.actor.loss_agg_mode"][1].items())
def test_a_setting_of_verl(mode, aggregation):
    assert parse_method(f"loss_agg_mode={mode}") == InUse(f"verl: loss_agg_mode={mode}", aggregation, "--method")


def name_in(folder: Path, name: str) -> Path:
    return place(folder, json.dumps({"method": {"name": name}}), "run.json")


def test_the_nearest_run_counts(tmp_path):
    name_in(tmp_path, "grpo")
    name_in(tmp_path / "near", "grpo+balanced")
    assert name_of(tmp_path / "near" / "completions") == "grpo+balanced"
    assert name_of(tmp_path / "1/2/3/4") == "grpo" and name_of(tmp_path / "1/2/3/4/5") is None


def test_rollouts_of_several_methods_have_none(tmp_path):
    for folder, name in (("a", "grpo"), ("b", "dapo"), ("c", "grpo")):
        name_in(tmp_path / folder, name)
    files = {name: str(tmp_path / name / "1.jsonl") for name in "abcd"}
    both = find_method([files["a"], files["c"]])
    assert both is not None and both.name == "grpo"
    assert find_method([files["a"], files["b"]]) is None
    assert find_method([files["a"], files["d"]]) is None
    assert find_method([]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"{" * 200_000,
        b"[" * 200_000,
        b"\xff\xfe\x00",
        b'{"method": {"name": ["grpo"]}}',
        b'{"method": "grpo"}',
        b'{"method": {"name": "grpo"}, "config": {"overrides": ["aggregation=Nothing"]}}',
        b"null",
        b"",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_damaged_and_hostile_files_say_nothing(tmp_path, data):
    place(tmp_path, "", "run.json").write_bytes(data)
    assert found(tmp_path) is None


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    assert found(tmp_path) is None
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").symlink_to("/dev/zero")
    assert found(tmp_path) is None
    (tmp_path / "run.json").unlink()
    place(tmp_path, json.dumps({"method": {"name": "grpo"}}) + " " * MAX_BYTES, "run.json")
    assert found(tmp_path) is None


def test_who_uses_an_aggregation():
    """Of the methods every base but EqLen's, or its like, stands where it belongs; of settings the values."""
    assert set(USERS) == set(ALL_RULES)
    for aggregation, users in USERS.items():
        ours, _, theirs = users.partition("; ")
        assert all(parse_method(name).aggregation == aggregation for name in ours.replace("+", "grpo+").split(", "))
        for program, word in re.findall(r"(TRL|verl|SkyRL)'s ([\w-]+)", theirs):
            assert parse_method(f"{program}: {word}").aggregation == aggregation


def shares(tmp_path, rows):
    path = place(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "rows.jsonl")
    return weight_shares(read([str(path)]).sources[0].log)


def test_what_each_aggregation_would_do(tmp_path):
    """One prompt: correct 10 and 10, incorrect 40 and 40 tokens; with few rows all are one bin of length."""
    lengths = ((10, 1), (10, 1), (40, 0), (40, 0))
    found = shares(tmp_path, [{"prompt": "q", "completion": "w " * n, "reward": r} for n, r in lengths])
    ratios = {name: one.incorrect_to_correct.value for name, one in found.items()}
    # advantages are -1 and 1, so that a side's weight is its tokens times a weight for each: 80 / 20, or equal
    assert ratios["token_mean"] == ratios["token_mean_update"] == ratios["token_sum"] == pytest.approx(4.0)
    assert ratios["sequence_mean"] == ratios["balanced"] == ratios["balanced_update"] == pytest.approx(1.0)
    assert ratios["length_power"] == pytest.approx(4.0**0.4)  # 40^0.4 / 10^0.4
    assert all(math.isnan(one.long_to_short) for one in found.values())


def test_weight_of_long_tokens_over_short_ones(tmp_path):
    """Half of the responses have 10 tokens and half 40: under a sequence mean a token of these weighs a quarter."""
    lengths = ((10, 1), (10, 0), (40, 1), (40, 0))
    rows = [{"prompt": f"q{p}", "completion": "w " * n, "reward": r} for p in range(40) for n, r in lengths]
    found = shares(tmp_path, rows)
    assert found["sequence_mean"].long_to_short == pytest.approx(0.25)
    assert found["token_sum"].long_to_short == pytest.approx(1.0)
