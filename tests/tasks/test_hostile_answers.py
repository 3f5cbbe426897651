"""Tasks of reasoning-gym against answers that try to run code or to change a later verdict, and against answers that are junk."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attacks import write_attacks
from chat_tokenizers import CHATML, make_tokenizer
from loops import over

from fairlen.tasks.load import load_task
from fairlen.tasks.reasoning_gym import GymTask, ReasoningGym
from fairlen.train.run.config import TrainConfig

LISTS = ("binary_matrix", "bitwise_arithmetic", "n_queens", "number_sorting", "spiral_matrix", "string_insertion")
FORMULAS = ("countdown", "puzzle24", "polynomial_multiplication", "simple_integration")
"""Tasks whose `score_answer` calls Python's evaluator, and sympy's; `intermediate_integration` is the slowest of these."""
PARTS = 4
"""Of all tasks, each a test of less than 90 seconds."""
DEADLINE = 3.0


@pytest.fixture(scope="module")
def task() -> Iterator[ReasoningGym]:
    settings = TrainConfig.of(
        task="reasoning-gym:gcd", max_prompt_length=8000, verify_workers=1, answer_deadline=DEADLINE
    )
    with closing(load_task(settings, make_tokenizer(CHATML))) as found:
        assert isinstance(found, ReasoningGym)
        yield found


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, number = server.getsockname()
        yield number
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()


def grade(task: ReasoningGym, name: str, position: int, answer: str) -> str:
    """The verdict on an answer to problem `position` of a data set with seed 5, as `ReasoningGym.grade` has it."""
    found = task.ask("score", GymTask(name, name, "{}", 1.0), DEADLINE, seed=5, position=position, answer=answer)
    return found["error"] if "error" in found else "correct" if found["score"] >= 1 - 1e-9 else "incorrect"


def find_problems(task: ReasoningGym, name: str, count: int = 1) -> list[tuple[int, dict]]:
    """Places of problems, and the problems."""
    part = GymTask(name, name, "{}", 1.0)
    made = [(place, task.ask("make", part, 60.0, seed=5, position=place)) for place in range(8)]
    return [(place, one) for place, one in made if "error" not in one][:count]


def attack(task: ReasoningGym, gym: dict, name: str, path: Path, port: int, step: int = 1) -> None:
    """Give every step-th attack as an answer, and between them the reference and a wrong one, whose verdicts do not change."""
    ((place, problem),) = find_problems(task, name)
    before = [grade(task, name, place, answer) for answer in (problem["answer"], "no answer at all")]
    assert not problem["answer"] or before == ["correct", "incorrect"], name
    attacks = [*write_attacks(path, port, gym[name][0].__name__).items()][::step]
    for number, (kind, answer) in enumerate(attacks):
        start = time.monotonic()
        verdict = grade(task, name, place, answer)
        assert verdict in ("incorrect", "error", "timeout"), (name, kind, verdict)
        assert time.monotonic() - start < DEADLINE + 30.0, (name, kind)
        assert not path.exists(), f"{name}: {kind} ran on the host: {answer}"
        if number % 8 == 7 or "scorer" in kind or number == len(attacks) - 1:
            after = [grade(task, name, place, answer) for answer in (problem["answer"], "no answer at all")]
            assert after == before, f"{name}: {kind} changed later verdicts from {before} to {after}"


@pytest.mark.parametrize("name", [*LISTS, *FORMULAS])
def test_an_answer_is_no_code_to_a_task_that_evaluates(task, gym, name, tmp_path, port):
    attack(task, gym, name, tmp_path / "ran", port, 6 if name in FORMULAS else 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_an_answer_is_no_code_to_any_task(task, gym, part, tmp_path, port):
    for name in sorted(gym)[part::PARTS]:
        attack(task, gym, name, tmp_path / "ran", port)


JUNK = (
    "", " ", "0", "1", "-1", "2", "a", ".", "-", "0.", "Yes", "No", "None", "[]", "{}", "()", "[[]]", "nan", "NaN", "inf", "-inf",
    "1e999", "0x", "x", "C", "x=x", "\x00", "junk", "[None]", "0/1", "1/0", "oo", "zoo", '{"a": 1}', '""', "null", "1,2,3", "U",
    "*", "<answer></answer>", "everything", "abcdefghijklmnopqrstuvwxyz", "6*4*1*1", "8*3*1*1",
)  # fmt: skip
"""Answers to no question; a task may still have one of them as its answer."""
LENIENT = {
    "circuit_logic": "0 1", "isomorphic_strings": "", "polynomial_equations": "0 0.", "coin_flip": "0 1 0/1 0.",
    "tsumego": "", "survo": "", "word_sorting": "",
}  # fmt: skip
"""Junk that is right of some problems: a bit of two, a root that is 0."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_junk_is_correct_nowhere(task, gym, part):
    """Neither the same text to every problem, nor the question itself, nor the answer to another problem of the same task."""
    wrong = []
    for name in sorted(gym)[part::PARTS]:
        problems = find_problems(task, name, 2)
        texts = {problem["answer"] for _, problem in problems}
        for place, problem in problems:
            question = problem["question"]
            integrand = f"Integral({question.rpartition('integral: ∫')[2].removesuffix(' dx').strip()}, x)"
            others = texts - {problem["answer"]}
            for answer in (*JUNK, question, question[-60:], integrand, *others):
                allowed = {problem["answer"].casefold(), *LENIENT.get(name, "").split()}
                if answer.strip().casefold() not in allowed and grade(task, name, place, answer) == "correct":
                    wrong.append((name, answer[:40], problem["answer"][:40]))
    assert wrong == []


JUNK_BEFORE = {
    "coin_flip": "0", "complex_arithmetic": "nan", "game_of_life_halting": "anything", "puzzle24": "6*4*1*1",
    "simple_integration": "Integral(INTEGRAND, VARIABLE)",
}  # fmt: skip


@over("name", JUNK_BEFORE)
def test_junk_that_the_package_calls_correct_is_incorrect(task, gym, name):
    """To its own scorer a prefix of a probability, not a number, any word, any formula of 24, the question itself are right."""
    place, (kind, settings) = 3, gym[name]
    dataset = kind(settings(seed=5, size=16))
    entry = dataset[place]
    integrand, variable = (entry["metadata"].get(key, "") for key in ("integrand", "variable"))
    answer = JUNK_BEFORE[name].replace("INTEGRAND", integrand).replace("VARIABLE", variable)
    assert dataset.score_answer(answer, entry) >= 1 - 1e-9
    assert grade(task, name, place, answer) == "incorrect"
    assert grade(task, name, place, entry["answer"]) == "correct"


def test_a_probability_may_be_rounded(task):
    """An eighth, two hundredths of it off, is 1% off."""
    for position in range(16):
        problem = task.ask("make", GymTask("coin_flip", "coin_flip", "{}", 1.0), 60.0, seed=5, position=position)
        exact = float(problem["answer"])
        assert grade(task, "coin_flip", position, f"{exact:.6g}") == "correct", problem
        assert grade(task, "coin_flip", position, f"{1.02 * exact:.9f}") == "incorrect", problem


def test_formulas_are_read_as_sympy_reads_them():
    """Sums, powers, factorials, functions, decimals: the same expression as the evaluator's."""
    import sympy

    from fairlen.verify.formula import read_formula

    x = sympy.Symbol("x")
    for text in (
        "17*10 + 69 - 28 + 96", "3*x*atan(x) - 3*log(x**2 + 1)/2 + C", "sqrt(16)*3!/1.5", "exp(-x)*sin(2*x)", "4!!",
        "-x**2/2 + .5", "(x + 1)*(x - 1)", "7//2", "Rational(1, 3)*x", "binomial(5, 2)", "pi*x + E**x", "2^3", "1e3", "acosh(x)",
        "7/3*3", "Abs(x)", "ab*x",
    ):  # fmt: skip
        names = {"x": x, "C": sympy.Symbol("C")}
        expected = sympy.sympify(text, {**names, "ab": sympy.Symbol("ab")}, convert_xor=False)
        assert read_formula(text, names) == expected, text


@over(
    "text",
    ["x.real", "x[0]", "[x]", "[x for x in (1, 2)]", "lambda x: x", "(x := 1)", "sin(x=1)", "f'{x}'", "x if x else 1", "'x'",
     "sin('x')", "open(1)", "eval(1)", "S(1)", "N(1)", "Symbol(x)", "Function('f')(x)", "x < 1", "not x", "{x}", "x; x", "*x",
     "Integral(x, x)"],
)  # fmt: skip
def test_what_is_no_formula_is_refused(text):
    from fairlen.verify.formula import read_formula

    with pytest.raises((ValueError, KeyError, TypeError, SyntaxError)):
        read_formula(text)
