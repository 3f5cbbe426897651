"""Plans at one learning rate, two small worlds for EqLen and a real model: how traces are written and models stop, what is run
in turn, the words that intervals allow, and that the check finds what was changed."""

import shutil
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from loops import over
from test_longhand import read_steps

from research.ledger.protocol import CHANGED, PROTOCOL
from research.ledger.real import MARK
from research.ledger.study import DIGESTS, digest_columns
from research.ledger.worlds import FIGURES, PLAN, Worlds, check_worlds, make_estimands, make_sentences, read_data
from research.longhand import SMALL
from research.longhand.make import SMALL_CUT, SMALL_STYLES, count_restarts, draw_responses, write_trace
from research.longhand.task import SUMS, read_terms
from research.study.__main__ import write_json
from research.study.cells import PROBLEMS, config_of
from research.study.estimands import planned_seeds
from research.study.evidence import Kept, load_evidence, write_kept
from research.study.plan import PLANS, REAL, Plan
from research.study.schedule import Study

WORLDS = tuple(SMALL)


@over("world, slips", [("memoryless", (0.25, 0.25, 0.25, 0.25)), ("checked", (0.4, 0.24, 0.144, 0.0864))])
def test_passes_are_as_careless_as_the_one_before_or_by_three_fifths(world, slips):
    """Of 4,000 responses 65% make a second pass, 27% a fourth of two steps each: three standard errors are at most
    3 * sqrt(.25 * .75 / 2200) = .028."""
    rng, wrong = Random(0), [[] for _ in slips]
    for problem in (SUMS.train(index) for index in range(4000)):
        terms = tuple(read_terms(problem.text))
        steps = read_steps(write_trace(rng, terms, SMALL_STYLES[world], SMALL_CUT)[: SMALL_CUT - 60], terms)
        for number, (place, before, columns, result) in enumerate(steps):
            assert not columns and place == number % 2 + 1
            if number < 2 * len(slips):
                wrong[number // 2].append(result != before + terms[place])
    assert [np.mean(one) for one in wrong] == pytest.approx(slips, abs=0.028)


@pytest.mark.slow
@over("world", WORLDS)
def test_the_models_stop_and_are_right_as_the_premises_ask(world):
    """1,600 responses: after k restarts 1600 * .65^k are left, 286 after four, of which 35% stop with a standard error of 2.8
    points, 8% of it; three of a share correct of 300 are 8.7 points."""
    rollouts = draw_responses(SMALL[world], "grpo", 200, "sampling.n=8")
    table, restarts = rollouts.response_table, count_restarts(rollouts)
    stopped = [((restarts == k) & ~table.truncated).sum() / (restarts >= k).sum() for k in range(5)]
    assert max(abs(one / np.mean(stopped) - 1) for one in stopped) < 0.2
    correct = [table.correct[restarts == k].mean() for k in range(4)]
    assert 0.3 <= table.correct.mean() <= 0.75
    if world == "memoryless":
        assert np.ptp(correct) < 0.15
    else:
        assert correct[0] + 0.1 < correct[1] and correct[1] + 0.05 < correct[2] < correct[3] + 0.05


def test_one_rate_is_given_to_all_and_timed_runs_go_in_turn(tmp_path):
    cells = list(Study(PLAN, tmp_path).agenda())
    assert len(cells) == 2 * 7 * 6 and {cell.rate for cell in cells if cell.label != "slow"} == {PLAN.rate}
    assert {cell.rate for cell in cells if cell.label == "slow"} == {PLAN.rate * 0.1}
    assert [cell.seed for cell in cells] == [seed for seed in range(1, 7) for _ in range(14)]
    timed = list(Study(PLAN, tmp_path, ("timed",)).agenda())
    assert [(cell.world, cell.variant) for cell in timed[:10]] == [
        (v.world, v.text) for v in PLAN.variants if not v.label
    ]
    assert [cell.seed for cell in timed[::10]] == [1, 2, 3]


def test_the_pair_on_a_real_model_has_six_seeds_and_controls_of_three(tmp_path):
    cells = list(Study(PLANS[REAL], tmp_path).agenda())
    assert [(cell.variant, cell.label, cell.seed) for cell in cells[:4]] == [
        ("grpo", "", 1), ("dr_grpo", "", 1), ("grpo", "slow", 1), ("grpo", "again", 1),
    ]  # fmt: skip
    assert len(cells) == 2 * 6 + 2 * 3 and [cell.seed for cell in cells[12:]] == [4, 4, 5, 5, 6, 6]
    planned = {name: planned_seeds(one, PLANS[REAL]) for name, one in make_estimands(read_data(PLANS[REAL])).items()}
    assert {name for name, seeds in planned.items() if seeds == 3} == {
        "smollm2 slow", "smollm2 again", "smollm2 again-accuracy",
    }  # fmt: skip
    config = config_of(cells[0], "somewhere")
    assert (config.sampling.temperature, config.sampling.prompts_per_batch, config.update.warmup_updates) == (0.7, 4, 5)
    assert config.model.dtype == "float32" and config.data.places == (PROBLEMS,)


def test_a_gap_of_a_pair_is_told_beside_those_of_its_methods():
    (text,) = told(PLANS[REAL], slow=(20, 15, 25), gap=(6, 3, 9), grpo_gap=(8, 6, 10), dr_gap=(2, 0, 4))
    assert "by 8 [6, 10] and 2 [0, 4] percent, 6 [3, 9] points apart" in text
    assert "do not end 10% longer under GRPO (0 [-1, 1])" in text
    (text,) = told(PLANS[REAL], slow=(20, 15, 25), again=(3, 1, 5), gap=(6, 3, 9))
    assert text.endswith("Nothing is said: a method against itself showed something (3 [1, 5] points).")


def told(plan: Plan = PLAN, **changed: tuple[float, float, float]) -> list[str]:
    """Return the bullets where every row is 0 [-1, 1] but for those given."""
    data = read_data(plan)
    ends = {name: changed.get(name.split()[1].replace("-", "_"), (0.0, -1.0, 1.0)) for name in make_estimands(data)}
    rows = {name: {"value": v, "low": low, "high": high, "seeds": 6} for name, (v, low, high) in ends.items()}
    sentences, controls = (make_sentences(data, kind) for kind in ("sentences", "controls"))
    return list(Worlds(sentences, {}, "", rows, data["worlds"], "", controls).bullets())


def test_nothing_is_said_unless_both_controls_are_as_they_are_to_be():
    assert all(
        "Nothing is said: a tenth of the learning rate was not found (0 [-1, 1] points)." in text for text in told()
    )
    (text, _) = told(slow=(9, 4, 14), again=(2, 1, 3))
    assert text.endswith("Nothing is said: a method against itself showed something (2 [1, 3] points).")


def test_words_follow_from_intervals_and_smallest_effects():
    """17% of length, 3.56 points. Twelve decisions ask for t.9979 of 5, 4.98, in place of 2.57: 60 +- 30 becomes 60 +- 58."""
    first, second = told(slow=(9, 4, 14), length=(60, 30, 90), accuracy=(-4, -7, -1), max_cost=(-6, -8, -4))
    for text in (first, second):
        assert "The maximum's responses are longer than halving's (60 [30, 90] percent)." in text
    assert f"It loses accuracy to halving (-4 [-7, -1] points).{MARK} At equal seconds" in first
    assert "At equal seconds it ends below GRPO (-6 [-8, -4] points)." in first
    assert "Halving does not end 3.56 points above GRPO there (0 [-1, 1])." in first
    (first, _) = told(slow=(9, 4, 14), length=(20, -5, 45), accuracy=(-2, -3, -1))
    assert "Whether the maximum lengthens responses by 17% against halving is undecided (20 [-5, 45] percent)." in first
    assert "It does not lose 3.56 points to halving (-2 [-3, -1])." in first


@pytest.mark.slow
def test_the_check_finds_a_changed_number_another_rate_and_an_edited_figure(tiny_study, tmp_path):
    """Runs of the small study, kept as those of a plan with one rate."""
    stored = load_evidence(tiny_study.evidence)
    runs = [stored.kept(number) for number, run in enumerate(stored.runs) if run.role != "search"]
    plan = replace(tiny_study.plan, rate=runs[0].row.rate, folder="docs/study/worlds")
    folder = tmp_path / plan.folder

    def store(kept, *, is_digested=True):
        write_kept(kept, folder)
        if is_digested:
            write_json(folder / DIGESTS, digest_columns(folder))
        return list(check_worlds(tmp_path, plan))

    (tmp_path / PROTOCOL).parent.mkdir(parents=True)
    (tmp_path / PROTOCOL).write_text(CHANGED)
    assert store(runs) == []
    tables = {name: {key: values.copy() for key, values in one.items()} for name, one in runs[0].tables.items()}
    tables["evaluations"]["right"][-1] ^= 1
    changed = [Kept(runs[0].row, tables), *runs[1:]]
    assert any("is not what its digest is of" in line for line in store(changed))
    assert any(
        "evaluations.parquet: right is not what" in line for line in store(runs) + store(changed, is_digested=False)
    )
    other = replace(runs[0].row, rate=3 * runs[0].row.rate)
    other = Kept(replace(other, digest=Kept(other, runs[0].tables).digest), runs[0].tables)
    assert any("not the rate that plan and search say" in line for line in store([other, *runs[1:]]))
    store(runs)
    write_json(folder / FIGURES, {"memoryless length": {"value": 1.0}})
    assert [line.split(" is not")[0] for line in check_worlds(tmp_path, plan)] == [
        f"{plan.folder}/{FIGURES}: memoryless length"
    ]
    shutil.rmtree(folder)
    assert list(check_worlds(tmp_path, plan)) == []
