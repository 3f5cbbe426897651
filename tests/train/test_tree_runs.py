"""Trees in whole runs: metrics and records, a resumed run, and what the engine computes."""

import asyncio
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import runs
from runs import DOCUMENTED, digest_model, metrics, updates_of

from fairlen import playground
from fairlen.audit.readers.fairlen_records import read_records
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector
from fairlen.train.start import start_training

small = partial(runs.small, method="tree+dapo", overrides=("sampling.n=3",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trees"
    start_training(small(folder, rollout_batches=2))
    return folder


def test_every_logged_metric_is_documented(finished):
    logged = {name for entry in metrics(finished) for name in entry}
    assert logged <= DOCUMENTED
    assert {"tree/responses", "tree/nodes", "tree/forked", "tree/trained"} <= logged
    assert not any(name.startswith(("pairs/", "streams/")) for name in logged)


def test_metrics_agree_with_records(finished):
    """Nodes, those that train and generated tokens of every rollout batch, counted again; every token in one node."""
    seen = 0
    for batch in range(2):
        responses, segments = (
            pq.read_table(finished / f"records/{table}-{batch:06d}.parquet").to_pydict()
            for table in ("responses", "segments")
        )
        entry = next(e for e in metrics(finished) if e["rollout_batch"] == batch and "tree/nodes" in e)
        assert entry["tree/nodes"] == len(segments["group"])
        assert entry["tree/trained"] == pytest.approx(sum(segments["trains"]) / len(segments["trains"]))
        assert entry["tree/responses"] == pytest.approx(len(responses["length"]) / entry["prompts/asked"])
        new = sum(n - i for n, i in zip(responses["length"], responses["inherited"], strict=True))
        assert new == entry["tokens/generated"] == sum(segments["length"])
        assert sum(r == 0 for r in responses["round"]) == 3 * entry["prompts/asked"]
        seen += sum(r > 0 for r in responses["round"])
    assert seen > 0


def test_its_records_are_read_and_are_no_streams(finished):
    records, _ = read_records(sorted((finished / "records").glob("*.parquet")))
    assert records and "streams" not in records.log.known and records.log.segments.survivor.any()
    assert (finished / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_resumed_run_goes_on(finished, tmp_path):
    start_training(small(tmp_path / "half", rollout_batches=1))
    start_training(small(tmp_path / "half", rollout_batches=2, resume=True))
    assert len(updates_of(finished)) > 1 and updates_of(finished) == updates_of(tmp_path / "half")
    assert digest_model(finished) == digest_model(tmp_path / "half")


def test_nothing_is_computed_twice():
    """4 prompts x 4 tracks by the shipped model: prompt and prefix tokens beyond each prompt once, none."""
    policy, task = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False), Playground()
    eos = policy.eos_token_ids
    engine = Engine(policy.model, eos_token_id=eos, max_length=256, max_num_seqs=64, compile=False)
    grader, sampling = Grader(task, policy.decode), Sampling(160, seed=0)
    collect = Collector(engine.extend, grader, task.train, sampling, num_prompts=4, max_extra_batches=0, seed=5)
    collected = asyncio.run(collect(compose("tree_unbiased"), 0, 0, 0))
    once = sum(len(tokens) - 1 for tokens in {problem.token_ids for problem in collected.problems})
    assert engine.stats.num_prefix_tokens > 5 * once  # there was much to take over
    assert engine.stats.num_computed_tokens == once
    assert engine.stats.num_generated_tokens == sum(r.length - r.inherited for r in collected.rollouts.responses)
