"""Solved examples before each problem: how they are written, where they stand, and that they are not asked."""

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from lines import write_lines
from loops import over

from fairlen.settings import TaskConfig
from fairlen.tasks.data_row import Answers, DataRow
from fairlen.tasks.load import load_task
from fairlen.tasks.prompt import Prompter, read_shots

WORKED = {"question": "What is 3 + 4?", "answer": "3 + 4 = 7.\n#### 7"}
BARE = {"question": "What is 1 + 1?", "answer": "2"}


@over(
    "form, worked, bare",
    [
        ("auto", "3 + 4 = 7.\nThe answer is \\boxed{7}.", "The answer is \\boxed{2}."),
        ("hashes", WORKED["answer"], "#### 2"),
        ("last-number", WORKED["answer"], "The answer is 2."),
        (r"regex:(\d+)$", WORKED["answer"], "2"),
    ],
)
def test_an_example_ends_with_its_answer_in_the_form(form, worked, bare, tmp_path):
    shots = read_shots(str(write_lines(tmp_path / "a.jsonl", WORKED, BARE, WORKED)) + ":2", form)
    assert [shot.solution for shot in shots] == [worked, bare]


def test_a_pattern_that_does_not_read_an_example_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^--shots: --answer regex:= .* does not read '2' in '2'; change one"):
        read_shots(str(write_lines(tmp_path / "a.jsonl", BARE)) + ":1", r"regex:= (\d)")


@over("text", ["x", "x:0", ":3", "x:-1"])
def test_how_many_examples_is_said(text):
    with pytest.raises(ValueError, match=f"^--shots {text}: write FILE:N"):
        read_shots(text)


def test_a_file_with_too_few_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has 1 problems with answers; give at most that many"):
        read_shots(str(write_lines(tmp_path / "a.jsonl", BARE, {"question": "?", "answer": None})) + ":2")
    with pytest.raises(ValueError, match=r"^--shots nowhere.jsonl: there is no file"):
        read_shots("nowhere.jsonl:2")


def test_they_stand_after_the_system_message_and_before_the_problem(tmp_path):
    shots = read_shots(str(write_lines(tmp_path / "a.jsonl", BARE)) + ":1", "hashes")
    asked = "\n\nReason step by step, and put your final answer after #### on the last line."
    row = DataRow(
        "s/2", "s", "2 + 2?", Answers(("4",)), earlier=(("system", "Think."), ("user", "Hi."), ("assistant", "Ho."))
    )
    prompter = Prompter(make_tokenizer(CHATML), form="hashes", shots=shots)
    assert [message["content"] for message in prompter.messages(row)] == [
        "Think.", f"{BARE['question']}{asked}", "#### 2", "Hi.", "Ho.", f"2 + 2?{asked}",
    ]  # fmt: skip
    plain = Prompter(make_tokenizer(), instruction="", shots=shots)
    assert plain.render(DataRow("s/3", "s", "2 + 2?", Answers(("4",)))) == "What is 1 + 1?\n\n#### 2\n\n2 + 2?\n"


def test_they_are_not_asked_and_their_length_is_said(tmp_path):
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(40)]
    place = str(write_lines(tmp_path / "sums.jsonl", *rows))
    config = TaskConfig.of(data=(place,), shots=f"{place}:3", answer="last-number")
    task = load_task(config, make_tokenizer(CHATML))
    asked = {row.question for row in task.rows.values()}
    assert asked == {row["question"] for row in rows[3:]}
    problem, bare = task.train(0), Prompter(task.prompter.tokenizer, form="last-number")
    length = len(problem.token_ids) - len(bare.pose(task.rows[problem.id]).token_ids)
    assert task.notes[0] == f"shots: 3 solved examples, {length} tokens of each prompt"
    assert "3 left out because --shots shows them" in task.notes[1]
    assert [solution for _, solution in task.describe()["prompt"]["shots"]] == [
        f"The answer is {n}." for n in (1, 2, 3)
    ]
    with pytest.raises(ValueError, match=rf"^--shots: 3 .* {length} tokens .*max_prompt_length={length}: raise it"):
        load_task(config.replace(max_prompt_length=length), make_tokenizer(CHATML))


@over("given", [{"answer": "hashes"}, {"shots": "a.jsonl:3"}])
def test_a_task_with_a_form_of_its_own_takes_neither(given):
    with pytest.raises(ValueError, match="playground brings its own; it goes with --data"):
        load_task(TaskConfig.of(**given), None)
