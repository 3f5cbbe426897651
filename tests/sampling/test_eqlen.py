"""EqLen's stream and its values on one stream by hand, and a sampler on two kinds of engine.

track  round  text                 length  reward   ends
0      0      a b c EOS            4       0        first: a_1 of length 4
1      0      p q r s t u v EOS    8       1        last
2      1      p q r s + w EOS      6       0.25     second: a_2 of length 2, new from 4
3      2      p q r s t u + x y z  9       0.5      cut by the budget of 9; a_3 is the end of track 1, new from 6
4      3      p q r s t u x y + o  9       0.75     cut by the budget: round 3 has no pair
"""

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fairlen.methods.compose import explain
from fairlen.methods.method import Method
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Independent, Request, no_grader

EOS = 0
BUDGET = 9
SCRIPT = {
    (0, 0): (1, 2, 3, EOS), (1, 0): (11, 12, 13, 14, 15, 16, 17, EOS), (2, 4): (21, EOS), (3, 6): (31, 32, 33), (4, 8): (41,),
}  # fmt: skip
"""What each track adds, by (track, what it inherits)."""
REWARD = {0: 0.0, 1: 1.0, 2: 0.25, 3: 0.5, 4: 0.75}


ONE_STREAM = EqLen(streams=1)


class Growing:
    """A continuation that is there at once but lets its first tokens be asked for, and forked."""

    def __init__(self, extend, prefix, made: Continuation) -> None:
        self.extend, self.prefix, self.made = extend, prefix, made

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return self.made

    async def reach(self, num_tokens: int) -> Continuation:
        return self.made.first(num_tokens)

    def fork(self, num_tokens: int, sampling: Sampling):
        return self.extend(self.prefix + self.made.token_ids[:num_tokens], sampling)

    def release(self) -> None:
        """Nothing is kept here."""


def run(grows: bool, sampler: EqLen = ONE_STREAM) -> tuple[Response, ...]:
    seen = iter(range(10))

    def extend(prefix, sampling):
        track = next(seen)
        inherited = len(prefix) - 2
        tokens = SCRIPT[track, inherited]
        assert sampling.max_new_tokens == BUDGET - inherited
        finish = "stop" if tokens[-1] == EOS else "length"
        made = Continuation(tokens, tuple(-0.1 * (track + 1) for _ in tokens), finish)
        return Growing(extend, prefix, made) if grows else asyncio.sleep(0, made)

    async def grade(response: Response) -> Response:
        return replace(response, outcome=REWARD[response.track], status="correct")

    request = Request(0, (7, 8), Sampling(BUDGET, seed=0), policy_version=3, seed=(1, 2))
    return asyncio.run(sampler(extend, grade, request))


@pytest.mark.parametrize("grows", [True, False])
def test_the_stream_by_hand(grows):
    responses = run(grows)
    assert [r.token_ids[2:] for r in responses] == [
        (1, 2, 3, EOS),
        (11, 12, 13, 14, 15, 16, 17, EOS),
        (11, 12, 13, 14, 21, EOS),
        (11, 12, 13, 14, 15, 16, 31, 32, 33),
        (11, 12, 13, 14, 15, 16, 31, 32, 41),
    ]
    assert [(r.track, r.round, r.inherited, r.finish) for r in responses] == [
        (0, 0, 0, "stop"), (1, 0, 0, "stop"), (2, 1, 4, "stop"), (3, 2, 6, "length"), (4, 3, 8, "length"),
    ]  # fmt: skip
    assert (
        responses[3].logprobs == (-0.2,) * 6 + (-0.4,) * 3
    )  # inherited tokens keep what their own track sampled them with
    assert responses[4].logprobs == (-0.2,) * 6 + (-0.4,) * 2 + (-0.5,)
    assert len({r.seed for r in responses}) == 5


def test_pairs_have_equal_new_spans():
    """Round 0: 2..6 of tracks 0 and 1; round 1: 6..8 of 2 and 1; round 2: 8..10 of 1 and 3, whose tail 10..11 is not trained."""
    segments = EqLen(streams=1).cut(run(True))
    assert [(s.response, s.start, s.stop, s.group, s.role, s.round) for s in segments] == [
        (0, 2, 6, 0, "finisher", 0), (1, 2, 6, 0, "survivor", 0),
        (2, 6, 8, 1, "finisher", 1), (1, 6, 8, 1, "survivor", 1),
        (1, 8, 10, 2, "finisher", 2), (3, 8, 10, 2, "survivor", 2),
    ]  # fmt: skip


def test_a_limit_of_rounds_completes_the_survivor_alone():
    sampler = EqLen(streams=1, max_rounds=1)
    responses = run(True, sampler)
    assert [r.track for r in responses] == [0, 1] and responses[1].finish == "stop"
    assert [(s.response, s.start, s.stop) for s in sampler.cut(responses)] == [(0, 2, 6), (1, 2, 6)]


# Rewards in order of ending: 0 | 0.25 (track 2), 1 (track 1), 0.5 and 0.75 (tracks 3 and 4, cut off together).
VALUES = {
    "max": [0, 1, 0.25, 1, 1, 0.75],
    "mean": [0, (0.25 + 1 + 0.5 + 0.75) / 4, 0.25, (1 + 0.5 + 0.75) / 3, 1, (0.5 + 0.75) / 2],
    "halving": [0, (0.25 + 0.8125) / 2, 0.25, (1 + 0.625) / 2, 1, (0.5 + 0.75) / 2],
    "lineage": [0, 1, 0.25, 1, 1, 0.5],
}


def test_values_by_hand():
    responses = run(True)
    for rule, expected in VALUES.items():
        sampler = EqLen(streams=1, survivor_reward=rule)
        scored = Method(sampling=sampler).score(Rollouts(responses, sampler.cut(responses), BUDGET))
        assert scored.value.tolist() == pytest.approx(expected, abs=1e-15), rule


def test_rows_in_any_order_have_the_same_values():
    sampler = EqLen(streams=1, survivor_reward="halving")
    responses = run(True)
    rollouts = Rollouts(responses, sampler.cut(responses), BUDGET)
    table, segments = rollouts.response_table, rollouts.segment_table
    order = np.array([2, 0, 4, 3, 1])
    moved = replace(segments, response=np.argsort(order)[segments.response])
    reward = table.outcome
    expected = sampler.value(table, segments, reward)
    assert sampler.value(table.take(order), moved, reward[order]).tolist() == expected.tolist()


def test_what_is_not_known_is_left_out_of_values():
    """Track 1, worth 1, without a verdict: its own pair is skipped, survivors live on what else ended."""
    responses = tuple(replace(r, active=r.track != 1, outcome=0.0 if r.track == 1 else r.outcome) for r in run(True))
    for rule, first, second in (("max", 0.75, 0.75), ("mean", 0.5, 0.625), ("halving", 0.4375, 0.625)):
        sampler = EqLen(streams=1, survivor_reward=rule)
        scored = Method(sampling=sampler).score(Rollouts(responses, sampler.cut(responses), BUDGET))
        assert scored.value.tolist()[:4] == [0, first, 0.25, second]
        assert np.isnan(scored.value[4]) and scored.trains.tolist() == [True] * 4 + [False] * 2


def test_halving_weights_and_the_prefix_switch():
    responses = run(True)
    halved = EqLen(streams=1, round_weight="halving").cut(responses)
    assert [s.mass for s in halved] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    whole = EqLen(streams=1, prefix_gradient=True).cut(responses)
    assert [(s.start, s.stop) for s in whole] == [(2, 6)] * 2 + [(2, 8)] * 2 + [(2, 10)] * 2


def test_an_engine_that_breaks_its_word_is_named():
    """A stream of empty continuations would fork for ever."""
    request = Request(0, (7, 8), Sampling(BUDGET, seed=0), policy_version=0, seed=(1,))
    for made, message in (
        (Continuation((), (), "length"), "returned 0 tokens"),
        (Continuation((1,) * 12, (-1.0,) * 12, "length"), "returned 12 tokens .* for max_new_tokens=9"),
        (Continuation((1,) * 3, (-1.0,) * 3, "length"), "finish=.length. for exactly that many"),
        (Continuation((1, EOS), (), "stop"), "2 tokens and 0 logprobs"),
    ):
        for sampler in (ONE_STREAM, Independent(2)):
            with pytest.raises(ValueError, match=message):
                extend = partial(asyncio.sleep, 0, made)
                asyncio.run(asyncio.wait_for(sampler(lambda *_, ask=extend: ask(), no_grader, request), 10))


def test_a_stream_that_was_tampered_with_is_refused():
    """A track lost, the last one lost; two labels swapped; a fork of another prefix."""
    first = run(True)
    swap = {0: 2, 2: 0}
    tampered = {
        r"has tracks \[0, 1, 3, 4\]: .*were some responses dropped": tuple(r for r in first if r.track != 2),
        "end together": first[:3],
        "does not continue": tuple(replace(r, track=swap.get(r.track, r.track)) for r in first),
        "does not continue what": (
            *first[:2],
            replace(first[2], token_ids=(7, 8, 99, *first[2].token_ids[3:])),
            *first[3:],
        ),
    }
    for message, responses in tampered.items():
        with pytest.raises(ValueError, match=f"stream 0 of prompt 0.*{message}"):
            EqLen(streams=1).cut(responses)


def test_what_does_not_go_with_pairs_is_a_note():
    assert any("presses against stopping" in note for note in explain("eqlen+grpo").notes)
    assert not explain("eqlen_unbiased").notes
    assert any("is the sequence mean" in n.replace("\n", " ") for n in explain("eqlen+balanced").notes)
    assert any("max_rounds=2" in note for note in explain("eqlen_unbiased", ["sampling.max_rounds=2"]).notes)
