"""A model of a rollout server: who is decoded when, where a step's time depends on how many rows it has.

    Cost, Machine    what a step and a prefix cost, and how much fits into a server
    Request          one continuation of a prefix, on its way
    Server           continuous batching: admission in order of arrival, a token for every row a step

A server leaps over all steps in which nothing happens: between two events its number of rows is constant, so that the time
of k steps is a sum in closed form. Not here: other servers (_cluster.py), and which requests there are (_lengths.py).

    step = fixed + row * rows + column * (positions that the rows attend to);   a prefix: prefill * (tokens not kept)

Where keys and values outgrow `capacity` the newest row is put back in front of the queue and later computed again, as vLLM does.
Prefixes that were kept are given up least recently used first. Prefixes that rows share are counted once for each row.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """What takes how long; any unit of time. `Cost(1, 0, 0, 0)` counts steps."""

    fixed: float
    """A step without rows: reading the weights, launching."""
    row: float
    """A step, for each row."""
    column: float
    """A step, for each position that its rows attend to."""
    prefill: float
    """Each token of a prefix that has no keys and values yet; no row decodes meanwhile."""

    def steps(self, count: int, rows: int, columns: int) -> float:
        """Time of `count` steps of `rows` rows, attending to `columns` positions in the first, each to one more in every next."""
        first = self.fixed + self.row * rows + self.column * columns
        return count * first + self.column * rows * (count * (count - 1) // 2)


@dataclass(frozen=True)
class Machine:
    """One server."""

    cost: Cost
    slots: int
    """Rows decoded at a time, at most."""
    capacity: int = 2**62
    """Positions whose keys and values fit."""
    forks_first: bool = False
    """Whether requests that continue others are admitted before those that do not, as by the embedded engine."""


@dataclass(eq=False)
class Request:
    """One continuation. Its length is decided beforehand; nobody looks at it before it is there."""

    key: object
    """What sticky routing goes by: requests of one key go to one server."""
    prompt: object
    """Requests of one prompt share its first `num_prompt` tokens."""
    num_prompt: int
    prefix: int
    """Tokens to continue, the prompt's included."""
    new: int
    """Tokens that will be generated."""
    parent: Request | None = None
    """Whose tokens the prefix is, where it is not a bare prompt."""
    generated: int = 0
    """Up to the last time that it was admitted or put back."""
    server: Server | None = None
    admitted: int = -1
    """The server's step at which it became a row; -1 while it waits and after it ended."""
    watches: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    ended: float = -1.0

    @property
    def context(self) -> int:
        """Tokens whose keys and values it needs to go on."""
        return self.prefix + self.generated


class Server:
    """Rows, a queue, and kept prefixes. `time` is the boundary between two steps up to which everything is known."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.time = 0.0
        self.step = self.columns = self.version = 0
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        """In order of admission."""
        self.milestones: list[tuple[int, int, Request, int]] = []
        """(step, number, request, step of its admission): something to tell, or an end."""
        self.kept: OrderedDict[object, int] = OrderedDict()
        self.num_kept = self.num_milestones = 0
        self.num_prefix = self.num_computed = self.num_preempted = self.num_tokens = self.in_flight = 0
        self.busy = 0.0
        self.spans: list[tuple[float, float, int]] = []
        """(from, to, generated tokens) of every leap."""

    def advance(self, count: int) -> None:
        """Makes `count` steps."""
        if count == 0:
            return
        rows = len(self.running)
        duration = self.machine.cost.steps(count, rows, self.columns)
        self.spans.append((self.time, self.time + duration, rows * count))
        self.time += duration
        self.busy += duration
        self.step += count
        self.columns += rows * count
        self.num_tokens += rows * count

    def catch_up(self, now: float) -> None:
        """Makes the steps that have begun by `now`; an idle server waits."""
        if not self.running:
            self.time = max(self.time, now)
        elif self.time < now:
            low, high = 0, self.next_leap()
            while high - low > 1:
                middle = (low + high) // 2
                if self.time_after(middle) >= now:
                    high = middle
                else:
                    low = middle
            self.advance(high)

    def time_after(self, count: int) -> float:
        """When `count` more steps will be done."""
        return self.time + self.machine.cost.steps(count, len(self.running), self.columns)

    def next_leap(self) -> int:
        """Steps until something happens: somebody is to be told, or the memory is full."""
        while self.milestones and self.milestones[0][2].admitted != self.milestones[0][3]:
            heapq.heappop(self.milestones)  # ended, or put back since
        steps = self.milestones[0][0] - self.step
        room = (self.machine.capacity - self.columns) // len(self.running)
        return max(min(steps, room), 0)

    def mark(self, request: Request, tokens: int) -> None:
        """Something happens when `request`, a row, has `tokens` generated tokens."""
        self.num_milestones += 1
        step = request.admitted + tokens - request.generated
        heapq.heappush(self.milestones, (step, self.num_milestones, request, request.admitted))

    def happen(self) -> list[Callable[[], None]]:
        """What is due at this boundary: ends rows, puts the newest back where memory is full; returns whom to tell."""
        told: list[Callable[[], None]] = []
        self.trim()
        while self.milestones and self.milestones[0][0] <= self.step:
            _, _, request, admitted = heapq.heappop(self.milestones)
            if request.admitted != admitted:
                continue
            made = request.generated + self.step - admitted
            told += [tell for tokens, tell in request.watches if tokens <= made]
            request.watches = [(tokens, tell) for tokens, tell in request.watches if tokens > made]
            if made == request.new:
                self.release(request)
                request.ended = self.time
                self.in_flight -= 1
        while self.running and self.columns + len(self.running) > self.machine.capacity:
            newest = next(reversed(self.running))
            self.release(newest)
            self.waiting.appendleft(newest)
            self.num_preempted += 1
        return told

    def release(self, request: Request) -> None:
        """Its row is free; its keys and values stay as long as there is room."""
        request.generated += self.step - request.admitted
        request.admitted = -1
        del self.running[request]
        self.columns -= request.context
        self.keep(request, request.context)

    def keep(self, holder: object, tokens: int) -> None:
        self.num_kept += tokens - self.kept.pop(holder, 0)
        self.kept[holder] = tokens

    def trim(self) -> None:
        """Gives kept prefixes up until everything fits."""
        while self.kept and self.num_kept + self.columns > self.machine.capacity:
            self.num_kept -= self.kept.popitem(last=False)[1]

    def queue(self, request: Request) -> None:
        """Adds a request to those that wait."""
        is_ahead = self.machine.forks_first and request.parent is not None
        place = sum(one.parent is not None for one in self.waiting) if is_ahead else len(self.waiting)
        self.waiting.insert(place, request)
        self.in_flight += 1

    def admit(self) -> None:
        """Takes requests from the queue while there is a slot and room for what they need."""
        rows = self.running
        while self.waiting and len(rows) < self.machine.slots:
            request = self.waiting[0]
            if rows and self.columns + request.context + len(rows) + 1 > self.machine.capacity:
                return
            self.waiting.popleft()
            missing = request.context - self.count_kept(request)
            self.columns += request.context
            self.num_prefix += request.context
            self.num_computed += missing
            prefill = self.machine.cost.prefill * missing
            self.time += prefill
            self.busy += prefill
            request.admitted, request.server = self.step, self
            rows[request] = None
            for tokens in {request.new, *(tokens for tokens, _ in request.watches)}:
                self.mark(request, tokens)
            self.keep(request.prompt, request.num_prompt)
            self.trim()

    def count_kept(self, request: Request) -> int:
        """Tokens of its context that have keys and values here."""
        if request in self.kept:
            self.num_kept -= self.kept.pop(request)
            return request.context
        shared, holder = request.prefix, request.parent
        while holder is not None:
            if holder in self.kept or (holder.server is self and holder.admitted >= 0):
                return shared
            shared, holder = min(shared, holder.prefix), holder.parent
        return request.num_prompt if request.prompt in self.kept else 0

    def pause(self, now: float, seconds: float) -> None:
        """New weights: whatever is kept is worthless, and what is being decoded is computed again under the new ones."""
        self.catch_up(now)
        self.kept.clear()
        self.num_kept = 0
        lost = seconds + self.machine.cost.prefill * self.columns
        self.num_computed += self.columns
        self.time += lost
        self.busy += lost if self.running else 0.0
