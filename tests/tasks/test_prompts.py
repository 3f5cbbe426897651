"""Prompts: by three kinds of chat templates and as plain text; one BOS, whoever writes it; who starts within the thinking."""

import pytest
from chat_tokenizers import CHATML, OPENED, WITH_BOS, make_tokenizer
from loops import over
from transformers import AutoTokenizer

from fairlen.tasks.data_row import PROGRAM, Answers, Choice, DataRow, Program
from fairlen.tasks.prompt import Prompter

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
