"""Tasks of reasoning-gym: their problems, their verdicts next to the package's own scores, whole runs, and what is refused."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from chat_tokenizers import CHATML, make_tokenizer, write_shape
from loops import over

from fairlen.cli import main
from fairlen.tasks.data_row import normalize
from fairlen.tasks.load import load_task
from fairlen.tasks.reasoning_gym import ReasoningGym, read_parts
from fairlen.tasks.task import is_held_out
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training
from fairlen.verify.gym import SIZE

TWENTY = (
    "ab", "aiw", "base_conversion", "binary_matrix", "caesar_cipher", "chain_sum", "count_bits", "count_primes", "countdown",
    "gcd", "graph_color", "lcm", "letter_counting", "mini_sudoku", "n_queens", "number_sorting", "prime_factorization",
    "spell_backward", "string_insertion", "syllogism",
)  # fmt: skip
BY_SETS = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")
"""Problems that follow from the order of a set's elements, which differs from process to process."""
JUNK = ("\ud800", "\x00", "٣", "9" * 5000, "0", "7", "junk", "None", "[1, 2]", "[[1]]", "{}", "a b", "x" * 60, "1\n2")


def load(place: str, **flags) -> ReasoningGym:
    settings = {"task": f"reasoning-gym:{place}", "max_prompt_length": 4000, "verify_workers": 1} | flags
    config = TrainConfig.of(**settings)
    task = load_task(config, make_tokenizer(CHATML), config.run.seed)
    assert isinstance(task, ReasoningGym)
    return task


def beside(task: ReasoningGym, place: str, **changes) -> ReasoningGym:
    """Other tasks with the workers of these."""
    return replace(task, parts=read_parts(f"reasoning-gym:{place}"), **changes)


@pytest.fixture(scope="module")
def twenty() -> Iterator[ReasoningGym]:
    with closing(load("+".join(TWENTY))) as task:
        yield task


def find_own(gym: dict, name: str) -> tuple[Any, dict]:
    """The data set and the entry that an id names, made by the package alone: ab/17-3 is entry 3 of `ab` with seed 17."""
    text, seed, position = re.fullmatch(r"(\w+)/(\d+)-(\d+)", name).groups()
    kind, settings = gym[text]
    dataset = kind(settings(seed=int(seed), size=SIZE))
    return dataset, dataset[int(position)]


def expected_status(dataset, entry: dict, answer: str) -> str:
    """By the package's own score: of a sum of shares 1 may be off by its rounding."""
    try:
        return "correct" if dataset.score_answer(answer, entry) > 0.999999999 else "incorrect"
    except Exception:
        return "incorrect"


def answers_of(entry: dict) -> list[str]:
    """The answer where there is one, near misses of it that some tasks score above 0, and junk."""
    known = entry["answer"] or ""
    near = (known, known + "0", known[:-1], known[::-1], known.lower(), f"It is {known}", str(list(known)))
    return [answer for answer in dict.fromkeys((*near, *JUNK)) if answer and answer == answer.strip()]


def test_verdicts_are_those_of_the_packages_own_scores(twenty, gym):
    seen: dict[tuple[str, bool], int] = {}
    for index in range(2 * len(TWENTY)):
        problem = twenty.train(index)
        dataset, entry = find_own(gym, problem.id)
        assert problem.text.startswith(entry["question"]) and problem.answer == (entry["answer"] or "")
        for answer in answers_of(entry):
            status = twenty.grade(problem.id, answer)
            assert status == expected_status(dataset, entry, answer), (problem.id, answer)
            key = problem.id.split("/")[0], status == "correct"
            seen[key] = seen.get(key, 0) + 1
    assert sum(seen.values()) > 500
    assert {name for name, correct in seen if correct} == set(TWENTY) - {"graph_color"}  # which has no answer by heart
    assert {name for name, correct in seen if not correct} == set(TWENTY)


def test_the_answer_is_the_last_box_after_the_thinking(twenty):
    problem = twenty.train(TWENTY.index("gcd"))
    box = f"\\boxed{{{problem.answer}}}"
    verdicts = {
        f"{box}": ("correct", 1.0, problem.answer),
        f"<think>\\boxed{{x}}</think> so {box}.": ("correct", 1.0, problem.answer),
        f"{box}, no, \\boxed{{x}}": ("incorrect", 0.0, "x"),
        f"<think>{box}": ("no_answer", 0.0, None),
        problem.answer: ("no_answer", 0.0, None),
        "": ("no_answer", 0.0, None),
    }
    for text, expected in verdicts.items():
        verdict = asyncio.run(twenty.verify(problem, text))
        assert (verdict.status, verdict.outcome, verdict.answer) == expected, text
    inside = replace(problem, starts_inside=True)
    assert asyncio.run(twenty.verify(inside, box)).status == "no_answer"


@pytest.mark.slow
def test_a_position_has_the_same_problem_in_every_process_and_order(twenty):
    one, places = beside(twenty, "+".join(BY_SETS)), range(len(BY_SETS))
    before = [one.train(place) for place in places]
    with closing(load("+".join(BY_SETS))) as other:
        assert [other.train(place) for place in reversed(places)] == before[::-1]
    assert {problem.id.split("/")[0] for problem in before} == set(BY_SETS)


@pytest.mark.slow
def test_another_seed_is_another_stream_with_the_same_problems_held_out(twenty):
    one, other = (beside(twenty, "gcd+ransom_note", seed=seed) for seed in (0, 1))
    held_out = one.held_out(12)
    assert other.held_out(20)[:12] == held_out and len({problem.text for problem in held_out}) == 12
    assert [problem.id.split("/")[0] for problem in held_out] == 6 * ["gcd", "ransom_note"]
    assert not {one.train(place).id for place in range(40)} & {other.train(place).id for place in range(40)}


def test_nothing_is_held_out_that_trains(twenty):
    """A few tosses have few questions: that the sides share none is no accident."""
    task = beside(twenty, "coin_flip")
    train = [task.train(place).text for place in range(200)]
    held_out = [problem.text for problem in task.held_out(40)]
    assert len(set(train)) < 150 and 2 <= len(set(held_out)) == len(held_out) < 40
    assert not set(map(normalize, train)) & set(map(normalize, held_out))
    questions = [text.rpartition("\n\n")[0] for text in held_out]
    assert all(is_held_out(normalize(question)) for question in questions)


def test_prompts_that_are_too_long_are_drawn_again(twenty):
    lengths = sorted(len(problem.token_ids) for problem in map(beside(twenty, "gcd").train, range(30)))
    median, none = lengths[15], lengths[0] // 2
    task = beside(twenty, "gcd", longest_prompt=median)
    problems = [*map(task.train, range(30)), *task.held_out(5)]
    assert len(problems) == 35 and all(len(problem.token_ids) <= median < lengths[-1] for problem in problems)
    task = beside(twenty, "gcd", longest_prompt=none)
    for find in (task.train, task.held_out):
        with pytest.raises(ValueError, match=r"512 problems of gcd in a row do not serve: one (has|is)"):
            find(5)


@pytest.mark.slow
def test_the_event_loop_goes_on_while_an_answer_hangs():
    """The power has 370 million digits: computed in this process it would hold the interpreter for minutes."""
    with closing(load("countdown", answer_deadline=1.0)) as task:
        problem, ticks = task.train(0), 0

        async def watch() -> str:
            nonlocal ticks
            verdict = asyncio.ensure_future(task.verify(problem, "\\boxed{9**9**9}"))
            while not verdict.done():
                await asyncio.sleep(0.01)
                ticks += 1
            return verdict.result().status

        assert asyncio.run(watch()) == "timeout" and ticks > 5
        assert task.grade(problem.id, problem.answer) == "correct"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_task_trains(twenty, gym, part):
    """Its problems are made, and an answer that it gives is correct. Junk is not."""
    for name in sorted(gym)[part::4]:
        task = beside(twenty, name, longest_prompt=8000)
        for problem in (task.train(0), task.train(20)):
            assert not problem.answer or task.grade(problem.id, problem.answer) == "correct", problem
            assert task.grade(problem.id, "junk") == "incorrect", problem


def read_rows(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("[!.]*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.mark.slow  # one of them is evaluated below
def test_twenty_tasks_train(tmp_path):
    start_training(TrainConfig.of(
        model=write_shape(tmp_path / "model"), random_init=True, task=f"reasoning-gym:{'+'.join(TWENTY)}",
        max_prompt_length=1000, method="grpo", overrides=("sampling.n=2",), prompts_per_batch=20, rollout_batches=2,
        max_extra_batches=0, max_response_length=8, problems=2, samples=1, threads=1, compile="off",
        verify_workers=1, out=str(tmp_path / "run"),
    ))  # fmt: skip
    rows = [row for row in read_rows(tmp_path / "run/records") if "problem_id" in row]
    assert len(rows) == 2 * 20 * 2  # rollout batches, prompts, responses
    assert {row["problem_id"].split("/")[0] for row in rows} == set(TWENTY)
    assert {row["status"] for row in rows} <= {"no_answer", "incorrect", "correct"}
    data = json.loads((tmp_path / "run/run.json").read_text())["data"]
    assert [one["name"] for one in data["sets"]] == list(TWENTY)
    assert {one["fingerprint"] for one in data["sets"]} == {f"reasoning-gym {version('reasoning-gym')}"}


@pytest.mark.slow
def test_it_is_evaluated_and_rescored(tmp_path, capsys):
    model, first, again = write_shape(tmp_path / "model"), tmp_path / "first", tmp_path / "again"
    place = "reasoning-gym:gcd?max_numbers=3"
    flags = ["--problems=3", "--samples=2", "--max-response-length=8", "--threads=1", "--verify-workers=1"]
    assert main(["eval", "--model", model, "--random-init", "--data", place, *flags, "--out", str(first)]) == 0
    rows = read_rows(first / "samples")
    assert len(rows) == 6 and {row["problem_id"].split("/")[0] for row in rows} == {"gcd?max_numbers=3"}
    assert all(is_held_out(normalize(row["problem"].rpartition("\n\n")[0])) for row in rows)
    summary = json.loads((first / "summary.json").read_text())
    (found,) = summary["sets"].values()
    assert found["details"]["task"] == place and found["scores"]["avg@2"]["problems"] == 3
    assert summary["versions"]["reasoning-gym"] == version("reasoning-gym")
    assert main(["eval", "--from-samples", str(first), "--out", str(again)]) == 0
    assert [row["status"] for row in read_rows(again / "samples")] == [row["status"] for row in rows]


REFUSED = {
    "chain_sums": "there is no task 'chain_sums': did you mean 'chain_sum'?",
    "composite": "there is no task 'composite': there are ",
    "chain_sum?max_term=4": "there is no field 'max_term': did you mean 'max_terms'?",
    "chain_sum?seed=4": "there is no field 'seed': there are min_terms, ",
    "spell_backward?data_file=../../../etc/passwd": "there is no field 'data_file'",
    "chain_sum?max_terms=many": "chain_sum does not take max_terms=many: Expecting value",
    "chain_sum?max_terms=4.5": "max_terms is of int, such as 6",
    "chain_sum?max_terms=1": "chain_sum does not take max_terms=1: max_terms must be >= min_terms",
    "countdown?operators=5": 'operators is of tuple, such as ["+", "-", "*", "/"]',
    "gcd=0": "'gcd=0': write NAME[?FIELD=VALUE,…][=WEIGHT], such as chain_sum?max_terms=4=3",
    "gcd+": "'': write NAME[?FIELD=VALUE,…][=WEIGHT]",
    "gcd=2+gcd": "gcd is named twice; give it one weight",
}


@over("place", REFUSED)
def test_what_there_is_not_is_refused_naming_what_is_near(place, capsys):
    assert main(["eval", "--data", f"reasoning-gym:{place}"]) == 2
    assert REFUSED[place] in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ValueError, match=re.escape("it needs reasoning-gym: pip install '.[reasoning-gym]'")):
        load("gcd")
