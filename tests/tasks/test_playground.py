"""The playground: what it asks, that its two streams are apart, what the verifier says; its model, made again."""

import asyncio
import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from loops import over
from transformers import AutoTokenizer

from fairlen.playground import PATH
from fairlen.settings import ProblemSettings
from fairlen.tasks.playground import (
    ALPHABET,
    MAX_RESPONSE_LENGTH,
    TOKEN_IDS,
    Chain,
    Cups,
    Playground,
    Sums,
    encode,
    find_response_limit,
    make_playground,
    place_model,
    pose,
)
from fairlen.tasks.task import is_held_out
from research.drawing import draw
from research.playground import make, read_chain


def grade(text: str, problem_text: str = "3+5+9+2=?") -> tuple[str, float]:
    verdict = asyncio.run(Playground().verify(pose(*read_chain(problem_text)), text))
    return verdict.status, verdict.outcome


def test_a_problem_is_read_back():
    for family, chain in ((Sums(), Chain(3, (5, 9, 2))), (Cups(), Chain(3, (13, 25, 14)))):
        problem = pose(family, chain)
        assert read_chain(problem.text) == (family, chain)
        assert problem.answer == ("19" if family.name == "sums" else "4")  # 3 + 5 + 9 + 2; 3 -13-> 1 -25-> 1 -14-> 4
        assert grade("#" + problem.answer, problem.text)[0] == "correct"


def test_answers_agree_with_a_row_of_cups_that_is_really_shuffled():
    for index in range(200):
        problem = Playground(families=("cups",)).train(index)
        start, *swaps = problem.text.removesuffix("=?").split("|")
        cups = [cup == int(start) for cup in range(6)]
        for a, b in (map(int, swap) for swap in swaps):
            cups[a], cups[b] = cups[b], cups[a]
        assert problem.answer == str(cups.index(True))
        assert len(set(swaps)) == len(swaps) == problem.columns["num_moves"]


def test_a_problem_depends_on_its_index_alone():
    stream = [Playground().train(index) for index in range(40)]
    assert [Playground().train(index) for index in reversed(range(40))] == stream[::-1]
    assert [problem.columns["family"] for problem in stream[:4]] == ["sums", "cups", "sums", "cups"]
    assert {problem.columns["num_moves"] for problem in stream} == {3, 4, 5, 6, 7, 8}
    assert len({problem.id for problem in stream}) == 40


@over("task", [Playground(), Playground(("cups",))])
def test_no_held_out_problem_is_ever_trained_on(task):
    held_out, other = task.held_out(100), replace(task, seed=1)
    assert all(is_held_out(problem.text) for problem in held_out) and len({problem.id for problem in held_out}) == 100
    assert not any(is_held_out(one.train(index).text) for index in range(300) for one in (task, other))
    assert other.held_out(30) == held_out[:30]
    assert [other.train(index) for index in range(20)] != [task.train(index) for index in range(20)]


def test_held_out_problems_run_out_exactly_when_there_are_no_more():
    one_move = [f"{start}+{move}=?" for start in range(1, 10) for move in range(1, 10)]
    count = sum(map(is_held_out, one_move))  # of 9 * 9 problems
    task = Playground(families=("sums",), num_moves=(1, 1))
    assert {problem.text for problem in task.held_out(count)} == set(filter(is_held_out, one_move))
    with pytest.raises(ValueError, match=rf"only {count} problems"):
        task.held_out(count + 1)


@over(
    "text, status, outcome",
    [
        ("#19", "correct", 1.0), ("3+5=8;8+9=17;17+2=19;#19", "correct", 1.0),
        ("#18;#19", "correct", 1.0),  # the last one counts
        ("#19;#18", "incorrect", 0.0), ("#019", "incorrect", 0.0),
        ("3+5=8;8+9=17;17+2=19;", "no_answer", 0.0),  # the right number, never given as the answer
        ("#19;", "no_answer", 0.0), ("#", "no_answer", 0.0), ("", "no_answer", 0.0),
        ("#١٩", "no_answer", 0.0),  # 19 in other digits
        ("##?\n\x00", "no_answer", 0.0),
    ],
)  # fmt: skip
def test_verdicts(text, status, outcome):
    assert grade(text) == (status, outcome)


def test_token_ids_are_those_of_the_shipped_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    assert tokenizer.get_vocab() == TOKEN_IDS  # neither more nor fewer
    for problem in (Playground().train(index) for index in range(20)):
        assert tuple(tokenizer(problem.text).input_ids) == problem.token_ids
    ids = [*encode(ALPHABET), tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ALPHABET  # no space anywhere


def test_what_cannot_be_done_is_refused():
    for families in (("summs",), ()):
        with pytest.raises(ValueError, match=rf"families={re.escape(str(families))}.*: give families of sums, cups"):
            Playground(families=families)
    for num_moves in ((3, 9), (0, 3)):
        with pytest.raises(ValueError, match=rf"num_moves={re.escape(str(num_moves))}.*0 < fewest <= most <= 8 moves"):
            Playground(num_moves=num_moves)


@pytest.mark.slow
def test_groups_are_mixed_and_lengths_vary_for_correct_and_for_incorrect_responses():
    drawn = draw(Playground(), MAX_RESPONSE_LENGTH, PATH, "grpo", 24, "sampling.n=16").response_table
    length, correct = drawn.length, drawn.correct
    # 384 responses: three standard errors are 3 * 0.5 / sqrt(384) = 0.08, were all independent
    assert 0.39 < correct.mean() < 0.61
    share = np.bincount(drawn.prompt, correct) / np.bincount(drawn.prompt)
    assert ((share > 0) & (share < 1)).mean() >= 0.9
    assert length.std() / length.mean() > 0.6
    assert length.max() >= 20 * length.min()
    incorrect_short, incorrect_long = np.quantile(length[~correct], [0.2, 0.8])
    assert incorrect_short <= 5 and incorrect_long >= 60  # a bare guess; more than one pass over the moves
    assert 0 < drawn.truncated.mean() < 0.08


@pytest.mark.slow
def test_one_seed_makes_one_checkpoint(tmp_path):
    def digest(name: str, seed: int) -> str:
        make(tmp_path / name, steps=3, seed=seed)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert digest("first", seed=3) == digest("second", seed=3) != digest("third", seed=4)


def test_names_of_the_playground_are_known_and_bring_its_length():
    assert make_playground("playground:cups") == Playground(("cups",))
    for place in ("gsm8k", "guess:sums", "playground:hats"):
        with pytest.raises(
            ValueError, match=f"--task {place}: there are playground, playground:sums, playground:cups;"
        ):
            make_playground(place)
    sides = (("playground:sums", ()), ("m.py:Mine", ("playground", "x")), ("m.py:Mine", ()), ("playground", ("x",)))
    assert [find_response_limit(ProblemSettings(task, places)) for task, places in sides] == [160, 160, 0, 0]


def test_the_shipped_model_has_one_revision_and_its_weights():
    assert place_model("playground") == str(PATH) and place_model("owner/name", "main") == "owner/name"
    with pytest.raises(
        ValueError, match="model=playground with revision or random_init: name a model folder or hub id"
    ):
        place_model("playground", random_init=True)
