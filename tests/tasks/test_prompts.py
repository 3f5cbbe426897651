"""Prompts: by chat templates of three kinds and as plain text; one BOS; starts within the thinking; solved examples before."""

import pytest
from chat_tokenizers import CHATML, OPENED, WITH_BOS, make_tokenizer
from lines import write_lines
from loops import over
from transformers import AutoTokenizer

from fairlen.settings import TaskConfig
from fairlen.tasks.data_row import PROGRAM, Answers, Choice, DataRow, Program
from fairlen.tasks.load import load_task
from fairlen.tasks.prompt import Prompter, read_shots

ROW = DataRow("s/1", "s", "Mara has 3 marbles. How many has she?", Answers(("3",)), {"level": 2})
BOS = "<|begin|>"
MATH = "Reason step by step, and put your final answer within \\boxed{}."
PARTS = "Reason step by step, and put all answers, separated by commas, within \\boxed{}."
CHOICE = "Reason step by step, and put the letter of the right option within \\boxed{}."


def text_of(prompter: Prompter, row: DataRow = ROW) -> str:
    return prompter.tokenizer.decode(prompter.pose(row).token_ids)


def test_the_ids_are_those_that_the_tokenizer_makes_of_messages():
    for template in (CHATML, WITH_BOS, OPENED):
        tokenizer = make_tokenizer(template, bos=True)
        messages = [{"role": "user", "content": f"{ROW.question}\n\n{MATH}"}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert Prompter(tokenizer).pose(ROW).token_ids == tuple(ids)
        assert ids.count(tokenizer.bos_token_id) == (template != CHATML)


def test_a_problem_has_what_its_row_has():
    problem = Prompter(make_tokenizer(CHATML)).pose(ROW)
    assert (problem.id, problem.answer) == ("s/1", "3")
    assert problem.columns == {"level": 2, "dataset": "s"}
    assert problem.text == f"{ROW.question}\n\n{MATH}"


def test_thinking_is_switched_where_the_template_knows_it():
    tokenizer = make_tokenizer(CHATML)
    off, on, auto = (text_of(Prompter(tokenizer, thinking=mode)) for mode in ("off", "on", "auto"))
    assert off.endswith("assistant\n<think>\n\n</think>\n\n")
    assert on == auto
    assert on.endswith("assistant\n")
    assert not Prompter(tokenizer, thinking="off").pose(ROW).starts_inside  # the thinking is closed
    with pytest.raises(ValueError, match=r"--thinking off: the chat template does not know enable_thinking"):
        Prompter(make_tokenizer(WITH_BOS), thinking="off")
    with pytest.raises(ValueError, match=r"--thinking on: plain prompts have no such switch"):
        Prompter(tokenizer, template="plain", thinking="on")
    with pytest.raises(ValueError, match="--template chat: the model's tokenizer has no chat template"):
        Prompter(make_tokenizer(), template="chat")


def test_a_template_that_opens_the_thinking():
    problem = Prompter(make_tokenizer(OPENED)).pose(ROW)
    assert problem.starts_inside
    why = r"the chat template fails on problem s/1: .*no system messages.*leave --system-prompt out"
    with pytest.raises(ValueError, match=why):
        Prompter(make_tokenizer(OPENED), system_prompt="Be brief.").pose(ROW)


def test_a_broken_template_is_named(tmp_path):
    broken = CHATML.replace("{% for", "\n{% for", 1).replace("{{ message.role }}", "{{ message.role }", 1)
    tokenizer = make_tokenizer(broken)
    with pytest.raises(ValueError, match=r"^the model: the chat template fails on problem s/1: unexpected '}'"):
        Prompter(tokenizer).pose(ROW)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"(?s)^{tmp_path}: the chat template fails .*use --template plain"):
        Prompter(loaded).pose(ROW)
    assert text_of(Prompter(loaded, template="plain", instruction="")) == ROW.question + "\n"


@over("bos, eos", [(False, False), (True, False), (True, True), (False, True)])
def test_plain_text_has_the_tokenizers_own_bos_and_nothing_behind_it(bos, eos):
    prompter = Prompter(make_tokenizer(bos=bos, eos=eos), system_prompt="Be brief.")
    assert text_of(prompter) == f"{BOS if bos else ''}Be brief.\n\n{ROW.question}\n\n{MATH}\n"


def test_a_system_prompt_comes_first():
    found = text_of(Prompter(make_tokenizer(CHATML), system_prompt="Be brief."))
    assert found.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    earlier = (("system", "Think."), ("user", "Hi."), ("assistant", "Hello."))
    row = DataRow("s/2", "s", "1+1?", Answers(("2",)), earlier=earlier)
    found = text_of(Prompter(make_tokenizer(CHATML), instruction=""), row)
    assert found == (
        "<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(ValueError, match=r"problem s/2: it has a system message of its own"):
        Prompter(make_tokenizer(CHATML), system_prompt="Be brief.").pose(row)


@over(
    "reference, instruction",
    [
        (Answers(("1",)), MATH), (Answers(("1", "2")), PARTS), (Choice("B", "ABCD"), CHOICE),
        (Program((("1", "2"),)), PROGRAM),
    ],
)  # fmt: skip
def test_the_instruction_asks_for_what_is_verified(reference, instruction):
    prompter = Prompter(make_tokenizer(CHATML))
    assert prompter.ask(DataRow("a", "s", "Q", reference)) == f"Q\n\n{instruction}"
    named = prompter.ask(DataRow("a", "s", "Q", Program((("1", "2"),), function="double")))
    assert "called double." in named
    assert Prompter(make_tokenizer(), instruction="Answer!").ask(ROW) == f"{ROW.question}\n\nAnswer!"
    assert Prompter(make_tokenizer(), instruction="").ask(ROW) == ROW.question


@over("template", ["", CHATML, WITH_BOS])
def test_measured_lengths_are_those_of_the_prompts(template):
    prompter = Prompter(make_tokenizer(template, bos=True))
    rows = [DataRow(str(i), "s", "é word " * i + "?", Answers(("1",))) for i in range(30)]
    assert prompter.measure(rows) == [len(prompter.pose(row).token_ids) for row in rows]
    assert prompter.measure([]) == []


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
