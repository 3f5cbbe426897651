"""What is left behind of secrets in flags, settings and the environment, by whole commands: nothing."""

import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
from train.runs import small

from fairlen.cli import main
from fairlen.compare.config import CompareConfig
from fairlen.compare.start import start_comparison
from fairlen.console import complain
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.start import start_evaluation
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training
from recipes.inspect_logs import write_logs

URL = "https://me:zq-url-zq@box.test:81/run?key=zq-query-zq&n=1"
FORMS = """
    --passwd {}|--password={}|--api-key {}|--api_key={}|--token {}|--auth {}|--hub-token {}|--secret {}|--client-secret={}
    --db-passwd {}|--proxy-password {}|--access-key {}|--credentials {}|-u me:{}|--user me:{}
    --header Authorization:Bearer_{}|--set env.WANDB_API_KEY={}|--set OPENAI_API_KEY={}|--set hub.passwd={}
    --set a.b.private_key={}|https://{}@host.test/x|postgres://me:{}@host.test/x|https://host.test/x?token={}
    https://host.test/x?sig={}&sv=1|https://host.test/x?a=1&api_key={}|hf_Zq{}Zqzqzqzqzq|sk-Zq1{}zqzqzqzqzqzq
    ghp_zq{}zqzqzqzqzqzqzq|--cookie {}|--session-token={}
"""
FLAGS = [
    word
    for number, form in enumerate(re.split(r"\||\n\s*", FORMS.strip()))
    for word in form.format(
        f"zqzq{number}qz" if form[0] in "hsg" and ":" not in form[:6] else f"zq-flag{number}-zq"
    ).split(" ")
]
VARIABLES = """
    HF_TOKEN WANDB_API_KEY OPENAI_API_KEY ANTHROPIC_KEY AWS_SECRET_ACCESS_KEY GITHUB_PAT DB_PASSWORD PGPASSWORD
    SERVICE_CREDENTIALS SMTP_PASS REDIS_AUTH SLACK_TOKEN
"""
ENVIRONMENT = {name: f"zq-variable-{name.lower()}" for name in VARIABLES.split()}


def strings_of(folder: Path) -> dict[str, bytes]:
    """What every file holds; of an archive what is packed in it."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in [one for one in found if one.endswith(".eval")]:
        with zipfile.ZipFile(folder / name) as archive:
            found |= {f"{name}/{one}": archive.read(one) for one in archive.namelist()}
    return found


@pytest.mark.slow
def test_no_file_that_is_left_behind_has_a_secret(tmp_path, monkeypatch, capsys):
    """Of 44 in flags, variables and settings: run folders, pages, cards, an evaluation, logs of Inspect, a comparison."""
    assert len(FLAGS) >= 30 and len(FLAGS) + len(ENVIRONMENT) >= 40
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    told = f"the box is {ENVIRONMENT['HF_TOKEN']}"
    monkeypatch.setattr(sys, "argv", ["fairlen", "train", *FLAGS, told])
    train = small(tmp_path / "all" / "run", rollout_batches=1, tracker=("tensorboard",), system_prompt=URL)
    start_training(train)
    start_training(train.replace(rollout_batches=2, resume=True))
    few = TrainConfig.of(
        rollout_batches=1, prompts_per_batch=3, max_response_length=40, problems=6, samples=2, threads=1
    )
    few = few.replace(tracker=("tensorboard",), system_prompt=URL, out=str(tmp_path / "all" / "comparison"))
    methods = CompareConfig(("grpo:sampling.n=4", "dapo:sampling.n=4"), seeds=1, train=few)
    start_comparison(methods)
    start_comparison(methods)
    evaluation = tmp_path / "all" / "evaluation"
    for _ in range(2):  # goes on
        start_evaluation(
            EvalConfig.of(
                model=str(tmp_path / "all" / "run" / "model"),
                problems=4,
                threads=1,
                system_prompt=URL,
                out=str(evaluation),
            )
        )
    for folder in (tmp_path / "all" / "run", evaluation):
        assert main(["report", str(folder)]) == 0
        write_logs(folder, tmp_path / "all" / "logs")
    complain("train", f"cannot reach {URL} with {told}")
    files = strings_of(tmp_path) | dict(
        zip(("stdout", "stderr"), (text.encode() for text in capsys.readouterr()), strict=True)
    )
    names = {"run.json", "eval.json", "comparison.json", "report.html", "header.json", "README.md"}
    assert names <= {Path(one).name for one in files}
    assert any("tfevents" in name for name in files)
    left = {
        (name, found[0])
        for name, data in files.items()
        if (found := re.findall(rb"zqzq\d+|zq-(?:flag|variable|url|query)[-\w]*", data))
    }
    assert not left
    assert (
        b"box.test:81" in files["all/run/run.json"]
        and json.loads(files["all/run/run.json"])["config"]["run"]["seed"] == train.run.seed
    )
