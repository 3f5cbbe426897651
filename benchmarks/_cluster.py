"""Several rollout servers, a router and a clock: discrete events.

What asks for continuations is a process: a generator that submits requests and yields what it waits for, so many generated tokens
of each of some requests. It goes on at the moment at which all of them are there. Not here: what a server does (_servers.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any, Literal

from _servers import Machine, Request, Server

Wait = list[tuple[Request, int]]
"""Requests, and how many generated tokens of each are waited for."""
Process = Generator[Wait, None, Any]
Routing = Literal["sticky", "round robin"]
"""sticky: requests of one key go to one server, new keys where fewest are in flight (verl's rule); round robin: each in turn."""


class Cluster:
    """Servers, a router and a clock. Processes are generators that yield what they wait for, as `Wait`."""

    def __init__(self, machine: Machine, servers: int = 1, routing: Routing = "sticky") -> None:
        self.servers = [Server(machine) for _ in range(servers)]
        self.routing: Routing = routing
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0
        self.stuck: dict[object, Server] = {}
        self.touched: dict[Server, None] = {}
        self.turn = 0

    def submit(self, request: Request) -> Request:
        """Queues a request at the server that the router chooses: sticky ones where their key went, new keys where fewest are."""
        limit = self.servers[0].machine.capacity
        if request.prefix + request.new > limit:
            raise ValueError(f"a request of {request.prefix} + {request.new} tokens: a server holds {limit}")
        if self.routing == "sticky":
            if request.key not in self.stuck:
                self.stuck[request.key] = min(self.servers, key=lambda server: server.in_flight)
            server = self.stuck[request.key]
        else:
            server = self.servers[self.turn % len(self.servers)]
            self.turn += 1
        server.catch_up(self.now)
        server.queue(request)
        self.touched[server] = None
        return request

    def start(self, process: Process, done: Callable[[Any], None] = lambda _: None) -> None:
        """Runs a process until it first waits; `done` gets what it returns in the end."""
        try:
            wait = process.send(None)
        except StopIteration as end:
            done(end.value)
            return
        missing = len(wait)

        def tell() -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                self.at(self.now, lambda: self.start(process, done))

        for request, tokens in wait:
            self.watch(request, tokens, tell)

    def watch(self, request: Request, tokens: int, tell: Callable[[], None]) -> None:
        """Calls `tell` when `request` has `tokens` generated tokens, at once where it has them."""
        server = request.server
        if request.admitted < 0 or server is None:
            if request.ended >= 0 or tokens <= request.generated:
                tell()
                return
            request.watches.append((tokens, tell))
            return
        ahead = request.admitted + tokens - request.generated - server.step
        if server.time_after(max(ahead, 0)) <= self.now:
            tell()
            return
        request.watches.append((tokens, tell))
        server.mark(request, tokens)
        self.touched[server] = None

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Does something at a time."""
        self.number += 1
        heapq.heappush(self.events, (time, self.number, action))

    def run(self) -> float:
        """Runs until nothing is left to happen; the time then."""
        self.settle()
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
            if not self.events or self.events[0][0] > self.now:
                self.settle()
        return self.now

    def settle(self) -> None:
        """All that happens at one moment has happened: touched servers admit and say when they are next of interest."""
        touched, self.touched = self.touched, {}
        for server in touched:
            server.trim()
            server.admit()
            server.version += 1
            if server.running:
                version, leap = server.version, server.next_leap()
                self.at(server.time_after(leap), lambda s=server, v=version, n=leap: self.visit(s, v, n))

    def visit(self, server: Server, version: int, leap: int) -> None:
        """A server has got to where something happens, unless it has been touched since."""
        if server.version == version:
            server.advance(leap)
            self.touched[server] = None
            for tell in server.happen():
                tell()

    def push_weights(self, seconds: float) -> None:
        """New weights on every server, now."""
        for server in self.servers:
            server.pause(self.now, seconds)
            self.touched[server] = None
