"""Environments of `verifiers` (0.4) as tasks, unmodified: `--task verifiers:ID?FIELD=VALUE&...`.

An environment runs in a process of its own, by verifiers' own server of episodes, and asks a rollout server of ours for its
turns, as it asks vLLM in prime-rl: tokens in, tokens out. Its reward is the outcome. What is not in here: how a turn is continued
(driven.py), the answers over HTTP (rollout_server.py), what runs in the process (verifiers_worker.py).
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from renderers import create_renderer
from renderers.base import load_tokenizer
from verifiers.v1.cli.output import saved_config_path, write_config
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.episode import WireEpisode
from verifiers.v1.serve import EnvClient, env_config_data
from verifiers.v1.task import task_key
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import default_harness_id, harness_class, load_taskset, resolve_env_config
from verifiers.v1.utils.trace_store import write_episode

from fairlen.batch import CORRECT_THRESHOLD
from fairlen.rollouts import TokenIds
from fairlen.settings import ProblemConfig
from fairlen.tasks.dataset import shuffle
from fairlen.tasks.driven import Calls
from fairlen.tasks.environment import Fault, Played
from fairlen.tasks.rollout_server import RolloutServer
from fairlen.tasks.task import HELD_OUT_SHARE, VERIFIERS, Problem, Verdict
from fairlen.tasks.verifiers_worker import HARNESS, AppendingRenderer, register, serve

MODEL = "policy"
NUM_TASKS = 1024
START_SECONDS = 300.0  # for the process to answer
ALIVE_SECONDS = 10.0  # for it to answer after a late episode; else it is ended with all episodes that are out
PARAMETERS = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": PARAMETERS}}


@dataclass(frozen=True)
class Place:
    id: str
    settings: dict[str, Any]
    tasks: int
    renderer: str  # one of the package renderers; empty for the model's chat template, appended to
    results: str  # folder of traces.jsonl; empty for none


def read_place(text: str) -> Place:
    """FIELD of verifiers:ID?FIELD=VALUE&... is one of the task set's, env.PATH any setting, or one of ours."""
    name, _, query = text.removeprefix(VERIFIERS).partition("?")
    own = {"tasks": str(NUM_TASKS), "renderer": "", "results": ""}
    settings: dict[str, Any] = {"taskset": {"id": name}}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--task {text}: {pair!r} is no FIELD=VALUE")
        if key in own:
            own[key] = value
            continue
        *path, last = key.removeprefix("env.").split(".") if key.startswith("env.") else ("taskset", *key.split("."))
        block = settings
        for part in path:
            block = block.setdefault(part, {})
        block[last] = json.loads(value) if value[:1] in ("[", "{") else value
    if not name or not own["tasks"].isdecimal() or int(own["tasks"]) < 2:
        raise ValueError(
            f"--task {text}: write verifiers:ID?tasks=NUMBER with the id of a task set and at least 2 tasks"
        )
    return Place(name, settings, int(own["tasks"]), own["renderer"], own["results"])


def resolve_config(place: Place) -> Any:
    """Agents without a harness get ours. Raises ValueError for commands on this machine."""
    settings = deepcopy(place.settings)  # what resolves them also writes into them
    declared = agent_config_fields(resolve_env_config(deepcopy(settings)))
    brings_harness = default_harness_id(place.id) == place.id
    for name, agent in declared.items():
        block = settings.setdefault(name, {})
        harness = agent.harness.id if agent.harness else place.id if brings_harness else "null"
        if harness == "null":
            block["harness"] = {"id": HARNESS}
        elif harness_class(harness).EXECUTES_CODE:
            if agent.runtime.type == "subprocess":
                raise ValueError(
                    f"env.{name}.runtime.type=subprocess: the harness {harness} runs commands of the model, here on this "
                    f"machine; give env.{name}.runtime.type=docker, or another container"
                )
            continue  # in the runtime that is named, or verifiers' own, which is no process of ours
        block.setdefault("runtime", {"type": "subprocess"})
    return resolve_env_config(settings)


@dataclass(eq=False)
class EnvironmentProcess:
    """The process, which outlives event loops and can be started again."""

    config: dict[str, Any]
    folder: Path
    process: Any = None
    parent: Any = None
    number: int = 0

    def start(self) -> None:
        self.number += 1
        context = multiprocessing.get_context("spawn")
        self.parent, child = context.Pipe()
        self.process = context.Process(
            target=serve, args=(self.config, self.address, str(self.folder), child), daemon=True
        )
        self.process.start()
        child.close()

    @property
    def address(self) -> str:
        return f"ipc://{self.folder}/{self.number}"

    async def wait(self, client: EnvClient) -> None:
        """Raises ValueError where the process has ended, or takes too long."""
        until = time.monotonic() + START_SECONDS
        while not await client.health(timeout=1.0):
            if not self.process.is_alive():
                raise ValueError(f"its process ended with exit code {self.process.exitcode}; what it wrote says why")
            if time.monotonic() > until:
                raise ValueError(f"its process did not answer within {START_SECONDS:g} s")

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process = None


@dataclass(eq=False)
class VerifiersTask:
    place: Place
    tasks: dict[str, Any]  # by the id of the problem
    problems: tuple[Problem, ...]
    client: TrainClientConfig
    worker: EnvironmentProcess
    staging: TemporaryDirectory[str]
    seed: int = 0
    server: RolloutServer = field(default_factory=RolloutServer)
    clients: dict[asyncio.AbstractEventLoop, EnvClient] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{VERIFIERS}{self.place.id}"

    @property
    def longest_prompt(self) -> int:
        return max(len(problem.token_ids) for problem in self.problems)

    def train(self, index: int) -> Problem:
        """The stream has every task once an epoch, in a new order."""
        trained = [problem for place, problem in enumerate(self.problems) if place % HELD_OUT_SHARE]
        return trained[shuffle(index, len(trained), (self.seed,))]

    def held_out(self, count: int) -> Sequence[Problem]:
        return self.problems[::HELD_OUT_SHARE][:count]

    async def verify(self, problem: Problem, text: str) -> Verdict:
        raise NotImplementedError(f"{self.name}: an episode is graded by its environment")

    def describe(self) -> dict[str, Any]:
        marks = task_key({"tasks": [one.id for one in self.problems]})
        return {"task": self.name, "verifiers": version("verifiers"), "env": self.worker.config, "tasks": marks}

    async def drive(self, problem: Problem, calls: Calls) -> Played:
        client = await self.connect()
        with self.server.playing(calls) as salt:
            sampling: Any = {"temperature": calls.sampling.temperature, "cache_salt": salt}
            data = self.tasks[problem.id].data.model_dump(mode="json")
            ours = self.client.model_copy(update={"base_url": self.server.url})
            try:
                episode = await client.run(ours, MODEL, SamplingConfig.model_validate(sampling), data)
            except asyncio.CancelledError:
                await self.revive(client)
                raise
        if self.place.results:
            write_result(Path(self.place.results), episode)
        return read_episode(episode, calls)

    async def connect(self) -> EnvClient:
        loop = asyncio.get_running_loop()
        if loop not in self.clients:
            self.clients[loop] = EnvClient(self.worker.address)
            await self.server.start()
            await self.worker.wait(self.clients[loop])
        return self.clients[loop]

    async def revive(self, client: EnvClient) -> None:
        """Start the worker again where it does not answer: it blocks, or it has ended."""
        loop = asyncio.get_running_loop()
        if not await client.health(timeout=ALIVE_SECONDS) and self.clients.get(loop) is client:
            self.worker.stop()  # nothing is awaited between the look and the new client: episodes out together restart it once
            self.worker.start()
            self.clients[loop] = EnvClient(self.worker.address)

    def close(self) -> None:
        self.worker.stop()
        self.server.close()
        for client in self.clients.values():
            client.socket.close(linger=0)
        self.staging.cleanup()


def load_verifiers(settings: ProblemConfig, tokenizer: Any, seed: int) -> VerifiersTask:
    """Raises ValueError where the environment does not start."""
    try:
        place = read_place(settings.data.task)
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the model's tokenizer has no chat template, and environments talk in messages")
        if settings.model.system_prompt:
            raise ValueError("--system-prompt: the environment has its own; give env.taskset.system_prompt=FILE")
        register()
        return start_task(place, tokenizer, settings.model.thinking, seed)
    except Exception as error:
        raise ValueError(f"--task {settings.data.task}: {error or type(error).__name__}") from error


def start_task(place: Place, tokenizer: Any, thinking: str, seed: int) -> VerifiersTask:
    config = resolve_config(place)
    rows = {find_id(task): task for task in islice(load_taskset(config.taskset), place.tasks)}
    if len(rows) < 2:
        raise ValueError(f"it has {len(rows)} tasks; one to train on and one to hold out are needed")
    staging = TemporaryDirectory(prefix="fairlen-")
    tokenizer.save_pretrained(staging.name)
    client = make_client(place, staging.name, thinking)
    start = find_start(create_renderer(load_tokenizer(staging.name), client.renderer))
    data = ((name, one.data) for name, one in rows.items())
    problems = tuple(
        Problem(name, one.prompt_text or name, start, str(getattr(one, "answer", ""))) for name, one in data
    )
    worker = EnvironmentProcess(env_config_data(config), Path(staging.name))
    task = VerifiersTask(place, rows, problems, client, worker, staging, seed)
    try:
        worker.start()
        asyncio.run(task.connect())
        if place.results:
            write_run_config(Path(place.results), config)
    except BaseException:
        task.close()
        raise
    return task


def find_id(task: Any) -> str:
    return task_key(task.data.model_dump(mode="json", exclude={"idx"}, exclude_none=True))[:16]


def make_client(place: Place, folder: str, thinking: str) -> TrainClientConfig:
    switch = {} if thinking == "auto" else {"enable_thinking": thinking == "on"}
    own = {"name": "custom", "import_path": f"{AppendingRenderer.__module__}.{AppendingRenderer.__name__}"}
    renderer = {"name": place.renderer} if place.renderer else own
    given: Any = {"renderer": renderer | switch, "renderer_model_name": folder, "base_url": "http://127.0.0.1/v1"}
    return TrainClientConfig.model_validate(given | {"api_key_var": "FAIRLEN_NO_KEY"})


def find_start(renderer: Any) -> TokenIds:
    """Tokens that every conversation begins with; all others are read, as they depend on the environment."""
    asked = [{"role": "user", "content": "a"}]
    others = (renderer.render_ids([{"role": "user", "content": "b"}]), renderer.render_ids(asked, tools=[TOOL]))
    written = (renderer.render_ids(asked), renderer.render_ids([{"role": "system", "content": "b"}, *asked]), *others)
    start = tuple(row[0] for row in takewhile(lambda row: len(set(row)) == 1, zip(*written, strict=False)))
    if not start:
        raise ValueError("no token of the chat template begins every conversation")
    return start


def write_run_config(folder: Path, config: Any) -> None:
    """Write beside traces.jsonl what verifiers' own programs read there."""
    folder.mkdir(parents=True, exist_ok=True)
    if saved_config_path(folder) is None:
        place = {"run": {"name": folder.name}, "output_dir": folder.parent}
        write_config(EvalConfig.model_validate({"env": config, "model": MODEL, "push": False} | place), folder)


def write_result(folder: Path, episode: WireEpisode) -> None:
    """Append to traces.jsonl, except for numbers that are not finite, which no reader of verifiers' takes."""
    for trace in episode.traces:
        numbers = (*(one.score for one in trace.rewards.values() if one), *trace.metrics.values())
        if not all(math.isfinite(number) for number in numbers if number is not None):
            return
        # the rollout server is no more when it is read, and its renderer is not verifiers'
        trace.agent.config = trace.agent.config.model_copy(update={"client": None})
    write_episode(folder, episode)


def read_episode(episode: WireEpisode, calls: Calls) -> Played:
    """The conversation that trains, and its verdict. Raises a Fault without one."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        kind, why = (errors[-1].type, errors[-1].message) if errors else ("no error", "it does not say why")
        raise Fault("timeout" if episode.is_timeout else "error", f"episode ({kind})", f"did not end well: {why:.300}")
    trained = [trace for trace in episode.traces if trace.agent.trainable and trace.id in calls.conversations]
    if len(trained) != 1:
        raise Fault("error", "episode (agents)", f"has {len(trained)} that train and took a turn; a trajectory is one")
    (trace,) = trained
    if None in (trace.rewards or {"": None}).values() or not math.isfinite(trace.reward):
        what = {name: reward and reward.value for name, reward in trace.rewards.items()}
        raise Fault("error", "episode (rewards)", f"was given {what!r:.200}; an outcome is a finite number")
    if trace.is_truncated:
        calls.conversations[trace.id].finish = "length"
    return Played(trace.id, Verdict("correct" if trace.reward > CORRECT_THRESHOLD else "incorrect", trace.reward))
