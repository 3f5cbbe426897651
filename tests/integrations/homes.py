"""One rollout batch in every home: what goes in, what has to come out, and fairlen's own trainer and TRL as homes.

A home is given the same rollouts, method and model, makes some updates with plain SGD, and hands back its tables, its plan on the
rows of the case, and the metrics and gradient of every update. The model has no attention: what a token is worth depends on the
token before it alone, not on where a framework pads, so that all homes work with the same log-probs to the last bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from fairlen.batch import Floats, Response, Responses, Rollouts, Segments, whole_segments
from fairlen.methods.method import Method, Scored, updates
from fairlen.methods.tally import observed, scored_metrics

EOS, FIRST, VOCABULARY, RATE = 1, 3, 21, 0.5


@dataclass(frozen=True)
class Row:
    """One response of a case."""

    token_ids: tuple[int, ...]
    """Generated tokens and those of tools, without the prompt."""
    verdict: float | None
    """1 correct, 0 incorrect, None where nobody could grade it."""
    mask: tuple[int, ...] = ()
    """1 on generated tokens; empty where all are."""

    @property
    def generated(self) -> tuple[int, ...]:
        """The tokens without those of tools."""
        return tuple(
            ids for ids, is_own in zip(self.token_ids, self.mask or (1,) * len(self.token_ids), strict=True) if is_own
        )


@dataclass(frozen=True)
class Case:
    """A rollout batch of `prompts` with as many rows each, prompt after prompt."""

    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    max_response_length: int
    num_updates: int = 2
    """Of the whole rollout batch; the first is on-policy."""

    @property
    def num_tracks(self) -> int:
        return len(self.rows) // len(self.prompts)


@dataclass
class Found:
    """What a home came to."""

    responses: Responses
    segments: Segments
    plan: dict[str, Floats]
    """advantage, weight and term_weight of every row of the case, 0 where it does not train."""
    rollout_metrics: dict[str, float]
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Of every update."""
    gradients: list[Tensor] = field(default_factory=list)
    """Of the loss, all parameters in one row, of every update."""
    state: dict[str, float] = field(default_factory=dict)


class Home(Protocol):
    """A trainer that fairlen's methods live in."""

    name: str
    unknown: dict[str, str]
    """Metrics that it cannot have, and why."""

    def run(self, case: Case, method: Method, model: PreTrainedModel, folder: Path, own_forward: bool = False) -> Found:
        """With `own_forward` log-probs are the framework's own; else `padded_logprobs` of the model, the same in every home."""
        ...


def make_model(seed: int = 0) -> PreTrainedModel:
    """Embeddings, a norm and a head in float64: the next token depends on the last one alone."""
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=0, n_embd=8, n_head=1, vocab_size=VOCABULARY, n_positions=64, eos_token_id=EOS, bos_token_id=None,
        initializer_range=0.5, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    model.transformer.wpe.weight.requires_grad_(False)
    return model


def weights_of(model: torch.nn.Module) -> Tensor:
    """All trained parameters in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def padded_logprobs(model: PreTrainedModel, input_ids: Tensor, num_last: int) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies) of the last tokens of padded rows, [N, num_last] each, in the model's precision."""
    table = model(input_ids=input_ids).logits[:, :-1].log_softmax(-1)
    found = table.gather(-1, input_ids[:, 1:, None])[..., 0], -(table.exp() * table).sum(-1)
    return found[0][:, -num_last:], found[1][:, -num_last:]


def plan_on_rows(scored: Scored, method: Method, num_rows: int) -> dict[str, Floats]:
    """The plan of whole responses as one update."""
    found = {name: np.zeros(num_rows) for name in ("advantage", "weight", "term_weight")}
    for update in updates(scored):
        plan = method.weigh(update)
        for name, column in found.items():
            column[plan.rows] = getattr(plan, name)
    return found


class Own:
    """fairlen's own trainer. A response is generated tokens alone: tokens of tools are left out, which the model does not notice
    where they repeat the token before them."""

    name = "own"
    unknown: ClassVar[dict[str, str]] = {}

    def run(self, case: Case, method: Method, model: PreTrainedModel, folder: Path, own_forward: bool = False) -> Found:
        from fairlen.policy.model import Policy, make_head
        from fairlen.train.metrics import describe_update
        from fairlen.train.step import Learner

        policy = Policy(model, None, make_head(model))
        rollouts = self.rollouts(case, model)
        optimizer = torch.optim.SGD(policy.trained().values(), lr=RATE)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        learner = Learner(policy, optimizer, schedule, math.inf, max_tokens=40)
        if method.needs_ref:
            reference = make_model()
            reference.load_state_dict(model.state_dict())
            learner.reference = Policy(reference, None, make_head(reference))
        scored = method.score(rollouts)
        (update,) = updates(scored)
        plan = method.weigh(update)
        found = Found(
            scored.responses,
            scored.segments,
            plan_on_rows(scored, method, len(case.rows)),
            scored_metrics(scored, method),
        )
        old = learner.old_logprobs(rollouts, plan)
        for number in range(case.num_updates):
            before = weights_of(model)
            result = learner.step(method, rollouts, plan, old, is_on_policy=number == 0)
            found.gradients.append((before - weights_of(model)) / RATE)
            found.metrics.append(describe_update(plan, result, RATE))
            method = method.update(observed(result.counts))
        found.state = method.state
        return found

    def rollouts(self, case: Case, model: PreTrainedModel) -> Rollouts:
        """The case as our samplers return it; the engine's log-probs are the model's own."""
        responses = []
        for number, row in enumerate(case.rows):
            prompt = number // case.num_tracks
            ids, start = (*case.prompts[prompt], *row.generated), len(case.prompts[prompt])
            with torch.no_grad():
                table = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            logprobs = table[start - 1 : -1].gather(1, torch.tensor(ids[start:])[:, None])[:, 0]
            responses.append(
                Response(
                    prompt, ids, start, tuple(logprobs.tolist()), "stop" if ids[-1] == EOS else "length", seed=number,
                    track=number % case.num_tracks, outcome=row.verdict or 0.0, active=row.verdict is not None,
                    status={None: "timeout", 1.0: "correct"}.get(row.verdict, "incorrect"),  # type: ignore[arg-type]
                )
            )  # fmt: skip
        return Rollouts(tuple(responses), whole_segments(responses), case.max_response_length)


class Trl:
    """TRL's GRPOTrainer with a method."""

    name = "trl"
    unknown: ClassVar[dict[str, str]] = {
        "gradient/norm": "TRL logs it as grad_norm",
        "learning_rate": "TRL logs it itself, by the same name",
        "tokens/forwarded": "TRL's forward pass does not say how it pads",
    } | {
        f"mismatch/{name}": "without vLLM TRL's generation does not say how likely its tokens were"
        for name in ("mean", "max", "kl", "short", "middle", "long")
    }

    def run(self, case: Case, method: Method, model: PreTrainedModel, folder: Path, own_forward: bool = False) -> Found:
        from datasets import Dataset
        from transformers import AutoTokenizer, TrainerCallback
        from trl.trainer.grpo_config import GRPOConfig

        from fairlen import playground
        from fairlen.integrations.trl import FairGRPOTrainer

        class Given(FairGRPOTrainer):
            """The rollouts of the case in place of generation."""

            def _tokenize_prompts(self, prompts: Any) -> Any:
                return [list(case.prompts[int(text)]) for text in prompts], None, {}

            def _generate_single_turn(self, *_: Any, **__: Any) -> Any:
                return [list(row.token_ids) for row in case.rows], None

            def _generate(self, prompts: Any) -> Any:
                given = list(super()._generate(prompts))
                if any(row.mask for row in case.rows):
                    given[2] = [list(row.mask or (1,) * len(row.token_ids)) for row in case.rows]
                return tuple(given)

            def _get_per_token_logps_and_entropies(
                self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any, *others: Any, **options: Any
            ) -> Any:
                if own_forward:
                    arguments = (model, input_ids, attention_mask, logits_to_keep, *others)
                    return super()._get_per_token_logps_and_entropies(*arguments, **options)
                return *padded_logprobs(model, input_ids, logits_to_keep), None

            def report(self, scored: Scored, plan: Any, advantages: Any) -> None:
                super().report(scored, plan, advantages)
                columns = {name: getattr(plan, name) for name in ("advantage", "weight", "term_weight")}
                found.append(Found(scored.responses, scored.segments, columns, {}))

        class Watch(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.before = weights_of(model)

            def on_step_end(self, *_: Any, **__: Any) -> None:
                found[0].gradients.append((self.before - weights_of(model)) / RATE)

        found: list[Found] = []
        if method.needs_ref:  # TRL loads the reference by the name of the model
            model.save_pretrained(folder / "model")
            model.config._name_or_path = str(folder / "model")
        trainer = Given(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
            reward_funcs=lambda completions, **_: [row.verdict for row in case.rows],
            args=GRPOConfig(
                str(folder), per_device_train_batch_size=len(case.rows) // 2, gradient_accumulation_steps=2,
                num_generations=case.num_tracks, num_iterations=case.num_updates, max_steps=case.num_updates,
                max_completion_length=case.max_response_length, learning_rate=RATE, lr_scheduler_type="constant", optim="sgd",
                max_grad_norm=1e9, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", logging_steps=1,
                save_strategy="no", disable_tqdm=True, shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(len(case.prompts))]),
            callbacks=[Watch()],
            method=method,
        )  # fmt: skip
        if trainer.ref_model is not None:
            reference: Any = trainer.ref_model
            reference.double().load_state_dict(model.state_dict())
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "loss/total" in entry]
        found[0].metrics, found[0].rollout_metrics, found[0].state = logged, logged[0], trainer.method.state
        return found[0]


HOMES: tuple[Any, ...] = (Own(), Trl())
