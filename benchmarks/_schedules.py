"""When prompts are asked, when updates are made, and when servers get new weights: synchronous, one batch ahead, streaming.

    synchronous     every device generates, then every device trains
    one ahead       servers generate rollout batch k + 1 while the trainer learns from batch k; both then wait for each other
    streaming       some rollout batches are asked ahead, the trainer takes prompts as they are complete, servers never wait
                    (verl's separate_async: `num_warmup_batches`, `max_off_policy_threshold`); what is being decoded when new
                    weights come goes on under them, after its keys and values have been computed again

Not here: what a prompt asks for, how fast servers are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from _cluster import Cluster, Routing
from _lengths import Job, Made
from _servers import Machine

Update = Callable[[int], float]
"""Time of an update from the tokens that it forwards."""


@dataclass(frozen=True)
class Rolled:
    """One rollout batch on servers that had nothing else to do."""

    seconds: float
    made: Made
    computed: int
    """Tokens of prefixes that were computed."""
    prefixes: int
    """Tokens of prefixes that were needed."""
    idle: float
    """Share of the servers' time in which they had nothing to decode."""
    tail: float
    """Share of the time in which the last tenth of the tokens was made."""
    preempted: int

    @property
    def rate(self) -> float:
        """Generated tokens a unit of time."""
        return self.made.tokens / self.seconds


def roll_out(
    job: Job,
    prompts: int,
    machine: Machine,
    servers: int = 1,
    routing: Routing = "sticky",
    first: int = 0,
    at_once: int = 0,
) -> Rolled:
    """All prompts from number `first` on, `at_once` of them in flight (0: all); ends when the last response has."""
    cluster, made = Cluster(machine, servers, routing), Made()
    left = iter(range(first, first + prompts))

    def launch_next(_: int = 0) -> None:
        for prompt in islice(left, 1):
            job.launch(cluster, prompt, made, launch_next)

    for _ in range(at_once or prompts):
        launch_next()
    seconds = cluster.run()
    each = cluster.servers
    return Rolled(
        seconds, made, sum(s.num_computed for s in each), sum(s.num_prefix for s in each),
        1 - sum(s.busy for s in each) / (servers * seconds), 1 - find_time(cluster, 0.9 * made.tokens) / seconds,
        sum(s.num_preempted for s in each),
    )  # fmt: skip


def find_time(cluster: Cluster, tokens: float) -> float:
    """When so many tokens had been generated."""
    edges = []
    for server in cluster.servers:
        for start, end, count in server.spans:
            edges += [(start, count / (end - start)), (end, -count / (end - start))]
    made = rate = last = 0.0
    for time, change in sorted(edges):
        if made + rate * (time - last) >= tokens:
            return last + (tokens - made) / rate
        made += rate * (time - last)
        rate, last = rate + change, time
    return last


@dataclass(frozen=True)
class Pace:
    """How a schedule goes on, per rollout batch, once it has settled."""

    seconds: float
    """From one update to the next."""
    tokens: float
    """Generated tokens that were trained."""
    trainer: float
    """Share of the time in which the trainer's devices trained."""
    span: float = 1.0
    """Mean number of rollout batches from the one that asked a prompt to the one that trained it, both counted (verl's count)."""
    longest_span: int = 1
    dropped: float = 0.0
    """Share of complete prompts that were too old to be trained."""
    length: float = 0.0
    """Mean length of the answers that were trained."""
    dropped_length: float = 0.0


def run_in_turn(
    job: Job,
    prompts: int,
    machine: Machine,
    servers: int,
    update: Update,
    push: float,
    *,
    ahead: bool,
    batches: int = 4,
) -> Pace:
    """Synchronous, or one batch ahead; the mean of `batches` rollout batches, each of new prompts."""
    seconds = tokens = training = 0.0
    lengths: list[int] = []
    for batch in range(batches):
        rolled = roll_out(job, prompts, machine, servers, first=batch * prompts)
        learning = update(rolled.made.forwarded)
        seconds += push + (max(rolled.seconds, learning) if ahead else rolled.seconds + learning)
        tokens += rolled.made.tokens
        training += learning
        lengths += rolled.made.lengths
    span = 2 if ahead else 1
    return Pace(seconds / batches, tokens / batches, training / seconds, span, span, length=sum(lengths) / len(lengths))


@dataclass
class Asked:
    """One prompt on its way."""

    batch: int
    made: Made = field(default_factory=Made)


@dataclass
class Streaming:
    """The trainer's side of a streaming schedule. Batches are counted from 1, as verl counts its steps."""

    job: Job
    cluster: Cluster
    prompts: int
    update: Update
    push: float
    ahead: int
    """Rollout batches asked before the first."""
    threshold: int
    """Spans above it are dropped and asked anew; 0: nothing is dropped."""
    batches: int
    batch: int = 1
    is_waiting: bool = True
    asked: dict[int, Asked] = field(default_factory=dict)
    complete: deque[Asked] = field(default_factory=deque)
    ends: list[float] = field(default_factory=list)
    trained: list[list[tuple[int, Made]]] = field(default_factory=list)
    """Of every batch: the span and what was made, of each prompt."""
    dropped: list[list[Made]] = field(default_factory=lambda: [[]])
    training: list[float] = field(default_factory=list)

    def ask(self, count: int) -> None:
        for _ in range(count):
            prompt = len(self.asked)
            asked = self.asked[prompt] = Asked(self.batch)
            self.job.launch(self.cluster, prompt, asked.made, self.end)

    def end(self, prompt: int) -> None:
        """A prompt is complete."""
        self.complete.append(self.asked[prompt])
        self.take()

    def take(self) -> None:
        """Trains if enough prompts are complete, the earliest asked first."""
        if self.threshold:
            old = [asked for asked in self.complete if self.batch - asked.batch + 1 > self.threshold]
            for asked in old:
                self.complete.remove(asked)
                self.dropped[-1].append(asked.made)
            self.ask(len(old))
        if not self.is_waiting or len(self.complete) < self.prompts:
            return
        order = sorted(self.complete, key=lambda asked: asked.batch)
        self.complete = deque(order[self.prompts :])
        chosen = [(self.batch - asked.batch + 1, asked.made) for asked in order[: self.prompts]]
        self.trained.append(chosen)
        learning = self.update(sum(made.forwarded for _, made in chosen))
        self.training.append(learning)
        self.is_waiting = False
        self.cluster.at(self.cluster.now + learning, self.learned)

    def learned(self) -> None:
        """An update has been made: new weights, new prompts."""
        self.ends.append(self.cluster.now)
        if self.batch == self.batches:
            self.cluster.events.clear()
            self.cluster.touched.clear()
            return
        self.cluster.push_weights(self.push)
        self.batch += 1
        self.dropped.append([])
        self.is_waiting = True
        self.ask(self.prompts)
        self.take()


def run_streaming(
    job: Job,
    prompts: int,
    machine: Machine,
    servers: int,
    update: Update,
    push: float,
    *,
    ahead: int,
    threshold: int = 0,
    batches: int = 16,
) -> Pace:
    """The mean over the second half of `batches` rollout batches."""
    cluster = Cluster(machine, servers)
    flow = Streaming(job, cluster, prompts, update, push, ahead, threshold, batches)
    flow.ask((ahead + 1) * prompts)
    cluster.run()
    half = batches // 2
    count = batches - half
    chosen = [one for batch in flow.trained[half:] for one in batch]
    dropped = [made for batch in flow.dropped[half:] for made in batch]
    seconds = (flow.ends[-1] - flow.ends[half - 1]) / count
    spans = [span for span, _ in chosen]
    return Pace(
        seconds, sum(made.tokens for _, made in chosen) / count, sum(flow.training[half:]) / count / seconds,
        sum(spans) / len(spans), max(spans), len(dropped) / (len(dropped) + len(chosen)),
        mean_length([made for _, made in chosen]), mean_length(dropped),
    )  # fmt: skip


def mean_length(made: list[Made]) -> float:
    """Of all answers; 0 where there are none."""
    lengths = [length for one in made for length in one.lengths]
    return sum(lengths) / len(lengths) if lengths else 0.0
