"""What is a secret, in every place where one is found, and what is none."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from train.runs import small

from fairlen.cli import main
from fairlen.compare.config import CompareConfig
from fairlen.compare.start import start_comparison
from fairlen.console import complain
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.start import start_evaluation
from fairlen.secrets import hide, hide_all
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

P = "s3cr3tPa55"
"""What must not be left, where the text does not say otherwise."""
TEXTS = {
    f"https://me:{P}@box.test:81/run": P,
    f"https://{P}@box.test/run": P,
    f"postgresql://me:{P}@db/x": P,
    f"redis://:{P}@cache:6379/0": P,
    f"https://me:{P}@2@box.test/x": P,
    f"git+https://{P}@github.com/a/b": P,
    f"https://box.test/run?key={P}": P,
    f"https://box.test/run?a=1&token={P}#x": P,
    f"https://box.test/run?api_key={P}&b=2": P,
    f"https://box.test/blob?sv=2024&sig={P}": P,
    f"https://s3.test/o?X-Amz-Signature={P}&X-Amz-Date=1": P,
    f"https://s3.test/o?AWSAccessKeyId=x&Signature={P}": P,
    "https://box.test/run?z=4f9Ab83kd92jf84jfd02": "4f9Ab83kd92jf84jfd02",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567": "AbCdEf",
    "model hf_donottellanyone, please": "donottell",
    "sk-proj-Abc123Def456Ghi789": "Abc123",
    "sk-ant-api03-Abc123Def456": "Abc123",
    "sk_live_51Habcdefghijk": "51Habc",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789": "abcdef",
    "github_pat_11ABCDEFG0abcdefghij_klmnop": "11ABC",
    "AKIAIOSFODNN7EXAMPLE": "IOSFODNN7",
    "xoxb-123456789012-abcdefghij": "123456789012",
    "glpat-abcdefghij0123456789": "abcdefghij0",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv": "SyA123",
    "pypi-AgEIcHlwaS5vcmcCJDU1": "AgEIc",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4": "SflKx",
    f"--passwd {P}": P,
    f"--password={P}": P,
    f"--api-key {P}": P,
    f"--api_key='{P} and more'": P,
    f'--auth "Bearer {P}"': P,
    f"--token {P}": P,
    f"-u me:{P}": P,
    f"--header 'Authorization: Basic {P}=='": P,
    f"Authorization: Bearer {P}": P,
    f"X-Api-Key: {P}": P,
    f"WANDB_API_KEY={P}": P,
    f"export OPENAI_KEY={P};": P,
    f"HF_TOKEN={P}": P,
    f"AWS_SECRET_ACCESS_KEY={P}": P,
    f"env.vars.DB_PASSWORD={P}": P,
    f"PGPASSWORD={P} psql": P,
    f"Server=db;Uid=me;Pwd={P};": P,
    f"{{'client_secret': '{P}', 'n': 8}}": P,
    f'{{"password": "{P} x", "n": 8}}': P,
    f"password: {P}": P,
    f"-----BEGIN RSA PRIVATE KEY-----\n{P}\n-----END RSA PRIVATE KEY-----": P,
}
SETTINGS = (
    {"password": P},
    {"db": {"passwd": P}},
    {"hub_token": P},
    {"accessToken": P},
    {"credentials": [P, P]},
    {"apikey": P},
    {"auth": P},
    {"stripe_key": "4f9Ab83kd92jf84jfd02"},
    ["fairlen", "--passwd", P, "--seed", "1"],
    ["x", "--auth", f"Bearer {P}"],
    ["x", "--proxy-password", P],
    ["x", "-u", f"me:{P}"],
    ["x", "--set", f"a.api_key={P}"],
    {"task": f"web:https://a:{P}@b"},
    {"data": (f"https://b/x.jsonl?token={P}",)},
    {"password": 31337},
)
ORDINARY = (
    {"max_tokens_per_microbatch": 8192},
    {"tokenizer": "Qwen/Qwen3-8B"},
    {"eos_token_id": 151645},
    {"eos_token": "<|im_end|>"},
    {"pad_token": "<pad>"},
    {"num_tokens": 4},
    {"key": "problem"},
    {"prompt_key": "question"},
    {"data": ["key=problem", "sort_key=id"]},
    {"loss_agg_mode": "token-mean"},
    {"tokens/generated": 4096.0},
    {"num_key_value_heads": 8},
    {"stop_token_ids": [1, 2]},
    {"eval/pass@8": 0.5},
    {"author": "Jane"},
    {"monkey": "george"},
    {"keys": ["a", "b"]},
    {"use_auth": True},
    {"token": None},
    {"api_key": None},
    {"auth_mode": "token"},
    {"out": "runs/secretary-keyboard-token"},
    ["--max-tokens", "4096", "--seed", "3"],
    ["--columns", "response=text", "--set", "sampling.n=8"],
    {"sandbox": "http://127.0.0.1:8080/run_code?timeout=3"},
    {"data": "hf://datasets/openai/gsm8k@main"},
    {"data": "https://box.test:81/data/train@v2.jsonl?revision=main"},
    {"git": "ssh://git@github.com/a/b"},
    {"system_prompt": "Think. The secret is the key: token by token, pass or fail."},
    {"system_prompt": "Basic arithmetic: 3 = 1 + 2; write \\boxed{42}."},
    {"model": "task-sk-learn-base"},
    {"layout": "hf_tokenizers"},
    "correct_token=1/2 of num_tokens=3",
    "eos_token=</s>, one token: a piece of a word",
    "dapo+balanced (hash 1a2b3c4d5e6f)",
    "commit 1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed",
    "torch 2.13.0+cpu",
    "PWD=/home/me/passes",
    "8 passes, 3 keys: a, b, c",
)


def test_secrets_in_texts():
    left = [text for text, secret in TEXTS.items() if secret in hide(text, {})]
    assert not left, left
    assert hide("http://me:pass@host/x?a=1, hf_abcdefghijkl", {}) == "http://***@host/x?a=1, ***"


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_secrets_in_settings(given):
    assert not any(part in str(hide_all(given)) for part in (P, "4f9Ab", "31337"))


def test_values_of_the_environment():
    environment = {"MY_API_KEY": "0123456789", "SHELL": "/bin/long-enough", "EMPTY_TOKEN": "", "SHORT_TOKEN": "always"}
    assert hide("0123456789 /bin/long-enough always", environment) == "*** /bin/long-enough always"


def test_what_is_no_secret_is_as_it_was():
    assert [one for one in ORDINARY if hide_all(one) != one] == []


URL = "https://me:zq-url-zq@box.test:81/run?key=zq-query-zq&n=1"
FLAGS = [
    word
    for number, form in enumerate(
        (
            "--passwd {}",
            "--password={}",
            "--api-key {}",
            "--api_key={}",
            "--token {}",
            "--auth {}",
            "--hub-token {}",
            "--secret {}",
            "--client-secret={}",
            "--db-passwd {}",
            "--proxy-password {}",
            "--access-key {}",
            "--credentials {}",
            "-u me:{}",
            "--user me:{}",
            "--header Authorization:Bearer_{}",
            "--set env.WANDB_API_KEY={}",
            "--set OPENAI_API_KEY={}",
            "--set hub.passwd={}",
            "--set a.b.private_key={}",
            "https://{}@host.test/x",
            "postgres://me:{}@host.test/x",
            "https://host.test/x?token={}",
            "https://host.test/x?sig={}&sv=1",
            "https://host.test/x?a=1&api_key={}",
            "hf_Zq{}Zqzqzqzqzq",
            "sk-Zq1{}zqzqzqzqzqzq",
            "ghp_zq{}zqzqzqzqzqzqzq",
            "--cookie {}",
            "--session-token={}",
        )
    )
    for word in form.format(
        f"zqzq{number}qz" if form[0] in "hsg" and ":" not in form[:6] else f"zq-flag{number}-zq"
    ).split(" ")
]
ENVIRONMENT = {
    name: f"zq-variable-{name.lower()}"
    for name in (
        "HF_TOKEN",
        "WANDB_API_KEY",
        "OPENAI_API_KEY",
        "ANTHROPIC_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_PAT",
        "DB_PASSWORD",
        "PGPASSWORD",
        "SERVICE_CREDENTIALS",
        "SMTP_PASS",
        "REDIS_AUTH",
        "SLACK_TOKEN",
    )
}


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
    train = small(tmp_path / "all" / "run", rollout_batches=1, tracker=("tensorboard",), sandbox=URL)
    start_training(train)
    start_training(replace(train, rollout_batches=2, resume=True))
    few = TrainConfig(
        rollout_batches=1, prompts_per_batch=3, max_response_length=40, eval_problems=6, eval_samples=2, threads=1
    )
    few = replace(few, tracker=("tensorboard",), sandbox=URL, out=str(tmp_path / "all" / "comparison"))
    methods = CompareConfig(("grpo:sampling.n=4", "dapo:sampling.n=4"), seeds=1, train=few)
    start_comparison(methods)
    start_comparison(methods)
    evaluation = tmp_path / "all" / "evaluation"
    for _ in range(2):  # goes on
        start_evaluation(
            EvalConfig(
                model=str(tmp_path / "all" / "run" / "model"), limit=4, threads=1, sandbox=URL, out=str(evaluation)
            )
        )
    for folder in (tmp_path / "all" / "run", evaluation):
        assert main(["report", str(folder), *(["--inspect", str(tmp_path / "all" / "logs")])]) == 0
    complain("train", f"cannot reach {URL} with {told}")
    files = strings_of(tmp_path) | dict(
        zip(("stdout", "stderr"), (text.encode() for text in capsys.readouterr()), strict=True)
    )
    assert {"run.json", "eval.json", "comparison.json", "report.html", "header.json", "README.md"} <= {
        Path(one).name for one in files
    }
    assert any("tfevents" in name for name in files)
    left = {
        (name, found[0])
        for name, data in files.items()
        if (found := re.findall(rb"zqzq\d+|zq-(?:flag|variable|url|query)[-\w]*", data))
    }
    assert not left
    assert (
        b"box.test:81" in files["all/run/run.json"]
        and json.loads(files["all/run/run.json"])["config"]["seed"] == train.seed
    )
