"""Claims of 2604.17328 by exact arithmetic: weights by length, equation 8, values along a stream, what a stream costs and
adds."""

import asyncio
import random
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from fixtures import make_batch
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.methods.stages.aggregation import SequenceMean, TokenSum
from fairlen.rollouts import Response, Rollouts, TokenIds
from fairlen.sampling.eqlen import EqLen, combine_later
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Independent, Request


def test_the_example_of_50_and_500_tokens():
    """Section 3.1: a right answer of 50 tokens beside a wrong one of 500, advantages 1 and -1. Under 1 / T a token of the short
    one weighs 10 times as much, and both answers push with 1/2 in all; undivided a token weighs the same, and the long one
    pushes 10 times as much."""
    batch = make_batch([0, 0], [50, 500], [1, 0], max_response_length=500)
    advantage = GroupNormalized()(batch.segments, batch.responses.outcome)
    assert advantage.tolist() == [1.0, -1.0]
    mean, total = (rule(batch.segments, advantage) for rule in (SequenceMean(), TokenSum()))
    assert mean[0] / mean[1] == pytest.approx(10)
    assert (mean * batch.segments.length).tolist() == pytest.approx([1 / 2, 1 / 2])
    assert total[0] == total[1]
    assert total[1] * 500 / (total[0] * 50) == pytest.approx(10)


def shared_push(right: str, wrong: str) -> dict[str, Fraction]:
    """What one GRPO update of a right and a wrong answer adds to the logits of a policy that has one state for all
    positions."""
    push = dict.fromkeys("xy.", Fraction(0))
    for answer, sign in ((right, 1), (wrong, -1)):
        for token in answer:
            push[token] += Fraction(sign, 2 * len(answer))
    return push


def rise(prefix: str, push: dict[str, Fraction]) -> Fraction:
    """d log P(prefix) along the update at the uniform policy over x, y and end: by token push - mean push."""
    mean = sum(push.values(), Fraction(0)) / 3
    gradient = {token: value - mean for token, value in push.items()}
    return sum((gradient[token] for token in prefix), Fraction(0))


def test_shared_parameters_can_make_the_penalised_prefix_likelier():
    """Equation 8 says that every token of the prefix becomes less likely. With one state for all positions: xx. right, xxyy.
    wrong with the prefix xxy. x gets 2/6 - 2/10 = 2/15, y -2/10 = -1/5, the end 1/6 - 1/10 = 1/15, mean 0. The prefix: 2 * 2/15
    - 1/5 = 1/15, upwards. Without anything shared it falls, as the appendix has it: then x of the prefix gets -1/10 alone."""
    push = shared_push("xx.", "xxyy.")
    assert push == {"x": Fraction(2, 15), "y": Fraction(-1, 5), ".": Fraction(1, 15)}
    assert rise("x", push) == Fraction(2, 15) > 0
    assert rise("xxy", push) == Fraction(1, 15) > 0
    assert rise("xxy", shared_push("y.", "xxyy.")) < 0  # so that the derivative is not simply positive


def test_values_of_survivors_change_at_most_once_along_a_stream():
    """Under max and verdicts of 0 and 1 a survivor is worth 1 until the last right end and 0 after it. Of all verdicts of a
    stream of 7 ends, none has more than 2 values or more than 1 change; halving has up to 6 values."""
    most = {}
    for rule in ("max", "halving"):
        worth = []
        for verdicts in product([0.0, 1.0], repeat=7):
            first = np.arange(7) == 0
            worth.append(tuple(combine_later(np.array(verdicts), first, rule)[1:]))
        most[rule] = max(len(set(values)) for values in worth)
        if rule == "max":
            assert all(list(values) == sorted(values, reverse=True) for values in worth)
    assert most == {"max": 2, "halving": 6}


def steps_of_a_stream(stop: Fraction, cap: int) -> tuple[Fraction, Fraction]:
    """Expected steps and rounds of a stream whose tracks end with chance `stop` at every step: on, one ends, both end."""
    steps = rounds = Fraction(0)
    for _ in range(cap):
        on, one, tie = (1 - stop) ** 2, 2 * stop * (1 - stop), stop**2
        steps, rounds = 1 + (on + one) * steps, on * rounds + one * (1 + rounds) + tie
    return steps, rounds


@cache
def sampled_tokens(sampler, stop: float, max_response_length: int, num_prompts: int) -> tuple[float, float]:
    """Tokens that the sampler draws for a prompt, and responses, by its own code."""

    async def extend(prefix: TokenIds, sampling: Sampling) -> Continuation:
        draw, tokens = random.Random(sampling.seed), []
        while len(tokens) < sampling.max_new_tokens and (not tokens or tokens[-1]):
            tokens.append(0 if draw.random() < stop else draw.randint(1, 9))
        return Continuation(tuple(tokens), (-1.0,) * len(tokens), "length" if tokens[-1] else "stop")

    async def grade(response: Response) -> Response:
        return replace(response, outcome=0.0, status="incorrect")

    async def collect():
        requests = [
            Request(i, (7,), Sampling(max_response_length, seed=0), 0, (0, 0, i, 0)) for i in range(num_prompts)
        ]
        return await asyncio.gather(*(sampler(extend, grade, request) for request in requests))

    answers = asyncio.run(collect())
    drawn = [sum(r.length - r.inherited for r in responses) for responses in answers]
    return float(np.mean(drawn)), float(np.mean([len(responses) for responses in answers]))


@pytest.mark.slow
def test_a_stream_is_not_the_price_of_two_answers():
    """With chance s of ending at every step a round ties with s^2 / (1 - (1 - s)^2) = s / (2 - s): (2 - s) / s rounds of 1 / (s
    (2 - s)) steps, 1 / s^2 in all, 2 / s^2 tokens against 2 / s of two answers. At s = 1/4: 16 steps, 7 rounds, 32 tokens, 4
    times 8."""
    stop = Fraction(1, 4)
    steps, rounds = steps_of_a_stream(stop, 400)
    assert (float(steps), float(rounds)) == pytest.approx((16, 7), abs=1e-9)
    stream, _ = sampled_tokens(EqLen(streams=1), 0.25, 10_000, 800)
    pair, _ = sampled_tokens(Independent(2), 0.25, 10_000, 800)
    assert stream == pytest.approx(32, rel=0.15) and pair == pytest.approx(8, rel=0.15)
    assert stream / pair == pytest.approx(4, rel=0.2)


@pytest.mark.slow
@over("stop", [Fraction(1, 4), Fraction(1, 100)])
def test_for_a_generated_token_there_are_less_than_2_times_the_samples(stop):
    """2 pieces a round, (2 - s) / s rounds, 2 / s^2 tokens: s (2 - s) pieces a token, against s answers a token. 2 - s
    times."""
    rounds, tokens = (2 - stop) / stop, 2 / stop**2
    assert 2 * rounds / tokens / stop == 2 - stop < 2
    if stop == Fraction(1, 4):
        _, tracks = sampled_tokens(EqLen(streams=1), 0.25, 10_000, 800)
        assert tracks - 1 == pytest.approx(7, rel=0.15)  # every round but the last leaves one track to fork from


def plans(sampler: EqLen) -> list[list[float]]:
    """The plan of one stream by hand: track 0 ends at 2, the survivor of that at 4, and what goes on from there in a tie at
    6."""
    method = replace(compose("grpo+eqlen"), sampling=sampler)
    tracks = [((1, 0), 0, 0, 1), ((2, 3, 1, 0), 0, 0, 0), ((2, 3, 4, 5, 6, 0), 1, 2, 1), ((2, 3, 4, 5, 8, 0), 2, 4, 0)]
    responses = tuple(
        Response(
            prompt=0, token_ids=(7, *text), num_prompt=1, logprobs=(-1.0,) * len(text), finish="stop", seed=0, track=track,
            round=round, inherited=inherited, outcome=float(right), status="correct" if right else "incorrect",
        )
        for track, (text, round, inherited, right) in enumerate(tracks[: sampler.max_rounds + 1 if sampler.max_rounds else 4])
    )  # fmt: skip
    plan = method.plan(method.score(Rollouts(responses, sampler.cut(responses), 6)))
    return [plan.length.tolist(), plan.advantage.tolist(), plan.weight.tolist()]


def test_eqlen_has_no_number_beside_its_streams():
    """Two fields are numbers: streams, of which 8 are half of a group of 16, and max_rounds, which is 0. That is no limit: the
    plan of a stream of 3 rounds is that under every limit from 3 on."""
    numbers = {f.name: f.default for f in fields(EqLen) if type(f.default) in (int, float)}
    assert numbers == {"streams": 8, "max_rounds": 0} and compose("eqlen+grpo").sampling == EqLen()
    assert EqLen().num_tracks == compose("grpo").sampling.num_tracks == 16
    assert plans(EqLen(streams=1)) == plans(EqLen(streams=1, max_rounds=3)) != plans(EqLen(streams=1, max_rounds=2))


def drift(rate: float, number: int) -> float:
    """Standard deviation of the logit of a first letter after so many updates, exactly.

    Pairs of responses of 2 tokens that open with x or y and are correct with 1/2 after either; the logit starts at 0. An update
    moves it by rate * sum of weight * advantage * (1[x] - p), as the code weighs the pair.
    """
    steps: dict[int, Fraction] = {}  # quarters moved: chance, without the factor p (1 - p) of two different openings
    for opening, outcome in product(((1, 0), (0, 1)), product((0, 1), repeat=2)):
        batch = make_batch([0, 0], [2, 2], outcome)
        advantage = GroupNormalized()(batch.segments, batch.responses.outcome)
        move = 4 * float(SequenceMean()(batch.segments, advantage) * advantage @ np.array(opening))
        assert move == round(move)
        steps[round(move)] = steps.get(round(move), Fraction(0)) + Fraction(1, 4)
    assert steps == {0: 1, 1: Fraction(1, 2), -1: Fraction(1, 2)}
    place = np.arange(-number, number + 1)
    mixed = 1 / (2 + 2 * np.cosh(rate * place / 4))  # p (1 - p)
    law = (place == 0).astype(float)
    for _ in range(number):
        moved = law * mixed * float(steps[1])
        law = law - 2 * moved + np.roll(moved, 1) + np.roll(moved, -1)
    assert law.sum() == pytest.approx(1) and law @ place == pytest.approx(0, abs=1e-12)
    return rate / 4 * float(law @ place**2) ** 0.5


def test_the_drift_of_a_prefix_grows_with_the_root_of_updates():
    """An update moves the logit by a quarter of the rate up or down, each with p (1 - p) / 2 = 1/8 at p = 1/2: a standard
    deviation of 1/8 of the rate for one update and 100^0.5 / 8 = 1.25 of it after 100, as long as p stays where it is. At a rate
    of 4 the policy gets sure of a letter, and the drift slows down: less than 10 times that of one update after 100."""
    small = 1e-3
    for number in (1, 25, 100):
        assert drift(small, number) / small == pytest.approx(number**0.5 / 8, rel=1e-5)
    assert drift(small, 100) / small == pytest.approx(1.25, rel=1e-5)
    assert drift(4.0, 100) < 0.9 * 10 * drift(4.0, 1)
