"""`fairlen doctor`: a machine that is well passes, every broken situation is found by its check, and no secret is shown."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fairlen.doctor.checks import CHECKS
from fairlen.doctor.examine import Check, Finding, run_check
from fairlen.train.run.config import TrainConfig

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
STAGES = Path(__file__).parents[2] / "recipes/stages.py"
BY_NAME = {check.name: check for check in CHECKS}


def find(name: str, **settings) -> Finding:
    """What the check of that name finds of a planned run; a check that crashes shows it."""
    return run_check(BY_NAME[name], TrainConfig.of(**settings))


def make_tokenizer() -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(["ab"], trainers.BpeTrainer(special_tokens=SPECIALS, initial_alphabet=alphabet))
    return core


@pytest.fixture
def model(tmp_path) -> Path:
    """The folder of a model with everything in order, but for weights, which nobody reads here."""
    folder = tmp_path / "model"
    folder.mkdir()
    make_tokenizer().save(str(folder / "tokenizer.json"))
    write(folder, "config.json", model_type="qwen3", vocab_size=300, max_position_embeddings=512)
    write(folder, "generation_config.json", eos_token_id=2)
    write(folder, "tokenizer_config.json", eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML)
    return folder


def write(folder: Path, name: str, **values) -> None:
    """Sets keys of a JSON file; None takes one out."""
    path = folder / name
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({k: v for k, v in (old | values).items() if v is not None}))


@pytest.mark.parametrize(
    "template", [CHATML, CHATML.replace("<|im_end|>", " <|im_end|>")], ids=["chatml", "with a space"]
)
def test_a_model_in_order_passes(model, template):
    """Also where a space stands before what ends a response, as in Llama 2's template."""
    write(model, "tokenizer_config.json", chat_template=template)
    for name in ("end of a response", "chat template"):
        found = find(name, model=str(model))
        assert found.status == "pass", found


def set_in(name: str, **values):
    return lambda folder: write(folder, name, **values)


NO_TURN = CHATML.partition("{% if add")[0]
BROKEN_MODELS = [
    (set_in("generation_config.json", eos_token_id=0), "end of a response", "warn", "the tokenizer says '<|im_end|>'"),
    (set_in("tokenizer_config.json", pad_token="<|im_end|>"), "end of a response", "warn", "is the padding too"),
    (set_in("tokenizer_config.json", chat_template=NO_TURN), "chat template", "warn", "does not open the assistant's"),
    (set_in("tokenizer_config.json", chat_template="{% if %}"), "chat template", "fail", "does not render"),
    (set_in("tokenizer_config.json", chat_template="hello"), "chat template", "fail", "question is not in the prompt"),
    (set_in("generation_config.json", eos_token_id=0), "chat template", "warn", "may never end"),
]


@pytest.mark.parametrize(("damage", "name", "status", "words"), BROKEN_MODELS)
def test_a_broken_model_is_found(model, damage, name, status, words):
    damage(model)
    found = find(name, model=str(model))
    assert (found.status, words in f"{found.found} | {found.remedy}") == (status, True), found
    assert found.remedy


@pytest.mark.parametrize(
    ("settings", "name", "status", "words"),
    [
        ({"method": "grpoo"}, "method", "fail", "did you mean 'grpo'"),
        ({"method": "fspo+balanced", "overrides": ("sampling.n=1",)}, "method", "fail", "sampling.n=1"),
        ({"method": "fspo"}, "fairness", "warn", "--updates-per-batch 4"),
        ({"engine": "vllm"}, "fairness", "warn", "+mismatch"),
        (
            {
                "data": ("a.jsonl",),
                "max_tokens_per_microbatch": 512,
                "max_prompt_length": 1024,
                "max_response_length": 160,
            },
            "fairness",
            "warn",
            "microbatch 1184",
        ),  # 1024 + 160
        ({"data": ("missing.jsonl",)}, "data", "fail", "missing.jsonl"),
        ({"data": ("a.jsonl",), "eval_data": ("./a.jsonl",)}, "fairness", "warn", "trained on and evaluated on"),
        ({"method": f"grpo+{STAGES}:Limit"}, "data", "fail", "reward Limit reads 'limit', and there are num_read"),
        ({"rewards": ("missing.py:f",)}, "plug-ins", "fail", "there is no file missing.py"),
        ({"rewards": ("mine.f",)}, "plug-ins", "fail", "write FILE.py:FUNCTION"),
        ({"model": "/nowhere/at/all"}, "end of a response", "fail", "/nowhere/at/all"),
        ({"unsafe_exec_on_host": True}, "sandbox", "warn", "whatever you can"),
    ],
)
def test_broken_settings_are_found(settings, name, status, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find(name, **settings)
    assert (found.status, words in f"{found.found} | {found.remedy}") == (status, True), found


def test_a_disk_that_takes_nothing_is_found(tmp_path, monkeypatch):
    """Files of at most 0 bytes, which is how a full disk looks to whoever writes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        found = find("disks")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert found.status == "fail" and "cannot be written" in found.found and "TMPDIR" in found.remedy
    assert find("disks").status in ("pass", "warn")


def test_a_missing_sandbox_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find("sandbox")
    assert found.status == "warn" and "apt-get install bubblewrap" in found.remedy


@pytest.mark.parametrize(
    ("package", "number", "name"),
    [("trl", "1.15.0", "trl"), ("verl", "0.8.0", "verl"), ("torch", "2.3.0", "training packages")],
)
def test_versions_that_were_not_tested_are_found(package, number, name, tmp_path, monkeypatch):
    folder = tmp_path / f"{package}-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find(name)
    assert found.status == "fail" and f"{package} {number}, tested" in found.found and "pip install" in found.remedy


def test_a_device_that_is_not_there_and_arithmetic_that_it_does_badly_are_found(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = find("device", device="cuda")
    assert found.status == "fail" and "device=cuda" in found.found
    assert "use device=cpu, or a CUDA build of torch" in found.found
    # without instructions for bfloat16 it is refused, with one of the two it is not
    for has_tiles, has_vectors in ((False, False), (True, False), (False, True)):
        monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda has=has_tiles: has)
        monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda has=has_vectors: has)
        is_refused = "dtype=bfloat16" in find("device", device="cpu", dtype="bfloat16").found
        assert is_refused == (not has_tiles and not has_vectors)


@pytest.mark.slow
def test_memory_that_is_not_there_is_found(model):
    """1e6 x 4096 embeddings in float32 with gradient and two moments: 4 x 15.3 GiB and more."""
    write(model, "config.json", vocab_size=10**6, hidden_size=4096, num_hidden_layers=64, intermediate_size=16384,
          num_attention_heads=32, num_key_value_heads=8)  # fmt: skip
    found = find("memory", model=str(model))
    assert found.status == "fail" and "GiB" in found.found and "try --lora-rank 32" in found.found, found


def test_a_check_that_raises_is_a_finding():
    def crash(config):
        raise RuntimeError("no such wire")

    found = run_check(Check("a", crash), TrainConfig())
    assert found.status == "fail" and "RuntimeError: no such wire" in found.found and found.name == "a"


def test_secrets_are_never_shown(monkeypatch):
    finding = Finding("fail", "http://me:pass@host, hf_abcdefghijkl and 0123456789secret", "use hf_abcdefghijkl")
    monkeypatch.setenv("MY_API_KEY", "0123456789secret")
    shown = run_check(Check("a", lambda config: finding), TrainConfig())
    assert shown == Finding("fail", "http://***@host, *** and ***", "use ***", "a")


def test_the_playground_is_in_order_and_its_memory_is_known():
    assert "playground needs under 2 GiB" in find("memory").found
    assert find("end of a response").status == "pass"


@pytest.mark.slow
def test_all_of_it_is_said_for_machines():
    command = [sys.executable, "-m", "fairlen", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = json.loads(done.stdout)["findings"]
    assert [one["name"] for one in listed] == [check.name for check in CHECKS]
    assert all(one["remedy"] for one in listed if one["status"] != "pass")
    assert "Traceback" not in done.stderr
    assert done.returncode == any(one["status"] == "fail" for one in listed)
