"""The commonest mistakes of a new user, each as it is made: one message names the field, the value and the fix; no traceback.

Every command is run in this process by `fairlen.cli.main`, which is what the program `fairlen` calls.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from fairlen import playground
from fairlen.cli import main
from recipes.guess import PATH

SIZES = "--rollout-batches 1 --prompts-per-batch 1 --problems 1 --samples 1 --max-response-length 4"
TINY = SIZES.split()


def write(name: str, text: str) -> None:
    Path(name).write_text(text)


def write_rows(name: str, *rows: dict) -> None:
    write(name, "".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Everything that the mistakes are made with."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_rows("sums.jsonl", *({"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)))
        write_rows("columns.jsonl", {"foo": "What is 1 + 1?", "bar": "2"})
        write_rows(
            "code.jsonl", *({"prompt": f"Print {n}", "tests": [{"input": "", "output": str(n)}]} for n in range(40))
        )
        write("empty.jsonl", "")
        write("bad.jsonl", '{"question": "1 + 1", "answer": "2"}\n{"question": "1 + 2", \n')
        returned = {
            "words": "'much'", "huge": "[10**400]", "dicts": "{1: 0.5}", "sets": "{1}", "digits": "[10**5000, 1]"
        }  # fmt: skip
        functions = (f"def {name}(prompts, completions, **columns): return {text}\n" for name, text in returned.items())
        write("reward.py", "".join(functions))
        write("unsafe.toml", "[verifier]\nunsafe_exec_on_host = true\n")
        Path("full").mkdir()
        write("full/note.txt", "mine")
        Path("nothing").mkdir()
        for name, lost in (("no_tokenizer", "*token*"), ("no_weights", "*.safetensors"), ("no_end", "")):
            shutil.copytree(playground.PATH, name, ignore=shutil.ignore_patterns(lost, "*.py", "__pycache__"))
        for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            path = Path("no_end", name)
            values = json.loads(path.read_text())
            path.write_text(json.dumps({k: v for k, v in values.items() if k not in ("eos_token_id", "eos_token")}))
        make_reader("reader")
    return folder


def make_reader(name: str) -> None:
    """A model folder whose tokenizer reads any text, for --random-init."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(["ab"], trainers.BpeTrainer(special_tokens=["<eos>"], initial_alphabet=alphabet))
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>").save_pretrained(name)
    shape = json.loads((Path(playground.PATH) / "config.json").read_text())
    write(f"{name}/config.json", json.dumps(shape | {"vocab_size": 300, "eos_token_id": 0, "pad_token_id": None}))


GUESS = ["--task", f"{PATH}.py:make_guess", "--model", str(PATH)]
READER = ["--model", "reader", "--random-init"]
MISTAKES = {
    "a method that does not exist": (["train", "--method", "gpro"], "'gpro'", "did you mean 'gspo' or 'grpo'?"),
    "two methods in one": (["train", "--method", "grpo+dapo"], "'grpo+dapo' has two bases", "keep one"),
    "a typo in a flag": (["train", "--rollout-batchs", "3"], "--rollout-batchs", "--rollout-batches"),
    "a command that does not exist": (["trian"], "'trian'", "did you mean 'train'?"),
    "--set of an unknown field": (["train", "--set", "surrogate.clip_hgh=0.3"], "'clip_hgh'", "did you mean 'clip_high'?"),
    "a number out of range": (["train", "--prompts-per-batch", "0"], "prompts_per_batch=0", "give 1 or more"),
    "greedy training": (["train", "--temperature", "0"], "temperature=0.0", "give more than 0"),
    "a budget over the model's positions": (
        ["train", "--max-response-length", "600"], "--max-response-length 600", "give at most 484, or shorter prompts"
    ),
    "a folder without a model": (["train", "--model", "nothing"], "model=nothing", "give a folder with config.json"),
    "a model without tokenizer": (
        ["train", "--model", "no_tokenizer"], "model=no_tokenizer", "add tokenizer.json and tokenizer_config.json to it"
    ),
    "a model without weights": (["train", "--model", "no_weights"], "model=no_weights", "*.safetensors"),
    "a model that cannot end": (["train", "--model", "no_end"], "eos_token_id=None", "set eos_token_id in the model folder's"),
    "a hub id without a network": (["train", "--model", "nobody/nothing"], "model=nobody/nothing", "hf download"),
    "data that is not there": (["train", "--data", "none.jsonl"], "--data none.jsonl", "a source is PLACE"),
    "data without known columns": (
        ["train", "--data", "columns.jsonl"], "unknown columns foo, bar", "rename columns to prompt"
    ),
    "data that is empty": (["train", "--data", "empty.jsonl"], "--data empty.jsonl: the file is empty", "write it again"),
    "a broken line in data": (["train", "--data", "bad.jsonl"], "bad.jsonl, line 2: not JSON", "mend or remove the line"),
    "data for a model of another kind": (
        ["train", "--data", "sums.jsonl"], "model=playground", "name a language model with --model"
    ),
    "prompts that are all too long": (
        ["train", *READER, "--data", "sums.jsonl", "--max-prompt-length", "2"],
        "40 left out because their prompts are too long",
        "raise --max-prompt-length",
    ),
    "a task that does not exist": (["train", "--task", "maths"], "--task maths", "there are playground"),
    "an environment of verifiers": (["train", "--task", "verifiers:wordle"], "task=verifiers:wordle", "train in prime-rl"),
    "a game whose turns would be forked": (
        ["train", *GUESS, "--method", "eqlen"], "task=guess with EqLen", "choose a method without eqlen"
    ),
    "a reward file that is not there": (
        ["train", "--rewards", "none.py:f"], "--rewards none.py:f", "give the path of a Python file"
    ),
    "a reward that is too large": (
        ["train", "--rewards", "reward.py:huge"], "returned a number beyond", "return a finite number"
    ),
    "a reward that is a dict": (["train", "--rewards", "reward.py:dicts"], "returned {1: 0.5}", "return a list with one number"),
    "a reward that is a set": (["train", "--rewards", "reward.py:sets"], "returned {1}", "return a list with one number"),
    "a reward that cannot be shown": (
        ["train", "--rewards", "reward.py:digits"], "returned list for one response", "return a list with one number"
    ),
    "a reward that is not in the file": (["train", "--rewards", "reward.py:f"], "has no 'f'", "it has words"),
    "a reward that returns a word": (
        ["train", "--rewards", "reward.py:words"], "returned 'much'", "return a list with one number"
    ),
    "a folder with something in it": (["train", *TINY, "--out", "full"], "out=full", "choose another one"),
    "resume without a folder": (["train", "--resume"], "resume=True without out", "--out"),
    "resume of nothing": (["train", "--resume", "--out", "none"], "out=none: no run to resume", "leave --resume out"),
    "a device that does not exist": (["train", "--device", "tpu"], "device='tpu'", "give auto or one of cpu, cuda"),
    "a device by a number that is none": (["train", "--device", "cpu0"], "device='cpu0'", "give auto or one of cpu, cuda"),
    "a scale of no adapters": (["train", "--lora-alpha", "16"], "lora_alpha=16 without adapters", "give lora_rank too"),
    "a tokenizer of no rollouts": (
        ["methods", "--compare", "grpo", "--tokenizer", "none"], "--tokenizer none", "name them or drop it"
    ),
    "a comparison of no methods": (["compare", "--out", "x"], "METHODS", "name at least two"),
    "one response with leave-one-out": (
        ["train", "--method", "rloo", "--set", "sampling.n=1"], "sampling.n=1", "--set sampling.n=16"
    ),
    "one response for each prompt": (
        ["train", "--set", "sampling.n=1"], "GroupCentered with sampling.n=1", "--set sampling.n=16"
    ),
    "one response in a comparison": (
        ["compare", "grpo", "dapo:sampling.n=1"], "sampling.n=1: a single response", "--set sampling.n=16"
    ),
    "a file that switches the sandbox off": (
        ["train", "--config", "unsafe.toml"], "unsafe_exec_on_host: give it as a flag, --unsafe-exec-on-host", "which you decide"
    ),
    "an unknown library": (["train", "--method", "tlr:+dapo"], "no library 'tlr'", "did you mean 'trl'?"),
    "a colon after a method": (["train", "--method", "dapo:+balanced"], "unknown method 'dapo:'", "leave the colon out: dapo"),
    "two methods with a comma": (["train", "--method", "grpo,dapo"], "these are several methods", "`fairlen compare grpo dapo`"),
    "a modifier with a comma": (["train", "--method", "grpo,balanced"], "unknown method", "joined by +: grpo+balanced"),
    "a setting as a method": (["train", "--method", "grpo+clip_high"], "it is a setting", "--set surrogate.clip_high=VALUE"),
    "no responses": (["train", "--set", "sampling.n=0"], "n=0", "give 1 or more"),
    "more responses than memory holds": (
        ["train", "--set", "sampling.n=1000000"], "16,000,000 responses in a rollout batch", "give a smaller"
    ),
    "more held-out responses than memory holds": (
        ["train", "--problems", "99999999"], "399,999,996 responses in an evaluation", "give a smaller"
    ),
    "one method to compare": (["compare", "grpo"], "methods=grpo", "name at least two"),
    "a suite that does not exist": (["eval", "--suite", "nope"], "--suite nope", "--suite list"),
    "no method to compare": (["methods", "--compare"], "--compare", "expected at least one argument"),
    "a page over rollouts": (["audit", "sums.jsonl", "--out", "sums.jsonl"], "--out sums.jsonl", "name another one"),
    "a table over rollouts": (
        ["watch", "sums.jsonl", "--once", "--markdown", "sums.jsonl"], "--markdown sums.jsonl", "name another one"
    ),
    "a limit below 0 of a watch": (
        ["watch", "sums.jsonl", "--max-response-length", "-3"], "--max-response-length -3", "above 0"
    ),
    "a report over data": (["report", "full", "--out", "sums.jsonl"], "--out sums.jsonl", "name another one"),
    "a flag of methods": (["methods", "--yaml"], "--yaml", "fairlen methods --help"),
}  # fmt: skip


def say(arguments: list[str], capsys) -> tuple[int, str]:
    """The exit code and all that was said, in one line; boxes around messages are taken away."""
    code, printed = main(arguments), capsys.readouterr()
    lines = (line.strip("│| ") for line in (printed.err + printed.out).splitlines())
    return code, " ".join(" ".join(lines).split())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_field_value_and_fix(mistake, desk, monkeypatch, capsys):
    arguments, what, fix = MISTAKES[mistake]
    monkeypatch.chdir(desk)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "200")
    before = sorted(desk.rglob("*"))
    code, said = say(arguments, capsys)
    assert (code, what in said, fix in said, "Traceback" in said) == (2, True, True, False), said
    assert sorted(path for path in desk.rglob("*") if "__pycache__" not in str(path)) == before  # nothing was begun


@pytest.mark.parametrize("terminal", [True, False])
def test_whoever_waits_for_torch_at_a_terminal_is_told(terminal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert main(["train", "--task", "maths"]) == 2
    assert capsys.readouterr().err.startswith("fairlen: importing torch\n") == terminal


def test_a_device_without_cuda(desk, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, said = say(["train", "--device", "cuda"], capsys)
    assert code == 2 and "device=cuda" in said and "use device=cpu" in said


def test_programs_without_a_sandbox(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PATH", "/nonexistent")
    code, said = say(["train", *READER, "--data", "code.jsonl"], capsys)
    assert code == 2 and "bwrap is missing" in said and "apt-get install bubblewrap" in said


@pytest.mark.parametrize(
    ("arguments", "module", "reader", "command"),
    [
        (["train", "--lora-rank", "4"], "peft", "", "pip install '.[lora]'"),
        (["train", "--engine", "vllm"], "vllm", "", "pip install '.[vllm]'"),
        (["verl"], "verl", "", "pip install '.[verl]'"),
        (["train"], "torch", "fairlen.train.start", "pip install '.[train]'"),
    ],
)
def test_a_package_that_is_not_installed(arguments, module, reader, command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)  # any import of it raises ModuleNotFoundError
    for name in [name for name in sys.modules if reader and name.startswith(reader)]:
        monkeypatch.delitem(sys.modules, name)  # read again, whatever was imported before
    code, said = say(arguments, capsys)
    assert code == 2 and module in said and command in said and "Traceback" not in said


@pytest.mark.parametrize("within", ["", "run"], ids=["a file", "in a file"])
@pytest.mark.parametrize("arguments", [["train"], ["eval"], ["compare", "grpo", "dapo"]], ids=lambda words: words[0])
def test_a_file_where_a_folder_is_wanted(arguments, within, capsys, tmp_path):
    (tmp_path / "taken").write_text("mine")
    code, said = say([*arguments, "--out", str(tmp_path / "taken" / within)], capsys)
    assert code == 2 and "taken" in said and "a file is there, and a folder is wanted; choose another one" in said
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.slow
def test_a_run_is_neither_replaced_nor_changed(capsys, tmp_path):
    arguments = ["train", *TINY, "--set", "sampling.n=2", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    capsys.readouterr()
    code, said = say(arguments, capsys)
    assert code == 2 and "a run is there already" in said and "--resume" in said
    code, said = say([*arguments, "--learning-rate", "0.1", "--resume"], capsys)
    assert code == 2 and "learning_rate: 0.0003 -> 0.1" in said and "Traceback" not in said
