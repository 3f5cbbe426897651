"""Phase A: figures on tables by hand, and the whole way on the playground's model, which stops and goes on."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fairlen import playground
from fairlen.policy.engines import build_engine
from fairlen.policy.model import load_policy
from fairlen.rollouts import Response, Rollouts, whole_segments
from fairlen.tasks.playground import Playground
from fairlen.train.run.config import TrainConfig
from research.real import figures
from research.real.draws import KINDS, draw_all, read_draws
from research.real.passes import SIZE, Sketch, sketch_all, take_step
from research.real.world import SMOKE, World, start


def respond(prompt: int, length: int, correct: bool, **more: Any) -> Response:
    """Return a response of so many tokens to a prompt of one."""
    ids = (1, *([2 + more.get("track", 0)] * length))
    status: Any = "correct" if correct else "incorrect"
    return Response(
        prompt, ids, 1, (0.0,) * length, more.pop("finish", "stop"), 0, outcome=float(correct), status=status, **more
    )


def evidence(
    *responses: Response, streams: tuple[Response, ...] = (), log_ratio: tuple[float, ...] = ()
) -> figures.Evidence:
    some = tuple(responses)
    return figures.Evidence(
        Rollouts(some, whole_segments(some), 8), Rollouts(streams, (), 8), np.zeros((0, SIZE)), np.array(log_ratio), 0
    )


def test_the_chance_to_stop_is_ends_over_tokens_at_risk(monkeypatch):
    """Lengths 2, 2, 4 and a truncated 8 in two bins, up to 3 and up to 8 tokens: 2 ends in 2 + 2 + 3 + 3 = 10 tokens; then 1 in
    1 + 5 = 6. Both early ones are incorrect, the later one is correct."""
    monkeypatch.setattr(figures, "NUM_BINS", 2)
    monkeypatch.setattr(figures, "NUM_RESAMPLES", 2)
    some = [respond(0, 2, False), respond(0, 2, False), respond(1, 4, True), respond(1, 8, False, finish="length")]
    rows = list(figures.stopping(evidence(*some)))
    assert [(row["from"], row["to"]) for row in rows] == [(1, 3), (1, 3), (4, 8), (4, 8)]
    assert [row["value"] for row in rows] == pytest.approx([2 / 10, 0, 1 / 6, 1])


def test_a_prefix_is_penalised_by_incorrect_responses_and_led_to_correct_ones_as_well():
    """Ends of one stream in their order: incorrect, incorrect, correct, incorrect. Two of the three after the first are
    incorrect, and one of the two after the second: three penalties, of prefixes that led to a correct one too. In a stream
    whose ends are all incorrect 2 more do not: 3 of 5."""
    first = [respond(0, n, n == 3, stream=0, track=n - 1) for n in (1, 2, 3, 4)]
    other = [respond(0, n, False, stream=1, track=n - 1) for n in (1, 2, 3)]
    (row,) = figures.penalised_prefixes(evidence(respond(0, 1, True), streams=(*first, *other)))
    assert row["value"] == pytest.approx(3 / 5)


def test_a_gap_is_percent_of_the_mean_of_prompts_with_both_verdicts():
    """6 against 2 tokens, of a mean of 4: 100%. The prompt without a correct response says nothing."""
    gap, both = figures.length_gap(evidence(respond(0, 6, False), respond(0, 2, True), respond(1, 3, False)))
    assert gap["value"] == pytest.approx(100.0) and both["value"] == 0.5


def test_leave_one_out_and_the_sequence_mean_by_hand():
    """Outcomes 1, 0 and 0: 1 and -1/2 twice."""
    table = Rollouts(tuple(respond(0, n, n == 2) for n in (2, 4, 4)), (), 8).response_table
    assert figures.leave_one_out(table).tolist() == [1.0, -0.5, -0.5]


def test_a_sketch_keeps_inner_products():
    """Of 40,000 numbers, to about 1 / 64 of the product of the norms; and it is linear."""
    draw = torch.Generator().manual_seed(1)
    one, other = (torch.randn(200, 200, generator=draw) for _ in range(2))
    sketch = Sketch([one])
    first, second, both = (sketch([x]) for x in (one, one + other, other))
    assert second == pytest.approx(first + both, abs=1e-3)
    exact = float((one * (one + other)).sum() / one.norm() / (one + other).norm())
    assert figures.cosine(first, second) == pytest.approx(exact, abs=4 / 64) and exact == pytest.approx(
        math.sqrt(0.5), abs=0.02
    )


@pytest.mark.slow
def test_phase_a_goes_on_where_it_stopped(tmp_path):
    """On the playground's model: a file that is there is not made again, one that is lost comes out the same."""
    config = TrainConfig()
    config = replace(config, sampling=replace(config.sampling, max_response_length=96, max_num_seqs=16))
    about = {"max_response_length": 96, "sizes": {"chunk": SMOKE.chunk}}
    start(tmp_path, about)

    def work() -> None:
        """Load the model, as a process does that was started again, and do what is missing."""
        policy, task = load_policy(playground.PATH, "float32", "cpu", False), Playground()
        engine = build_engine(config, policy, task.longest_prompt + 96)
        world = World(config, policy, task, engine, replace(SMOKE, responses=8), tmp_path)
        asyncio.run(draw_all(world))
        sketch_all(world)
        take_step(world)

    work()
    found = figures.load(tmp_path)
    assert len(found.independent.responses) == len(found.log_ratio) == 32 and len(found.sketches) == 16
    assert (found.log_ratio != 0).all()
    assert all(list(figure(found)) for figure in figures.FIGURES.values())
    drawn = [read_draws(tmp_path / kind, 96) for kind in KINDS]
    (tmp_path / "streams" / "segments-000001.parquet").unlink()
    kept = (tmp_path / "after" / "000000.parquet").stat().st_mtime_ns
    work()
    assert (tmp_path / "after" / "000000.parquet").stat().st_mtime_ns == kept
    assert [read_draws(tmp_path / kind, 96) for kind in KINDS] == drawn
    with pytest.raises(ValueError, match="begun with max_response_length=96, not 97"):
        start(tmp_path, about | {"max_response_length": 97})
