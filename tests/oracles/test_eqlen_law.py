"""The sampler draws streams with the law of decoding both tracks in lockstep, whatever the order in which tracks end in time.

Exactly: for every listed stream, the sampler, fed with what its tracks add, returns it; and a listing of whole continuations has
the same probabilities as the listing of steps. By sampling: 3,000 streams against the listing's probabilities.
"""

import asyncio
import functools
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from loops import over
from toy import PROMPT, Stream, Toy, Track, all_streams, answer_chance, random_policy, random_reward, responses_of
from toy_engine import Engine, count_outcomes, grade_by, replay, request, run_sampler, sample_from, streams_of

from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import derive_seed

TOY, SEED, NUM = Toy(4), 11, 3000
POLICY, REWARD = random_policy(TOY, SEED), random_reward(TOY, SEED)


@functools.cache
def sampled() -> tuple:
    return run_sampler(EqLen(streams=NUM), TOY, Engine(sample_from(TOY, POLICY)), REWARD, seed=SEED)


def shape_of(response):
    return response.token_ids, response.finish, response.track, response.round, response.inherited


@pytest.mark.slow
@over("max_rounds, grows", [(0, False), (0, True), (1, False), (2, True)])
def test_the_sampler_returns_every_listed_stream(max_rounds, grows):
    """Horizon 3. `replay` refuses a fork from other tokens, with another budget, or in another order."""
    toy = Toy(3)
    reward, sampler, found = random_reward(toy, 0), EqLen(streams=1, max_rounds=max_rounds), []

    async def run() -> None:
        for stream in all_streams(toy, max_rounds).outcomes:
            extend = Engine(replay(toy, stream), grows)
            found.append(await sampler(extend, grade_by(toy, reward), request(toy, seed=len(found))))

    asyncio.run(run())
    for stream, responses in zip(all_streams(toy, max_rounds).outcomes, found, strict=True):
        assert [shape_of(r) for r in responses] == [shape_of(r) for r in responses_of(toy, stream)]
        assert [r.outcome for r in responses] == [toy.worth(tokens, reward) for tokens, *_ in stream]


def complete(toy: Toy, policy: np.ndarray, tracks: Stream, live: tuple[int, int], chance: float, law: dict) -> None:
    """Adds the chance of all streams whose live tracks, complete answers already, are now compared."""
    first, other = sorted(live, key=lambda at: (len(tracks[at].tokens), toy.finish(tracks[at].tokens) == "length"))
    length = len(tracks[first].tokens)
    if length == toy.horizon or len(tracks[other].tokens) == length:
        law[tracks] += chance
        return
    prefix, round = tracks[other].tokens[:length], len(tracks) - 1
    for tokens in toy.answers(prefix):
        forked = (*tracks, Track(tokens, round, length))
        p = chance * answer_chance(toy, policy, tokens, length)
        complete(toy, policy, forked, (other, len(tracks)), p, law)


def test_whole_tracks_compared_afterwards_have_the_law_of_lockstep():
    """Two complete answers, then one complete fork after the other: the survivor keeps the tail that it already has."""
    toy, law = Toy(3), defaultdict(float)
    policy = random_policy(toy, 3)
    for a in toy.answers():
        for b in toy.answers():
            chance = answer_chance(toy, policy, a) * answer_chance(toy, policy, b)
            complete(toy, policy, (Track(a), Track(b)), (0, 1), chance, law)
    listing = all_streams(toy)
    assert law.keys() == set(listing.outcomes)
    assert [law[stream] for stream in listing.outcomes] == pytest.approx(listing.chance(policy), rel=1e-12)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.slow
def test_frequencies_are_the_listed_probabilities():
    """Pearson's statistic over outcomes that are expected 5 times or more, all others as one.

    Of n degrees it has mean n and variance 2 n; within 4 standard deviations.
    """
    listing = all_streams(TOY)
    counts, expected = count_outcomes(listing, streams_of(sampled())), NUM * listing.chance(POLICY)
    often = expected >= 5
    seen, expected = (np.append(column[often], column[~often].sum()) for column in (counts, expected))
    statistic, degrees = float(((seen - expected) ** 2 / expected).sum()), len(seen) - 1
    print(f"\n{statistic:.1f} with {degrees} degrees of freedom")
    assert degrees > 50 and abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5


@pytest.mark.slow
def test_neither_the_pace_of_its_tracks_nor_an_engine_that_tells_how_far_it_got_changes_anything():
    """Seeds are those of a track's place."""
    for slowest, grows in product((0, 1, 7), (False, True)):
        engine = Engine(sample_from(TOY, POLICY), grows, slowest)
        some = run_sampler(EqLen(streams=200), TOY, engine, REWARD, seed=SEED)
        assert some == sampled()[: len(some)]
    seeds = [derive_seed(SEED, 0, 0, 0, r.stream, r.track, r.round) for r in sampled()]
    assert [r.seed for r in sampled()] == seeds and len(set(seeds)) == len(seeds)


def test_a_fork_starts_while_its_survivor_is_still_being_written():
    """Track 0 ends after 1 token and track 1 after 8. With `reach` the fork is asked for by turn 3 or so; without it, after 8."""
    toy, turns = Toy(8), []
    stream = (Track((2,)), Track((0, 1, 0, 1, 0, 1, 0, 2)), Track((0, 1, 0, 1, 0, 1, 0, 2), 1, 1))

    async def run(grows: bool) -> None:
        turn, answer = 0, replay(toy, stream)

        async def clock() -> None:
            nonlocal turn
            while True:
                await asyncio.sleep(0)
                turn += 1

        def timed(prefix, sampling):
            if prefix != (PROMPT,):
                turns.append(turn)
            return answer(prefix, sampling)

        ticking = asyncio.ensure_future(clock())
        extend = Engine(timed, grows, slowest=3, fastest=3)
        await EqLen(streams=1)(extend, grade_by(toy, random_reward(toy, 0)), request(toy, 0))
        ticking.cancel()

    asyncio.run(run(True))
    asyncio.run(run(False))
    early, late = turns
    assert early < 3 * 4 and late >= 3 * 8
