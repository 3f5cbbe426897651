"""Any sampler inside TRL: its coroutines run until all of them wait, one call of TRL's generation serves them, and so on.

Where this process has the whole model, fairlen's engine serves them around it: forks reuse keys and values, and start when the
shorter track has ended. A sampler may return more segments than TRL asked for; rows that do not train fill a rollout batch up to
what TRL splits evenly. Evaluations are TRL's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl.chat_template_utils import parse_response
from trl.models.utils import unwrap_model_for_generation

from fairlen.batch import Floats, Plan
from fairlen.engine import Engine
from fairlen.engine.engine import StateError
from fairlen.integrations.rows import TreeRow, build_rows
from fairlen.integrations.trl.refill import most_of
from fairlen.integrations.trl.rows import Graded, gather_rows, score_rows
from fairlen.integrations.trl.settings import find_truncations, has_learned_prompt
from fairlen.methods.method import Scored
from fairlen.rollouts import Response, Segment, TokenIds
from fairlen.sampling.extend import Continuation, Extend, Sampling, gather
from fairlen.sampling.independent import Request, Sampler, no_grader

QUIET_TURNS = 32
"""Turns of the event loop in which no coroutine asks for anything, after which all of them wait."""
Run = Callable[[Extend], Coroutine[Any, Any, tuple[Response, ...]]]
"""All responses to one prompt, once it is told by what they are extended."""


@dataclass(frozen=True)
class PendingExtension:
    """One continuation that a sampler waits for."""

    prefix: TokenIds
    sampling: Sampling
    answer: asyncio.Future[Continuation]


def run_together(
    coroutines: Sequence[Run],
    generate: Callable[[list[PendingExtension]], list[Continuation]],
    most: Callable[[int], int],
) -> list[Response]:
    """Return the responses of all coroutines, in their order.

    `generate` serves one round; `most(waiting)` is the largest number waiting in any process: rounds go on until it is 0, so that
    every process takes part in as many, some of them with nothing of its own to ask. Raises what a coroutine raises.
    """
    # on a thread of their own, so that TRL may run in an event loop, as in notebooks
    loop, waiting = asyncio.new_event_loop(), list[PendingExtension]()
    tasks: list[asyncio.Future[tuple[Response, ...]]] = []

    def extend(prefix: TokenIds, sampling: Sampling) -> asyncio.Future[Continuation]:
        waiting.append(PendingExtension(prefix, sampling, loop.create_future()))
        return waiting[-1].answer

    async def step(answers: list[Continuation]) -> int:
        if not tasks:
            tasks.extend(asyncio.ensure_future(coroutine(extend)) for coroutine in coroutines)
        served = [waiting.pop(0) for _ in answers]
        for pending, found in zip(served, answers, strict=True):
            pending.answer.set_result(found)
        quiet = 0
        while not all(task.done() for task in tasks) and (quiet < QUIET_TURNS or not waiting):
            before = len(waiting)
            await asyncio.sleep(0)
            quiet = 0 if len(waiting) != before else quiet + 1
            if any(task.done() and task.exception() for task in tasks):
                break
        for task in tasks:
            if task.done():
                task.result()
        return len(waiting)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:
        answers: list[Continuation] = []
        try:
            while most(thread.submit(loop.run_until_complete, step(answers)).result()):
                answers = generate(waiting)
            return [response for task in tasks for response in task.result()]
        finally:
            thread.submit(loop.run_until_complete, end()).result()
            loop.close()


def has_whole_model(trainer: Any) -> bool:
    """Whether this process generates by itself, by transformers and as the model says: nothing served, sharded, added or cut."""
    is_gathered = trainer.args.ds3_gather_for_generation or not is_deepspeed_zero3_enabled()
    is_cut = any(find_truncations(trainer.args)) or trainer.args.generation_kwargs
    is_elsewhere = trainer.use_vllm or trainer.use_transformers_continuous_batching or trainer.is_fsdp_enabled
    return is_gathered and not (is_cut or is_elsewhere or has_learned_prompt(trainer.model))


def run_on_engine(trainer: Any, coroutines: Sequence[Run], prompt_ids: Sequence[Any]) -> list[Response] | None:
    """Return the responses of all coroutines, in their order; None for a model that the engine cannot run.

    `prompt_ids` has a row for every track that starts from its prompt.
    """
    arguments: Any = {
        "eos_token_id": tuple(trainer.eos_token_ids),
        "max_length": max(map(len, prompt_ids)) + trainer.max_completion_length,
        "max_num_seqs": len(prompt_ids),
        "compile": False,  # an engine for each rollout batch: it would not earn its compilation
    }
    with ExitStack() as stack:
        model: Any = stack.enter_context(unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ))  # fmt: skip
        stack.enter_context(torch.no_grad())
        try:
            engine = Engine(model.get_base_model() if hasattr(model, "get_base_model") else model, **arguments)
        except StateError:
            return None
        # on a thread of their own, so that TRL may run in an event loop, as in notebooks
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(lambda: asyncio.run(gather(one(engine.extend) for one in coroutines))).result()
    return [response for responses in found for response in responses]


def prepare_prompts(
    sampler: Sampler, token_ids: Sequence[Sequence[int]], first: int, request: Callable[[int, TokenIds, int], Request]
) -> list[Run]:
    """Coroutines of this process's rows, of which `first` is the number among all: one coroutine for each prompt.

    A process that has only some of a prompt's rows runs a sampler of so many; its streams are numbered after those before.
    """
    found: list[Run] = []
    for prompt, group in groupby(range(first, first + len(token_ids)), lambda row: row // sampler.num_tracks):
        rows = list(group)
        place = rows[0] % sampler.num_tracks
        part = sampler if len(rows) == sampler.num_tracks else sampler.with_num_tracks(len(rows))
        found.append(partial(run_prompt, part, request(prompt, tuple(token_ids[rows[0] - first]), place), place))
    return found


async def run_prompt(sampler: Sampler, request: Request, first_stream: int, extend: Extend) -> tuple[Response, ...]:
    responses = await sampler(extend, no_grader, request)
    number = sum(response.round == 0 for response in responses)
    if number != sampler.num_tracks:
        name = type(sampler).__name__
        raise ValueError(f"{name}: {number} responses start from their prompt, but num_tracks={sampler.num_tracks}")
    return tuple(replace(response, stream=response.stream + first_stream) for response in responses)


@dataclass(frozen=True)
class Drawn:
    """The responses to some prompts."""

    rows: list[Graded]
    """Of all processes."""
    texts: list[Any]
    """This process's completions that started from their prompt."""
    text_rewards: Tensor
    """By function, of such completions of all processes."""


@dataclass(frozen=True)
class Sampled:
    """One rollout batch of a sampler, in one process."""

    rows: list[TreeRow]
    """Of segments that train, then padding, as many as every other process has; segments are of all processes."""
    scored: Scored
    """Of all processes."""
    plan: Plan
    asked: Drawn
    """The responses to the prompts that TRL asked for."""

    @property
    def sample_advantages(self) -> Floats:
        """Of the texts that TRL asked for, of all processes."""
        of_responses = first_advantages(self.scored)
        return of_responses[self.scored.responses.round == 0][: len(self.asked.text_rewards)]


def first_advantages(scored: Scored) -> Floats:
    """Advantage of each response's first segment, [R]; 0 of one without any."""
    advantage = np.zeros(len(scored.responses))
    advantage[scored.segments.response[::-1]] = scored.advantage[::-1]
    return advantage


def sample(trainer: Any, inputs: Sequence[dict[str, Any]], prompts: list[Any]) -> Sampled:
    """Generates, scores, plans and cuts one rollout batch, with further prompts in place of those that are dropped."""
    rounds = [draw(trainer, inputs, prompts, 0)]
    logged = {name: list(values) for name, values in trainer._pending_extra_logs.items()}
    wanted = len(prompts) * trainer.accelerator.num_processes // trainer.method.sampling.num_tracks
    while True:
        rows = [row for one in rounds for row in one.rows]
        rollouts, scored = score_rows(trainer, rows)
        if not (missing := trainer.refill.count_missing(scored, wanted, len(rounds))):
            break
        further = trainer.refill.draw(missing)
        texts = [row["prompt"] for row in further]
        rounds.append(draw(trainer, further, texts, scored.responses.num_prompts))
    trainer._pending_extra_logs.update(logged)  # TRL's table has the prompts that it asked for
    own = [number for number, row in enumerate(rows) if row.process == trainer.accelerator.process_index]
    report_lengths(trainer, [rows[number].response for number in own])
    trainer.refill.report(scored, len(rounds))
    plan = trainer.method.plan(scored)
    trainer.recorder.add(rollouts, scored, plan, rows)
    ours = {*own}
    chosen = [row for row in plan.rows.tolist() if rollouts.segments[row].response in ours]
    trees = build_enough(rollouts.responses, rollouts.segments, chosen, trainer)
    parts = trainer.args.steps_per_generation  # TRL cuts the rows into so many equal parts and drops what is left
    size = -(-max(most_of(trainer, len(trees)), 1) // parts) * parts
    spare = TreeRow([rows[0].response.token_ids[0]], [trainer.eos_token_ids[0]], [0], [0.0], [0])
    return Sampled(trees + [spare] * (size - len(trees)), scored, plan, rounds[0])


def draw(trainer: Any, inputs: Sequence[dict[str, Any]], prompts: list[Any], first_prompt: int) -> Drawn:
    """Generate and grade the responses to some prompts, numbered from `first_prompt` on in the rollout batch."""
    prompt_ids, images, _ = trainer._tokenize_prompts(prompts)
    sampler, first_row = trainer.method.sampling, trainer.accelerator.process_index * len(prompt_ids)
    coroutines = prepare_prompts(sampler, prompt_ids, first_row, make_request(trainer, first_prompt))
    if images is not None:
        raise ValueError(f"{type(sampler).__name__} with images: use a sampler of whole responses")
    responses = trainer.run_streams(coroutines, prompt_ids)
    if responses is None:
        responses = run_together(coroutines, partial(generate, trainer, prompt_ids[0]), partial(most_of, trainer))
    asked = [max((response.prompt - first_prompt) * sampler.num_tracks - first_row, 0) for response in responses]
    completions = decode(trainer, [prompts[row] for row in asked], responses)
    rewards = score(trainer, [inputs[row] for row in asked], [prompts[row] for row in asked], completions, responses)
    samples = [row for row, response in enumerate(responses) if response.round == 0]
    keep_samples(trainer, samples, len(responses))
    return Drawn(
        rows=gather_rows(trainer, trainer.grade_rewards(rewards).grade(responses), [inputs[row] for row in asked]),
        texts=[completions[row] for row in samples],
        text_rewards=trainer.accelerator.gather(rewards[samples]),
    )


def make_request(trainer: Any, first_prompt: int) -> Callable[[int, TokenIds, int], Request]:
    """Return what asks for a prompt, whose number counts from `first_prompt` on; rollout batches of one update differ."""
    step, part = trainer.state.global_step, trainer._step % trainer.args.gradient_accumulation_steps
    sampling = Sampling(trainer.max_completion_length, seed=0, temperature=trainer.temperature)

    def request(prompt: int, token_ids: TokenIds, place: int) -> Request:
        seed = (trainer.args.seed, step, first_prompt + prompt, place, *[part] * (part > 0))
        return Request(first_prompt + prompt, token_ids, sampling, policy_version=step, seed=seed)

    return request


def build_enough(
    responses: Sequence[Response], segments: Sequence[Segment], chosen: Sequence[int], trainer: Any
) -> list[TreeRow]:
    """Return the rows of the chosen segments: few, or where a rollout batch makes several updates at least one a micro-batch."""
    args = trainer.args
    longest = max(response.num_prompt for response in responses) + trainer.max_completion_length
    limit = args.per_device_train_batch_size * longest if trainer.reader.is_installed else 0
    number = args.steps_per_generation if args.steps_per_generation > args.gradient_accumulation_steps else 0
    while len(rows := build_rows(responses, segments, chosen, limit)) < min(number, len(chosen)):
        limit //= 2
    return rows


def generate(trainer: Any, spare: Sequence[int], asked: list[PendingExtension]) -> list[Continuation]:
    """Continues all prefixes in one call of TRL's generation; with `spare` as many as in every other process."""
    prefixes = [list(one.prefix) for one in asked]
    prefixes += [list(spare)] * (most_of(trainer, len(asked)) - len(asked))
    set_limit(trainer, max((one.sampling.max_new_tokens for one in asked), default=1))
    try:
        token_ids, logprobs = trainer._generate_single_turn(prefixes, None, {}, 1)
    finally:
        set_limit(trainer, trainer.max_completion_length)
    found = []
    for row, one in enumerate(asked):
        ids = tuple(token_ids[row])
        # without vLLM TRL does not say what the sampler thought of its tokens
        nats = tuple(float("nan") if x is None else x for x in (logprobs[row] if logprobs else [None] * len(ids)))
        finish = "stop" if ids[-1] in trainer.eos_token_ids else "length"
        found.append(Continuation(ids, nats, finish).first(one.sampling.max_new_tokens))
    return found


def set_limit(trainer: Any, num_tokens: int) -> None:
    if trainer.use_vllm:
        trainer.vllm_generation.max_completion_length = num_tokens
    else:
        trainer.generation_config.max_new_tokens = num_tokens
        trainer.generation_kwargs["max_new_tokens"] = num_tokens


def decode(trainer: Any, prompts: Sequence[Any], responses: Sequence[Response]) -> list[Any]:
    token_ids = [list(response.token_ids[response.num_prompt :]) for response in responses]
    tokenizer, is_text = trainer._tokenizer, isinstance(prompts[0], str)
    if not is_text and (getattr(tokenizer, "response_template", None) or getattr(tokenizer, "response_schema", None)):
        prefixes = [list(response.token_ids[: response.num_prompt]) for response in responses]
        pairs = zip(token_ids, prefixes, strict=True)
        return [[parse_response(tokenizer, ids, prefix=prefix, tools=trainer.tools)] for ids, prefix in pairs]
    texts = trainer.processing_class.batch_decode(token_ids, skip_special_tokens=True)
    return texts if is_text else [[{"role": "assistant", "content": text}] for text in texts]


def score(
    trainer: Any, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], responses: list[Response]
) -> Tensor:
    """Rewards by function of this process's responses, [R, F]; each finished text is scored once.

    TRL gathers rewards in equal numbers, so that processes with fewer responses score their last one again.
    """
    size, process = most_of(trainer, len(responses)), trainer.accelerator.process_index
    rows = [*range(len(responses)), *[len(responses) - 1] * (size - len(responses))]
    token_ids = [list(responses[row].token_ids[responses[row].num_prompt :]) for row in rows]
    columns = ([values[row] for row in rows] for values in (inputs, prompts, completions))
    rewards = trainer.reward_tracks(*columns, token_ids)
    return rewards[process * size : process * size + len(responses)]


def keep_samples(trainer: Any, samples: Sequence[int], number: int) -> None:
    """Leaves of the columns that reward functions logged, one value a text, those of the samples: TRL's table has no others."""
    size = most_of(trainer, number)
    for values in trainer._pending_extra_logs.values():
        if len(values) % size == 0:
            values[:] = [values[first + row] for first in range(0, len(values), size) for row in samples]


def report_lengths(trainer: Any, responses: Sequence[Response]) -> None:
    """TRL's own metrics of lengths, of responses that started from their prompt; all generated tokens count as seen."""
    gather, device = trainer.accelerator.gather, trainer.accelerator.device
    samples = [response for response in responses if response.round == 0]
    generated = sum(response.length - response.inherited for response in responses)
    counts = [[generated, sum(response.num_prompt for response in samples)]]
    generated, read = gather(torch.tensor(counts, device=device)).sum(0).tolist()
    trainer.state.num_input_tokens_seen += generated + read
    columns = torch.tensor([[r.length, r.finish == "length"] for r in samples], dtype=torch.float32, device=device)
    length, truncated = gather(columns).T
    ended = length[truncated == 0] if (truncated == 0).any() else length.new_zeros(1)
    metrics = trainer._metrics["train"]
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    metrics["tokens/generated"].append(float(generated))
    metrics["completions/clipped_ratio"].append(float(truncated.mean()))
    for name, values in (("length", length), ("terminated_length", ended)):
        for kind in ("mean", "min", "max"):
            metrics[f"completions/{kind}_{name}"].append(float(getattr(values, kind)()))
