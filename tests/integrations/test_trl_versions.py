"""A TRL whose trainer has changed is refused in one line that says what changed; each override is there for a reason."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")

from trl.trainer.grpo_trainer import GRPOTrainer

from fairlen.integrations.trl import FairGRPOTrainer, trainer
from fairlen.integrations.trl.versions import CALLED, OVERRIDDEN, TESTED, refuse_changed


def changed(**methods: Any) -> type:
    return type("GRPOTrainer", (GRPOTrainer,), methods)


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        (
            "_compute_loss",
            lambda self, model, inputs, num_items: None,
            "GRPOTrainer._compute_loss takes (model, inputs, num_items), and FairGRPOTrainer overrides one that takes "
            "(model, inputs)",
        ),
        ("_generate", None, "there is no GRPOTrainer._generate, which FairGRPOTrainer needs"),
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
    assert str(caught.value).startswith("trl 9.9.9: ") and "\n" not in str(caught.value)
    assert str(caught.value).endswith(f"; tested with trl{TESTED}: pip install 'trl{TESTED}'")


def test_a_function_that_moved_is_named(monkeypatch):
    """Beside what is called: TRL 1.15 has `parse_response` without the tools that it is given."""
    monkeypatch.setitem(CALLED, "trl.models.utils:not_there", ((), ()))
    monkeypatch.setitem(CALLED, "trl.chat_template_utils:parse_response", (("tokenizer",), ()))
    message = (
        r"trl\.chat_template_utils\.parse_response\(.* is called with \(tokenizer\): .*'ids'; there is no trl\.models\."
    )
    with pytest.raises(ImportError, match=message):
        refuse_changed()


def test_versions(monkeypatch):
    oldest, newest = re.fullmatch(r">=(\d+\.\d+),<(\d+\.\d+)", TESTED).groups()
    refuse_changed(version=f"{oldest}.0")
    for version in ("1.2.3", f"{newest}.0"):
        with pytest.raises(ImportError, match=rf"trl {version}: .* tested with trl{TESTED}: .* FAIRLEN_ANY_TRL=1"):
            refuse_changed(version=version)
    monkeypatch.setenv("FAIRLEN_ANY_TRL", "1")
    refuse_changed(version="1.2.3")


def test_optional_parameters_may_come_where_we_call_and_not_where_we_override():
    """What is called may have more that need not be given; what is overridden would be given what ours does not take."""
    refuse_changed(changed(_tokenize_prompts=lambda self, prompts, images=None: None))
    with pytest.raises(ImportError, match="_compute_loss takes"):
        refuse_changed(changed(_compute_loss=lambda self, model, inputs, scale=1.0: None))


def read_sources() -> str:
    folder = Path(trainer.__file__).parent
    return "".join(path.read_text() for path in sorted(folder.glob("*.py")) if path.name != "versions.py")


def test_the_tables_of_methods_are_what_the_code_does():
    """Private methods that ours defines, those that our files call, and functions of TRL's own modules; nothing else."""
    own = {name for name, value in vars(FairGRPOTrainer).items() if inspect.isfunction(value)}
    taken = {name for name in own if hasattr(GRPOTrainer, name) and not name.startswith("__")}
    passes_on = {"_generate_single_turn", "_get_per_token_logps_and_entropies"}  # whatever they are given
    assert taken - passes_on == set(OVERRIDDEN)
    calls = set(re.findall(r"\b(?:self|trainer|super\(\))\.(_[a-z]\w*)\(", read_sources()))
    methods = {name for name in calls if callable(getattr(GRPOTrainer, name, None))} - set(OVERRIDDEN)
    public = r"^from (trl\.(?!trainer\.)\S+) import (\w+)$"  # trl.trainer has what TRL documents
    functions = {":".join(found) for found in re.findall(public, read_sources(), re.M)}
    assert methods | functions == set(CALLED)


def test_ours_takes_what_trl_gives():
    for name, expected in OVERRIDDEN.items():
        inspect.signature(getattr(FairGRPOTrainer, name)).bind(None, *expected)
