"""Rewards, tasks and stages of one's own: the page's example runs everywhere, and a broken one fails before anything starts."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loops import over

from fairlen import plan_rows, playground, testing
from fairlen.catalogue import describe_method
from fairlen.cli import main
from fairlen.compare.config import parse_variant
from fairlen.methods.compose import explain
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.plugins import find_plugin
from fairlen.tasks.grader import load_reward, load_rewards
from fairlen.tasks.task import Problem, load_own_task

ROOT = Path(__file__).parents[2]
SIZES = "--rollout-batches 1 --prompts_per_batch 4 --set sampling.n=4 --problems 16 --samples 1"
TINY = [*SIZES.split(), "--max_response_length", "24"]
PROBLEM = Problem("sums:1+2=?", "1+2=?", (2, 9), "3", {"family": "sums"})


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    """recipes/mine.py, to which docs/extending.md leads."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(ROOT / "recipes/mine.py", tmp_path))


def test_the_stage_of_the_page_weighs_by_its_formula(mine):
    from fixtures import plan_of, ragged_batch

    composed = explain("grpo+mine.py:RootLength", ["aggregation.power=1"])
    assert composed.name == "grpo+RootLength"
    plan = plan_of(composed.method, ragged_batch())
    assert plan.weight.tolist() == pytest.approx((1 / (len(plan) * plan.length)).tolist())  # power 1: 1 / (N T)


@pytest.mark.slow
def test_the_example_trains_and_a_changed_file_is_not_resumed(mine, capsys):
    flags = ["--method", "grpo+mine.py:RootLength", "--rewards", "mine.py:brief=0.1", "--task", "mine.py:Sums", *TINY]
    flags += ["--out", "run"]
    assert main(["train", *flags]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert any(line.get("eval/accuracy", 0) > 0 for line in lines)  # the shipped model solves the page's task
    assert any(line.get("gradient/norm", 0) > 0 for line in lines)
    told = json.loads(Path("run/run.json").read_text())
    assert [one["setting"] for one in told["plugins"]] == ["method", "task", "rewards"]
    assert {one["sha256"] for one in told["plugins"]} == {find_plugin("task", "mine.py:Sums").sha256}
    assert told["plugins"][0]["source"] == str(mine.resolve())
    assert told["data"] == {"name": "sums", "version": 1}
    assert (Path("run") / "report.html").stat().st_size > 1000
    capsys.readouterr()
    mine.write_text(mine.read_text() + "\n# changed\n")
    assert main(["train", *flags, "--resume"]) == 2
    assert "rewards brief" in capsys.readouterr().err
    flags = "--task mine.py:Sums --samples 2 --problems 5 --max-response-length 16 --out eval"
    assert main(["eval", *flags.split()]) == 0
    summary = json.loads(Path("eval/summary.json").read_text())
    assert summary["sets"]["sums"]["problems"] == 5
    assert summary["sets"]["sums"]["details"]["plugins"][0]["name"] == "Sums"
    capsys.readouterr()
    assert main(["eval", "--from-samples", "eval", "--out", "again"]) == 2
    assert "such problems are code" in capsys.readouterr().err


def test_other_commands_know_it(mine, capsys):
    variant = parse_variant("grpo+mine.py:RootLength:aggregation.power=0.3")
    assert (variant.method, variant.settings) == ("grpo+mine.py:RootLength", ("aggregation.power=0.3",))
    assert parse_variant("mine.py:RootLength").settings == ()
    base, listed = describe_method("mine.py:RootLength")["parts"]
    assert (base["name"], listed["sets"], listed["source"]) == ("grpo", "aggregation", str(mine.resolve()))
    assert main(["methods", "mine.py:RootLength"]) == 0
    assert "weighs by the root of its length" in " ".join(capsys.readouterr().out.split())
    assert main(["verl", "--method", "grpo+mine.py:RootLength", "--cpu", "--dry-run"]) == 0
    assert f"grpo+{mine.resolve()}:RootLength" in "".join(capsys.readouterr().out.split())


HEAD = """
from dataclasses import dataclass, replace
from typing import ClassVar
import numpy as np
import torch
from fairlen import Method
from fairlen.methods.stages.micro import TokenLoss, state
"""
STAGE = HEAD + "@dataclass(frozen=True)\nclass X:\n    choice: ClassVar = {choice!r}\n{body}"


def stage(choice: str, *lines: str) -> str:
    return STAGE.format(choice=choice, body="".join(f"    {line}\n" for line in lines))


def weigh(value: str) -> str:
    return stage("aggregation", "def __call__(self, segments, advantage):", f"    return {value}",
                 "def term_weight(self, segments):", "    return 1.0 / segments.length")  # fmt: skip


def lose(value: str, *before: str, ratio: str = "ratio.detach()", clipped: str = "off") -> str:
    lines = (
        "    ratio = (logprobs - micro.old_logprobs).clamp(max=20).exp()",
        "    off = torch.zeros_like(ratio, dtype=torch.bool)",
    )
    result = f"    return TokenLoss({value}, {ratio}, {clipped}, ~off)"
    return stage("surrogate", *before, "def __call__(self, logprobs, micro):", *lines, result)


PLAIN_LOSS = "-ratio * micro.per_token(micro.advantage)"
OWN_LOSS = PLAIN_LOSS + " + (self.width + len(self.calls)) * (ratio - 1) ** 2"
TRAINED = "micro.of_trained(outputs.logprobs.detach() ** 0).sum()"


def learn(update: str, *before: str, width: str = "state(1.0)", tokens: str = TRAINED) -> str:
    """A surrogate whose width moves."""
    fields = f"width: float = {width}", "calls: ClassVar = []"
    observe = "def observe(self, outputs, micro):", f"    return {{'tokens': {tokens}}}"
    return lose(OWN_LOSS, *fields, *before, *observe, "def update(self, sums):", f"    return {update}")


HALVE = "replace(self, width=self.width / 2)"
SOUND = {
    "an aggregation": weigh("1.0 / segments.length"),
    "a surrogate": lose(PLAIN_LOSS),
    "a prompt filter": stage("filter", "def __call__(self, responses):", "    return np.ones(responses.num_prompts, np.bool_)"),
    "a reward": stage("reward", "def __call__(self, responses, reward):", "    return reward / responses.length"),
    "an advantage": stage("advantage", "def __call__(self, segments, value):", "    return value - value.mean()"),
    "a term": stage("terms", "needs_ref = False", "needs_entropy = True", "def __call__(self, outputs, micro):",
                    "    return -outputs.entropy"),
    "a correction": stage("correction", "def __call__(self, micro):", "    return torch.ones_like(micro.old_logprobs)"),
    "a stage with state": learn(HALVE),
    "the stage of the page": (ROOT / "docs/extending.md").read_text().split("```")[1].removeprefix("python").replace("Pull", "X"),
    "a base": HEAD + "def X():\n    return Method()",
    "a modifier": HEAD + "def X(method):\n    return replace(method, mask_truncated=True)",
    "a method": HEAD + "X = Method(mask_truncated=True)",
}  # fmt: skip
BROKEN = {
    "does not parse": ("def X(:\n", "does not load: SyntaxError", "(line 1)"),
    "does not import": ("\nimport no_such_package\n", "does not load: ModuleNotFoundError", "(line 2)"),
    "imports what does not parse": ('\ncompile("(", "other.py", "exec")\n', "(other.py, line 1)", "(line 2)"),
    "ends the program": ("raise SystemExit(3)\n", "does not load: SystemExit", "(line 1)"),
    "is a number": ("X = 3\n", "X is 3", "no method"),
    "is a reward": ("def X(prompts, completions, **columns): return [1.0]\n", "named by --rewards", "tried when a run starts"),
    "needs two arguments": ("def X(a, b): pass\n", "needs 2 arguments", "both return a Method"),
    "returns no method": ("def X(method): return 3\n", "X returned 3", "return a fairlen.Method"),
    "raises": ("def X(method): return 1 / 0\n", "X raised ZeroDivisionError", "division by zero"),
    "changes nothing": ("def X(method): return method\n", "changes nothing", "X.sets"),
    "has no choice of ours": (stage("loss"), "choice='loss'", "give one of sampling, filter"),
    "can change": (HEAD + "class X:\n    choice = 'aggregation'\n", "X can change", "@dataclass(frozen=True)"),
    "cannot be made": (stage("aggregation", "power: float"), "X cannot be made without values", "default"),
    "cannot be called": (stage("aggregation"), "aggregation X cannot be called", "__call__"),
    "has no term_weight": (stage("aggregation", "def __call__(self, s, a): return s.length"), "X has no term_weight", "write it"),
    "has a wrong shape": (weigh("segments.length[:3] * 1.0"), "an array of shape (3,)", "one weight for each segment"),
    "is a scalar": (weigh("0.5"), "X returned 0.5", "an array of shape (10,)"),
    "is not finite": (weigh("1.0 / (segments.length - 1)"), "X returned inf in row 0", "give finite numbers"),
    "is negative": (weigh("-1.0 / segments.length"), "X returned -1", "turns the reward around"),
    "raises in use": (weigh("segments.tokens"), "X raised AttributeError", "tokens"),
    "writes into its input": (weigh("segments.length.__imul__(2)"), "X raised ValueError", "read-only"),
    "goes by position": (weigh("1.0 + np.arange(len(segments))"), "changes with the order of rows", "never by position"),
    "keeps by number": (stage("filter", "def __call__(self, responses): return np.ones(2)"), "filter X returned", "shape (4,)"),
    "keeps with numbers": (
        stage("filter", "def __call__(self, responses): return np.ones(4)"), "filter X returned float64", "bool",
    ),
    "rewards with nan": (stage("reward", "def __call__(self, r, reward): return reward * np.nan"), "X returned nan", "finite"),
    "has another slope": (lose("-2 * ratio * micro.per_token(micro.advantage)"), "slope -2 at ratio 1", "minus the advantage"),
    "means over tokens": (lose("(-ratio * micro.per_token(micro.advantage)).mean()"), "a tensor of shape ()", "(11,)"),
    "returns a tensor": (stage("surrogate", "def __call__(self, logp, micro): return logp"), "returned Tensor", "TokenLoss"),
    "mixes sequences": (
        lose(PLAIN_LOSS + " * (1 + (micro.old_logprobs - logprobs).detach().abs().mean())"),
        "beside a token that does not train",
        "let no other go by it",
    ),
    "is nan in padding": (
        lose(PLAIN_LOSS + " + 0 * (logprobs - micro.old_logprobs) / logprobs"),
        "its loss is nan on a token that does not train", "keep it finite",
    ),
    "knows no padding": (
        lose(PLAIN_LOSS + " * (1 if micro.mask is None else 1 / 0)"),
        "X on a token that does not train raised ZeroDivisionError", "division by zero",
    ),
    "counts its calls": (
        lose("self.calls.append(1) or len(self.calls) * " + PLAIN_LOSS, "calls: ClassVar = []"),
        "what it gives a token changes in a second call", "let a call change nothing",
    ),
    "draws lots": (weigh("np.random.default_rng().random(len(segments))"), "changes with a second call", "change nothing"),
    "holds no ratio": (
        lose(PLAIN_LOSS.replace("ratio", "(logprobs - micro.old_logprobs).exp()")),
        "its loss is -inf at a log ratio of 800", "hold log ratios at 20",
    ),
    "has a ratio with gradient": (lose(PLAIN_LOSS, ratio="ratio"), "its ratio carries a gradient", "ratio.detach()"),
    "has a ratio beside 1": (
        lose(PLAIN_LOSS, ratio="ratio.detach() + 1e-9"), "its ratio is 1.000000001", "make it exactly 1",
    ),
    "has a slope beside it": (lose("1.00001 * " + PLAIN_LOSS), "slope -1.00001 at ratio 1", "minus the advantage"),
    "clips by numbers": (lose(PLAIN_LOSS, clipped="off.float()"), "its clipped returned torch.float32", "one truth value"),
    "trains what is clipped": (lose(PLAIN_LOSS, clipped="~off"), "where it is `clipped`", "that of a penalty included"),
    "has no field of state": (learn(HALVE, width="1.0"), "X has observe and update alone", "width: float = state(0.2)"),
    "moves another field": (
        learn("replace(self, width=2.0, rate=self.rate / 2)", "rate: float = 1.0"),
        "after two updates it is X(rate=0.25), and X(rate=1.0) in a run that is resumed", "a field of `state`",
    ),
    "halves what is restored": (
        learn(HALVE, "def __post_init__(self):", "    object.__setattr__(self, 'width', self.width / 2)"),
        "in a run that is resumed", "stays as it is given",
    ),
    "moves its class": (
        learn("self.calls.append(1) or " + HALVE), "update changes more than the stage", "move fields of `state` alone",
    ),
    "observes padding": (
        learn(HALVE, tokens="len(outputs.logprobs)"), "tokens=11, and 12 with a token that does not train", "of_trained",
    ),
    "needs what nobody knows": (stage("terms", "def __call__(self, o, micro): return o.entropy"), "has no needs_ref", "True"),
}  # fmt: skip


@over("name", SOUND)
def test_whatever_is_sound_is_taken(name, tmp_path):
    (tmp_path / "x.py").write_text(SOUND[name])
    assert explain(f"{tmp_path}/x.py:X").name.endswith("X")


def test_rewards_of_ones_own_come_after_those_of_fairlen(tmp_path):
    (tmp_path / "x.py").write_text(SOUND["a reward"] + "\ndef base():\n    return Method(reward=(X(),))\n")
    rewards = explain(f"{tmp_path}/x.py:base+gr3+overlong").method.reward
    assert [type(one).__name__ for one in rewards] == ["RelativeLength", "SoftOverlong", "X"]


@over("name", BROKEN)
def test_a_broken_method_fails_at_once(name, tmp_path):
    text, what, fix = BROKEN[name]
    (tmp_path / "x.py").write_text(text)
    with pytest.raises(ValueError) as found:
        explain(f"{tmp_path}/x.py:X")
    assert what in str(found.value) and fix in str(found.value), found.value
    assert "X" in str(found.value)


def test_a_stage_that_gives_nan_for_some_value_is_named_with_the_row(tmp_path):
    lines = 'reads: ClassVar = {"limit": (1, 3)}', "def __call__(self, responses, reward):"
    (tmp_path / "x.py").write_text(stage("reward", *lines, '    return reward / (responses.named["limit"] != 2)'))
    method = explain(f"{tmp_path}/x.py:X").method
    given = {"groups": [0, 0], "lengths": [1, 2], "rewards": [1.0, 0.0], "max_response_length": 4}
    with pytest.raises(ValueError, match=r"reward X\(\)\[1\]=nan: give finite numbers"), np.errstate(all="ignore"):
        plan_rows(method, **given, columns={"limit": [1, 2]})  # 0 / 0


REWARDS = {
    "return [1, 2]": "returned [1, 2]",
    "return [float('nan')]": "it returned nan",
    "return 1 / 0": "ZeroDivisionError",
    "return [None if completions[0] else float('inf')]": "it returned inf",
}


@over("body", REWARDS)
def test_a_broken_reward_fails_at_once(body, tmp_path):
    (tmp_path / "r.py").write_text(f"def f(prompts, completions, **columns):\n    {body}\n")
    with pytest.raises(ValueError) as found:
        load_rewards([f"{tmp_path}/r.py:f"], PROBLEM)
    assert REWARDS[body] in str(found.value) and f"--rewards {tmp_path}/r.py:f" in str(found.value)
    assert "sums:1+2=?" in str(found.value)


def test_a_reward_that_never_returns_fails_at_once(tmp_path):
    (tmp_path / "r.py").write_text(
        "import time\ndef f(prompts, completions, **columns):\n    time.sleep(20)\n    return [1.0]\n"
    )
    with pytest.raises(ValueError, match="tried on problem"):
        load_rewards([f"{tmp_path}/r.py:f"], PROBLEM, deadline=0.2)


ASYNC = """
import asyncio
async def cancels(prompts, completions, **columns):
    raise asyncio.CancelledError
async def leaves(prompts, completions, **columns):
    raise SystemExit(3)
async def goes_on(prompts, completions, **columns):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
async def has_gone_on(prompts, completions, **columns):
    asyncio.ensure_future(goes_on(prompts, completions))
    await asyncio.sleep(0.1)
    raise ValueError("but its task has not ended")
"""
TRY = """
import sys
from fairlen.tasks.grader import load_rewards
from fairlen.tasks.playground import Playground
for name in sys.argv[1:]:
    try:
        load_rewards([name], Playground().train(0), deadline=0.3)
    except ValueError as error:
        print("refused:", error)
"""


@pytest.mark.slow
def test_async_rewards_that_end_in_an_odd_way_or_never_fail_at_once(tmp_path):
    """By CancelledError or SystemExit, or by going on when cancelled: the process ends, with the errors that name them."""
    (tmp_path / "r.py").write_text(ASYNC)
    names = [f"{tmp_path}/r.py:{name}" for name in ("cancels", "leaves", "goes_on", "has_gone_on")]
    command = [sys.executable, "-c", TRY, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout.splitlines()
    assert len(said) == len(names) and "Traceback" not in done.stderr, done.stderr[-600:]
    assert all(line.startswith(f"refused: --rewards {name}") for line, name in zip(said, names, strict=True)), said


def test_sound_rewards_are_taken_with_their_weights(tmp_path):
    (tmp_path / "r.py").write_text(
        "async def later(prompts, completions, **columns):\n    return [None]\n"
        "def family(prompts, completions, family, verdict, answer, **columns):\n"
        "    return [float(family[0] == 'sums' and verdict[0] in (0.0, 1.0) and bool(answer))]\n"
    )
    found = load_rewards([f"{tmp_path}/r.py:later", f"{tmp_path}/r.py:family=0.25"], PROBLEM)
    assert [(one.name, one.weight) for one in found] == [("later", 1.0), ("family", 0.25)]
    with pytest.raises(ValueError, match="later is named twice"):
        load_rewards([f"{tmp_path}/r.py:later", f"{tmp_path}/r.py:later=2"], PROBLEM)


def test_rewards_are_called_by_keyword_as_trl_calls_them(tmp_path):
    """TRL's own idiom takes completions and the rest; a function may name any of them, in any order."""
    (tmp_path / "r.py").write_text(
        "def idiom(completions, **kwargs):\n    return [float(len(text)) for text in completions]\n"
        "def turned(*, answer, completions, prompts, completion_ids, **kwargs):\n    return [1.0]\n"
        "def other(texts, **kwargs):\n    return [1.0]\n"
    )
    found = load_rewards([f"{tmp_path}/r.py:idiom", f"{tmp_path}/r.py:turned"], PROBLEM)
    assert [one.name for one in found] == ["idiom", "turned"]
    with pytest.raises(
        ValueError, match=r"it is called as f\(prompts=, completions=, completion_ids=, answer=, verdict="
    ):
        load_rewards([f"{tmp_path}/r.py:other"], PROBLEM)


def test_the_judge_of_the_page_grades_each_answer_once(monkeypatch):
    judge = runpy.run_path(str(ROOT / "recipes/judge.py"))
    server = judge["ThreadingHTTPServer"](("127.0.0.1", 0), judge["LocalJudge"])
    judge["Thread"](target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("JUDGE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    grades = [judge["asyncio"].run(judge["judge"](["q"] * 4, ["x", "x" * 50, "x", "x" * 200])) for _ in "ab"]
    assert grades == [[1.0, 0.5, 1.0, 0.0]] * 2  # 10 less a tenth of the characters, over 10
    assert judge["ask"].cache_info().misses == 3


def test_a_reward_may_not_be_called_what_the_verdict_is_called(tmp_path):
    """Records have a column for each part of an outcome: one would overwrite the other."""
    (tmp_path / "r.py").write_text("def verifier(prompts, completions, **columns):\n    return [1.0]\n")
    with pytest.raises(
        ValueError, match="call the verdict's part of an outcome verifier; give the function another name"
    ):
        load_rewards([f"{tmp_path}/r.py:verifier"], PROBLEM)


@over("text", ["r.py", ":f", "r.py:", "r.txt:f", "r.py:f=much", "r.py:f=inf", ""])
def test_names_that_name_nothing_are_refused(text):
    with pytest.raises(ValueError, match="--rewards"):
        load_reward(text)


TASKS = {
    ("longest_prompt = 16", "longest_prompt = 3"): "its prompt has 6 tokens; give 1 to longest_prompt=3",  # BOS and five signs
    ("longest_prompt = 16", "longest_prompt = None"): "longest_prompt=None",
    ("longest_prompt = 16", "longest_prompt, max_turns = 16, 0"): "max_turns=0",
    ("    def close(self):\n        pass\n", ""): "has no close",
    ('"train", index % 60', '"train", __import__("random").randrange(60)'): "another problem each time",
    ('"held-out", 60 + place', '"train", place'): "is in train and in held_out",
    ('"correct" if is_correct else "incorrect"', '"great"'): "status='great'",
    ("float(is_correct)", "float('nan')"): "outcome=nan",
    ('text.rpartition("#")[2] or None', 'text.split("#")[1]'): "IndexError",
    ('"version": 1', '"version": {1}'): "what JSON does not take",
    ("def __init__(self, tokenizer)", "def __init__(self)"): "called with the tokenizer and tried, it raised TypeError",
    ("(bos, *ids)", "[bos, *ids]"): "give a tuple of whole numbers",
    ("range(min(count, 40))", "range(0)"): "gives 0 problems",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(playground.PATH)


def test_the_task_of_the_page_is_sound(mine, tokenizer):
    assert load_own_task("mine.py:Sums", tokenizer).train(12).text == "1+2=?"


@pytest.mark.parametrize("change", TASKS)
def test_a_broken_task_fails_at_once(change, mine, tokenizer):
    old, new = change
    text = mine.read_text()
    assert text.count(old) == 1
    mine.write_text(text.replace(old, new))
    with pytest.raises(ValueError) as found:
        load_own_task("mine.py:Sums", tokenizer)
    assert TASKS[change] in str(found.value) and "--task mine.py:Sums" in str(found.value), found.value


STAGES = [f"grpo+{ROOT}/recipes/stages.py:{name}" for name in ("MedianCentered", "Exponential", "FirstTokens", "Limit")]


@pytest.mark.slow
@over("name", [*BASES, *MODIFIERS, *STAGES])
def test_fairlens_own_methods_pass_the_trial_of_a_users(name):
    testing.check(name)
