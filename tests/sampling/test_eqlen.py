"""EqLen's sampler on one stream by hand, and what it refuses. Pieces, values and law of streams: tests/oracles.

track  round  text                 length  ends
0      0      a b c EOS            4       first: a_1 of length 4
1      0      p q r s t u v EOS    8       last
2      1      p q r s + w EOS      6       second: a_2 of length 2, new from 4
3      2      p q r s t u + x y z  9       cut by the budget of 9; a_3 is the end of track 1, new from 6
4      3      p q r s t u x y + o  9       cut by the budget: round 3 has no pair
"""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from fairlen.methods.compose import explain
from fairlen.rollouts import Response
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Independent, Request, no_grader

EOS = 0
BUDGET = 9
SCRIPT = {
    (0, 0): (1, 2, 3, EOS), (1, 0): (11, 12, 13, 14, 15, 16, 17, EOS), (2, 4): (21, EOS), (3, 6): (31, 32, 33), (4, 8): (41,),
}  # fmt: skip
"""What each track adds, by (track, what it inherits)."""
ONE_STREAM = EqLen(streams=1)


def run() -> tuple[Response, ...]:
    seen = iter(range(10))

    def extend(prefix, sampling):
        track = next(seen)
        inherited = len(prefix) - 2
        tokens = SCRIPT[track, inherited]
        assert sampling.max_new_tokens == BUDGET - inherited
        finish = "stop" if tokens[-1] == EOS else "length"
        return asyncio.sleep(0, Continuation(tokens, tuple(-0.1 * (track + 1) for _ in tokens), finish))

    request = Request(0, (7, 8), Sampling(BUDGET, seed=0), policy_version=3, seed=(1, 2))
    return asyncio.run(ONE_STREAM(extend, no_grader, request))


def test_the_stream_by_hand():
    responses = run()
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
    first = run()
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
            ONE_STREAM.cut(responses)


def test_what_does_not_go_with_pairs_is_a_note():
    assert any("presses against stopping" in note for note in explain("eqlen+grpo").notes)
    assert not explain("eqlen_unbiased").notes
    assert any("is the sequence mean" in n.replace("\n", " ") for n in explain("eqlen+balanced").notes)
    assert any("max_rounds=2" in note for note in explain("eqlen_unbiased", ["sampling.max_rounds=2"]).notes)
