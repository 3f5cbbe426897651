"""What is a secret, in every place where one is found, and what is none."""

import time

from loops import over

from fairlen.secrets import hide, hide_all

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
    {"password": P}, {"db": {"passwd": P}}, {"hub_token": P}, {"accessToken": P}, {"credentials": [P, P]},
    {"apikey": P}, {"auth": P}, {"stripe_key": "4f9Ab83kd92jf84jfd02"}, ["fairlen", "--passwd", P, "--seed", "1"],
    ["x", "--auth", f"Bearer {P}"], ["x", "--proxy-password", P], ["x", "-u", f"me:{P}"],
    ["x", "--set", f"a.api_key={P}"], {"task": f"web:https://a:{P}@b"}, {"data": (f"https://b/x.jsonl?token={P}",)},
    {"password": 31337},
)  # fmt: skip
ORDINARY = (
    {"max_tokens_per_microbatch": 8192}, {"tokenizer": "Qwen/Qwen3-8B"}, {"eos_token_id": 151645},
    {"eos_token": "<|im_end|>"}, {"pad_token": "<pad>"}, {"num_tokens": 4}, {"key": "problem"}, {"prompt_key": "question"},
    {"data": ["key=problem", "sort_key=id"]}, {"loss_agg_mode": "token-mean"}, {"tokens/generated": 4096.0},
    {"num_key_value_heads": 8}, {"stop_token_ids": [1, 2]}, {"eval/pass@8": 0.5}, {"author": "Jane"}, {"monkey": "george"},
    {"keys": ["a", "b"]}, {"use_auth": True}, {"token": None}, {"api_key": None}, {"auth_mode": "token"},
    {"out": "runs/secretary-keyboard-token"}, ["--max-tokens", "4096", "--seed", "3"],
    ["--columns", "response=text", "--set", "sampling.n=8"], {"base_url": "http://127.0.0.1:8080/run_code?timeout=3"},
    {"data": "hf://datasets/openai/gsm8k@main"}, {"data": "https://box.test:81/data/train@v2.jsonl?revision=main"},
    {"git": "ssh://git@github.com/a/b"}, {"system_prompt": "Think. The secret is the key: token by token, pass or fail."},
    {"system_prompt": "Basic arithmetic: 3 = 1 + 2; write \\boxed{42}."}, {"model": "task-sk-learn-base"},
    {"layout": "hf_tokenizers"}, "correct_token=1/2 of num_tokens=3", "eos_token=</s>, one token: a piece of a word",
    "dapo+balanced (hash 1a2b3c4d5e6f)", "commit 1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed", "torch 2.13.0+cpu", "PWD=/home/me/passes",
    "8 passes, 3 keys: a, b, c",
)  # fmt: skip


def test_secrets_in_texts():
    left = [text for text, secret in TEXTS.items() if secret in hide(text, {})]
    assert not left, left
    assert hide("http://me:pass@host/x?a=1, hf_abcdefghijkl", {}) == "http://***@host/x?a=1, ***"


@over("given", SETTINGS)
def test_secrets_in_settings(given):
    assert not any(part in str(hide_all(given)) for part in (P, "4f9Ab", "31337"))


def test_values_of_the_environment():
    environment = {"MY_API_KEY": "0123456789", "SHELL": "/bin/long-enough", "EMPTY_TOKEN": "", "SHORT_TOKEN": "always"}
    assert hide("0123456789 /bin/long-enough always", environment) == "*** /bin/long-enough always"


def test_what_is_no_secret_is_as_it_was():
    assert [one for one in ORDINARY if hide_all(one) != one] == []


def test_seconds_of_long_texts_without_spaces():
    """A value of 30,000 letters took half a minute, as every letter began a search to the last one."""
    before = time.process_time()
    assert hide("a_key=" + "b" * 30_000, {}) == "a_key=" + "b" * 30_000
    hide("sk-" * 10_000, {})
    assert time.process_time() - before < 5
