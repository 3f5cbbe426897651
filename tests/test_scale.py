"""The model of rollout servers behind docs/scale.md: closed forms, cases by hand, and the embedded engine's own steps."""

import math
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _cluster import Cluster
from _lengths import Geometric, Job, LogNormal, Made, Replayed, count_calls
from _schedules import roll_out, run_in_turn, run_streaming
from _servers import Cost, Machine, Request

STEPS = Cost(1, 0, 0, 0)


@dataclass(frozen=True)
class Fixed:
    """Every answer has one length."""

    length: int
    max_response_length: int = 1000

    def draw(self, prompt: int, beyond: int, dice: random.Random) -> int:
        return self.length


@dataclass(frozen=True)
class ByPrompt:
    """Every answer to a prompt has the prompt's length; prompts take turns."""

    lengths: tuple[int, ...]
    max_response_length: int = 1000

    def draw(self, prompt: int, beyond: int, dice: random.Random) -> int:
        return self.lengths[prompt % len(self.lengths)]


def ask(cluster: Cluster, prompt: int, prefix: int, new: int) -> Request:
    """A request of a prompt of its own, waited for by a process."""
    request = cluster.submit(Request(prompt, prompt, prefix, prefix, new))

    def wait():
        yield [(request, new)]

    cluster.start(wait())
    return request


@pytest.mark.parametrize(("servers", "slots", "prompts"), [(1, 32, 10), (1, 7, 3), (4, 8, 5), (3, 5, 2)])
def test_equal_lengths_go_through_in_waves(servers, slots, prompts):
    # 16 answers a prompt, each 50 steps, servers * slots at a time, shared out evenly: least in flight first
    rolled = roll_out(Job(Fixed(50), 10, 8, None), prompts, Machine(STEPS, slots), servers)
    assert rolled.seconds == 50 * math.ceil(math.ceil(16 * prompts / servers) / slots)
    assert rolled.made.tokens == 16 * prompts * 50


def test_one_slot_takes_the_sum_and_a_slot_for_each_the_longest():
    job = Job(Geometric(0.05, 400), 10, 8, None, seed=3)
    for slots, expected in ((1, sum), (48, max)):
        rolled = roll_out(job, 3, Machine(STEPS, slots))
        assert rolled.seconds == expected(rolled.made.lengths)


def test_the_time_of_a_step_depends_on_rows_and_on_what_they_attend_to():
    cost = Cost(2.0, 0.25, 0.125, 0.5)
    cluster = Cluster(Machine(cost, 8))
    short, long = ask(cluster, 0, 3, 4), ask(cluster, 1, 5, 6)
    seconds = cluster.run()
    time, contexts = 0.5 * (3 + 5), {4: 3, 6: 5}  # both prefixes are computed first
    for step in range(6):
        rows = [new for new in contexts if step < new]
        time += 2.0 + 0.25 * len(rows) + 0.125 * sum(contexts[new] + step for new in rows)
        if step == 3:
            assert short.ended == time
    assert seconds == long.ended == time


def test_a_prompt_is_computed_once_on_each_server():
    rolled = roll_out(Job(Fixed(9), 7, 8, None), 3, Machine(Cost(1, 0, 0, 1), 4), 2)
    assert (rolled.prefixes, rolled.computed) == (3 * 16 * 7, 2 * 3 * 7)


def test_an_arrival_between_two_steps_waits_for_the_next():
    cluster = Cluster(Machine(STEPS, 8))
    first = ask(cluster, 0, 1, 10)
    late = []
    cluster.at(3.5, lambda: late.append(ask(cluster, 1, 1, 10)))
    assert (cluster.run(), first.ended, late[0].ended) == (14, 10, 14)  # it joins at step 4


def test_full_memory_puts_the_newest_back():
    cluster = Cluster(Machine(STEPS, 8, capacity=10))
    first, second = ask(cluster, 0, 1, 5), ask(cluster, 1, 1, 5)
    # after 4 steps each has 5 positions and there is no room for 2 more: the second waits, with 4 of its 5 tokens. The first
    # makes its fifth and ends at 5. By then the second's keys and values were given up: 1 + 1 prompt tokens, and 5 again.
    assert (cluster.run(), first.ended, second.ended) == (6, 5, 6)
    (server,) = cluster.servers
    assert (server.num_preempted, server.num_computed, server.num_tokens) == (1, 7, 10)


def test_what_no_server_can_hold_is_refused():
    with pytest.raises(ValueError, match="a request of 6 \\+ 5 tokens: a server holds 10"):
        ask(Cluster(Machine(STEPS, 8, capacity=10)), 0, 6, 5)


# tracks of 4 and 6 tokens; a fork at 4 that ends at 6 with the survivor
ONE_STREAM = Replayed({(0, 0, 0): 4, (0, 0, 1): 6, (0, 0, 2): 6}, 100)


@pytest.mark.parametrize(("forks", "seconds"), [("reach", 6), ("whole", 8)])
def test_a_fork_starts_when_it_may(forks, seconds):
    rolled = roll_out(Job(ONE_STREAM, 3, 1, forks), 1, Machine(STEPS, 8))
    assert rolled.seconds == seconds
    made = rolled.made
    assert (made.rounds, made.responses, made.tokens, made.trained) == (2, 3, 4 + 6 + 2, 2 * 4 + 2 * 2)
    assert (made.rows, made.row_tokens) == (4, 2 * (3 + 4) + 2 * (3 + 6))
    assert made.tree_tokens == 3 + 4 + 6 + 2


def test_calls_wait_for_their_longest_track():
    assert count_calls(Job(ONE_STREAM, 3, 1, "call"), 1) == 6 + 2


def test_a_limit_of_rounds_completes_the_survivor_alone():
    rolled = roll_out(Job(ONE_STREAM, 3, 1, "reach", max_rounds=1), 1, Machine(STEPS, 8))
    made = rolled.made
    assert (rolled.seconds, made.rounds, made.responses, made.tokens) == (6, 1, 2, 10)
    assert (made.rows, made.row_tokens) == (3, 2 * (3 + 4) + 3 + 6)


@pytest.mark.parametrize(("routing", "computed"), [("sticky", 3), ("round robin", 3 + 3 + 4)])
def test_a_fork_elsewhere_computes_what_it_inherits(routing, computed):
    # of the fork's prefix of 3 + 4 tokens the other server has the prompt alone
    rolled = roll_out(Job(ONE_STREAM, 3, 1, "reach"), 1, Machine(STEPS, 8), 2, routing)
    assert (rolled.prefixes, rolled.computed) == (3 + 3 + 7, computed)


@pytest.mark.parametrize("forks", ["reach", "whole"])
def test_streams_of_a_constant_stop_probability_take_as_long_as_they_should(forks):
    # A round ends at a rate of 1 - (1-h)^2 = h(2-h), in a tie with probability h^2 / (h(2-h)) = h/(2-h): (2-h)/h rounds of
    # 1/(h(2-h)) steps make 1/h^2. On whole continuations the first takes the longer of two, 2/h - 1/(h(2-h)), every other 1/h.
    h, number = 0.2, 1000
    rounds = (2 - h) / h
    expected = {"reach": 1 / h**2, "whole": 2 / h - 1 / (h * (2 - h)) + (rounds - 1) / h}[forks]
    rolled = [roll_out(Job(Geometric(h, 10**6), 1, 1, forks, seed=s), 1, Machine(STEPS, 8)) for s in range(number)]
    seconds = [one.seconds for one in rolled]
    error = statistics.stdev(seconds) / number**0.5
    assert statistics.mean(seconds) == pytest.approx(expected, abs=4 * error)
    assert error < 0.04 * expected
    assert statistics.mean(one.made.rounds for one in rolled) == pytest.approx(rounds, rel=0.12)


def test_lengths_follow_their_law_also_beyond_what_is_inherited():
    law, dice = LogNormal(100, 0.0, 0.5, 10**6), random.Random(1)
    drawn = sorted(law.draw(0, 0, dice) for _ in range(4001))
    assert drawn[2000] == pytest.approx(100, rel=0.04)
    # lognormal: P(length <= 100 exp(0.5)) = Phi(1) = 0.841; given more than 100, (0.841 - 0.5) / 0.5 = 0.683
    beyond = [law.draw(0, 100, dice) for _ in range(4000)]
    assert min(beyond) > 100
    assert statistics.mean(length <= 100 * math.exp(0.5) for length in beyond) == pytest.approx(0.683, abs=0.03)
    assert LogNormal(100, 0.0, 0.5, 120).draw(0, 119, dice) == 120


def test_idle_time_and_tail():
    # one server has 4 answers of 10, the other one of 30: both make a token a step and row
    lengths = {(0, 0, 0): 10, (0, 0, 1): 30, (1, 0, 0): 10, (1, 0, 1): 10}
    rolled = roll_out(Job(Replayed(lengths, 100), 1, 1, None), 2, Machine(STEPS, 8), 2)
    # servers get (10, 10) and (30, 10): busy 10 and 30 of 30. 40 tokens by step 10, then one a step: 54 of 60 at 24.
    assert (rolled.seconds, rolled.idle) == (30, 1 - 40 / 60)
    assert rolled.tail == pytest.approx(1 - 24 / 30)


def test_schedules_of_equal_lengths():
    job, machine = Job(Fixed(10), 1, 1, None), Machine(STEPS, 2)
    for learning, ahead, expected in ((4.0, False, 10 + 4 + 1), (4.0, True, 10 + 1), (25.0, True, 25 + 1)):
        pace = run_in_turn(job, 1, machine, 1, lambda _, learning=learning: learning, 1.0, ahead=ahead)
        assert pace.seconds == expected
        assert pace.trainer == pytest.approx(learning / expected)


def test_streaming_keeps_the_server_busy():
    job, machine = Job(Fixed(10), 1, 1, None), Machine(STEPS, 2)

    def pace(ahead: int):
        return run_streaming(job, 1, machine, 1, lambda _: 4.0, 1.0, ahead=ahead)

    # nothing ahead: generate 10, learn 4, push 1; one ahead: the server stops for the push alone, every prompt is a batch old
    assert (pace(0).seconds, pace(0).span) == (15, 1)
    assert (pace(1).seconds, pace(1).span) == (11, 2)


def test_dropping_what_is_old_drops_what_is_long():
    # every fourth prompt has answers 30 times as long: they are in time only where the trainer waits for prompts anyway
    law = ByPrompt((10, 10, 10, 300))
    job, machine = Job(law, 1, 1, None), Machine(STEPS, 64)

    def pace(threshold: int):
        return run_streaming(job, 4, machine, 1, lambda _: 10.0, 0.0, ahead=1, threshold=threshold, batches=40)

    assert pace(0).dropped == 0 and pace(0).length > 60
    strict = pace(3)
    assert strict.longest_span <= 3
    assert strict.dropped_length == 300
    assert strict.length < pace(0).length / 2


def test_all_that_was_asked_is_generated_whatever_the_memory():
    law = LogNormal(50, 0.4, 0.6, 200)
    for forks in (None, "reach", "whole"):
        job = Job(law, 10, 4, forks, max_rounds=3)
        plenty, scarce = (roll_out(job, 6, Machine(Cost(1, 0.1, 0.001, 0.01), 16, room), 2) for room in (10**6, 700))
        assert scarce.preempted > 0 == plenty.preempted
        for name in vars(Made()):
            same = sorted(scarce.made.lengths) == sorted(plenty.made.lengths)
            assert same if name == "lengths" else getattr(scarce.made, name) == getattr(plenty.made, name), name
        assert scarce.seconds >= plenty.seconds and scarce.computed > plenty.computed


@pytest.mark.parametrize("forks", [None, "reach", "whole"])
def test_the_embedded_engine_takes_as_many_steps_as_predicted(forks):
    from _embedded import Embedded, predict

    method = "eqlen+grpo" if forks else "grpo"
    recorded = Embedded().roll_out(method, 4, 16, is_whole=forks == "whole")
    machine = Machine(STEPS, 16, forks_first=forks == "reach")
    cluster, steps = predict(recorded, machine, forks, 8)
    assert steps == pytest.approx(recorded.stats.num_steps, rel=0.01)
    assert cluster.servers[0].num_tokens == recorded.stats.num_generated_tokens
    if forks == "reach":  # a model with another rule of forking does not pass
        assert predict(recorded, machine, "whole", 8)[1] > 1.02 * recorded.stats.num_steps
