"""What the study runs: its variants, that settings tell runs apart, its problems, and the options of its command."""

from dataclasses import replace

import pytest
from loops import over

from fairlen.methods.compose import explain
from research.study.cells import WORLDS, Drawn, config_of, make_cell
from research.study.plan import CONTROLS, CORE, LONG, SHORT, VARIANTS, Plan, Variant, clip_fields, width_settings
from research.study.search import Settings

SETTINGS = Settings(1e-4, 10 / 3)
CELL = make_cell(Plan(), VARIANTS[0], SETTINGS, seed=1)


def test_variants_have_different_names_and_take_settings_from_one_that_has_its_own():
    plan = Plan()
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) == len(CORE + CONTROLS + LONG + SHORT) + 1
    for variant in VARIANTS:
        assert plan.source(variant).search, variant.name
    assert plan.source(Variant("grpo+lp", "long", search="", settings_of="grpo")).name == "long grpo"


@over("variant", VARIANTS)
def test_every_variant_is_a_method_with_settings_that_training_takes(variant):
    config = config_of(make_cell(Plan(), variant, SETTINGS, seed=1), "somewhere")
    assert explain(config.method, config.overrides).method.sampling.num_tracks == 16
    assert (config.model.threads, config.model.compile, config.update.updates_per_batch) == (1, "off", 4)


def test_widths_are_multiples_of_the_published_one():
    fspo, gspo, rloo = (Variant(text, "long") for text in ("fspo", "gspo", "rloo"))
    assert width_settings(fspo, 10 / 3) == ("surrogate.width=0.1",)
    assert width_settings(fspo, 1.0) == ()
    assert width_settings(gspo, 10.0) == ("surrogate.clip_low=0.003", "surrogate.clip_high=0.004")
    assert width_settings(rloo, 10.0) == ("surrogate.clip_low=0.99", "surrogate.clip_high=2")  # a ratio stays above 0
    assert clip_fields(rloo.method) == {"surrogate.clip_low": 0.2, "surrogate.clip_high": 0.2}


def test_all_settings_are_in_the_key():
    others = {
        "role": "search", "world": "short", "variant": "rloo", "label": "again", "seed": 2, "shift": 20, "rate": 3e-4,
        "factor": 1.0, "max_response_length": 9, "rollout_batches": 9, "prompts_per_batch": 9, "updates_per_batch": 2,
        "eval_every": 1,
        "eval_problems": 5, "eval_samples": 5, "final_problems": 9, "skipped": 64,
    }  # fmt: skip
    assert set(vars(CELL)) - set(others) == {"settings"}  # which follow from the factor
    keys = {replace(CELL, **{name: value}).key for name, value in others.items()}
    assert len(keys | {CELL.key}) == len(others) + 1


@over("world", WORLDS)
def test_seeds_share_no_training_stream_and_all_held_out_problems(world):
    family = WORLDS[world][0]
    first, second = (Drawn(replace(family, seed=seed)) for seed in (1, 2))
    assert [first.train(i).id for i in range(8)] != [second.train(i).id for i in range(8)]
    assert first.held_out(5) == second.held_out(5)


@over("world", WORLDS)
def test_the_search_is_judged_by_other_problems(world):
    family = WORLDS[world][0]
    assert not {p.id for p in Drawn(family).held_out(20)} & {p.id for p in Drawn(family, skipped=20).held_out(20)}
    assert Drawn(family, skipped=20).describe()["skipped"] == 20


def test_a_part_of_the_plan_knows_the_searches_of_the_whole():
    plan = Plan(world="long", only=("dr_grpo", "luspo"))
    assert [variant.name for variant in plan.wanted] == [
        "long dr_grpo", "long dr_grpo again", "long dr_grpo slow", "long luspo", "long dr_grpo directions",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="only=fpso: no variant of the study; give one of dr_grpo, dapo, "):
        Plan(only=("fpso",))
