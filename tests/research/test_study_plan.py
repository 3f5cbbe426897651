"""What the study runs: that every claim's figure is computed, that settings tell runs apart, and what the search tries."""

from dataclasses import replace

import pytest

from fairlen.methods.compose import explain
from fairlen.tasks.playground import Playground
from research.study.cells import config_of
from research.study.figures import DIRECTIONS, definitions, described
from research.study.plan import Plan, Sizes, all_variants, clip_fields
from research.study.problems import TASKS, Drawn
from research.study.schedule import Study
from research.study.search import Settings, choose, make_cell, rate_candidates, width_candidates

VARIANTS = {variant.name: variant for variant in all_variants()}


def test_every_figure_that_a_claim_needs_is_computed_and_no_other():
    assert set(definitions()) == set(described())


def test_every_figure_is_made_of_variants_of_its_experiment():
    names = {variant.name for variant in Plan().variants} | {DIRECTIONS}
    for figure, definition in definitions().items():
        used = {name for variants, _ in definition.inputs for name in variants}
        assert used <= names, figure
        numbers = [VARIANTS[name].experiments for name in used - {DIRECTIONS}]
        assert all(described()[figure]["experiment"] in some for some in numbers), figure


def test_variants_have_different_names_and_take_settings_from_one_that_has_its_own():
    assert len(VARIANTS) == len(all_variants())
    for variant in VARIANTS.values():
        assert not variant.settings_of or not VARIANTS[variant.settings_of].settings_of, variant.name


def test_the_search_has_a_seed_of_its_own_and_tries_the_same_number_of_values_for_everyone():
    sizes = Sizes()
    assert sizes.search_seed not in sizes.seeds
    own = [variant for variant in VARIANTS.values() if not variant.settings_of]
    assert {len(width_candidates(Plan(), variant)) for variant in own} == {3}
    assert {len(rate_candidates(Plan(), Settings(1e-4, 1.0)))} == {3}


def test_widths_are_multiples_of_the_published_one():
    widths = [one.fields(VARIANTS["fspo"]) for one in width_candidates(Plan(), VARIANTS["fspo"])]
    assert widths == [("surrogate.width=0.03",), ("surrogate.width=0.01",), ("surrogate.width=0.1",)]
    assert Settings(1e-4, 10.0).fields(VARIANTS["gspo"]) == ("surrogate.clip_low=0.003", "surrogate.clip_high=0.004")
    assert Settings(1e-4, 10.0).fields(VARIANTS["fspo:surrogate.width=0.1"]) == ()
    assert clip_fields(VARIANTS["rloo"].method) == {"surrogate.clip_low": 0.2, "surrogate.clip_high": 0.2}


def test_of_equal_scores_the_first_is_chosen():
    candidates = [Settings(1.0, 1.0), Settings(2.0, 1.0), Settings(3.0, 1.0)]
    assert choose(candidates, [0.5, 0.6, 0.6]) == candidates[1]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_method_with_settings_that_training_takes(name):
    cell = make_cell(Plan(), VARIANTS[name], Settings(1e-4, 10 / 3), seed=1, tokens=1000)
    config = config_of(cell, "somewhere")
    assert explain(config.method, config.overrides).method.sampling.num_tracks == 16
    assert bool(config.max_generated) == (VARIANTS[name].match == "tokens")


def test_all_settings_are_in_the_key():
    cell = make_cell(Plan(), VARIANTS["fspo"], Settings(1e-4, 1.0), seed=1, tokens=0)
    others = {
        "method": "grpo", "set": ("surrogate.width=0.1",), "task": "gapped", "seed": 2, "rate": 3e-4, "rollout_batches": 9,
        "max_generated": 5, "prompts_per_batch": 9, "updates_per_batch": 2, "eval_every": 1, "eval_problems": 5,
        "eval_samples": 5,
        "skipped": 64, "kind": "direction", "bands": (("fspo", 0.1, 0.1),), "is_timed": True,
    }  # fmt: skip
    assert set(others) == set(vars(cell))
    keys = {replace(cell, **{name: value}).key for name, value in others.items()}
    assert len(keys | {cell.key}) == len(others) + 1


def test_seeds_share_no_training_problems_and_all_held_out_ones():
    first, second = (Drawn(Playground(seed=seed)) for seed in (1, 2))
    trained = [{task.train(i).id for i in range(64)} for task in (first, second)]
    assert not trained[0] & trained[1]
    assert first.held_out(5) == second.held_out(5)


def test_the_search_is_judged_by_other_problems():
    task = TASKS["mixed"][0]
    assert not {p.id for p in Drawn(task).held_out(20)} & {p.id for p in Drawn(task, skipped=20).held_out(20)}


def test_a_study_of_one_experiment_has_what_it_goes_by(tmp_path):
    names = {variant.name for variant in Plan(experiments=(5,)).variants}
    assert {"grpo", "eqlen+fspo tokens"} <= names
    assert not any(name.startswith("rloo") for name in names)
    assert Study(Plan(experiments=(5,)), tmp_path).direction_cells() == []
