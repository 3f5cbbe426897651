"""TRL's trainer with a method: each row carries its advantage and weight through TRL's shuffling and splitting to `method.loss`.

The loss of a micro-batch is the plain sum, times the updates of a rollout batch (which share its weights), times the processes
(whose gradients are averaged).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.logging import get_logger
from accelerate.utils import DistributedType
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from fairlen.batch import Plan
from fairlen.integrations.rows import TreeReader, fold, group_by_row, mark_depth
from fairlen.integrations.run_folder import NOWHERE, resume_method, save_method
from fairlen.integrations.trl import rows as trl_rows
from fairlen.integrations.trl.generation import Run, Sampled, first_advantages, has_whole_model, run_on_engine, sample
from fairlen.integrations.trl.recording import Recorder
from fairlen.integrations.trl.refill import Refill, share_passes
from fairlen.integrations.trl.settings import (
    REMEDIES,
    check_threshold,
    find_row_readers,
    list_overrides,
    prepare,
    refuse_defaults,
    warn_of_dropout,
)
from fairlen.integrations.trl.versions import refuse_changed
from fairlen.loop.learning_signal import FIRST_LOGS, LearningSignal
from fairlen.loop.tally import count, measure_sequences, scored_metrics, state_metrics
from fairlen.loop.update import Skips, finish_update
from fairlen.methods.compose import DEFAULT_METHOD, Composition
from fairlen.methods.description import list_stages
from fairlen.methods.method import PLANNED, Method, MicroLoss, Scored, spread
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.rollouts import Response

logger = get_logger(__name__)
UNKNOWN_WITHOUT_VLLM = ("mismatch/mean", "mismatch/max", "mismatch/kl", "mismatch/short", "mismatch/long")
"""TRL's own generation does not say how likely it took its tokens to be."""


class SignalReset(TrainerCallback):
    """Starts a new learning signal, and with it a new length watch, when `train()` is called again without a checkpoint."""

    def __init__(self, trainer: FairGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        num_steps = len(self.trainer.signal.watch.steps)
        if state.global_step == 0 and num_steps:
            logger.warning(
                f"fairlen: a new run starts, and with it a new length watch; {num_steps:,} steps are dropped from it"
            )
            self.trainer.signal = self.trainer.create_signal()


class FairGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with a method of fairlen's.

    `method` is a name such as "fspo" or "eqlen+dapo", with fields set as in `overrides=["surrogate.width=0.01"]`, or a `Method`.
    A response is correct if the reward function `verdict` gives it more than `correct_threshold`, by default 0.5. By default a
    function named accuracy or correctness decides; without one, or with `verdict="sum"`, the weighted sum of the functions does,
    with half of the sum of the positive weights of functions that apply as the default threshold.

    `output_dir` gets what `fairlen report`, `audit` and
    `compare` read, every response among it, unless `run_folder` is False. Prompts that the method's filter drops are replaced by
    further ones up to `max_extra_batches` times. Everything else is as in GRPOTrainer.
    Raises ValueError for settings that contradict the method, ImportError for a TRL that is not tested or has changed.
    """

    _tag_names: ClassVar[list[str]] = ["trl", "grpo", "fairlen"]
    verdict: str = trl_rows.SUM
    args: Any
    model: Any
    accelerator: Any
    num_generations: int  # pyright: ignore[reportIncompatibleUnannotatedOverride]
    max_completion_length: int  # pyright: ignore[reportIncompatibleUnannotatedOverride]

    def __init__(
        self,
        *args: Any,
        method: str | Method | Composition = DEFAULT_METHOD,
        overrides: Sequence[str] | Mapping[str, Any] = (),
        correct_threshold: float | None = None,
        verdict: str = "",
        allow_truncated_sampling: bool = False,
        run_folder: bool = True,
        max_extra_batches: int = 4,
        **kwargs: Any,
    ) -> None:
        refuse_changed()
        given = inspect.signature(GRPOTrainer.__init__).bind_partial(self, *args, **kwargs).arguments
        given.pop("self")
        if not isinstance(given.get("args"), GRPOConfig):
            raise ValueError(f"args={given.get('args')!r:.60}: give a GRPOConfig, which the method has to agree with")
        overrides = list_overrides(overrides)
        composition, given["args"] = prepare(method, overrides, given["args"], allow_truncated_sampling, given)
        self.method = composition.method
        self.current, self.reader, self.generated_at = trl_rows.CurrentBatch(), TreeReader(), -1
        super().__init__(**given)
        if not (self.use_vllm or allow_truncated_sampling):
            refuse_defaults(self.generation_config, self.model.generation_config)
        self.verdict = trl_rows.choose_verdict(verdict, self.reward_func_names)
        check_threshold(correct_threshold, self.reward_weights if self.verdict == trl_rows.SUM else torch.ones(1))
        self.correct_threshold = correct_threshold
        self.recorder = Recorder(self, run_folder, composition, overrides)
        self.update_counts = list[Mapping[str, Any]]()
        self.method_name = composition.name
        self.signal = self.create_signal()
        self.add_callback(SignalReset(self))
        self.skips = Skips(with_loss_scaler=self.accelerator.mixed_precision == "fp16")
        self.refill = Refill(self, max_extra_batches)
        trl_rows.refuse_unread(self)
        if self.method.recounts and self.has_sampler:
            raise ValueError(
                f"correction.recount=True with {type(self.method.sampling).__name__}, max_extra_batches={max_extra_batches}: "
                "plans are made before log-probs are known; leave it out, or give max_extra_batches=0 where that is the reason"
            )
        notes = *composition.notes, *self.install_reader(), *warn_of_dropout(self.model), *self.refill.notes
        weights = self.reward_weights.tolist()
        correct = trl_rows.describe_verdict(self.verdict, self.reward_func_names, weights, correct_threshold)
        for note in (f"{correct}. {composition.name}: {list_stages(self.method)}", FIRST_LOGS, *notes):
            logger.warning(f"fairlen: {note}")

    def create_signal(self) -> LearningSignal:
        """Return the learning signal of a run that has just started."""
        signal = LearningSignal(REMEDIES)
        signal.name_method(self.method_name, self.method)
        return signal

    def install_reader(self) -> tuple[str, ...]:
        """Have the models read the pieces of EqLen as trees, or return why they repeat their prefixes."""
        if self.method.sampling.is_whole:
            return ()
        models: list[Any] = [model for model in (self.model, self.ref_model) if model]
        models = [model.get_base_model() if hasattr(model, "get_base_model") else model for model in models]
        obstacle = find_row_readers(self) or self.reader.install(models)
        return (f"EqLen's pieces repeat their prefixes: {obstacle}",) if obstacle else ()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            output, told = self.generate_whole(inputs)
            if self.recorder.run is not None:
                self.recorder.held_out += [row.response for row in told]
            return output
        self.generated_at = self.policy_version
        self.recorder.num_batches += 1
        output = self.collect_sampled(inputs) if self.has_sampler else self.collect_whole(inputs)
        output["advantages"] = output[f"{trl_rows.COLUMN}advantage"].float()
        return output

    @property
    def has_sampler(self) -> bool:
        """Whether the method's sampler makes rollout batches and not TRL: it forks, or draws further prompts."""
        return self.refill.is_on or not self.method.sampling.is_whole

    @contextmanager
    def holding(self, current: trl_rows.CurrentBatch) -> Iterator[trl_rows.CurrentBatch]:
        """Keep what overrides hand to each other while TRL calls them."""
        self.current = current
        try:
            yield current
        finally:
            self.current = trl_rows.CurrentBatch()

    def generate_whole(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[trl_rows.Graded]]:
        """Return TRL's own batch, of this process, and the graded responses of all processes."""
        with self.holding(trl_rows.CurrentBatch(inputs, trains=self.model.training)) as current:
            output = super()._generate_and_score_completions(inputs)
        return output, self.gather_responses(output, current)

    def gather_responses(self, output: dict[str, Any], current: trl_rows.CurrentBatch) -> list[trl_rows.Graded]:
        ends: list[Any] = [*self.eos_token_ids, self._tokenizer.pad_token_id]
        own = trl_rows.read_responses(output, ends, self.max_completion_length, current.open_calls)
        first, made = self.accelerator.process_index * len(own), {"temperature": self.temperature}
        made["policy_version"] = self.state.global_step
        numbered = [
            replace(one, prompt=row // self.num_generations, track=row % self.num_generations, seed=row, **made)
            for row, one in enumerate(own, first)
        ]
        rewards = current.rewards[first : first + len(own)]
        return trl_rows.gather_rows(self, self.grade_rewards(rewards).grade(numbered), current.inputs)

    def collect_whole(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's own rollout batch, with the plan in its columns."""
        output, told = self.generate_whole(inputs)
        rollouts, scored = trl_rows.score_rows(self, told)
        plan = self.method.plan(scored, trl_rows.find_kept(self, output, scored.segments))
        self.recorder.add(rollouts, scored, plan, told)
        self.report(scored, plan, first_advantages(scored))
        self.refill.report(scored, num_rounds=1)
        rows, size = group_by_row(scored.segments.response, len(told)), len(output["completion_ids"])
        return output | self.fold_plan(scored, plan, rows[self.accelerator.process_index * size :][:size])

    def collect_sampled(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self.holding(trl_rows.CurrentBatch(inputs, trains=True)) as current:
            output = super()._generate_and_score_completions(inputs)
        sampled: Sampled = current.sampled
        scored, plan = sampled.scored, sampled.plan
        self.report(scored, plan, sampled.sample_advantages)
        columns = self.fold_plan(scored, plan, [row.segments for row in sampled.rows])
        return output | columns | {f"{trl_rows.COLUMN}depth": current.depth}

    def fold_plan(self, scored: Scored, plan: Plan, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Columns of a plan for TRL's batch, given the segments of each of its rows."""
        size, device = len(scored.segments), self.accelerator.device
        columns = spread(plan, size) | {"length": scored.segments.length, "row": self.recorder.number_rows(size)}
        return {trl_rows.COLUMN + name: torch.from_numpy(c).to(device) for name, c in fold(columns, rows).items()}

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        current = self.current
        if current.trains and self.has_sampler:
            current.sampled = sampled = sample(self, current.inputs, prompts)
            asked, current.rewards = sampled.asked, sampled.asked.text_rewards
            columns = (vars(row).values() for row in sampled.rows)
            prompt_ids, completion_ids, mask, logprobs, depth, _ = map(list, zip(*columns, strict=True))
            current.depth = pad_sequence(list(map(torch.tensor, depth)), batch_first=True).to(self.accelerator.device)
            return prompt_ids, completion_ids, mask, asked.texts, logprobs if self.use_vllm else None, {}, None, []
        found = super()._generate(prompts)
        current.open_calls = [bool(self.tools) and trl_rows.has_open_call(completion) for completion in found[3]]
        return found

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        was_training = self.model.training
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:  # TRL's continuous batching leaves the model in training, also within an evaluation
            if self.model.training != was_training:
                self.model.train(was_training)

    def run_streams(self, coroutines: Sequence[Run], prompt_ids: Sequence[Any]) -> list[Response] | None:
        """All responses by fairlen's engine; None where TRL's generation makes them: its own ways, or that of a subclass."""
        is_ours = type(self)._generate_single_turn is FairGRPOTrainer._generate_single_turn
        return run_on_engine(self, coroutines, prompt_ids) if is_ours and has_whole_model(self) else None

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        if self.current.sampled is None:
            self.current.rewards = self.reward_tracks(inputs, prompts, completions, completion_ids_list)
        return self.current.rewards

    def reward_tracks(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Tensor:
        """TRL's own rewards by function, [processes * N, F], of any number of finished texts."""
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids)
        trl_rows.refuse_infinite(rewards, self.reward_func_names)
        return rewards

    def grade_rewards(self, rewards: Tensor) -> trl_rows.Outcomes:
        """Which answers are right and which count, from rewards by function, [N, F], nan where one does not apply."""
        names = self.reward_func_names
        return trl_rows.Outcomes.read(rewards, self.reward_weights, self.correct_threshold, names, self.verdict)

    def report(self, scored: Scored, plan: Plan, advantages: np.ndarray) -> None:
        """The rollout batch's metrics, the method's advantages in TRL's table of completions, and whether anything is learned."""
        num_updates = self.args.steps_per_generation * self.num_iterations / self.args.gradient_accumulation_steps
        folded = plan.weight * plan.advantage
        step = self.state.global_step + 1  # TRL counts a step when its update is done
        for warning in self.signal.look_at(step, scored.responses, folded, self.method, num_updates):
            logger.warning(f"fairlen: {warning}")
        for name, value in scored_metrics(scored, self.method).items():
            self._metrics["train"][name].append(value)
        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages.tolist())

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        if return_outputs or not self.model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        num_prompt, num_completion = (inputs[f"{name}_ids"].shape[1] for name in ("prompt", "completion"))
        longest, width = num_prompt + self.max_completion_length, num_prompt + num_completion
        size = max(1, self.args.per_device_train_batch_size * longest // max(longest, width))
        size = share_passes(self, len(inputs["completion_ids"]), size) if self.reader.is_installed else size
        parts = trl_rows.split_rows(inputs, size) if self.has_sampler else [inputs]
        done = torch.zeros((), device=self.accelerator.device)
        for part in parts[:-1]:  # more rows than the memory was promised: a part at a time
            with self.accelerator.no_sync(model):
                loss = self._compute_loss(model, part | {"num_parts": len(parts)})
                self.add_gradients(loss)
                done += loss.detach()
        return self._compute_loss(model, parts[-1] | {"num_parts": len(parts)}) + done

    def add_gradients(self, loss: Tensor) -> None:
        """Backward pass of a part that is not the last one: scaled as the Trainer scales its own, and no step follows."""
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            engine: Any = self.accelerator.deepspeed_engine_wrapped
            engine.backward(loss, sync_gradients=False, scale_wrt_gas=False)
        else:
            self.accelerator.backward(loss)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        completion_ids = inputs["completion_ids"]
        with self.holding(trl_rows.CurrentBatch(depth=inputs.get(f"{trl_rows.COLUMN}depth"))):
            logprobs, entropy, aux_loss = self._get_per_token_logps_and_entropies(
                model,
                torch.cat([inputs["prompt_ids"], completion_ids], 1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
                completion_ids.size(1),
                compute_entropy=True,
                compute_aux_loss=self.aux_loss_enabled,
                **{name: inputs.get(name) for name in trl_rows.FORWARDED},
            )
        loss, micro, outputs = self.method_loss(inputs, logprobs, entropy)
        rows = inputs[f"{trl_rows.COLUMN}row"].flatten()[trl_rows.read_trained(inputs)[1] > 0]
        self.recorder.measured.append((rows, measure_sequences(outputs, micro, loss.token)))
        self.update_counts.append(count(self.method, outputs, micro, loss))
        total = (loss.total * self.updates_per_batch * self.accelerator.num_processes).to(logprobs.dtype)
        if not self.aux_loss_enabled:
            return total
        self._metrics["train"]["aux_loss"].append(self.accelerator.gather_for_metrics(aux_loss).mean().item())
        shares = self.current_gradient_accumulation_steps * inputs.get("num_parts", 1)
        return total + self.router_aux_loss_coef * aux_loss / shares

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        depth: Any = self.current.depth if self.reader.is_installed else None
        if depth is not None:  # TRL cuts the mask and passes it on
            attention_mask = mark_depth(attention_mask, depth, logits_to_keep)
        with self.reader.reading(depth is not None):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )

    def method_loss(
        self, inputs: dict[str, Any], logprobs: Tensor, entropy: Tensor
    ) -> tuple[MicroLoss, Micro, Outputs]:
        """The method's loss of a padded micro-batch, given what the policy says of it, [N, L]."""
        mask, length = trl_rows.read_trained(inputs)
        old, rollout = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
        on_policy = old is None or self.policy_version == self.generated_at
        old = logprobs.detach() if old is None or on_policy else old
        rollout = old if rollout is None else torch.where(rollout.isnan(), old, rollout)
        micro = Micro.of(
            length,
            **{name: inputs[trl_rows.COLUMN + name].flatten() for name in PLANNED},
            old_logprobs=old[mask],
            rollout_logprobs=rollout[mask],
            ref_logprobs=inputs["ref_per_token_logps"][mask] if self.method.needs_ref else None,
            is_on_policy=on_policy,
        )
        entropy = entropy if self.method.needs_entropy else entropy.detach()
        outputs = Outputs(logprobs[mask], entropy[mask])
        return self.method.loss(outputs, micro), micro, outputs

    @property
    def updates_per_batch(self) -> float:
        """Updates that share the weights of a rollout batch; below 1 where an update trains several rollout batches."""
        return self.args.steps_per_generation / self.current_gradient_accumulation_steps

    @property
    def policy_version(self) -> int:
        """Updates that were made; TRL's step counts the skipped ones too, as does the schedule of its learning rate."""
        return self.state.global_step - self.skips.num_skipped

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if not self.end_update(norm):
            model.zero_grad()  # no optimizer moves what has no gradient; DeepSpeed and a loss scaler skip by themselves
        return norm

    def end_update(self, norm: Any) -> bool:
        """Return whether the optimizer may step, with the method's state moved then, and report the update."""
        finished = finish_update(self.method, self.update_counts, 0.0 if norm is None else norm, self.skips)
        self.method, self.update_counts = finished.method, []
        metrics = finished.metrics | state_metrics(self.method)
        for name in {"loss/total", "weight/positive", "weight/negative"} & metrics.keys():
            metrics[name] *= self.updates_per_batch
        for name in () if self.use_vllm else UNKNOWN_WITHOUT_VLLM:
            metrics.pop(name, None)
        self.recorder.add_update(metrics, self.updates_per_batch)
        theirs = {"entropy": "entropy/mean", "clip_ratio/region_mean": "ratio/clipped", "kl": "kl/reference"}
        metrics |= {name: metrics[own] for name, own in theirs.items() if own in metrics}
        metrics.pop("update/skipped", None)  # TRL's are numbers
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        return finished.may_step

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL's card, with the method, its papers and, at the end of the run, the audit of its rollouts."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            self.recorder.extend_card()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:  # before it is pushed to the hub
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            position = self.recorder.run.capture() if self.recorder.run else NOWHERE
            save_method(folder, self.method, run=position, drawn=self.refill.drawn, watch=self.signal.watch.state())
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        kept = NOWHERE
        if checkpoint is not None:
            self.method, kept = resume_method(Path(checkpoint), self.method)
            self.refill.drawn = kept.get("drawn", 0)
        self.signal = self.create_signal()
        self.signal.watch.restore(kept.get("watch", NOWHERE))
        if self.recorder.run is not None:
            self.recorder.run.start(kept.get("run", NOWHERE))
