"""Why hardly any response is correct, by counts, and what is advised."""

from loops import over

from fairlen.tasks.task import NO_FAILURES, Failures

NUMBER = ("no_answer", False, "3 + 4 = 7, so Ana\nhas 7.", "7", True)
SILENT = ("no_answer", False, "I cannot say.", "7", True)
CUT = ("no_answer", True, "First, let us", "7", True)
WRONG = ("incorrect", False, r"\boxed{8}", "7", True)
RIGHT = ("correct", False, r"\boxed{7}", "7", True)
OWN = ("no_answer", False, "7", "7", False)  # of a task with a form of its own


def explain(*responses) -> str:
    return sum((Failures.of(*one) for one in responses), NO_FAILURES).explain()


@over(
    "responses, advice",
    [
        (
            [NUMBER, SILENT, WRONG],
            "--answer last-number, which finds the right answer in 1 of 3; show the form with --shots",
        ),
        ([SILENT, SILENT, WRONG], "show the form with --shots FILE:3, or ask for it with --instruction"),
        ([CUT, CUT, SILENT], "raise --max-response-length; show the form"),
        ([WRONG, WRONG, SILENT], "give easier problems or a stronger model"),
        ([OWN], "give easier problems or a stronger model"),
    ],
)
def test_the_counts_decide_the_advice(responses, advice):
    assert (
        explain(*responses)
        .rpartition("What may help: ")[2]
        .removeprefix("give ")
        .startswith(advice.removeprefix("give "))
    )


def test_it_is_one_line_with_all_counts_and_one_end():
    assert explain(CUT, NUMBER, WRONG, WRONG).startswith(
        "0 of 4 responses are correct: 2 have no answer in the form that is read, 2 are incorrect; 1 are truncated. "
        "One ends 'First, let us'. What may help: "
    )
    assert "'3 + 4 = 7, so Ana has 7.'" in explain(NUMBER)


def test_two_in_a_hundred_need_no_explanation():
    assert explain(*[WRONG] * 98, *[RIGHT] * 2) == explain() == ""
    assert explain(*[WRONG] * 99, RIGHT).startswith("1 of 100 responses are correct: ")
