"""`fairlen methods NAME`: everything that a method is made of, and how to set it."""

import json
from dataclasses import fields

from loops import over

from fairlen.catalogue import describe_method, field_meanings
from fairlen.cli import main
from fairlen.methods.compose import compose, explain
from fairlen.methods.description import KINDS, set_fields
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES
from fairlen.methods.stages.micro import is_state

STAGES = [kind for kinds in KINDS.values() for kind in kinds]
NAMES = [*BASES, *(name for name in MODIFIERS if name != "dual_clip"), "eqlen+fspo+toplambda+kl+mismatch"]


@over("kind", STAGES)
def test_every_field_says_what_it_means(kind):
    assert {f.name for f in fields(kind) if not is_state(f)} <= set(field_meanings(kind))


@over("name", NAMES)
def test_every_setting_that_is_shown_can_be_set_so(name):
    method, shown = compose(name), 0
    for stages in describe_method(name)["choices"].values():
        for one in (field for stage in stages for field in stage["fields"]):
            assert set_fields(method, [f"{one['set']}={one['value']}"]) == method
            shown += 1
    assert shown >= 3  # at the least n, mask_truncated and a field of the aggregation


def test_what_a_composition_is_made_of():
    found = describe_method("balanced+dapo")
    assert [(part["name"], part["sets"]) for part in found["parts"]] == [
        ("dapo", "everything"),
        ("balanced", "aggregation"),
    ]
    assert found["notes"] == list(explain("dapo+balanced").notes)
    assert [stage["stage"] for stage in found["choices"]["reward"]] == ["SoftOverlong"]
    (clip,) = found["choices"]["surrogate"]
    assert {one["set"]: one["value"] for one in clip["fields"]}["surrogate.clip_high"] == 0.28
    assert found["choices"]["terms"] == []


def test_the_command(capsys):
    assert main(["methods", "cispo+balanced"]) == 0
    shown = capsys.readouterr().out
    assert "balanced replaces aggregation" in shown and "aggregation.scope" in shown
    assert "-sg[clip(rho)] A logprob" in " ".join(shown.replace("│", " ").split())  # brackets are text, not styles
    assert main(["methods", "fspo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(describe_method("fspo")))
