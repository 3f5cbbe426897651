"""EqLen inside TRL: streams served by TRL's own generation, finished texts scored by its reward functions, pieces as rows.

Each two rows that TRL asks for of a prompt are one stream. A stream has more tracks and pieces than two, so that a rollout batch
has more rows than TRL asked for; rows that do not train fill it up to what TRL can split evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl.chat_template_utils import parse_response

from fairlen.batch import Floats, Ints, Response, Rollouts
from fairlen.integrations.padded import RowPlan, plan_rows
from fairlen.integrations.trl.streams import Asked, PieceRows, join_tables, piece_rows, run_streams
from fairlen.methods.method import Method, Scored
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request, no_grader
from fairlen.sampling.stream import run_stream


@dataclass(frozen=True)
class Pairs:
    """One rollout batch of pairs, in one process."""

    rows: PieceRows
    """Pieces that train, then padding, as many as every other process has."""
    scored: Scored
    """Of all processes."""
    plan: RowPlan
    chosen: Ints
    """Which segments of all processes the first of the rows are."""
    samples: list[int]
    """This process's responses that started from their prompt, as many as TRL asked for."""
    responses: list[Response]
    completions: list[Any]
    """The responses as TRL hands them to reward functions."""
    rewards: Tensor
    """By function, of the samples of all processes."""

    @property
    def sample_advantages(self) -> Floats:
        """Of all processes' samples: that of the first piece of each, 0 where it does not train."""
        segments, responses = self.scored.segments, self.scored.responses
        first = segments.round == 0
        advantage = np.zeros(len(responses))
        advantage[segments.response[first]] = self.scored.advantage[first]
        return advantage[responses.round == 0]


def make_pairs(trainer: Any, method: Method, inputs: Sequence[dict[str, Any]], prompts: list[Any]) -> Pairs:
    """Generates, scores, plans and cuts one rollout batch."""
    prompt_ids, images, _ = trainer._tokenize_prompts(prompts)
    if images is not None:
        raise ValueError("EqLen with images: forks of prompts with images are not supported; use another sampling")
    streams = generate_streams(trainer, method, prompt_ids)
    responses = [response for tracks in streams for response in tracks]
    asked = [2 * stream for stream, tracks in enumerate(streams) for _ in tracks]
    completions = decode(trainer, prompts, responses)
    rewards = score(trainer, [inputs[row] for row in asked], [prompts[row] for row in asked], completions, responses)
    graded = trainer.grade_rewards(rewards).grade(responses)
    samples = [row for row, response in enumerate(responses) if response.round == 0]
    keep_samples(trainer, samples, len(responses))
    rollouts = Rollouts(tuple(graded), method.sampling.cut(tuple(graded)), trainer.max_completion_length)
    tables = gather_object([(rollouts.response_table, rollouts.segment_table)])
    scored = method.score_tables(*join_tables(tables))
    plan = plan_rows(method, scored)
    first = sum(len(segments) for _, segments in tables[: trainer.accelerator.process_index])
    trains = np.flatnonzero(plan.trains[first : first + len(rollouts.segments)])
    rows = piece_rows(graded, [rollouts.segments[i] for i in trains])
    return Pairs(
        rows=rows.padded(even_size(trainer, len(rows)), prompt_ids[0], trainer.eos_token_ids[0]),
        scored=scored,
        plan=plan,
        chosen=first + trains,
        samples=samples,
        responses=graded,
        completions=completions,
        rewards=trainer.accelerator.gather(rewards[samples]),
    )


def generate_streams(trainer: Any, method: Method, prompt_ids: Sequence[Sequence[int]]) -> list[tuple[Response, ...]]:
    """The tracks of every stream of this process's rows."""
    sampling, process = method.sampling, trainer.accelerator.process_index
    assert isinstance(sampling, EqLen)
    streams = []
    for row in range(0, len(prompt_ids), 2):
        prompt, place = divmod(process * len(prompt_ids) + row, sampling.num_tracks)
        request = Request(
            prompt=prompt,
            token_ids=tuple(prompt_ids[row]),
            sampling=Sampling(trainer.max_completion_length, seed=0, temperature=trainer.temperature),
            policy_version=trainer.state.global_step,
            seed=(trainer.args.seed, trainer.state.global_step, prompt, 0),
        )
        streams.append(
            partial(run_stream, grade=no_grader, request=request, stream=place // 2, max_rounds=sampling.max_rounds)
        )
    return run_streams(streams, partial(generate, trainer, prompt_ids[0]), partial(most_of, trainer))


def generate(trainer: Any, spare: Sequence[int], asked: list[Asked]) -> list[Continuation]:
    """Continues all prefixes in one call of TRL's generation; with `spare` as many as in every other process."""
    prefixes = [list(one.prefix) for one in asked]
    prefixes += [list(spare)] * (most_of(trainer, len(asked)) - len(asked))
    with limited(trainer, max((one.sampling.max_new_tokens for one in asked), default=1)):
        token_ids, logprobs = trainer._generate_single_turn(prefixes, None, {}, 1)
    found = []
    for row, one in enumerate(asked):
        ids = tuple(token_ids[row])
        # without vLLM TRL does not say what the sampler thought of its tokens
        nats = tuple(float("nan") if x is None else x for x in (logprobs[row] if logprobs else [None] * len(ids)))
        finish = "stop" if ids[-1] in trainer.eos_token_ids else "length"
        found.append(Continuation(ids, nats, finish).first(one.sampling.max_new_tokens))
    return found


@contextmanager
def limited(trainer: Any, num_tokens: int) -> Iterator[None]:
    """Generates at most so many tokens: what the longest of the waiting tracks has left of its budget."""
    max_response_length = trainer.max_completion_length

    def set_limit(limit: int) -> None:
        if trainer.use_vllm:
            trainer.vllm_generation.max_completion_length = limit
        else:
            trainer.generation_config.max_new_tokens = limit
            trainer.generation_kwargs["max_new_tokens"] = limit

    set_limit(num_tokens)
    try:
        yield
    finally:
        set_limit(max_response_length)


def most_of(trainer: Any, number: int) -> int:
    """The largest of a number over processes."""
    if trainer.accelerator.num_processes == 1:
        return number
    return int(trainer.accelerator.gather(torch.tensor([number], device=trainer.accelerator.device)).max())


def even_size(trainer: Any, num_rows: int) -> int:
    """Rows of the rollout batch in every process: TRL cuts it into equal micro-batches and drops what is left."""
    parts = trainer.args.steps_per_generation
    return -(-max(most_of(trainer, num_rows), 1) // parts) * parts


def decode(trainer: Any, prompts: list[Any], responses: Sequence[Response]) -> list[Any]:
    """Texts of responses, or messages where prompts are messages, as TRL makes them."""
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
    rewards = trainer.reward_tracks(
        [inputs[row] for row in rows], [prompts[row] for row in rows], [completions[row] for row in rows], token_ids
    )
    return rewards[process * size : process * size + len(responses)]


def keep_samples(trainer: Any, samples: Sequence[int], number: int) -> None:
    """Leaves of the columns that reward functions logged, one value a text, those of the samples: TRL's table has no others."""
    size = most_of(trainer, number)
    for values in trainer._pending_extra_logs.values():
        if len(values) % size == 0:
            values[:] = [values[first + row] for first in range(0, len(values), size) for row in samples]


def report_lengths(trainer: Any, pairs: Pairs) -> None:
    """TRL's own metrics of lengths, of the samples; all tokens that were generated count as seen."""
    device, accelerator, metrics = trainer.accelerator.device, trainer.accelerator, trainer._metrics["train"]
    samples = [pairs.responses[row] for row in pairs.samples]
    own = sum(response.length - response.inherited for response in pairs.responses)
    seen = own + sum(response.num_prompt for response in samples)
    columns = torch.tensor([[r.length, r.finish == "length"] for r in samples], dtype=torch.float32, device=device)
    length, cut = accelerator.gather(columns).T
    trainer.state.num_input_tokens_seen += int(accelerator.gather(torch.tensor([seen], device=device)).sum())
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    metrics["tokens/generated"].append(float(accelerator.gather(torch.tensor([own], device=device)).sum()))
    metrics["completions/clipped_ratio"].append(float(cut.mean()))
    ended = length[cut == 0] if (cut == 0).any() else length.new_zeros(1)
    for name, values in (("length", length), ("terminated_length", ended)):
        metrics[f"completions/mean_{name}"].append(float(values.mean()))
        metrics[f"completions/min_{name}"].append(float(values.min()))
        metrics[f"completions/max_{name}"].append(float(values.max()))
