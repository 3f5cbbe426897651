"""Which tokens train, how often and with what: on every stream of horizon 4, by the tokens alone.

The place of a token is the track that drew it and its position. Inherited tokens were drawn by the track that survived the round
before the fork, or by one that that track had inherited them from.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from loops import over
from toy import PROMPT, Toy, all_streams, random_reward, responses_of, unbiased

from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.methods.presets import BASES
from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized, LeaveOneOut
from fairlen.methods.stages.aggregation import Balanced, SequenceMean, TokenMean
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.sampling.eqlen import EqLen

TOY = Toy(4)
LIMITS = [0, 1, 2]


def streams_with_pairs(sampler: EqLen) -> Iterator[tuple[list[Response], dict[int, list[Segment]]]]:
    """The responses of every stream, and its pairs of segments by round."""
    for stream in all_streams(TOY, sampler.max_rounds).outcomes:
        tracks, pairs = responses_of(TOY, stream), defaultdict(list)
        for segment in sampler.cut(tuple(tracks)):
            pairs[segment.round].append(segment)
        yield tracks, pairs


def untrained(tracks: list[Response]) -> tuple[int, bool]:
    """Tokens that belong to no pair, by how the stream ended, and whether its last round has a pair."""
    *before, last, other = sorted(tracks, key=lambda r: (r.length, r.finish == "length"))
    begun = max((r.length for r in before), default=0)
    if last.finish == "length" or last.token_ids == other.token_ids:
        return last.length + other.length - 2 * begun, False
    return other.length - last.length, True


@over("max_rounds", LIMITS)
def test_trained_tokens_partition_the_generated_tokens(max_rounds):
    """No token trains twice, and none that was inherited. Left out are the last round where both were cut off or wrote the same,
    and what follows the last round allowed."""
    for tracks, pairs in streams_with_pairs(EqLen(streams=1, max_rounds=max_rounds)):
        spans = [(s.response, t) for pair in pairs.values() for s in pair for t in range(s.start - 1, s.stop - 1)]
        assert len(set(spans)) == len(spans)
        assert all(tracks[row].inherited <= t < tracks[row].length for row, t in spans)
        generated = sum(r.length - r.inherited for r in tracks)
        left, last = untrained(tracks)
        assert len(spans) == generated - left
        assert sorted(pairs) == list(range(len(tracks) - 1 if last else len(tracks) - 2))


@over("max_rounds", LIMITS)
def test_pieces_of_a_pair_have_one_length_and_one_prefix(max_rounds):
    """|a_j| = |b_j|, both after the same inherited tokens; a_j has EOS at its end and b_j, but for a tie, has not."""
    ties = 0
    for tracks, pairs in streams_with_pairs(EqLen(streams=1, max_rounds=max_rounds)):
        written = (PROMPT,)
        for round in sorted(pairs):
            a, b = pairs[round]
            ids = [tracks[s.response].token_ids for s in (a, b)]
            assert (a.start, a.stop) == (b.start, b.stop) and a.group == b.group
            assert ids[0][: a.start] == ids[1][: b.start] == written
            assert TOY.is_end(ids[0][a.stop - 1]) and len(ids[0]) == a.stop
            assert TOY.is_end(ids[1][b.stop - 1]) == (b.role == "finisher")
            ties += b.role == "finisher"
            written = ids[1][: b.stop]
    assert ties > 0


@over("binary", [True, False])
def test_advantages_of_a_pair_are_opposite_and_differ_between_rules_by_known_factors(binary):
    """d = r_a - R_b. Leave-one-out: d. Centred: d/2. Normalised by the population: d/2 over |d|/2, the sign; by Bessel's rule
    |d|/2 * 2^0.5: sign / 2^0.5. For 0/1 rewards d is the sign, and RLOO is GRPO (appendix D.4)."""
    streams, reward = all_streams(TOY), random_reward(TOY, 9, binary)
    scored = {}
    for rule in (LeaveOneOut(), GroupCentered(), GroupNormalized(), GroupNormalized(ddof=1)):
        method = replace(unbiased("max"), advantage=rule)
        scored[rule] = method.score_tables(streams.graded(reward), streams.pieces(method)[0])
    first = scored[LeaveOneOut()]
    pairs = first.value.reshape(-1, 2)
    d = np.stack([pairs[:, 0] - pairs[:, 1], pairs[:, 1] - pairs[:, 0]], 1).ravel()
    assert first.trains.tolist() == (np.abs(d) > 1e-8).tolist()
    for rule, expected in zip(scored, (d, d / 2, np.sign(d), np.sign(d) / 2**0.5), strict=True):
        assert np.allclose(scored[rule].advantage, expected, rtol=0, atol=1e-12)
    assert np.array_equal(first.advantage, np.sign(d)) == binary


def test_within_pairs_three_aggregations_are_one():
    """G pairs of two rows of n: sequence mean 1 / (2G n), token mean of the pair 1 / (G 2n), balanced |A| / (2 |A| n G)."""
    streams, method = all_streams(TOY), unbiased("max")
    scored = method.score_tables(streams.graded(random_reward(TOY, 9)), streams.pieces(method)[0])
    (update,) = updates(scored)
    num_pairs = update.segments.num_groups
    expected = 1 / (2 * num_pairs * update.segments.length)
    for rule in (SequenceMean(), TokenMean("group"), Balanced("group")):
        assert np.allclose(rule(update.segments, update.advantage), expected, rtol=1e-12, atol=0)
    across = TokenMean("update")(update.segments, update.advantage)
    assert np.allclose(across, 1 / update.segments.length.sum(), rtol=1e-12, atol=0)


@over("worth", [0.0, 1.0, 0.3])
@over("base", sorted(BASES))
def test_where_all_are_worth_the_same_nothing_trains(base, worth):
    """Cut-off answers too. No update, no nan; rewards that depend on length are left out, because they do tell answers apart."""
    streams = all_streams(Toy(3))
    method = replace(compose(base if base == "eqlen_unbiased" else f"{base}+eqlen"), reward=())
    same = np.full(len(streams.responses), worth)
    table = replace(streams.table, outcome=same, correct=same > 0.5)
    for rule in ("max", "mean", "halving", "lineage") if base == "eqlen_unbiased" else ("max",):
        sampling = replace(method.sampling, streams=1, survivor_reward=rule)
        variant = replace(method, sampling=sampling)
        scored = variant.score_tables(table, streams.pieces(variant)[0])
        assert np.allclose(scored.value, worth, rtol=0, atol=1e-15)
        assert not scored.trains.any() and not scored.advantage.any()
        assert list(updates(scored)) == []


def test_the_order_of_responses_does_not_matter():
    """Rows of all streams in any order: the same pieces with the same values and advantages."""
    toy, method, found = Toy(3), unbiased(), []
    listing = all_streams(toy)
    reward = random_reward(toy, 0)
    for order in (np.arange(len(listing.responses)), np.random.default_rng(0).permutation(len(listing.responses))):
        plain = [listing.responses[row] for row in order]
        rows = tuple(replace(r, outcome=toy.worth(r.token_ids[1:], reward)) for r in plain)
        segments = method.sampling.cut(rows)
        scored = method.score(Rollouts(rows, segments, toy.horizon))
        names = [(rows[s.response].prompt, rows[s.response].track, s.start, s.stop, s.role) for s in segments]
        found.append(dict(zip(names, zip(scored.value, scored.advantage, strict=True), strict=True)))
    assert found[0] == found[1] and len(found[0]) == len(listing.pieces(method)[0])
