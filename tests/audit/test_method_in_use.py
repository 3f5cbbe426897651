"""Which method made some rollouts: names, and the files that training leaves beside them."""

import json
import math
import os
import re
import zipfile
from pathlib import Path

import pytest
from lines import read_one, write_lines
from loops import over
from report_runs import write_run

from fairlen.audit.method_in_use import MAX_BYTES, SETTINGS, USERS, InUse, find_method, in_use, parse_method, read_yaml
from fairlen.audit.readers import read
from fairlen.audit.statistics.coupling import ALL_RULES, weight_shares
from fairlen.methods.compose import compose
from fairlen.methods.presets import BASES

VERL_YAML = """\
actor_rollout_ref:
  actor:
    # a comment
    loss_agg_mode: {mode}
    ppo_mini_batch_size: 64
    policy_loss:
      loss_mode: {loss}
      clip_cov_ratio: 0.0002
  rollout:
    n: 8
algorithm:
  adv_estimator: grpo
  norm_adv_by_std_in_grpo: false
trainer:
  logger:
  - console
  - file
  rollout_data_dir: {rollouts}
"""


def verl_yaml(mode: str = "token-mean", loss: str = "vanilla", rollouts: str = "null") -> str:
    return VERL_YAML.format(mode=mode, loss=loss, rollouts=rollouts)


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


@over("base", BASES)
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
        ("loss_type=dpo", "'loss_type=dpo': did you mean 'gdpo' or 'dapo'?"),
        ("grpo+balancd", "did you mean 'balanced'?"),
        ("grpo+dapo", "two bases"),
        ("", "there are grpo"),
    ],
)
def test_unknown_names_get_the_nearest(text, suggestion):
    with pytest.raises(ValueError, match=f"(?s){re.escape(suggestion)}.*loss_agg_mode=token-mean"):
        parse_method(text)


@pytest.mark.parametrize("method", ["grpo+balanced", "dapo", "grpo+toplambda+balanced_update", "trl:dapo+balanced"])
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
def test_a_job_of_verl(tmp_path, mode, aggregation):
    config = place(tmp_path, verl_yaml(mode), ".hydra", "config.yaml")
    assert found(tmp_path / "rollouts") == InUse(f"verl: loss_agg_mode={mode}", aggregation, str(config))


@pytest.mark.parametrize(
    ("loss", "mode", "aggregation"),
    [
        ("sapo", "token-mean", "sequence_mean"),
        ("geo_mean", "token-mean", "sequence_mean"),
        ("gspo", "seq-mean-token-mean", "sequence_mean"),
        ("gspo", "token-mean", None),
        ("cispo", "token-mean", "token_mean_update"),
    ],
)
def test_losses_of_verl_that_aggregate_themselves(tmp_path, loss, mode, aggregation):
    """Of gspo it depends on the version of verl whether it heeds the setting."""
    place(tmp_path, verl_yaml(mode, loss), "config.yaml")
    method = found(tmp_path)
    assert (method and method.aggregation) == aggregation


def test_a_job_of_fairlen_in_verl(tmp_path):
    """verl's own setting stands in the file too, and is not used."""
    own = (
        "  fairlen:\n    method: grpo+balanced\n    overrides:\n    - sampling.n=8\n    - 'aggregation.scope=update'\n"
    )
    place(tmp_path, verl_yaml().replace("algorithm:\n", f"algorithm:\n{own}"), "hydra", ".hydra", "config.yaml")
    method = found(tmp_path / "rollouts")
    assert method is not None and method.aggregation == "balanced_update"
    assert method.name == "grpo+balanced --set sampling.n=8 --set aggregation.scope=update"


def test_outputs_of_hydra_belong_to_the_rollouts_that_they_name(tmp_path):
    for number, (mode, rollouts) in enumerate((("token-mean", "data/first"), ("seq-mean-token-mean", "data/second"))):
        parts = "outputs", "2026-01-01", f"10-0{number}-00", ".hydra", "config.yaml"
        place(tmp_path, verl_yaml(mode, rollouts=rollouts), *parts)
    names = {name: found(tmp_path / "data" / name) for name in ("first", "second", "third")}
    assert {name: method and method.aggregation for name, method in names.items()} == {
        "first": "token_mean_update", "second": "sequence_mean", "third": None,
    }  # fmt: skip


def test_the_yaml_of_trl(tmp_path):
    place(
        tmp_path,
        "# grpo\nmodel_name_or_path: Qwen/Qwen3-0.6B\nloss_type: 'dr_grpo'  # no 1/T\nbeta: 0.0\n",
        "grpo.yaml",
    )
    method = found(tmp_path / "out" / "completions")
    assert method is not None and (method.name, method.aggregation) == ("TRL: loss_type=dr_grpo", "constant_budget")


@pytest.mark.parametrize(
    ("path", "text", "aggregation"),
    [
        ("configs/trainer.json", json.dumps({"loss": {"type": "default", "adv_tau": 1.0}}), "token_mean_update"),
        ("configs/trainer.json", json.dumps({"loss": {"type": "custom"}}), None),
        ("loss.yaml", "loss:\n  type: default\n", None),
        ("skyrl.yaml", "trainer:\n  algorithm:\n    loss_reduction: seq_mean_token_sum_norm\n", "constant_budget"),
        ("trl.yml", "beta: 0.0\n\n# loss_type: grpo\nloss_type:   bnpo\n", "token_mean_update"),
        ("config.json", json.dumps({"loss_type": "bnpo"}), None),
        ("notes.yaml", "text: |\n  loss_type: grpo\n", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_other_configurations(tmp_path, path, text, aggregation):
    place(tmp_path, text, *path.split("/"))
    method = found(tmp_path / "run" / "rollouts")
    assert (method and method.aggregation) == aggregation


def test_the_nearest_file_counts_and_a_contradiction_says_nothing(tmp_path):
    place(tmp_path, "loss_type: grpo", "a.yaml")
    place(tmp_path, "loss_type: dapo", "near", "b.yaml")
    (tmp_path / "near" / "completions").mkdir()
    assert name_of(tmp_path / "near" / "completions") == "TRL: loss_type=dapo"
    assert name_of(tmp_path / "far") == "TRL: loss_type=grpo"
    place(tmp_path, "loss_type: dr_grpo", "near", "c.yaml")
    assert name_of(tmp_path / "near" / "completions") is None
    place(tmp_path, json.dumps({"method": {"name": "grpo+balanced"}}), "near", "method.json")
    assert name_of(tmp_path / "near" / "completions") == "grpo+balanced"
    assert name_of(tmp_path / "1/2/3/4") == "TRL: loss_type=grpo" and name_of(tmp_path / "1/2/3/4/5") is None


def test_the_folders_of_prime_rl(tmp_path):
    """RUN/rollouts/step_N/train/all and RUN/configs/trainer.json, as 559b447 writes them."""
    place(tmp_path, json.dumps({"loss": {"type": "default"}}), "run", "configs", "trainer.json")
    method = found(tmp_path / "run/rollouts/step_3/train/all")
    assert method is not None and (method.name, method.aggregation) == ("prime-rl: type=default", "token_mean_update")


def test_rollouts_of_several_methods_have_none(tmp_path):
    for name, loss in (("a", "grpo"), ("b", "dapo"), ("c", "grpo")):
        place(tmp_path, f"loss_type: {loss}", name, "grpo.yaml")
    files = {name: str(tmp_path / name / "1.jsonl") for name in "abcd"}
    both = find_method([files["a"], files["c"]])
    assert both is not None and both.name == "TRL: loss_type=grpo"
    assert find_method([files["a"], files["b"]]) is None
    assert find_method([files["a"], files["d"]]) is None
    assert find_method([]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"{" * 200_000,
        b"[" * 200_000,
        b"\xff\xfe\x00",
        b"a: &a [x, x]\nb: &b [*a, *a]\n" * 1000,
        b'{"method": {"name": ["grpo"]}}',
        b'{"method": "grpo"}',
        b'{"method": {"name": "grpo"}, "config": {"overrides": ["aggregation=Nothing"]}}',
        b"null",
        b"",
    ],
    ids=lambda data: repr(data[:24]),
)
@pytest.mark.parametrize("name", ["run.json", "grpo.yaml", "training_args.bin", "configs/trainer.json"])
def test_damaged_and_hostile_files_say_nothing(tmp_path, name, data):
    path = place(tmp_path, "", *name.split("/"))
    path.write_bytes(data)
    assert found(tmp_path) is None


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    (tmp_path / "method.json").symlink_to("/dev/zero")
    (tmp_path / "config.yaml").mkdir()
    place(tmp_path, "loss_type: grpo\n" + " " * MAX_BYTES, "large.yaml")
    assert found(tmp_path) is None


def test_a_bomb_in_training_arguments_is_not_unpacked(tmp_path):
    """The settings stand behind a text that is a few bytes in the archive and more than is unpacked of it."""
    for size, name in ((1000, "TRL: loss_type=grpo"), (MAX_BYTES, None)):
        texts = [b"a" * size, b"loss_type", b"grpo"]
        pickled = b"".join(b"X" + len(text).to_bytes(4, "little") + text for text in texts) + b"."
        with zipfile.ZipFile(tmp_path / "training_args.bin", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x/data.pkl", pickled)
        assert (tmp_path / "training_args.bin").stat().st_size < 2000
        assert name_of(tmp_path) == name


def test_yaml_as_hydra_writes_it():
    text = "a:\n  b: 1\n  c:\n  - x\n  - 'y: z'\n  d: \"q\"  # why\ne: null\nf:\n    g: 2\n  \n# h: 3\n"
    values = read_yaml(text.encode())
    plain = {key: value for key, value in values.items() if "c." not in key}
    assert plain == {"a.b": "1", "a.d": "q", "e": "null", "f.g": "2"}
    assert [value for key, value in values.items() if key.startswith("a.c.")] == ["x", "y: z"]


def test_who_uses_an_aggregation():
    """Of the methods every base but EqLen's, or its like, stands where it belongs; of settings the values."""
    assert set(USERS) == set(ALL_RULES)
    for aggregation, users in USERS.items():
        ours, _, theirs = users.partition("; ")
        assert all(parse_method(name).aggregation == aggregation for name in ours.replace("+", "grpo+").split(", "))
        for program, word in re.findall(r"(TRL|verl|SkyRL)'s ([\w-]+)", theirs):
            assert parse_method(f"{program}: {word}").aggregation == aggregation


def shares(tmp_path, rows):
    return weight_shares(read_one(write_lines(tmp_path / "rows.jsonl", *rows)).log)


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
