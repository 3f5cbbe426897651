"""Problems whose answers are begun: what the prompt says, that it says the truth, and that lengths and verdicts agree."""

import asyncio

import pytest

from fairlen.tasks.playground import TOKEN_IDS, Chain, Cups, Playground, Sums, pose
from research.playground import read_chain


def test_the_first_steps_of_the_answer_are_in_the_prompt():
    assert pose(Sums(), Chain(3, (5, 9, 2)), begun=2).text == "3+5+9+2=?3+5=8;8+9=17;"
    assert pose(Cups(), Chain(3, (13, 25, 14)), begun=1).text == "3|13|25|14=?3|13=1;"
    assert pose(Sums(), Chain(3, (5, 9, 2)), begun=2).answer == "19"


def test_what_is_begun_is_no_part_of_the_chain():
    problem = pose(Cups(), Chain(3, (13, 25, 14)), begun=1)
    family, chain = read_chain(problem.text)
    assert (family.name, chain) == ("cups", Chain(3, (13, 25, 14)))
    assert problem.token_ids == (TOKEN_IDS["<bos>"], *(TOKEN_IDS[letter] for letter in problem.text))


def test_verdicts_are_those_of_the_whole_chain():
    task = Playground(num_moves=(5, 5), begun=1)
    problem = task.train(0)
    assert asyncio.run(task.verify(problem, f"…#{problem.answer}")).status == "correct"
    assert asyncio.run(task.verify(problem, "#0")).status == "incorrect"


def test_no_prompt_is_longer_than_is_said_and_none_is_held_out():
    task = Playground(num_moves=(5, 8), begun=4)
    held_out = {problem.text for problem in task.held_out(50)}
    for index in range(400):
        problem = task.train(index)
        assert len(problem.token_ids) <= task.longest_prompt
        assert problem.text not in held_out


def test_without_it_nothing_changes():
    assert "begun" not in Playground().describe()
    assert Playground(begun=1).describe()["begun"] == 1
    assert Playground().train(3).text == Playground(begun=1).train(3).text.partition("=?")[0] + "=?"


def test_fewer_moves_are_begun_than_there_are():
    with pytest.raises(ValueError, match=r"begun=3: .*0 <= begun < fewest"):
        Playground(begun=3)
