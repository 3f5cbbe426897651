"""Responses of an evaluation: every problem has its own seeds, and finished problems are kept as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from fairlen.console import Pace
from fairlen.engine.device import free_memory
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.folder import describe_model
from fairlen.evaluate.run import respond
from fairlen.evaluate.samples import Sample, SampleProgress, sample_path
from fairlen.evaluate.sets import grade, open_sets
from fairlen.hangs import run_async
from fairlen.policy.engines import build_engine, choose_max_num_seqs, find_max_length, find_positions
from fairlen.policy.model import Policy, load_policy
from fairlen.rollouts import Response
from fairlen.sampling.extend import Extend, Sampling, gather
from fairlen.seeds import derive_seed
from fairlen.settings import choose_device, choose_engine
from fairlen.tasks.load import Decode, ProblemSet
from fairlen.tasks.shipped import choose_response_length, place_model
from fairlen.tasks.task import Problem
from fairlen.verify.answer import FORMS, after_thinking

Advance = Callable[[float], None]
"""Called with the number of newly finished problems or samples."""
ANSWER_TOKENS = 32
"""Most tokens of an answer that is asked for."""
CLOSE = "\n</think>"
PART = 256
"""Samples of finished problems, after which they are written."""


@dataclass(frozen=True)
class Model:
    config: EvalConfig
    policy: Policy
    sets: tuple[ProblemSet, ...]
    facts: dict[str, Any]


def open_model(config: EvalConfig) -> Model:
    """Load the model and the sets. Raises ValueError where they cannot be loaded, or do not fit together."""
    disable_progress_bar()
    torch.manual_seed(config.run.seed)
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    device = choose_device(config.model)
    asked = config.model
    place = place_model(asked.name, asked.revision, asked.random_init)
    policy = load_policy(place, asked.dtype, device, False, revision=asked.revision, random_init=asked.random_init)
    policy.model.eval()
    config = config.replace(engine=choose_engine(config, device, policy.model.num_parameters()))
    sets = open_sets(config, policy.tokenizer)
    longest = max(len(problem.token_ids) for found in sets for problem in found.problems)
    largest = max(config.run.cuts, default=0)
    length = (
        config.sampling.max_response_length
        or largest
        or choose_response_length(config.data, find_positions(policy) - longest)
    )
    at_once = config.sampling.max_num_seqs or choose_max_num_seqs(policy, 2 * longest + length, free_memory(device))
    config = config.replace(max_response_length=length, max_num_seqs=at_once)
    fit_sets(sets, config, policy)
    return Model(config, policy, sets, describe_model(place, config, policy.model.config))


def fit_sets(sets: Sequence[ProblemSet], config: EvalConfig, policy: Policy) -> int:
    """Positions that the engine makes room for. Raises ValueError naming the problem that does not fit."""
    length, name = max((len(p.token_ids), f"{found.name}, {p.id}") for found in sets for p in found.problems)
    most = config.sampling.max_response_length
    if config.run.cuts:
        most += len(encode(policy, choose_ask(config, sets))) + 2 * ANSWER_TOKENS  # with what closes the thinking
    return find_max_length(policy, length, most, f"the longest prompt ({name})")


def encode(policy: Policy, text: str) -> tuple[int, ...]:
    """Return the tokens of a text within a response. Raises ValueError for letters that the tokenizer does not know."""
    try:
        return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    except Exception as error:  # of the library, by the kind of vocabulary
        raise ValueError(f"--ask {text!r}: the model's tokenizer does not read it ({error}); give another") from None


@dataclass(frozen=True)
class Drawing:
    extend: Extend
    decode: Decode
    """Leaves out special tokens."""
    sampling: Sampling
    num_samples: int
    seed: int
    cuts: tuple[int, ...] = ()
    ask: str = ""
    encode: Callable[[str], tuple[int, ...]] = lambda text: ()


def sample_sets(
    model: Model,
    sets: Sequence[ProblemSet],
    folder: Path,
    add_bar: Callable[[str, int], Advance],
    showing: Callable[[object], AbstractContextManager[None]],
) -> None:
    config = model.config
    asked = config.sampling
    sampling = Sampling(asked.max_response_length, 0, asked.temperature, asked.top_p, asked.top_k, asked.min_p)
    engine = build_engine(config, model.policy, fit_sets(model.sets, config, model.policy))
    drawing = Drawing(engine.extend, model.policy.decode, sampling, config.run.samples, config.run.seed)
    if config.run.cuts:
        drawing = replace(
            drawing, cuts=config.run.cuts, ask=choose_ask(config, sets), encode=partial(encode, model.policy)
        )

    async def sample_each() -> None:
        for found in sets:
            await sample_shown(found)

    async def sample_shown(found: ProblemSet) -> None:
        total, num_done = len(found.problems), 0
        move_bar = add_bar(found.name, total)

        def advance(number: float) -> None:
            nonlocal num_done
            num_done += int(number)
            move_bar(number)

        with showing(Pace(found.name, total, lambda: num_done, "problems", lambda: engine.stats.num_generated_tokens)):
            await sample_set(drawing, found, sample_path(folder, found.name), advance)

    run_async(sample_each())


async def sample_set(drawing: Drawing, found: ProblemSet, path: Path, advance: Advance) -> tuple[Sample, ...]:
    """Draw all samples of a set into `path`, and return them in order of problems; continues an interrupted call."""
    progress = SampleProgress(path)
    done = {sample.problem_id for sample in progress.done}
    advance(len(done))
    drawing = replace(drawing, extend=found.play(drawing.extend, drawing.decode))
    running = {
        asyncio.ensure_future(sample_problem(drawing, found, position, problem))
        for position, problem in enumerate(found.problems)
        if problem.id not in done
    }
    fresh: list[Sample] = []
    try:
        while running:
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for problem in ended:
                fresh += problem.result()
                advance(1)
            if len(fresh) >= PART:
                progress.add(fresh)
                fresh = []
    finally:  # what is done is kept, whatever happened to the rest
        if fresh:
            progress.add(fresh)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return progress.finish({problem.id: position for position, problem in enumerate(found.problems)})


async def sample_problem(drawing: Drawing, found: ProblemSet, position: int, problem: Problem) -> list[Sample]:

    async def one(number: int) -> Sample:
        drawn = await respond(drawing.extend, problem, (drawing.seed, position, number), drawing.sampling)
        sample = Sample(
            problem.id, problem.text, problem.answer, number, drawing.decode(drawn.token_ids[drawn.num_prompt :]),
            token_ids=drawn.token_ids, num_prompt=drawn.num_prompt, length=drawn.length, finish=drawn.finish,
            seed=drawn.seed, temperature=drawn.temperature, starts_inside=problem.starts_inside,
            outcome=drawn.outcome, status=drawn.status,
        )  # fmt: skip
        if drawing.cuts:
            sample = replace(sample, asked=tuple(await gather(ask_at(cut, drawn) for cut in drawing.cuts)))
        is_graded = drawn.status != "unverified"  # by its environment, which alone knows what happened
        return sample if is_graded else await grade(found, problem, sample)

    async def ask_at(cut: int, drawn: Response) -> str:
        """Return the question and the answer after a response cut there; nothing of one that ended within the budget."""
        if drawn.finish == "stop" and drawn.length <= cut:
            return ""
        prefix = drawn.token_ids[: drawn.num_prompt + cut]
        is_open = after_thinking(drawing.decode(prefix[drawn.num_prompt :]), problem.starts_inside) is None
        question = f"{CLOSE if is_open else ''}{drawing.ask}"
        own = replace(drawing.sampling, max_new_tokens=ANSWER_TOKENS, seed=derive_seed(drawn.seed, cut))
        answer = await drawing.extend(prefix + drawing.encode(question), own)
        return question + drawing.decode(answer.token_ids)

    return await gather(map(one, range(drawing.num_samples)))


def choose_ask(config: EvalConfig, sets: Sequence[ProblemSet]) -> str:
    """Return the text that asks for an answer. Raises ValueError where no form of answers says it."""
    form = config.verifier.answer
    if config.run.ask != "auto":
        return config.run.ask
    for found in sets:
        kinds = found.details.get("verifier", {}).get("kinds", ())
        if form not in FORMS or not kinds or "code" in kinds:
            flags = f"--budgets {config.run.budgets} of {found.name}"
            raise ValueError(f"{flags}: give the text that asks for an answer by --ask, such as --ask 'Answer: '")
    return "\n\n" + FORMS[form].written.partition("{}")[0].replace("{{", "{")
