"""Environments of verifiers, unmodified, against the embedded engine: one that it ships (a game in turns) and one with a tool."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from loops import over
from talkers import CALL, make_talker, make_talking_model, write_words

from fairlen.cli import main
from fairlen.engine import Engine
from fairlen.sampling.extend import Continuation, Sampling, gather
from fairlen.settings import TaskConfig
from fairlen.tasks.driven import Driven
from fairlen.tasks.environment import about
from fairlen.tasks.load import load_task
from fairlen.tasks.task import Problem
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

# Tests import it by themselves: it takes seconds, and every process of pytest collects this file.
pytestmark = pytest.mark.skipif(find_spec("verifiers") is None, reason="verifiers is missing")
SETS = Path(__file__).parent / "verifiers_sets"
BUDGET = 900
DEADLINE = 240.0
"""Seconds; programs start within it on a machine that does other things."""


@pytest.fixture(autouse=True)
def sets(monkeypatch, tmp_path_factory) -> None:
    """Sets of tasks as if they were installed, also for programs that are started; words for games; no network."""
    words = tmp_path_factory.mktemp("words")
    write_words(words)
    monkeypatch.syspath_prepend(SETS)
    monkeypatch.setenv("PYTHONPATH", str(SETS), prepend=":")
    monkeypatch.setenv("NLTK_DATA", str(words))


@dataclass
class Played:
    problems: list[Problem]
    found: list[Continuation]
    episodes: list[Any]
    model: Any
    tokenizer: Any

    def tokens(self, row: int) -> list[int]:
        return [*self.problems[row].token_ids, *self.found[row].token_ids]


def read_results(folder: Path) -> list[Any]:
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.state import State
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import Trace
    from verifiers.v1.utils.trace_store import read_episodes

    return list(read_episodes(folder, Trace[WireTaskData, State, WireAgentConfig]))


def play(place: str, folder: Path, rows: list[int], deadline: float = DEADLINE) -> Played:
    """Play the tasks at these places at the same time, by a random model in float64."""
    tokenizer = make_talker()
    model = make_talking_model(tokenizer)
    task: Any = load_task(TaskConfig.of(task=f"{place}&results={folder}"), tokenizer)
    try:
        positions = task.longest_prompt + BUDGET
        engine = Engine(model, eos_token_id=tokenizer.eos_token_id, max_length=positions, max_num_seqs=4, compile=False)
        turns = Driven(engine.extend, task, deadline)
        problems = [task.problems[row] for row in rows]

        async def run() -> list[Continuation]:
            works = (about(turns, one)(one.token_ids, Sampling(BUDGET, seed)) for seed, one in enumerate(problems))
            return await gather(works)

        found = asyncio.run(run())
    finally:
        task.close()
    return Played(problems, found, read_results(folder), model, tokenizer)


def check_exact(played: Played) -> None:
    """Log-probs are those of one forward pass over the whole. Verifiers' own record has the same tokens, masks and log-probs, the
    last to the four digits that it keeps.
    """
    from verifiers.v1.graph import RECORD_FLOAT_DECIMALS

    records = {}
    for episode in played.episodes:
        (branch,) = episode.traces[0].branches
        records[tuple(branch.token_ids)] = (branch, episode.traces[0])
    assert len(records) == len(played.found)
    for row, one in enumerate(played.found):
        tokens, begin = played.tokens(row), len(played.problems[row].token_ids)
        with torch.no_grad():
            logits = played.model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        every = logits.gather(1, torch.tensor(tokens)[1:, None])[:, 0].tolist()
        written = [begin + place for start, stop in one.turns for place in range(start, stop)]
        assert max(abs(a - every[place - 1]) for a, place in zip(one.logprobs, written, strict=True)) < 1e-12
        branch, trace = records[tuple(tokens)]
        assert [place for place, is_sampled in enumerate(branch.sampled_mask) if is_sampled] == written
        assert [branch.logprobs[place] for place in written] == [round(x, RECORD_FLOAT_DECIMALS) for x in one.logprobs]
        assert (trace.reward, trace.num_turns) == (one.outcome, len(one.turns))
        # it does not call so what had no room for another message
        assert trace.is_truncated <= (one.finish == "length")


@pytest.mark.slow
def test_a_game_that_it_ships_is_played_in_turns(tmp_path):
    """TextArena's Hangman, as verifiers ships it. The board of 815 tokens is read, then turns and answers until 900 are full."""
    played = play("verifiers:textarena?game=Hangman-v0&tasks=4", tmp_path / "results", [0, 1])
    check_exact(played)
    for row, one in enumerate(played.found):
        assert len(one.turns) > 1 and one.status in ("correct", "incorrect")
        text = played.tokenizer.decode(played.tokens(row))
        assert "You are playing Hangman." in text and text.count("<|im_start|>assistant\n") == len(one.turns)


@pytest.mark.nightly
def test_tools_are_called_and_their_answers_read(tmp_path):
    """The tool runs in a program of its own. Correct is who has read Ada's number, and only her name can be said."""
    played = play("verifiers:phone_book?tasks=3", tmp_path / "results", [0, 0, 0, 1])
    check_exact(played)
    has_called = []
    for row, one in enumerate(played.found):
        text = played.tokenizer.decode(played.tokens(row))
        turns = text.split("<|im_start|>assistant\n")[1:]
        calls = sum(turn.split("<|im_end|>")[0].count(CALL) for turn in turns[:-1])
        assert text.count("<|im_start|>tool\n4711<|im_end|>") == calls
        has_called.append(calls > 0)
        is_correct = row < 3 and calls > 0
        assert (one.status, one.outcome) == ("correct" if is_correct else "incorrect", float(is_correct))
    assert any(has_called[:3])
    again = tmp_path / "again"
    command = [
        sys.executable, "-m", "verifiers.v1.cli.replay", tmp_path / "results", "--output-dir", again, "--no-rich",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)  # its own program reads the results, and grades them anew
    assert sorted(episode.traces[0].reward for episode in read_results(again)) == sorted(
        one.outcome for one in played.found
    )


WAYS = ["fine", "hangs", "raises", "nothing", "text", "nan", "megabyte", "silent", "unread"]


@pytest.mark.nightly
def test_one_that_goes_wrong_ends_its_own_episode_alone(tmp_path, capsys):
    place = f"verifiers:broken?ways={json.dumps(WAYS).replace(' ', '')}"
    played = play(place, tmp_path / "results", list(range(len(WAYS))), deadline=60.0)
    found = {way: (one.status, one.outcome) for way, one in zip(WAYS, played.found, strict=True)}
    fine, failed = ("correct", 1.0), ("error", 0.0)
    assert found == {
        "fine": fine, "hangs": ("timeout", 0.0), "raises": failed, "nothing": failed, "text": failed, "nan": failed,
        "megabyte": fine, "silent": failed, "unread": fine,
    }  # fmt: skip
    assert played.found[-1].finish == "length"  # a message of a megabyte does not fit
    recorded = [episode.task.data.model_dump()["answer"] for episode in played.episodes]
    assert sorted(recorded) == sorted(set(WAYS) - {"hangs", "nan"})  # a late one has no end, and no reader takes a nan
    assert "such trajectories have no verdict and do not train" in " ".join(capsys.readouterr().err.split())


@pytest.mark.nightly
def test_one_that_blocks_its_process_is_ended_and_the_next_episode_plays(tmp_path):
    """Both were out, and the process answers nobody: it is started again."""
    tokenizer = make_talker()
    model = make_talking_model(tokenizer)
    task: Any = load_task(TaskConfig.of(task='verifiers:broken?ways=["fine","blocks"]'), tokenizer)
    try:
        engine = Engine(model, eos_token_id=tokenizer.eos_token_id, max_length=500, max_num_seqs=4, compile=False)
        fine, blocks = task.problems

        async def run() -> list[str]:
            first = await about(Driven(engine.extend, task, 30.0), blocks)(blocks.token_ids, Sampling(400, seed=0))
            second = await about(Driven(engine.extend, task, DEADLINE), fine)(fine.token_ids, Sampling(400, seed=0))
            return [first.status, second.status]

        assert asyncio.run(run()) == ["timeout", "correct"]
        assert task.worker.number == 2
    finally:
        task.close()


@pytest.fixture
def talking(tmp_path) -> Iterator[Path]:
    """A folder with the model and its tokenizer."""
    folder = tmp_path / "model"
    tokenizer = make_talker()
    make_talking_model(tokenizer, torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    yield folder


@pytest.mark.slow
def test_a_run_trains_on_an_environment(talking, tmp_path):
    """Bob is held out, and Ada trained on: of 8 trajectories some read her number and some do not, so there is a gradient."""
    config = TrainConfig.of(
        model=str(talking), task='verifiers:phone_book?names=["Bob","Ada"]', method="dapo+balanced", out=str(tmp_path / "run"),
        overrides=("sampling.n=8",), rollout_batches=1, prompts_per_batch=1, max_response_length=400, problems=1,
        samples=1, environment_deadline=DEADLINE, learning_rate=1e-3, warmup_updates=0, compile="off", stall_seconds=0,
    )  # fmt: skip
    summary = start_training(config)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (update,) = [line for line in lines if "loss/total" in line]
    assert summary.num_updates == 1 and update["gradient/norm"] > 0 and update["turns/mean"] > 1
    assert update["mismatch/max"] < 1e-4  # what sampled and what is trained see the same tokens
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "verifiers:phone_book" in json.dumps(run)


@pytest.mark.nightly
def test_an_evaluation_plays_it_too(talking, tmp_path):
    """Of two tasks one is held out: four trajectories, with the verdicts of their environment."""
    out = tmp_path / "eval"
    place = 'verifiers:phone_book?names=["Bob","Ada"]'
    arguments = [
        "--model", str(talking), "--task", place, "--samples", "4", "--max-response-length", "400", "--out", str(out),
    ]  # fmt: skip
    assert main(["eval", *arguments]) == 0
    (path,) = (out / "samples").iterdir()
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == 4 and {row["status"] for row in rows} <= {"correct", "incorrect"}


@over(
    "text, settings",
    [
        ("verifiers:wordle", {"taskset": {"id": "wordle"}}),
        ("verifiers:me/wordle?game=a=b", {"taskset": {"id": "me/wordle", "game": "a=b"}}),
        ("verifiers:x?task.tools.url=u&env.agent.max_turns=3", {
            "taskset": {"id": "x", "task": {"tools": {"url": "u"}}}, "agent": {"max_turns": "3"}
        }),
        ('verifiers:x?names=["a","b"]&env.id=user-sim', {"taskset": {"id": "x", "names": ["a", "b"]}, "id": "user-sim"}),
    ],
)  # fmt: skip
def test_a_place_is_read(text, settings):
    from fairlen.tasks.verifiers_task import read_place

    place = read_place(f"{text}{'&' if '?' in text else '?'}tasks=5&results=out")
    assert (place.settings, place.tasks, place.results, place.renderer) == (settings, 5, "out", "")


@over(
    "text, why",
    [
        ("verifiers:", "write verifiers:ID"), ("verifiers:x?tasks=1", "at least 2 tasks"),
        ("verifiers:x?game", "'game' is no FIELD=VALUE"), ("verifiers:no_such_set", "no_such_set"),
        ("verifiers:phone_book?colour=red", "colour"), ('verifiers:phone_book?names=["Ada"]', "it has 1 tasks"),
        ("verifiers:phone_book?renderer=no_such", "renderer"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused(text, why):
    with pytest.raises(ValueError, match=why) as raised:
        load_task(TaskConfig.of(task=text), make_talker())
    assert str(raised.value).startswith(f"--task {text}: ")


def test_commands_of_a_model_do_not_run_on_this_machine():
    """The harness `bash` runs them where its agent's runtime is; ours, which runs none, talks in the environment's process."""
    from fairlen.tasks.verifiers_task import read_place, resolve_config
    from fairlen.tasks.verifiers_worker import register

    register()
    place = "verifiers:phone_book?env.agent.harness.id=bash"
    assert resolve_config(read_place(place)).agent.runtime.type != "subprocess"
    assert resolve_config(read_place(f"{place}&env.agent.runtime.type=docker")).agent.runtime.type == "docker"
    own = resolve_config(read_place("verifiers:phone_book")).agent
    assert (own.harness.id, own.runtime.type) == ("fairlen_chat", "subprocess")
    for harness in ("bash", "mini_swe_agent", "terminus_2"):
        place = f"verifiers:phone_book?env.agent.harness.id={harness}&env.agent.runtime.type=subprocess"
        with pytest.raises(ValueError, match=r"runs commands of the model.*give env\.agent\.runtime\.type=docker"):
            load_task(TaskConfig.of(task=place), make_talker())


def test_settings_that_would_not_be_heeded_are_refused():
    with pytest.raises(ValueError, match=r"env\.taskset\.system_prompt=FILE"):
        load_task(TaskConfig.of(task="verifiers:phone_book", system_prompt="Hello."), make_talker())
    with pytest.raises(ValueError, match="no chat template"):
        load_task(TaskConfig.of(task="verifiers:phone_book"), make_talker(""))


def test_an_id_is_the_tasks_wherever_it_stands():
    import phone_book

    from fairlen.tasks.verifiers_task import find_id

    one, two = (phone_book.CallTask(phone_book.CallData(idx=idx, prompt="a", answer="b")) for idx in (0, 7))
    other = phone_book.CallTask(phone_book.CallData(idx=0, prompt="a", answer="c"))
    assert find_id(one) == find_id(two) != find_id(other)
