"""Data sets as a task: what trains, what is held out, in which order, verdicts by the real verifiers, and what is refused."""

import asyncio
import json
from collections import Counter
from contextlib import closing

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from data_sets import sums, write
from loops import over
from transformers import AutoTokenizer, Qwen3Config

from fairlen.playground import PATH
from fairlen.settings import VerifierSettings
from fairlen.tasks.data_row import Answers, Choice, DataRow, Program, normalize
from fairlen.tasks.dataset import Mixture, read_rows, shuffle
from fairlen.tasks.grader import Verifier
from fairlen.tasks.load import load_sets, load_task
from fairlen.tasks.playground import Playground
from fairlen.tasks.source import read_source
from fairlen.tasks.task import Verdict, is_held_out
from fairlen.train.run.config import TrainConfig

NUM = 200


def test_one_in_eight_is_held_out_by_its_question(load):
    task = load({"a.jsonl": sums(0, NUM)})
    held = {problem.id for problem in task.held_out(NUM)}
    trained = [task.train(i) for i in range(NUM - len(held))]
    assert len(held) == sum(is_held_out(normalize(row["prompt"])) for row in sums(0, NUM))
    assert 10 <= len(held) <= 42  # 25 expected, standard deviation sqrt(200 * 7/64) = 4.7
    assert len({problem.id for problem in trained}) == NUM - len(held)  # one epoch, everything once
    assert held.isdisjoint(problem.id for problem in trained)
    copy = load({"b.jsonl": sums(0, NUM)[::-1]}, seed=2)  # the same in every run and copy
    assert [p.text for p in copy.held_out(10)] == [p.text for p in task.held_out(10)]


def test_the_stream_depends_on_the_index_and_the_seed_alone(load):
    rows = {"a.jsonl": sums(0, 40)}
    one, again, other = load(rows), load(rows), load(rows, seed=1)
    stream = [one.train(i).id for i in range(120)]
    assert [again.train(i).id for i in reversed(range(120))] == stream[::-1]
    assert [other.train(i).id for i in range(120)] != stream
    epochs = len(load(rows).trained[0].train)
    assert sorted(stream[:epochs]) == sorted(stream[epochs : 2 * epochs])
    assert stream[:epochs] != stream[epochs : 2 * epochs]


def test_nothing_that_is_evaluated_on_trains(load):
    copies = [{"prompt": "What  is $3$ + 1 ?", "answer": "4"}, {"prompt": "Something else?", "answer": "0"}]
    task = load({"a.jsonl": sums(0, 20), "b.jsonl": copies, "eval.jsonl": sums(0, 5)})
    texts = {task.train(i).text for i in range(200)}
    assert len(texts) == 15 + 1  # 20 - 5 of the first; the copy of 3 + 1 in the second goes too
    assert [part.num_shared for part in task.parts] == [5, 1, 0]
    assert {p.text.splitlines()[0] for p in task.held_out(99)} == {row["prompt"] for row in sums(0, 5)}
    assert "5 left out because evaluation has them" in task.notes[0]


def test_held_out_problems_come_from_all_sets_in_turn(load):
    task = load({"a.jsonl": sums(0, 5), "eval.jsonl": sums(100, 5), "eval2.jsonl": sums(200, 2)})
    assert [problem.columns["dataset"] for problem in task.held_out(6)] == ["eval", "eval2"] * 2 + ["eval"] * 2
    assert len(task.held_out(99)) == 7


def test_a_mixture_keeps_its_weights(load):
    task = load({"a.jsonl": sums(0, 30), "b.jsonl": sums(500, 9), "eval.jsonl": sums(900, 1)}, {"a.jsonl": "=3"})
    names = [task.train(i).columns["dataset"] for i in range(400)]
    assert names.count("a") == 300  # 3 of 4
    assert all(names[i : i + 4].count("a") == 3 for i in range(0, 400, 4))
    assert task.name == "a+b"


def test_sets_of_one_name_are_told_apart(load, tmp_path):
    (tmp_path / "other").mkdir()
    task = load({"a.jsonl": sums(0, 9), "other/a.jsonl": sums(50, 9), "eval.jsonl": sums(900, 1)})
    assert task.name == "a+a-2"
    assert {task.train(i).id.partition("/")[0] for i in range(4)} == {"a", "a-2"}


def test_long_prompts_are_left_out_and_counted(load):
    rows = [*sums(0, 30), {"prompt": "word " * 500, "answer": "1"}]
    task = load({"a.jsonl": rows, "eval.jsonl": sums(900, 3)}, max_prompt_length=200)
    assert [part.num_long for part in task.parts] == [1, 0]
    lengths = [len(task.train(i).token_ids) for i in range(30)] + [len(p.token_ids) for p in task.held_out(3)]
    assert task.longest_prompt == max(lengths) <= 200
    assert "1 left out because their prompts are too long" in task.notes[0]
    with pytest.raises(ValueError, match=r"no problem is left .*too long.*raise --max-prompt-length"):
        load({"a.jsonl": sums(0, 30), "eval.jsonl": sums(900, 3)}, max_prompt_length=3)


def test_a_run_records_where_its_problems_are_from(load):
    described = load({"a.jsonl": [*sums(0, 30), *sums(0, 3), {"prompt": "?", "answer": ""}]}).describe()
    assert json.loads(json.dumps(described)) == described
    (one,) = described["sets"]
    assert (one["rows"], one["problems"], one["copies"], one["dropped"]) == (34, 30, 3, {"no answer": 1})
    assert one["train"] + one["held_out"] == 30
    assert len(one["fingerprint"]) == 64
    assert described["prompt"]["template"] == "chat"
    assert described["verifier"] == {
        "kinds": ["math"], "answer_deadline": 5.0, "accept_unevaluated": False,
    }  # fmt: skip


def test_the_playground_is_the_default():
    from transformers import AutoTokenizer

    from fairlen.playground import PATH

    own = AutoTokenizer.from_pretrained(PATH)
    assert load_task(TrainConfig(), own) == Playground()
    assert load_task(TrainConfig.of(task="playground:cups"), own) == Playground(("cups",))
    assert max(len(Playground().train(i).token_ids) for i in range(500)) <= Playground().longest_prompt
    with pytest.raises(ValueError, match=r"--task gsm8k: there are playground.*data sets are named with --data"):
        load_task(TrainConfig.of(task="gsm8k"), own)
    with pytest.raises(ValueError, match=r"does not read the prompts of playground; give --model playground.*--data"):
        load_task(TrainConfig(), make_tokenizer(CHATML))


def test_sets_for_evaluation_are_whole_and_in_order(sets, tokenizer):
    places = [f"{sets}/aime_by_year.jsonl?Year=..2023", f"{sets}/livecodebench.parquet?contest_date=2024-09..=2"]
    year, code = load_sets(places, TrainConfig(), tokenizer)
    assert [problem.id for problem in year.problems] == ["aime_by_year/1983-1", "aime_by_year/2020-II-3"]
    assert (year.name, year.revision, year.details["filtered"]) == ("aime_by_year", "", 1)
    assert [problem.id for problem in code.problems] == [f"livecodebench/q{n}" for n in (2, 3, 4)]
    assert asyncio.run(year.verify(year.problems[1], "so \\boxed{81}")).status == "correct"  # 080 or 081
    assert asyncio.run(year.verify(year.problems[1], "so \\boxed{80}")).status == "correct"
    assert asyncio.run(year.verify(year.problems[1], "so \\boxed{82}")).status == "incorrect"
    year.close()


DOUBLE = "```python\nprint(2 * int(input()))\n```"
MARK, TUPLES, PI = Answers(("3",)), Answers(("(1,8)", "(2,7)")), Answers(("3.14",), tolerance=0.01)
CODE = Program((("4\n", "8\n"), ("-1\n", "-2\n")))
CASES = [
    (MARK, "It is \\boxed{4}, no, \\boxed{3}.", False, "correct", "3"), (MARK, "\\boxed{4}.", False, "incorrect", "4"),
    (MARK, "It is 3.", False, "no_answer", None), (MARK, "\\boxed{3}", True, "no_answer", None),
    (MARK, "hm</think> \\boxed{3}", True, "correct", "3"),
    (TUPLES, "\\boxed{(2,7), (1,8)}", False, "correct", "(2,7), (1,8)"), (TUPLES, "\\boxed{(2,7)}", False, "incorrect", "(2,7)"),
    (PI, "\\boxed{3.145}", False, "correct", "3.145"), (PI, "\\boxed{3.2}", False, "incorrect", "3.2"),
    (CODE, DOUBLE, False, "correct", None), (CODE, "```python\nprint(8)\n```", False, "incorrect", None),
    (CODE, "print(8)", False, "no_answer", None), (Choice("B", "ABCD"), "\\boxed{B}", False, "correct", "B"),
    (Choice("B", "ABCD"), "The answer is (C)", False, "incorrect", "C"), (Choice("B", "ABCD"), "None.", False, "no_answer", None),
]  # fmt: skip


@pytest.mark.slow
def test_verdicts_by_kind():
    with closing(Verifier(("math", "code", "choice"), VerifierSettings.of(verify_workers=1))) as verifier:
        for reference, text, starts_inside, status, answer in CASES:
            verdict = asyncio.run(verifier(DataRow("a", "s", "?", reference), text, starts_inside))
            assert verdict == Verdict(status, float(status == "correct"), answer), (reference, text)
        assert verifier.describe()["sandbox"]["unsafe"] is False


def test_too_little_data_is_refused(load, tokenizer):
    held = [row for row in sums(0, 60) if is_held_out(normalize(row["prompt"]))]
    trained = [row for row in sums(0, 60) if row not in held][:9]
    copy, blank = trained[0], {"prompt": "?", "answer": ""}
    for rows, why in (
        ({"a.jsonl": [*trained, copy, blank]},
         r"a\.jsonl: no problem is left to evaluate on \(a: 9 problems in 11 rows, 1 copy left out, 1 dropped: no answer; "
         r"9 to train on\); raise --max-prompt-length, .*or name others to evaluate on with --eval-data"),
        ({"a.jsonl": held[:2]}, r"left to train on \(a: 2 problems in 2 rows; 2 held out\); .* give more problems"),
        ({"a.jsonl": sums(0, 9), "eval.jsonl": sums(0, 9)},
         r"no problem is left \(a: 9 .*; 9 left out because evaluation has them\); .*others to evaluate on"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            load(rows)
    with pytest.raises(ValueError, match=r"--eval-data x: it goes with --data"):
        load_task(TrainConfig.of(eval_data=("x",)), tokenizer)


@pytest.mark.parametrize("data", [(), ("a.jsonl",)])
def test_a_model_without_a_tokenizer_is_refused(data, tmp_path, monkeypatch):
    """Of Qwen3's config.json alone, transformers makes a tokenizer that reads nothing."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.jsonl", sums(0, 40))
    Qwen3Config().save_pretrained("notok")
    config = TrainConfig.of(model="notok", random_init=True, data=data)
    with pytest.raises(ValueError, match=r"model=notok: its tokenizer does not read .*add tokenizer\.json"):
        load_task(config, AutoTokenizer.from_pretrained("notok"))


def test_the_playgrounds_model_does_not_read_text(tmp_path):
    place = write(tmp_path, "a.jsonl", sums(0, 40))
    why = r"model=playground: this shipped model .* 'What is 0 .*a language model with --model"
    with pytest.raises(ValueError, match=why):
        load_task(TrainConfig.of(data=(place,)), AutoTokenizer.from_pretrained(PATH))


def test_files_of_a_folder_are_read_by_their_own_columns(tmp_path):
    write(tmp_path, "a.jsonl", [{"prompt": "1+1?", "answer": "2"}])
    write(tmp_path, "b.jsonl", [{"problem": "Echo.", "tests": [{"input": "1", "output": "1"}]}])
    found = read_rows(read_source(str(tmp_path)))
    assert [(row.question, row.kind) for row in found.rows] == [("1+1?", "math"), ("Echo.", "code")]
    assert (found.schema, found.num_read) == ("prompt and answer, problem and tests", 2)
    write(tmp_path, "c.jsonl", [{"reply": "2"}])
    with pytest.raises(ValueError, match=r"file c\.jsonl: unknown columns reply; none is near"):
        read_rows(read_source(str(tmp_path)))


def test_a_filter_needs_its_column_in_one_file_of_a_folder(tmp_path):
    write(tmp_path, "a.jsonl", [{"prompt": "1+1?", "answer": "2", "year": 2020}])
    write(tmp_path, "b.jsonl", [{"prompt": "1+2?", "answer": "3"}])
    found = read_rows(read_source(f"{tmp_path}?year=2020"))
    assert [row.question for row in found.rows] == ["1+1?"] and found.num_filtered == 1  # no value never passes
    with pytest.raises(ValueError, match="no column 'month' to filter by; there are prompt, answer, year"):
        read_rows(read_source(f"{tmp_path}?month=1"))


def test_counts_add_up_where_nothing_is_left(tmp_path):
    """10 rows: 3 + 1 without an answer, of which 2 are copies; 2 with different answers; 4 of another year."""
    rows = [{"prompt": "a?", "answer": "", "year": 1}] * 3 + [{"prompt": "b?", "answer": None, "year": 1}]
    rows += [{"prompt": "c?", "answer": answer, "year": 1} for answer in "12"]
    rows += [{**row, "year": 2} for row in sums(0, 4)]
    place = write(tmp_path, "a.jsonl", rows)
    message = r"\(10 rows, 2 no answer, 2 copies with different answers, 2 copies of other rows, 4 filtered out\)"
    with pytest.raises(ValueError, match=message):  # 2 + 2 + 2 + 4 = 10
        read_rows(read_source(f"{place}?year=1"))


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", ""), ("a.jsonl", "\n"), ("a.json", "[]"), ("a.csv", "prompt,answer\n")]
)
def test_an_empty_file_is_called_empty(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name}: the file is empty"):
        read_rows(read_source(str(tmp_path / name)))


def test_epochs_and_seeds_have_orders_of_their_own():
    starts = [(seed, 50 * epoch) for seed in ((0, 0), (0, 1), (1, 0)) for epoch in range(4)]
    orders = {tuple(shuffle(start + i, 50, seed) for i in range(50)) for seed, start in starts}
    assert len(orders) == 12 and all(sorted(order) == list(range(50)) for order in orders)


@over(
    "weights, shares",
    [((1, 1), (1, 1)), ((0.7, 0.3), (7, 3)), ((2, 1, 1), (2, 1, 1)), ((0.5, 0.25, 0.25), (2, 1, 1)), ((0.333, 0.667), (333, 667)),
     ((5,), (1,)), ((1.5, 0.001), (1500, 1))],
)  # fmt: skip
def test_shares_are_exact_in_every_period(weights, shares):
    mixture = Mixture(tuple(map(float, weights)))
    assert mixture.shares == shares
    period = sum(shares)
    for start in (0, 5 * period):
        counts = Counter(mixture.at(start + i)[0] for i in range(period))
        assert tuple(counts[source] for source in range(len(shares))) == shares


def test_a_mixture_by_hand():
    # shares 2 and 1 of 3, slack 1/2: the first must be drawn by 0.75, 2.25, the second by 1.5
    assert [Mixture((2.0, 1.0)).at(i) for i in range(6)] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]


def test_shares_that_cannot_be_kept_exactly_are_refused():
    with pytest.raises(ValueError, match=r"weights 1000.0, 0.001: shares of one in 1,000,001 cannot be kept"):
        Mixture((1000.0, 0.001))


def test_training_on_tests_that_can_be_cheated_warns_once(load):
    """HumanEval's tests are code that runs next to the program; inputs and outputs are not. Only what is trained on counts."""
    rows = ({"task_id": str(n), "prompt": f"def f{n}(x):\n", "entry_point": f"f{n}"} for n in range(5))
    humaneval = [row | {"test": "def check(c):\n    assert c(1) == 2\n"} for row in rows]
    task = load({"code.jsonl": humaneval, "eval.jsonl": sums(0, 5)})
    warnings = [note for note in task.notes if note.startswith("warning: 5 of 5 rows to train on")]
    assert len(warnings) == 1 and "keep these to evaluate" in warnings[0]
    held_out = load({"a.jsonl": sums(0, 5), "eval.jsonl": humaneval})
    assert not any("warning" in note for note in held_out.notes)
