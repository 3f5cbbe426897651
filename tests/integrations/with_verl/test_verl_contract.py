"""The contract of the homes in verl: the trainer and the loss of its workers come to what fairlen's own trainer comes to.

Log-probs are given (1e-12); verl's own forward pass and its ranks are those of test_update.py (2e-5 of float32).
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from homes import EOS, RATE, Found, Own, make_model, padded_logprobs, weights_of
from in_process import make_row, make_trainer, train
from test_contract import CASES, METHODS, compare, method_of

from fairlen.batch import Response
from fairlen.integrations.verl import trainer as trainer_module
from fairlen.methods.tally import merge, update_metrics


class Verl:
    """verl's trainer with a method."""

    name = "verl"
    unknown: ClassVar[dict[str, str]] = {
        "gradient/norm": "verl logs it as actor/grad_norm",
        "learning_rate": "verl logs it as actor/lr",
        "tokens/forwarded": "verl's engines do not say how they pad",
        **{
            f"mismatch/{name}": "lengths of an update's rows are in the workers" for name in ("short", "middle", "long")
        },
    }

    def run(self, case, method, model, monkeypatch, names):
        found = []
        plan_batch = trainer_module.plan_batch

        def watched(*given, **others):
            found.append(plan_batch(*given, **others))
            return found[-1]

        monkeypatch.setattr(trainer_module, "plan_batch", watched)
        trainer = make_trainer(names, ["sampling.n=4"], limit=case.max_response_length, prompts=len(case.prompts))
        trainer.config.actor_rollout_ref.actor.ppo_epochs = case.num_updates
        trainer.eos_ids = frozenset((EOS,))
        assert trainer.method == method
        texts = [(case.prompts[number // case.num_tracks], row.token_ids) for number, row in enumerate(case.rows)]

        def forward(number):
            prompt, text = texts[number]
            logprobs, entropy = padded_logprobs(model, torch.tensor([[*prompt, *text]]), len(text))
            return logprobs[0], entropy[0]

        rows = []
        for number, row in enumerate(case.rows):
            old = forward(number)[0].detach()
            prompt, text = texts[number]
            response = Response(
                number // case.num_tracks, (*prompt, *text), len(prompt), tuple(old.tolist()), "stop", seed=number,
                outcome=row.verdict or 0.0,
            )  # fmt: skip
            info = {"acc": row.verdict or 0.0, "verdict": float(row.verdict is not None)}
            rows.append(make_row(response, 0, len(text), {"reward_extra_info": info}, row.mask) | {"ref_log_prob": old})
        weights, before = [p for p in model.parameters() if p.requires_grad], [weights_of(model)]
        original = trainer_module.FairLoss.finish_update

        def note(loss, *given):
            before.append(weights_of(model))
            return original(loss, *given)

        monkeypatch.setattr(trainer_module.FairLoss, "finish_update", note)
        workers, _, _ = train(trainer, rows, forward, weights, monkeypatch, rate=RATE)
        assert len(before) == case.num_updates + 1
        steps = [(one - two) / RATE for one, two in pairwise(before)]
        (planned,) = found
        columns = {name: np.asarray(getattr(planned.rows, name)) for name in ("advantage", "weight", "term_weight")}
        metrics = [update_metrics(reduce(merge, (counts for _, counts in update))) for update in workers.counts]
        scored = planned.scored
        assert workers.loss_fn.method == trainer.method
        return Found(
            scored.responses, scored.segments, columns, workers.planned, metrics, steps, trainer.method.state
        )  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_verl_comes_to_the_same_as_our_trainer(case, name, monkeypatch, tmp_path):
    ours = Own().run(CASES[case], method_of(name), make_model(), tmp_path)
    found = Verl().run(CASES[case], method_of(name), make_model(), monkeypatch, name)
    compare(found, ours, Verl(), 1e-12)
