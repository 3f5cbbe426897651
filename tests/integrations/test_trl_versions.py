"""A TRL whose trainer has changed is refused in one line that says what changed; each override is there for a reason."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")

from trl.trainer.grpo_trainer import GRPOTrainer

from fairlen.integrations.trl import FairGRPOTrainer, trainer
from fairlen.integrations.trl.versions import CALLED, OVERRIDDEN, refuse_changed


def changed(**methods: Any) -> type:
    return type("GRPOTrainer", (GRPOTrainer,), methods)


def test_this_trl_is_taken():
    refuse_changed()


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        (
            "_compute_loss",
            lambda self, model, inputs, num_items: None,
            "GRPOTrainer._compute_loss takes (model, inputs, num_items), and FairGRPOTrainer overrides one that takes "
            "(model, inputs)",
        ),
        ("_generate", None, "GRPOTrainer has no _generate, which FairGRPOTrainer needs"),
        (
            "_get_per_token_logps_and_entropies",
            lambda self, model, input_ids, attention_mask, logits_to_keep: None,
            "(model, input_ids, attention_mask, logits_to_keep) is called with (model, input_ids, attention_mask, "
            "logits_to_keep, compute_entropy, compute_aux_loss): got an unexpected keyword argument 'compute_entropy'",
        ),
        (
            "_tokenize_prompts",
            lambda self, prompts, images: None,
            "(prompts, images) is called with (prompts): missing a required argument: 'images'",
        ),
    ],
)
def test_what_changed_is_said_in_one_line(name, method, message):
    with pytest.raises(ImportError, match=re.escape(message)) as caught:
        refuse_changed(changed(**{name: method}), "9.9.9")
    assert str(caught.value).startswith("trl 9.9.9: GRPOTrainer") and "\n" not in str(caught.value)


def test_optional_parameters_may_come_where_we_call_and_not_where_we_override():
    """What is called may have more that need not be given; what is overridden would be given what ours does not take."""
    refuse_changed(changed(_tokenize_prompts=lambda self, prompts, images=None: None))
    with pytest.raises(ImportError, match="_compute_loss takes"):
        refuse_changed(changed(_compute_loss=lambda self, model, inputs, scale=1.0: None))


def test_the_table_is_what_the_code_does():
    """Private methods that ours defines, and those that our files call, are in the tables, and nothing else is."""
    own = {name for name, value in vars(FairGRPOTrainer).items() if inspect.isfunction(value)}
    taken = {name for name in own if hasattr(GRPOTrainer, name) and not name.startswith("__")}
    passes_on = {"_generate_single_turn", "_get_per_token_logps_and_entropies"}  # whatever they are given
    assert taken - passes_on == set(OVERRIDDEN)
    sources = "".join(
        path.read_text() for path in Path(trainer.__file__).parent.glob("*.py") if path.name != "versions.py"
    )
    calls = set(re.findall(r"\b(?:self|trainer|super\(\))\.(_[a-z]\w*)\(", sources))
    assert {name for name in calls if callable(getattr(GRPOTrainer, name, None))} - set(OVERRIDDEN) == set(CALLED)


def test_ours_takes_what_trl_gives():
    for name, expected in OVERRIDDEN.items():
        inspect.signature(getattr(FairGRPOTrainer, name)).bind(None, *expected)
