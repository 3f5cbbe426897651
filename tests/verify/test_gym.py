"""What a worker makes and scores does not depend on what it did before."""

import json
import random

from fairlen.verify import gym


def ask(what: str, **arguments) -> dict:
    return json.loads(gym.grade(**{what: {"fields": "{}", **arguments}}))


def forget() -> None:
    gym.open_entry.cache_clear()
    gym.open_dataset.cache_clear()


def test_problems_do_not_depend_on_what_was_drawn_before():
    """`list_functions` draws from the generator that all of a process share."""
    made = []
    for state in (1, 2):
        forget()
        random.seed(state)
        made.append([ask("make", name="list_functions", seed=3, position=position) for position in range(gym.SIZE)])
    assert made[0] == made[1] and len({one["question"] for one in made[0]}) > 10


def test_problems_do_not_depend_on_the_precision_that_another_data_set_sets():
    """Sums of five digits and more, of which three are right after `decimal_arithmetic` with a precision of three."""
    problem = {"name": "decimal_chain_sum", "seed": 1, "position": 0}
    made = ask("make", **problem)
    assert len(made["answer"].replace(".", "")) >= 5
    fields = json.dumps({"precision": 3, "min_num_decimal_places": 1, "max_num_decimal_places": 1})
    assert "error" not in ask("make", name="decimal_arithmetic", fields=fields, seed=1, position=0)
    forget()
    assert ask("make", **problem) == made
    assert ask("score", **problem, answer=made["answer"]) == {"score": 1.0}


def test_what_a_data_set_raises_is_a_reply():
    found = ask("make", name="chain_sum", fields='{"min_terms": 0}', seed=1, position=0)
    assert found == {"error": "AssertionError: min_terms must be positive"}
