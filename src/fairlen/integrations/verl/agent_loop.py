"""Streams of EqLen on verl's rollout servers: one agent loop a prompt, one row a segment, every finished text graded once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

import ray
import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.replica import TokenOutput

from fairlen.integrations.verl.data import read_eos_ids
from fairlen.integrations.verl.rows import Row, read_verdict
from fairlen.integrations.verl.servers import ROLLOUT
from fairlen.integrations.verl.settings import STREAMS, read_method
from fairlen.rollouts import Response, Segment, TokenIds
from fairlen.sampling.extend import Continuation, Growing, Sampling, Whole, gather
from fairlen.sampling.independent import Request, no_grader

GENERATE_LIMIT = 3600.0
"""Seconds that a server may take for one continuation, unless `algorithm.fairlen.generate_limit` says otherwise."""
FOLLOWED = ("vllm", ROLLOUT)
"""Names of rollouts whose servers tell how far a continuation has got (servers.py); of others the whole is waited for."""
FORK_PRIORITY = -1
"""Before the 0 of prompts: a fork's prefix is in the server's cache now."""
RETRY = 0.01
"""Seconds until a server is asked again for a continuation that had not arrived there, or has just left it."""
MAX_ROWS = 10**6
"""Rows that a stream may have; numbers them apart."""

Stock: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__  # type: ignore[attr-defined]
"""verl's worker under its `ray.remote`, which cannot be subclassed: Ray has broken its `super()`. Its functions are reused."""


@register(STREAMS)
class StreamLoop(AgentLoopBase):
    """All tracks of one prompt, by the method's sampler: `rollout.n` is 1."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:  # type: ignore[override]
        sampler = read_method(self.config.algorithm.fairlen).sampling
        if getattr(self.rollout_config, "full_determinism", False):
            raise ValueError("rollout.full_determinism=True with EqLen: both tracks of a stream would write the same")
        prompt_ids = tuple(await self.ct_build_initial_tokens(list(kwargs["raw_prompt"])))
        servers = Servers(self, sampling_params, uuid4().hex)
        temperature = float(sampling_params.get("temperature", 1.0))
        sampling = Sampling(self.rollout_config.response_length, seed=0, temperature=temperature)
        request = Request(0, prompt_ids, sampling, policy_version=0, seed=(0,))
        responses = await sampler(servers.extend, no_grader, request)
        return [servers.output(responses[number], row) for number, row in cut_rows(responses, sampler.cut(responses))]


def cut_rows(responses: Sequence[Response], segments: Sequence[Segment]) -> list[tuple[int, Row]]:
    """The rows of one prompt: which response each is cut from, and what it is."""
    rows: list[tuple[int, Row]] = []
    for number, one in enumerate(responses):
        place = one.stream, one.track, one.round, one.inherited, one.finish == "length"
        mine = sorted((s for s in segments if s.response == number), key=lambda s: s.stop)
        spans = [(segment.start - one.num_prompt, segment.stop - one.num_prompt) for segment in mine]
        if not spans or spans[-1][1] < one.length:
            spans.append((one.length, one.length))
        rows += [(number, Row(*place, start, stop, is_end=stop == one.length)) for start, stop in spans]
    return rows


class Servers:
    """verl's rollout servers as `extend`, for one stream."""

    def __init__(self, loop: AgentLoopBase, sampling_params: dict[str, Any], request_id: str) -> None:
        self.loop, self.sampling_params, self.request_id = loop, sampling_params, request_id
        self.versions, self.numbers = set[int](), count()
        tokenizer: Any = loop.tokenizer
        self.ends = read_eos_ids(tokenizer)
        self.limit = float(loop.config.algorithm.fairlen.get("generate_limit", GENERATE_LIMIT))
        self.can_follow = loop.rollout_config.name in FOLLOWED
        self.has_priority = self.can_follow and loop.rollout_config.scheduling_policy == "priority"

    def extend(self, prefix: TokenIds, sampling: Sampling) -> Growing | Awaitable[Continuation]:
        """Continues a prefix on the server that has this stream: a handle to follow it by where the server tells."""
        if self.can_follow:
            return Followed(self, prefix, sampling)
        return self.complete(prefix, sampling)

    async def complete(self, prefix: TokenIds, sampling: Sampling, **more: Any) -> Continuation:
        """The whole continuation. Raises TimeoutError after `generate_limit` seconds."""
        asked = {**self.sampling_params, "max_tokens": sampling.max_new_tokens, "logprobs": True}
        client = self.loop.server_manager
        waiting = client.generate(self.request_id, prompt_ids=list(prefix), sampling_params=asked, **more)
        answer = await asyncio.wait_for(waiting, self.limit)
        if answer.stop_reason == "aborted" or not answer.token_ids:
            raise RuntimeError(f"a server gave {len(answer.token_ids)} tokens with stop_reason={answer.stop_reason}")
        found = self.read(answer)
        if found.finish == "length" and len(answer.token_ids) < sampling.max_new_tokens:
            raise RuntimeError(
                f"a rollout server stopped after {len(answer.token_ids)} of {sampling.max_new_tokens} tokens with none of "
                f"{sorted(self.ends)}, which end a text: its context (rollout.max_model_len, or the model's own) is shorter than "
                "prompt and response, or other stops are set"
            )
        return found

    async def reach(self, name: str, num_tokens: int) -> Continuation | None:
        """The first tokens of a continuation on its way, as soon as they are there; None where its server has none."""
        client: Any = self.loop.server_manager
        address, server = await client._acquire_server(self.request_id)
        try:
            answer = await server.reach.remote(name, num_tokens)
        finally:
            client._release_server(address, self.request_id)
        return None if answer is None else self.read(answer)

    def read(self, answer: TokenOutput) -> Continuation:
        """Sampled tokens of a server, and the version of its weights. Raises RuntimeError where there are no log-probs."""
        if not answer.log_probs:
            raise RuntimeError("a server gave no log-probs: set actor_rollout_ref.rollout.calculate_log_probs=True")
        self.versions |= {int(v) for v in (answer.extra_fields.get("global_steps"),) if v is not None}
        finish = "stop" if answer.token_ids[-1] in self.ends else "length"
        return Continuation(tuple(answer.token_ids), tuple(answer.log_probs), finish)

    def output(self, response: Response, row: Row) -> AgentLoopOutput:
        stop = response.length if row.is_end else row.stop
        extra: dict[str, Any] = {"fairlen": {**vars(row)}, "turn_scores": [], "tool_rewards": []}
        if self.versions:
            extra |= {"min_global_steps": min(self.versions), "max_global_steps": max(self.versions)}
        return AgentLoopOutput(
            prompt_ids=list(response.token_ids[: response.num_prompt]),
            response_ids=list(response.token_ids[response.num_prompt : response.num_prompt + stop]),
            response_mask=[int(row.start <= position < row.stop) for position in range(stop)],
            response_logprobs=list(response.logprobs[:stop]),
            num_turns=2,
            metrics={},  # type: ignore[arg-type]  pydantic makes its type of it
            extra_fields=extra,
        )


class Followed(Whole):
    """A continuation on a server that tells how far it has got: forks need not wait for its end, and are asked for first."""

    def __init__(self, servers: Servers, prefix: TokenIds, sampling: Sampling, is_fork: bool = False) -> None:
        self.servers, self.reached = servers, ()
        self.name = f"{servers.request_id}-{next(servers.numbers)}"
        more = {"priority": FORK_PRIORITY} if is_fork and servers.has_priority else {}
        awaited = servers.complete(prefix, sampling, follow=self.name, **more)
        super().__init__(servers.extend, prefix, sampling, awaited)

    async def reach(self, num_tokens: int) -> Continuation:
        while not self.answer.done():
            asked = asyncio.ensure_future(self.servers.reach(self.name, num_tokens))
            try:
                await asyncio.wait((asked, self.answer), return_when=asyncio.FIRST_COMPLETED)
                if asked.done() and (found := asked.result()):
                    break
            finally:
                asked.cancel()
            await asyncio.wait((self.answer,), timeout=RETRY)
        else:
            found = await super().reach(num_tokens)
        self.reached = found.token_ids
        return found

    def fork(self, num_tokens: int, sampling: Sampling) -> Growing:
        known = self.answer.result().token_ids if self.answer.done() else self.reached
        return Followed(self.servers, self.prefix + known[:num_tokens], sampling, is_fork=True)


class StreamWorker(AgentLoopWorker):
    """verl's worker, but that each row keeps its own verdict: the stock one copies the last row's to all others."""

    generate_sequences, _run_prompt = Stock.generate_sequences, Stock._run_prompt

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        tq.init()
        self.background_tasks: set[Any] = set()

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, *, agent_name: str, **kwargs: Any) -> Any:
        name = "single_turn_agent" if trajectory["validate"] and agent_name == STREAMS else agent_name
        return await super()._run_agent_loop(sampling_params, trajectory, agent_name=name, **kwargs)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
        rows: list[AgentLoopOutput] = output if isinstance(output, list) else [output]
        if validate or "fairlen" not in rows[0].extra_fields:
            return await Stock._agent_loop_postprocess(self, output, validate, **kwargs)
        await self._grade(rows, kwargs)
        for number, row in enumerate(rows):
            session = int(kwargs["session_id"]) * MAX_ROWS + number
            await Stock._agent_loop_postprocess(self, [row], validate, **{**kwargs, "session_id": session})

    async def _grade(self, outputs: list[AgentLoopOutput], kwargs: dict[str, Any]) -> None:
        """Grades the finished text of every track, once, and notes the verdict in all of its rows."""
        rows = [Row(**output.extra_fields["fairlen"]) for output in outputs]
        ends = {(row.stream, row.track): output for row, output in zip(rows, outputs, strict=True) if row.is_end}
        await gather(self._compute_score([output], kwargs=kwargs) for output in ends.values())
        for row, output in zip(rows, outputs, strict=True):
            end = ends[row.stream, row.track]
            if end.reward_score is None:
                raise ValueError("EqLen grades while it generates: use a reward function, no colocated reward model")
            info = end.extra_fields.get("reward_extra_info") or {}
            output.reward_score, output.extra_fields["reward_extra_info"] = end.reward_score, info
            graded = replace(row, outcome=end.reward_score, verdict=read_verdict(info, end.reward_score))
            output.extra_fields["fairlen"] = {**vars(graded)}


class StreamManager(AgentLoopManagerTQ):
    """verl's manager with our workers. Named by `rollout.agent.agent_loop_manager_class`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(StreamWorker)
