"""EqLen in whole runs: pairs in metrics and records, nothing to compare, nothing computed twice."""

import asyncio
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import runs
from runs import DOCUMENTED, metrics

from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.model import Policy
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collected, Collector
from fairlen.train.start import start_training

pytestmark = pytest.mark.slow

small = partial(runs.small, method="eqlen+dapo", overrides=("sampling.streams=3",))
EQLEN = compose("eqlen+grpo", ["sampling.streams=4"])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    return start_training(small(tmp_path_factory.mktemp("runs") / "pairs")).folder


def tables_of(folder: Path, batch: int) -> list[dict]:
    """Columns of responses and of segments."""
    names = (f"records/{table}-{batch:06d}.parquet" for table in ("responses", "segments"))
    return [pq.read_table(folder / name).to_pydict() for name in names]


def test_every_logged_metric_is_documented(pairs):
    logged = {name for entry in metrics(pairs) for name in entry}
    assert {"streams/rounds", "streams/tie", "pairs/trained", "pairs/optimism", "advantage/eos"} <= logged <= DOCUMENTED


def test_metrics_of_pairs_agree_with_records(pairs):
    """Pairs, kept pairs, generated tokens and rounds of every rollout batch, counted again from the two tables."""
    seen = 0
    for batch in range(3):
        responses, segments = tables_of(pairs, batch)
        entry = next(e for e in metrics(pairs) if e["rollout_batch"] == batch and "pairs/formed" in e)
        assert len(segments["group"]) == 2 * entry["pairs/formed"]
        assert sum(segments["trains"]) == 2 * entry["pairs/trained"]
        new = [n - i for n, i in zip(responses["length"], responses["inherited"], strict=True)]
        assert sum(new) == entry["tokens/generated"]
        streams = set(zip(responses["prompt"], responses["stream"], strict=True))
        assert len(streams) == 3 * entry["prompts/asked"]
        assert entry["streams/rounds"] == pytest.approx(entry["pairs/formed"] / len(streams))
        from_prompt = [n for n, r in zip(responses["length"], responses["round"], strict=True) if r == 0]
        assert len(from_prompt) == 6 * entry["prompts/asked"]  # 3 streams x 2 tracks
        assert entry["length/mean"] == pytest.approx(sum(from_prompt) / len(from_prompt))
        seen += sum(segments["trains"])
    assert seen > 0


def test_both_pieces_of_a_pair_are_equally_long_and_only_new_tokens_train(pairs):
    responses, segments = tables_of(pairs, 0)
    spans = list(zip(segments["response"], segments["start"], segments["stop"], strict=True))
    for (_, *one), (_, *other) in zip(spans[::2], spans[1::2], strict=True):
        assert one == other
    trained: set[tuple] = set()
    for row, start, stop in spans:
        for place in range(start, stop):
            token = (
                responses["prompt"][row],
                responses["stream"][row],
                tuple(responses["token_ids"][row][: place + 1]),
            )
            here = (*token, row if place >= responses["inherited"][row] + responses["num_prompt"][row] else -1)
            assert here not in trained
            trained.add(here)


def test_a_run_in_which_no_two_tracks_differ_ends_without_an_update(tmp_path):
    """Every outcome is 0: all pairs are skipped, which is counted and is no fault."""
    summary = start_training(small(tmp_path / "run", method="eqlen+grpo", verifier_weight=0.0))
    entries = [e for e in metrics(tmp_path / "run") if "update/skipped" in e]
    assert summary.num_updates == 0 and len(entries) == 3
    for entry in entries:
        assert entry["pairs/formed"] > 0 and entry["pairs/trained"] == 0 and entry["pairs/skipped"] == 1
        assert entry["prompts/skipped"] == 1 and entry["advantage/eos"] == 0 and entry["updates/skipped"] == 0


def collect(policy: Policy, max_num_seqs: int, grows: bool = True) -> tuple[Collected, Engine]:
    """4 prompts with 4 streams by the shipped model; without `grows` the engine seems to know whole results alone."""
    engine = Engine(
        policy.model, eos_token_id=policy.eos_token_ids, max_length=256, max_num_seqs=max_num_seqs, compile=False
    )
    task = Playground()

    async def whole(prefix: TokenIds, sampling: Sampling) -> Continuation:
        return await engine.extend(prefix, sampling)

    extend = engine.extend if grows else whole
    grader = Grader(task, policy.decode)
    collector = Collector(extend, grader, task.train, Sampling(160, seed=0), num_prompts=4, max_extra_batches=0, seed=5)
    return asyncio.run(collector(EQLEN, 0, 0, 0)), engine


def test_nothing_is_computed_twice(policy):
    """Prompt and prefix tokens are computed once for each prompt, and never again."""
    collected, engine = collect(policy, max_num_seqs=64)
    once = sum(len(tokens) - 1 for tokens in {problem.token_ids for problem in collected.problems})
    assert engine.stats.num_prefix_tokens > 5 * once  # there was much to take over
    assert engine.stats.num_computed_tokens == once
    assert engine.stats.num_generated_tokens == sum(r.length - r.inherited for r in collected.rollouts.responses)


def test_streams_do_not_depend_on_slots_nor_on_what_the_engine_can_tell(policy):
    """Forks at once or after both tracks have ended, many slots or few: the same tracks, but for near ties in rounding."""
    first, *others = (collect(policy, slots, grows)[0] for slots, grows in ((32, True), (5, True), (32, False)))
    for other in others:
        same = [
            a.token_ids == b.token_ids for a, b in zip(first.rollouts.responses, other.rollouts.responses, strict=False)
        ]
        assert sum(same) >= 0.95 * len(first.rollouts.responses)


def test_early_forks_take_no_longer_than_the_longest_answer(policy):
    """160 steps and the steps of admission; waiting for whole results takes more than one budget."""
    early, late = (collect(policy, 64, grows)[1].stats.num_steps for grows in (True, False))
    assert early <= 160 + 5 < late
