"""One rollout batch in every home (fairlen's own trainer, TRL and verl): what goes in, and what has to come out.

A home is given the same rollouts, method and model, makes some updates with plain SGD, and hands back its tables, its plan on the
rows of the case, and the metrics and gradient of every update. The model has no attention: what a token is worth depends on the
token before it alone, not on where a framework pads, so that all homes work with the same log-probs to the last bits: those of
`padded_logprobs`, or with `own_forward` the framework's own. `unknown` are metrics that a home cannot have, and why.
"""

import json
import math
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pytest import MonkeyPatch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from fairlen import Skips, finish_update, plan_rows, playground, policy_loss
from fairlen.batch import Floats, Responses, Segments, stack_channels
from fairlen.channels import count_channels
from fairlen.loop.tally import merge, scored_metrics, state_metrics, update_metrics
from fairlen.methods.compose import compose
from fairlen.methods.method import PLANNED, Method, Scored, spread, updates
from fairlen.rollouts import Response, Rollouts

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
    def spans(self) -> list[tuple[int, int]]:
        """Where the policy wrote, turn by turn."""
        runs = [(is_own, len(list(run))) for is_own, run in groupby(self.mask or (1,) * len(self.token_ids))]
        stops = list(accumulate(length for _, length in runs))
        return [(stop - length, stop) for (is_own, length), stop in zip(runs, stops, strict=True) if is_own]

    def was_truncated(self, limit: int) -> bool:
        """The policy's last word is no EOS, or it had to read on to the limit."""
        stop = self.spans[-1][1]
        return self.token_ids[stop - 1] != EOS or stop < len(self.token_ids) == limit


@dataclass(frozen=True)
class Case:
    """A rollout batch of `prompts` with as many rows each, prompt after prompt."""

    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    max_response_length: int
    num_iterations: int = 2
    """How often every row trains; the very first update is on-policy."""
    num_updates: int = 1
    """That the rollout batch is split into, prompts whole; homes agree where these have equal lengths and verdicts."""

    @property
    def num_tracks(self) -> int:
        return len(self.rows) // len(self.prompts)


@dataclass
class Fault:
    """What is wrong with one update of a rollout batch that trains several times."""

    quantity: str = ""
    """Of which log-prob (`logprobs`, `old_logprobs`, `ref_logprobs`) or "gradient"; empty where nothing is wrong."""
    value: float = 0.0
    """What the log-prob of the row's first token is instead, or what the gradient of a parameter is multiplied by."""
    row: int = 0
    update: int = 1
    now: int = -1
    """The update that is being made."""

    def is_in(self, quantity: str) -> bool:
        return quantity == self.quantity and self.now == self.update

    def change(self, quantity: str, logprobs: Any, place: Any) -> Any:
        """Log-probs with one replaced, which has no gradient then."""
        if not self.is_in(quantity):
            return logprobs
        mask = torch.zeros_like(logprobs, dtype=torch.bool)
        mask[place] = True
        return logprobs.masked_fill(mask, self.value)

    def watch(self, model: torch.nn.Module) -> None:
        """Have the gradient of a parameter multiplied in the update."""
        weight = next(p for p in model.parameters() if p.requires_grad)
        weight.register_hook(lambda gradient: gradient * self.value if self.is_in("gradient") else gradient)


NONE = Fault()


@dataclass
class Found:
    """What a home came to."""

    responses: Responses
    segments: Segments
    plan: dict[str, Floats]
    """trains, advantage, weight and term_weight of every sequence of the case, as its update has them."""
    rollout_metrics: dict[str, float]
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Of every update."""
    gradients: list[Tensor] = field(default_factory=list)
    """Of the loss, all parameters in one row, of every update."""
    state: dict[str, float] = field(default_factory=dict)
    folder: Path = Path()
    """The run folder."""


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


@cache
def read_tokenizer() -> Any:
    """The playground's, whose last two tokens open and close the thinking."""
    tokenizer = AutoTokenizer.from_pretrained(playground.PATH)
    text = tokenizer.backend_tokenizer.to_str().replace('"c"', '"<think>"').replace('"?"', '"</think>"')
    special = {name: getattr(tokenizer, name) for name in ("eos_token", "bos_token", "pad_token")}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **special)


def decode(token_ids: Any) -> str:
    """As that tokenizer, without special tokens."""
    return read_tokenizer().decode(token_ids, skip_special_tokens=True)


def method_of(case: Case, name: str) -> Method:
    """The method of "NAMES OVERRIDE", with as many responses to a prompt as the case has."""
    names, *overrides = name.split()
    return compose(names, [f"sampling.n={case.num_tracks}", *overrides])


def drift(length: int) -> Tensor:
    """The engine's log-probs of a response of so many tokens minus the trainer's, [L]."""
    return 0.1 * torch.sin(1.7 * torch.arange(length, dtype=torch.float64) + length)


def effort_of(prompt: int) -> str:
    """A column of the data."""
    return ("low", "high")[prompt % 2]


def say(case: Case, number: int) -> dict[str, float | None]:
    """What two reward functions say of a row; the second has weight 0."""
    verdict = case.rows[number].verdict
    return {"correct": verdict, "style": None if verdict is None else number % 8 % 5 / 4}


def spend(case: Case) -> list[dict[str, int]]:
    """The tokens of each row by channel; none where all are an answer."""
    starts = [len(prompt) for prompt in case.prompts for _ in range(case.num_tracks)]
    ids = [(*case.prompts[n // case.num_tracks], *row.token_ids) for n, row in enumerate(case.rows)]
    spans = [[(at + a, at + b) for a, b in row.spans] for at, row in zip(starts, case.rows, strict=True)]
    return [count_channels(one, of, read_tokenizer().decode) for one, of in zip(ids, spans, strict=True)]


class Own:
    """fairlen's own trainer, whose responses have their turns."""

    name = "own"
    unknown: ClassVar[dict[str, str]] = {}

    def run(self, case: Case, name: str, model: PreTrainedModel, folder: Path, own_forward=False, fault=NONE) -> Found:
        from fairlen.integrations.run_folder import name_prompt
        from fairlen.loop.folder import RunFolder
        from fairlen.policy.model import Policy, make_head
        from fairlen.tasks.task import Problem
        from fairlen.train.loop import recount
        from fairlen.train.records import BatchRecord, describe_update, rollout_metrics
        from fairlen.train.step import Learner

        class FaultyLearner(Learner):
            """One whose micro-batches have the fault."""

            def accumulate(self, method: Method, packed: Any, *given: Any) -> None:
                micro, forward = packed.micro, policy.forward
                old = fault.change("old_logprobs", micro.old_logprobs, find(packed))

                def wrong(*inputs: Any) -> Any:
                    found = forward(*inputs)
                    return replace(found, logprobs=fault.change("logprobs", found.logprobs, find(packed)))

                policy.forward = wrong
                super().accumulate(method, replace(packed, micro=replace(micro, old_logprobs=old)), *given)
                policy.forward = forward

            def with_reference(self, packed: Any) -> Any:
                micro = super().with_reference(packed)
                return replace(micro, ref_logprobs=fault.change("ref_logprobs", micro.ref_logprobs, find(packed)))

        def find(packed: Any) -> Any:
            rows = packed.rows.tolist()
            return int(packed.micro.length[: rows.index(fault.row)].sum()) if fault.row in rows else slice(0)

        policy, method = Policy(model, None, make_head(model)), method_of(case, name)
        rollouts = self.rollouts(case, model, method)
        optimizer = torch.optim.SGD(policy.trained().values(), lr=RATE)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        fault.watch(model)
        learner = FaultyLearner(policy, optimizer, schedule, math.inf, max_tokens=40)
        if method.needs_ref:
            reference = make_model()
            reference.load_state_dict(model.state_dict())
            learner.reference = Policy(reference, None, make_head(reference))
        scored = method.score(rollouts, [{"effort": effort_of(n)} for n in range(len(case.prompts))])
        made = [*updates(scored, case.num_updates)]
        plans = [method.weigh(update) for update in made]
        olds = [learner.old_logprobs(rollouts, plan) for plan in plans]
        if method.recounts:
            plans = [recount(method, rollouts, *one) for one in zip(made, olds, strict=True)]
        columns = [spread(plan, len(scored.segments)) for plan in plans]
        plan = {name: sum(part[name] for part in columns) for name in columns[0]}
        found = Found(scored.responses, scored.segments, plan, scored_metrics(scored, method), folder=folder)
        named = [Problem(name_prompt(ids), decode(ids), ids, "") for ids in case.prompts]
        log, record = RunFolder(folder), BatchRecord(0, rollouts, tuple(named), scored, decode)
        num_made = 0
        for number, (plan, old) in enumerate([*zip(plans, olds, strict=True)] * case.num_iterations):
            before, fault.now = weights_of(model), number
            result = learner.step(method, rollouts, plan, old, is_on_policy=num_made == 0)
            num_made += not result.quantity
            found.gradients.append((before - weights_of(model)) / RATE)
            told = describe_update(result, RATE) if not result.quantity else {}
            found.metrics.append(told | {"updates/skipped": float(number + 1 - num_made)})
            method = result.method
            own = plans[number % len(plans)]
            record.add_update(number + 1, own.rows, own.weight, *result.measured)
            told = rollout_metrics(rollouts, scored, method) | found.metrics[-1] | state_metrics(method)
            log.log({"update": number + 1, "rollout_batch": 0} | told | {"updates/skipped": 0})
        record.write(log.records)
        found.state = method.state
        return found

    def rollouts(self, case: Case, model: PreTrainedModel, method: Method) -> Rollouts:
        """The case as our samplers return it; the engine's log-probs are the model's own."""
        responses, spent = [], spend(case)
        for number, row in enumerate(case.rows):
            prompt = number // case.num_tracks
            start, stop = len(case.prompts[prompt]), row.spans[-1][1]
            ids, turns = (*case.prompts[prompt], *row.token_ids[:stop]), row.spans if row.mask else ()
            with torch.no_grad():
                logprobs = padded_logprobs(model, torch.tensor([ids]), stop)[0] + drift(len(row.token_ids))[:stop]
            said = {name: value for name, value in say(case, number).items() if value is not None}
            responses.append(
                Response(
                    prompt, ids, start, tuple(x for a, b in row.spans for x in logprobs[0, a:b].tolist()),
                    "length" if row.was_truncated(case.max_response_length) else "stop", seed=number,
                    track=number % case.num_tracks, outcome=row.verdict or 0.0, active=row.verdict is not None,
                    status={None: "timeout", 1.0: "correct"}.get(row.verdict, "incorrect"),  # type: ignore[arg-type]
                    turns=tuple((start + a, start + b) for a, b in turns), channels=spent[number], outcomes=said,
                )
            )  # fmt: skip
        return Rollouts(tuple(responses), method.sampling.cut(tuple(responses)), case.max_response_length)


class Trl:
    """TRL's GRPOTrainer with a method."""

    name = "trl"
    unknown: ClassVar[dict[str, str]] = {
        "gradient/norm": "TRL logs it as grad_norm",
        "learning_rate": "TRL logs it itself, by the same name",
        "tokens/forwarded": "TRL's forward pass does not say how it pads",
    } | {
        f"mismatch/{name}": "without vLLM TRL's generation does not say how likely its tokens were"
        for name in ("mean", "max", "kl", "short", "long")
    }

    def run(self, case: Case, name: str, model: PreTrainedModel, folder: Path, own_forward=False, fault=NONE) -> Found:
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl.trainer import grpo_trainer
        from trl.trainer.grpo_config import GRPOConfig

        from fairlen.integrations.trl import FairGRPOTrainer

        method, num_parts = method_of(case, name), 2 * case.num_updates

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

            def gather_responses(self, output: Any, current: Any) -> Any:
                ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
                sizes = output["completion_mask"].sum(1).tolist()
                old = output.get("old_per_token_logps", padded_logprobs(model, ids, max(sizes))[0].detach())
                told = old + pad_sequence([*map(drift, sizes)], batch_first=True)  # as with vLLM
                output.update(old_per_token_logps=old, sampling_per_token_logps=told)
                return super().gather_responses(output, current)

            def _get_per_token_logps_and_entropies(
                self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any, *others: Any, **options: Any
            ) -> Any:
                if own_forward:
                    arguments = (model, input_ids, attention_mask, logits_to_keep, *others)
                    return super()._get_per_token_logps_and_entropies(*arguments, **options)
                return *padded_logprobs(model, input_ids, logits_to_keep), None

            def method_loss(self, inputs: Any, logprobs: Any, entropy: Any) -> Any:
                number, size = fault.row - (self._step % num_parts) * len(logprobs), len(logprobs)
                row = number if 0 <= number < size else slice(0)
                names = {"old_per_token_logps": "old_logprobs", "ref_per_token_logps": "ref_logprobs"}
                wrong = {k: fault.change(v, inputs[k], (row, 0)) for k, v in names.items() if inputs.get(k) is not None}
                return super().method_loss(inputs | wrong, fault.change("logprobs", logprobs, (row, 0)), entropy)

            def report(self, scored: Scored, plan: Any, advantages: Any) -> None:
                super().report(scored, plan, advantages)
                columns = spread(plan, len(scored.segments))  # weights are those of an update once they meet the loss
                columns |= {name: columns[name] * self.updates_per_batch for name in ("weight", "term_weight")}
                found.append(Found(scored.responses, scored.segments, columns, {}))

        class Watch(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.before, fault.now = weights_of(model), fault.now + 1

            def on_step_end(self, *_: Any, **__: Any) -> None:
                found[0].gradients.append((self.before - weights_of(model)) / RATE)

        def correct(completions: Any, **_: Any) -> list[float | None]:
            return [say(case, number)["correct"] for number in range(len(case.rows))]

        def style(completions: Any, **_: Any) -> list[float | None]:
            return [say(case, number)["style"] for number in range(len(case.rows))]

        found: list[Found] = []
        fault.watch(model)
        if method.needs_ref:  # TRL loads the reference by the name of the model
            model.save_pretrained(folder / "model")
            model.config._name_or_path = str(folder / "model")
        trainer = Given(
            model=model,
            max_extra_batches=0,  # the rollouts are those of the case
            processing_class=deepcopy(read_tokenizer()),
            reward_funcs=[correct, style],
            args=GRPOConfig(
                str(folder), per_device_train_batch_size=len(case.rows) // num_parts, gradient_accumulation_steps=2,
                steps_per_generation=num_parts, num_generations=case.num_tracks, num_iterations=case.num_iterations,
                max_steps=case.num_updates * case.num_iterations,
                max_completion_length=case.max_response_length, learning_rate=RATE, lr_scheduler_type="constant", optim="sgd",
                max_grad_norm=1e9, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", logging_steps=1,
                save_strategy="no", disable_tqdm=True, shuffle_dataset=False, reward_weights=[1.0, 0.0],
            ),
            train_dataset=Dataset.from_list([{"prompt": str(n), "effort": effort_of(n)} for n in range(len(case.prompts))]),
            callbacks=[Watch()],
            method=method,
        )  # fmt: skip
        if trainer.ref_model is not None:
            reference: Any = trainer.ref_model
            reference.double().load_state_dict(model.state_dict())
        with MonkeyPatch.context() as patch:  # rows stay in their order, so that prompts stay whole
            patch.setattr(grpo_trainer, "shuffle_sequence_dict", lambda rows: rows)
            trainer.train()
        logged = [entry for entry in trainer.state.log_history if "updates/skipped" in entry]
        found[0].metrics, found[0].rollout_metrics, found[0].state = logged, logged[0], trainer.method.state
        found[0].folder = folder
        return found[0]


class Verl:
    """verl's trainer with a method, and its workers in this process."""

    name = "verl"
    unknown: ClassVar[dict[str, str]] = {
        "gradient/norm": "verl logs it as actor/grad_norm",
        "learning_rate": "verl logs it as actor/lr",
        "tokens/forwarded": "verl's engines do not say how they pad",
    }

    def run(self, case: Case, name: str, model: PreTrainedModel, folder: Path, own_forward=False, fault=NONE) -> Found:
        from in_process import make_engine, make_row, make_trainer, train

        from fairlen.integrations.run_folder import HomeRun
        from fairlen.integrations.verl import trainer as trainer_module
        from fairlen.integrations.verl.loss import read_plan

        def forward(number: int) -> tuple[Tensor, Tensor]:
            prompt, text = case.prompts[number // case.num_tracks], case.rows[number].token_ids
            logprobs, entropy = padded_logprobs(model, torch.tensor([[*prompt, *text]]), len(text))
            fault.now = len(trainer.actor_rollout_wg.losses) - 1 if hasattr(trainer, "actor_rollout_wg") else -1
            return fault.change("logprobs", logprobs[0], 0 if number == fault.row else slice(0)), entropy[0]

        def read_wrong(loss: Any, data: Any, mask: Any, length: Any, dtype: Any) -> Any:
            micro = read_micro(loss, data, mask, length, dtype)
            if not fault.quantity:
                return micro
            rows = read_plan(data, "row").tolist()
            place = int(length[: rows.index(fault.row)].sum()) if fault.row in rows else slice(0)
            names = [name for name in ("old_logprobs", "ref_logprobs") if getattr(micro, name) is not None]
            return replace(micro, **{name: fault.change(name, getattr(micro, name), place) for name in names})

        def plan_batch(*given: Any) -> Any:
            planned.append(plan_whole(*given))
            return planned[0]

        def finish_update(loss: Any, *given: Any) -> None:
            weights.append(weights_of(model))
            end_update(loss, *given)

        plan_whole, end_update = trainer_module.plan_batch, trainer_module.FairLoss.finish_update
        read_micro = trainer_module.FairLoss.read_micro
        planned, weights = list[Any](), [weights_of(model)]
        names, *overrides = name.split()
        trainer = make_trainer(
            names, [f"sampling.n={case.num_tracks}", *overrides], limit=case.max_response_length, prompts=len(case.prompts),
            updates=case.num_updates,
        )  # fmt: skip
        trainer.config.actor_rollout_ref.actor.ppo_epochs = case.num_iterations
        trainer.eos_ids, trainer.run = frozenset((EOS,)), HomeRun(folder, decode)
        trainer.tokenizer = read_tokenizer()
        rows = []
        for number, row in enumerate(case.rows):
            old, prompt = forward(number)[0].detach(), number // case.num_tracks
            ids, start = (*case.prompts[prompt], *row.token_ids), len(case.prompts[prompt])
            response = Response(prompt, ids, start, tuple(old.tolist()), "stop", number, outcome=row.verdict or 0.0)
            info = {**say(case, number), "acc": row.verdict or 0.0, "verdict": float(row.verdict is not None)}
            given = make_row(response, 0, response.length, {"reward_extra_info": info}, row.mask)
            given |= {"old_log_probs": old, "ref_log_prob": old, "rollout_log_probs": old + drift(len(row.token_ids))}
            rows.append(given | {"extra_info": {"effort": effort_of(prompt)}})
        parameters = [p for p in model.parameters() if p.requires_grad]
        fault.watch(model)
        with MonkeyPatch.context() as patch:
            patch.setattr(trainer_module, "plan_batch", plan_batch)
            patch.setattr(trainer_module.FairLoss, "finish_update", finish_update)
            patch.setattr(trainer_module.FairLoss, "read_micro", read_wrong)
            engine = make_engine(model, patch) if own_forward else None
            workers, _, _ = train(trainer, rows, forward, parameters, patch, rate=RATE, engine=engine)
        assert workers.loss_fn.method == trainer.method
        ((scored, columns),) = planned
        logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found = {name: columns[name][columns["length"] > 0] for name in ("trains", *PLANNED)}
        counted = [update_metrics(reduce(merge, (counts for _, counts, _ in update))) for update in workers.counts]
        skipped = [{"updates/skipped": entry["updates/skipped"]} for entry in logged]
        metrics = [own | added for own, added in zip(counted, skipped, strict=True)]
        gradients = [(before - after) / RATE for before, after in pairwise(weights)]
        tables = scored.responses, scored.segments, found, workers.planned
        return Found(*tables, metrics, gradients, trainer.method.state, folder)


@dataclass(frozen=True)
class Plain:
    """A loop of somebody's own, as in docs/anywhere.md, which keeps no records."""

    gives_old: bool = False
    """In the first epoch too, where every ratio is 1."""

    name: ClassVar[str] = "plain"
    unknown: ClassVar[dict[str, str]] = Verl.unknown

    def run(self, case: Case, name: str, model: PreTrainedModel, folder: Path, own_forward=False, fault=NONE) -> Found:
        method, skips, fault.now = method_of(case, name), Skips(), -1
        sizes = [len(row.token_ids) for row in case.rows]
        graded = [row.verdict or 0.0 for row in case.rows]
        groups = [number // case.num_tracks for number in range(len(case.rows))]
        channels = stack_channels(spend(case), np.array(sizes))
        named: list[dict[str, Any]] = [
            {"effort": effort_of(group), "num_read": len(case.prompts[group]), **say(case, number)}
            for number, group in enumerate(groups)
        ]
        plan = plan_rows(
            method, groups=groups, lengths=sizes, rewards=graded, max_response_length=case.max_response_length,
            channels=channels, columns={name: [row[name] for row in named] for name in method.reads},
        ).to("cpu", torch.float64)  # fmt: skip
        mask = torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=RATE)
        fault.watch(model)

        def log_probs(rows: list[int]) -> Tensor:
            found = torch.zeros(len(rows), max(sizes), dtype=torch.float64)
            for place, row in enumerate(rows):
                ids = torch.tensor([[*case.prompts[groups[row]], *case.rows[row].token_ids]])
                own = padded_logprobs(model, ids, sizes[row])[0][0]
                found = found.index_put((torch.tensor(place), torch.arange(sizes[row])), own)
            return found

        parts = torch.arange(len(sizes)).split(4)
        old = log_probs(list(range(len(sizes)))).detach()
        told = old + pad_sequence([*map(drift, sizes)], batch_first=True)
        made, metrics, gradients = 0, [], []
        for fault.now in range(case.num_iterations):
            counts, before = [], weights_of(model)
            for rows in parts:
                place = ((rows == fault.row).nonzero().flatten(), 0)
                given = {"logprobs": log_probs(rows.tolist()), "old_logprobs": old[rows], "ref_logprobs": old[rows]}
                given = {key: fault.change(key, values, place) for key, values in given.items()}
                if not (made or self.gives_old):
                    del given["old_logprobs"]
                loss = policy_loss(method, plan[rows], mask=mask[rows], rollout_logprobs=told[rows], **given)
                loss.total.backward()
                counts.append(loss.counts)
            done = finish_update(method, counts, torch.nn.utils.clip_grad_norm_(parameters, 1e9), skips)
            if done.may_step:
                optimizer.step()
            optimizer.zero_grad()
            method, made = done.method, made + done.may_step
            metrics.append(done.metrics)
            gradients.append((before - weights_of(model)) / RATE)
        return Found(None, None, {}, {}, metrics, gradients, method.state)  # type: ignore[arg-type]


HOMES: tuple[Any, ...] = (Own(), Trl(), Verl())
