"""Phase A: figures on tables by hand, and the whole way on the playground's model, which stops and goes on."""

import asyncio
import json
import math
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fairlen import playground
from fairlen.methods.compose import compose
from fairlen.policy.engines import build_engine
from fairlen.policy.model import load_policy
from fairlen.rollouts import Response, Rollouts, whole_segments
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem
from fairlen.train.records import BatchRecord
from fairlen.train.run.config import TrainConfig
from research.ledger.check import CLAIMS
from research.ledger.page import measured_part
from research.ledger.protocol import CHANGED, PROTOCOL
from research.ledger.real import FOLDER, Real, Row, Sentence, check_real, load_real
from research.real import figures
from research.real.__main__ import keep
from research.real.draws import KINDS, draw_all, read_draws
from research.real.evidence import TABLES, Evidence, join, read_kept, read_run, write_kept
from research.real.passes import Sketch, sketch_all, take_step, write
from research.real.recompute import AGREE, compare
from research.real.world import SMOKE, World, start

pytestmark = pytest.mark.slow


def respond(prompt: int, length: int, correct: bool, **more: Any) -> Response:
    """Return a response of so many tokens to a prompt of one."""
    ids = (1, *([2 + more.get("track", 0)] * length))
    status: Any = "correct" if correct else "incorrect"
    return Response(
        prompt, ids, 1, (0.0,) * length, more.pop("finish", "stop"), 0, outcome=float(correct), status=status, **more
    )


def evidence(*responses: Response, streams: tuple[Response, ...] = ()) -> Evidence:
    kinds = ("responses", responses), ("tracks", streams or responses)
    tables = {name: join([Rollouts(some, whole_segments(some), 8)])[0] for name, some in kinds}
    return Evidence({"max_response_length": 8, "sizes": {"chunk": 0}}, tables)


def test_the_chance_to_stop_is_ends_over_tokens_at_risk(monkeypatch):
    """Lengths 2, 2, 4 and a truncated 8 in two bins, up to 3 and up to 8 tokens: 2 ends in 2 + 2 + 3 + 3 = 10 tokens; then 1 in
    1 + 5 = 6. Both early ones are incorrect, the later one is correct. Positions of 16 tokens add up to 3 + 3 + 10 + 36 = 52,
    squares to 5 + 5 + 30 + 204 = 244, those of 3 ends to 8: a line of slope (8 - 52 * 3 / 16) / (244 - 52^2 / 16) = -1.75 / 75.
    Over a mean response of 4 tokens that is -7 / 75, of a mean chance of 3 / 16."""
    monkeypatch.setattr(figures, "NUM_BINS", 2)
    some = [respond(0, 2, False), respond(0, 2, False), respond(1, 4, True), respond(1, 8, False, finish="length")]
    *rows, line = figures.stopping(evidence(*some))
    assert [(row["from"], row["to"]) for row in rows] == [(1, 3), (1, 3), (4, 8), (4, 8)]
    assert [row["value"] for row in rows] == pytest.approx([2 / 10, 0, 1 / 6, 1])
    assert line["value"] == pytest.approx(-7 / 75 / (3 / 16))


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
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert cosine == pytest.approx(exact, abs=4 / 64) and exact == pytest.approx(math.sqrt(0.5), abs=0.02)


LIMIT, ROOT = 16, Path(__file__).parents[2]


def extend(prefix, sampling) -> Any:
    """Go on with few tokens to choose from, so that ends meet and texts are equal; stop with one chance in eight."""
    draw, ids = Random(sampling.seed), list[int]()
    while len(ids) < sampling.max_new_tokens and 0 not in ids:
        ids.append(draw.choice((0, 1, 1, 1, 1, 2, 2, 2)))
    finish = "stop" if ids[-1] == 0 else "length"
    return asyncio.sleep(0, Continuation(tuple(ids), (-0.5,) * len(ids), finish))


async def grade(response: Response) -> Response:
    """Call a response correct by its tokens; what is truncated is not."""
    is_right = response.finish == "stop" and Random(str(response.token_ids)).random() < 0.4 + 0.02 * response.length
    return replace(response, outcome=float(is_right), status="correct" if is_right else "incorrect")


def write_run(out: Path, sizes: Any) -> None:
    """Write what `python -m research.real` does, of sampled streams and responses and of sketches that are noise."""
    about = {"commit": "0" * 40, "max_response_length": LIMIT, "sizes": asdict(sizes)}
    start(out, about)
    draw = np.random.default_rng(0)
    for kind, text, number in (("filter", "grpo", 0), ("independent", "grpo", 1), ("streams", "eqlen+grpo", 2)):
        method = compose(text, [f"sampling.n={sizes.responses}"] if text == "grpo" else [])
        for file in range(sizes.prompts // sizes.chunk):
            asked = [Request(p, (7, 9), Sampling(LIMIT, seed=0), 0, (number, file, p)) for p in range(sizes.chunk)]
            found = tuple(r for one in asked for r in asyncio.run(method.sampling(extend, grade, one)))
            rollouts = Rollouts(found, method.sampling.cut(found), LIMIT)
            problems = tuple(Problem(str(p), "", (7, 9), "") for p in range(sizes.chunk))
            BatchRecord(file, rollouts, problems, method.score(rollouts), str).write(out / kind)
            if kind == "independent":
                logprob = draw.normal(size=(2, len(found)))
                write(out / "before" / f"{file:06d}.parquet", {"logprob": logprob[0]})
                write(out / "after" / f"{file:06d}.parquet", {"logprob": logprob[0] + 0.01 * logprob[1]})
                sketch = list(draw.normal(size=(len(found), 24)).astype(np.float32))
                if file * sizes.chunk < sizes.gradient_prompts:
                    write(out / "gradients" / f"{file:06d}.parquet", {"sketch": sketch})


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A run of 24 prompts in six files, with its figures."""
    out = tmp_path_factory.mktemp("real") / "run"
    write_run(out, replace(SMOKE, prompts=24, responses=16, chunk=4, gradient_prompts=8))
    (out / "figures.json").write_text(json.dumps(figures.make_figures(read_run(out))))
    return out


def test_another_way_to_every_figure_finds_the_same(written):
    """And every value is there: none is nan."""
    found = json.loads((written / "figures.json").read_text())
    assert set(compare(written)) == set(figures.FIGURES) and max(compare(written).values()) <= AGREE
    assert all(row["value"] is not None for rows in found.values() for row in rows)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_mistake_in_a_figure_is_seen(written, tmp_path, name):
    """One value a thousandth too large, beside the tables as they are."""
    for path in written.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "figures.json").unlink()
    found = json.loads((written / "figures.json").read_text())
    found[name][-1]["value"] = found[name][-1]["value"] * 1.001 + 0.001
    (tmp_path / "figures.json").write_text(json.dumps(found))
    assert [figure for figure, largest in compare(tmp_path).items() if largest > AGREE] == [name]


def test_what_is_kept_gives_the_same_figures_and_says_nothing_of_texts(written, tmp_path):
    keep(written, tmp_path)
    assert json.loads((tmp_path / "figures.json").read_text()) == json.loads((written / "figures.json").read_text())
    kept = read_kept(tmp_path)
    assert {one for table in kept.tables.values() for one in table}.isdisjoint(
        {"token_ids", "text", "problem", "answer"}
    )
    assert kept.about["sizes"]["prompts"] == 24 and len(kept.products) == 8 * 16


# what is kept, and what is said of it


@pytest.fixture
def root(written, tmp_path) -> Path:
    """A repository that keeps the run, with its page."""
    keep(written, tmp_path / FOLDER)
    (tmp_path / PROTOCOL).write_text(CHANGED)
    (tmp_path / "claims.md").write_text(part_of(tmp_path))
    return tmp_path


def real_of(root: Path) -> Real:
    found = load_real(root)
    assert found, root
    return found


def part_of(root: Path) -> str:
    return measured_part(real_of(root))


def wrong(root: Path) -> list[str]:
    """Return what the check finds, and whether the page is another one."""
    is_same = (root / "claims.md").read_text() == part_of(root)
    return [*check_real(root), *([] if is_same else ["page"])]


def test_the_check_finds_a_changed_figure_though_the_page_was_made_with_it(root):
    assert wrong(root) == []
    path = root / FOLDER / "figures.json"
    kept = json.loads(path.read_text())
    kept["length_gap"][0]["high"] += 0.001
    path.write_text(json.dumps(kept))
    (root / "claims.md").write_text(part_of(root))
    assert wrong(root) == [f"{FOLDER}/figures.json: length_gap is not what the tables beside it give"]


@pytest.mark.parametrize("table", TABLES)
def test_the_check_finds_a_changed_row_though_figures_were_made_of_it(root, table):
    found = read_kept(root / FOLDER)
    column = TABLES[table][-1]
    changed = {**found.tables, table: {**found.tables[table], column: 1 - found.tables[table][column]}}
    found = replace(found, tables=changed)
    digests = found.about["digests"]
    write_kept(found, root / FOLDER)
    (root / FOLDER / "about.json").write_text(json.dumps({**found.about, "digests": digests}))
    (root / FOLDER / "figures.json").write_text(json.dumps(figures.make_figures(found)))
    assert f"{FOLDER}: {table}.{column} is not what about.json has the digest of" in wrong(root)


def test_the_check_finds_another_word_and_refuses_a_word_without_its_interval(root):
    page = root / "claims.md"
    page.write_text(page.read_text().replace("undecided", "decided", 1))
    assert wrong(root) == ["page"]
    path = root / FOLDER / "figures.json"
    kept = json.loads(path.read_text())
    kept["stopping"][-1]["low"] = None
    path.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="'stopping: slope' has no interval, by which its words are chosen"):
        load_real(root)


def allowed(one: Sentence, row: Row) -> str:
    """Return the word that an interval allows, the predicted side being the positive one."""
    sign = 1 if one.predicted == "positive" else -1
    value, *ends = (sign * (row[name] - one.null) for name in ("value", "low", "high"))
    if max(ends) < one.smallest:
        return "opposite" if max(ends) < -one.smallest else "does_not"
    return "does" if min(ends) > 0 and value >= one.smallest else "undecided"


def test_no_word_stands_on_an_interval_that_its_rule_does_not_allow(root):
    """Intervals on either side of nothing and of the smallest effect, and those of the repository's own page."""
    seen = set()
    for one in (one for part in real_of(root).sentences.values() for one in part):
        for share, half in product((-3, -1.5, -0.5, 0, 0.5, 0.99, 1.01, 3), (0.1, 0.6, 2)):
            ends = {"value": share, "low": share - half, "high": share + half}
            row = {name: one.null + size * one.smallest for name, size in ends.items()}
            rows = {one.row: row | {"prompts": 128}}
            assert one.word(rows | {one.premise: {"high": one.most}}) == allowed(one, row), (one.row, row)
            assert not one.premise or one.word(rows | {one.premise: {"high": one.most + 0.01}}) == "untestable"
            seen.add(allowed(one, row))
    assert seen == {"does", "does_not", "opposite", "undecided"}
    stored, page = real_of(ROOT), " ".join((ROOT / CLAIMS).read_text().split())
    for one in (one for part in stored.sentences.values() for one in part):
        is_met = not one.premise or stored.rows[one.premise]["high"] <= one.most
        word = allowed(one, stored.rows[one.row]) if is_met else "untestable"
        text = (one.opposite or one.does_not) if word == "opposite" else getattr(one, word)
        assert stored.filled(text) in page, one.row


def test_phase_a_goes_on_where_it_stopped(tmp_path):
    """On the playground's model: a file that is there is not made again, one that is lost comes out the same."""
    config = TrainConfig()
    config = replace(config, sampling=replace(config.sampling, max_response_length=96, max_num_seqs=16))
    about = {"max_response_length": 96, "sizes": asdict(SMOKE)}
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
    found = read_run(tmp_path)
    assert len(found.independent) == len(found.log_ratio) == 32 and len(found.products) == 16
    assert (found.log_ratio != 0).all()
    (tmp_path / "figures.json").write_text(json.dumps(figures.make_figures(found)))
    assert max(compare(tmp_path).values()) <= AGREE
    drawn = [read_draws(tmp_path / kind, 96) for kind in KINDS]
    (tmp_path / "streams" / "segments-000001.parquet").unlink()
    kept = (tmp_path / "after" / "000000.parquet").stat().st_mtime_ns
    work()
    assert (tmp_path / "after" / "000000.parquet").stat().st_mtime_ns == kept
    assert [read_draws(tmp_path / kind, 96) for kind in KINDS] == drawn
    with pytest.raises(ValueError, match="begun with max_response_length=96, not 97"):
        start(tmp_path, about | {"max_response_length": 97})
