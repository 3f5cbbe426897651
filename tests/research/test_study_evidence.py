"""What is kept of runs: digests, units, order, and that a real run's tables are what its folder says."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from study_runs import TINY_SIZES, kept_run

from research.study.cells import make_cell, run_cell
from research.study.evidence import SCHEMAS, encode, load_evidence, merge, write_kept
from research.study.mistakes import find_mistakes
from research.study.plan import Plan, Variant
from research.study.search import Settings, final_accuracy

SEQUENCES = {
    "rollout_batch": [0, 0], "update": [1, 2], "prompt": [0, 1], "length": [300, 40], "log_ratio": [0.0, -0.123456],
    "advantage": [0.5, -1.25], "inside": [1.0, 0.0], "correct": [True, False], "truncated": [False, False],
    "off_policy": [False, True],
}  # fmt: skip
UPDATES = {
    "rollout_batch": [0, 0], "update": [1, 2], "loss": [0.0, 0.25], "entropy": [0.5, 0.4], "gradient_norm": [1.0, 2.0],
    "tokens_trained": [600, 700], "kl_old": [0.0, 0.01], "drift": [np.nan, np.nan], "skipped": [False, False],
    "seconds": [1.0, 1.0],
}  # fmt: skip
BATCHES = {
    "rollout_batch": [0], "generated": [1000], "asked": [2], "selected": [2], "rounds": [np.nan], "pairs_formed": [np.nan],
    "pairs_trained": [np.nan], "optimism": [np.nan], "seconds": [3.0], "truncated": [0.0],
}  # fmt: skip
DIRECTIONS = {"update": [2], "rule": ["fspo"], **{name: [0.5] for name in list(SCHEMAS["directions"])[2:]}}
FULL = {"sequences": SEQUENCES, "updates": UPDATES, "batches": BATCHES, "directions": DIRECTIONS}


def test_columns_come_back_as_what_they_mean(tmp_path):
    write_kept([kept_run(**FULL)], tmp_path)
    found = load_evidence(tmp_path).run_tables(0)
    assert found.sequences["log_ratio"] == pytest.approx([0.0, -0.12346], abs=1e-12)  # multiples of 1e-5
    assert found.sequences["advantage"] == pytest.approx([0.5, -1.25])
    assert found.sequences["inside"].tolist() == [1.0, 0.0]
    assert found.sequences["length"].tolist() == [300, 40]
    assert np.isnan(found.updates["drift"]).all()
    assert found.directions["rule"].tolist() == ["fspo"]
    assert (found.run.settings, found.run.seconds) == ((), 10.0)


def test_a_run_is_found_by_seed_in_the_order_of_seeds(tmp_path):
    runs = [kept_run(seed=seed, variant=name, **FULL) for name in ("grpo", "rloo") for seed in (10, 2)]
    for run in runs:
        write_kept([run], tmp_path / run.row.key)
    evidence = merge((tmp_path / run.row.key for run in runs), tmp_path / "all")
    assert [run.key for run in evidence.runs] == sorted(run.row.key for run in runs)
    assert list(evidence.find("short", "rloo")) == [2, 10]
    assert evidence.find("short", "rloo")[2].sequences["length"].tolist() == [300, 40]
    assert evidence.find("short", "rloo", label="again") == {}
    assert evidence.find("short", "rloo", role="timed") == {}
    assert list(evidence.altered()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_number_that_was_changed_is_found_by_its_digest_whichever_it_is(name, tmp_path):
    write_kept([kept_run(seed=1, **FULL), kept_run(seed=2, **FULL)], tmp_path)
    path = tmp_path / f"{name}.parquet"
    table = pq.read_table(path)
    for column in SCHEMAS[name]:
        values = table[column].to_pylist()
        last = values[-1]
        values[-1] = not last if isinstance(last, bool) else "rloo" if isinstance(last, str) else 7 if last != 7 else 8
        changed = pa.array(values, table.schema.field(column).type)
        pq.write_table(table.set_column(table.column_names.index(column), column, changed), path)
        assert list(load_evidence(tmp_path).altered()) == ["short_grpo_study_x1_lr0.0001_s2"], column
    pq.write_table(table.slice(0, len(table) - 1), path)
    assert list(load_evidence(tmp_path).altered()) == ["short_grpo_study_x1_lr0.0001_s2"]


@pytest.mark.parametrize(
    "change", [{"seed": 3}, {"rate": 3e-4}, {"commit": "1" * 40}, {"seconds": 9.0}, {"label": "again"}]
)
def test_the_digest_is_over_the_row_too(change, tmp_path):
    run = kept_run(**FULL)
    write_kept([replace(run, row=replace(run.row, **change))], tmp_path)
    assert list(load_evidence(tmp_path).altered()) == [run.row.key]


def test_a_changed_run_is_not_merged(tmp_path):
    run = kept_run(**FULL)
    write_kept([replace(run, row=replace(run.row, seed=3))], tmp_path / "one")
    with pytest.raises(ValueError, match="_s1: its tables are not what its digest is of; remove its folder"):
        merge([tmp_path / "one"], tmp_path / "all")


def test_what_a_type_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="sequences: length has 40 to 40000, and is stored as int16"):
        encode(SEQUENCES | {"length": [40, 40000]}, "sequences")
    with pytest.raises(ValueError, match="log_ratio has nan to nan"):
        encode(SEQUENCES | {"log_ratio": [0.0, np.nan]}, "sequences")


def test_tables_of_other_columns_or_another_order_are_refused(tmp_path):
    write_kept([kept_run(seed=1, **FULL), kept_run(seed=2, **FULL)], tmp_path)
    table = pq.read_table(tmp_path / "updates.parquet")
    pq.write_table(table.take([2, 3, 0, 1]), tmp_path / "updates.parquet")
    with pytest.raises(ValueError, match="rows are not sorted by run; write them again"):
        load_evidence(tmp_path)
    pq.write_table(table.drop_columns(["loss"]), tmp_path / "updates.parquet")
    with pytest.raises(
        ValueError, match=r"updates.parquet: columns run, rollout_batch, update, entropy.*; want run, .*loss"
    ):
        load_evidence(tmp_path)


def spoiled(**changes):
    """Return the tables of a run with some columns changed, by table."""
    return {name: columns | changes.get(name, {}) for name, columns in FULL.items()}


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (kept_run(seed=2, **spoiled(sequences={"inside": [0.0, 0.0]})), "an on-policy update clips"),
        (kept_run(seed=2, **spoiled(updates={"loss": [1e-3, 0.25]})), "an on-policy loss of 0.001"),
        (kept_run(seed=2, **spoiled(updates={"skipped": [True, False]})), "1 updates were skipped"),
        (kept_run(seed=2, **spoiled(batches={"selected": [1]})), "1 rollout batches have fewer than 2 prompts"),
        (kept_run(seed=2, **spoiled(batches={"pairs_trained": [0.0]})), "no pair that trains"),
        (kept_run(seed=2, **spoiled(directions={"rho": [0.6]})), "the corrected bound was exceeded"),
        (kept_run(seed=2, right=[[1, 1], [2, 3]], **FULL), "the model before training is not what it is for the other runs"),
    ],
)  # fmt: skip
def test_what_would_be_our_own_mistake_is_found(run, says, tmp_path):
    good = kept_run(seed=1, **FULL)
    write_kept([good], tmp_path / "good")
    assert list(find_mistakes(load_evidence(tmp_path / "good"))) == []
    write_kept([good, run], tmp_path / "both")
    ((where, what),) = find_mistakes(load_evidence(tmp_path / "both"))
    assert where == run.row.key
    assert says in what


def test_the_loss_of_a_token_mean_need_not_be_0_on_policy(tmp_path):
    write_kept([kept_run(variant="dapo", **spoiled(updates={"loss": [1e-3, 0.25]}))], tmp_path)
    assert list(find_mistakes(load_evidence(tmp_path))) == []


@pytest.mark.slow
def test_the_tables_of_a_real_study_agree_with_each_other(tiny_study):
    evidence = load_evidence(tiny_study.evidence)
    assert list(evidence.altered()) == []
    roles = [run.role for run in evidence.runs]
    assert (roles.count("search") >= 3, roles.count("study"), roles.count("timed")) == (True, 6, 2)
    for name in ("dr_grpo", "rloo"):
        runs = evidence.find("short", name)
        assert list(runs) == [1, 2, 3]
        for run in runs.values():
            rows, updates = run.sequences, run.updates
            assert len(rows["length"]) == 2 * 16  # prompts and responses; each is in one update
            assert updates["update"].tolist() == [1, 2]
            trained = [int(rows["length"][rows["update"] == update].sum()) for update in (1, 2)]
            assert updates["tokens_trained"].tolist() == trained
            assert run.batches["generated"].tolist() == [sum(trained)]  # nothing was rejected
            assert not rows["off_policy"][rows["update"] == 1].any()
            assert not rows["log_ratio"][rows["update"] == 1].any()
            assert rows["off_policy"][rows["update"] == 2].all()
            assert run.evaluations["generated"].tolist() == [0, 0] + 3 * [sum(trained)]
            assert run.evaluations["problem"].tolist() == [0, 1, 0, 1, 2]  # the last evaluation has one more
            assert 0 < updates["seconds"].sum() + run.batches["seconds"].sum() <= run.run.seconds
        (timed,) = evidence.find("short", name, role="timed").values()
        assert timed.batches["seconds"][0] > 0
        assert len(timed.sequences["length"]) == len(timed.evaluations["right"]) == 0
    assert {
        run.evaluations["right"][:2].tolist() == runs[1].evaluations["right"][:2].tolist() for run in runs.values()
    } == {True}


@pytest.mark.slow
def test_a_run_that_diverges_is_kept_and_ends_with_nothing_correct(tmp_path):
    variant = Variant("dr_grpo", "short", search="")
    plan = Plan((variant,), {"short": replace(TINY_SIZES, rollout_batches=4)})
    cell = make_cell(plan, variant, Settings(1e9, 1.0), seed=1)
    found = load_evidence(run_cell(cell, tmp_path, "0" * 40))
    assert list(found.altered()) == []
    run = found.run_tables(0)
    assert run.run.diverged
    assert 0 < len(run.updates["update"]) <= 8
    assert run.evaluations["problem"].tolist() == [0, 1, 0, 1, 2]  # before training, and after
    assert run.evaluations["right"][2:].tolist() == [0, 0, 0]
    assert final_accuracy(run) == 0.0
    assert (run.run.key, "it diverged, and counts as one that ends with nothing correct") in list(find_mistakes(found))
