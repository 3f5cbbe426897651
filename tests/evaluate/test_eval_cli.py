"""`fairlen eval` as a user meets it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from loops import over

from fairlen.cli import main, read_eval_config


def test_help_is_of_evaluations(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(flag in words for flag in ("--from-samples", "--suite", "--samples", "--without-verdict"))
    assert not any(one in words for one in ("--eval-data", "o train on", "run.json", "the model that is trained"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{broken", "not JSON"), ("", "not JSON"), ("[]", "it lacks settings"), ('{"config": {}}', "it lacks settings"),
        ('{"config": {"data": [], "task": "playground"}, "model": 1, "sets": {"a": 3}}', "it lacks settings"),
    ],
)  # fmt: skip
def test_a_damaged_eval_json_is_named(finished, tmp_path, capsys, text, reason):
    folder = tmp_path / "damaged"
    shutil.copytree(finished, folder)
    (folder / "eval.json").write_text(text)
    for arguments in (["--from-samples", str(folder)], ["--out", str(folder), "--threads", "1"]):
        assert main(["eval", *arguments]) == 2
        said = capsys.readouterr().err
        assert f"{folder}/eval.json: {reason}" in said and "fetch it again" in said


def test_flags_beat_the_file_and_the_file_beats_the_suite(tmp_path):
    path = tmp_path / "eval.toml"
    path.write_text("[run]\nsamples = 16\n[sampling]\ntemperature = 0.8\n")
    config = read_eval_config(["--suite", "eqlen", "--config", str(path), "--samples", "4"])
    run, sampling = config.run, config.sampling
    assert (run.samples, sampling.temperature, sampling.top_p, run.suite) == (4, 0.8, 0.95, "eqlen")
    assert len(config.data.places) == 3
    own = read_eval_config(["--suite=eqlen", "--data", "a.jsonl"]).data.places
    assert own == ("a.jsonl",)  # instead of the suite's
    assert read_eval_config(["--data", "a.jsonl", "--data", "b.jsonl"]).data.places == ("a.jsonl", "b.jsonl")


def test_settings_of_an_evaluation_hold_when_it_is_rescored(finished):
    config = read_eval_config(["--from-samples", str(finished), "--without-verdict", "incorrect"])
    assert read_eval_config(["--from_samples", str(finished), "--without_verdict=incorrect"]) == config
    assert config.data.places == ("playground",) and config.run.problems == 12
    assert config.sampling.max_response_length == 60 and config.verifier.without_verdict == "incorrect"
    assert config.run.out == "" and config.model.name == "playground"


@over(
    "arguments, message",
    [
        (["--suite", "eqlne"], "did you mean 'eqlen'"),
        (["--suite", "fspo", "--from-samples", "x"], "leave --suite out"),
        (["--temperature", "0", "--samples", "2"], "greedy responses"), (["--sample", "3"], "--samples"),
        (["--eval-data", "x.jsonl"], "no flag --eval-data: did you mean '--data'?"),
        (["--from-samples", "nowhere"], "no eval.json there"), (["--data", "missing.jsonl"], "missing.jsonl"),
    ],
)  # fmt: skip
def test_mistakes_end_with_code_2_and_one_message(arguments, message, capsys):
    assert main(["eval", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_rescoring_needs_no_torch(finished, tmp_path):
    code = f"""
import sys
from fairlen.cli import main
code = main(["eval", "--from-samples", {str(finished)!r}, "--out", {str(tmp_path / "again")!r}])
sys.exit(code or "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "held-out problems" in done.stdout and "playground" in done.stdout
    assert json.loads((Path(tmp_path) / "again/summary.json").read_text())["sets"]["playground"]["problems"] == 12
