"""A set of tasks each of which goes wrong in a way of its own; its rewards are what the answer says."""

import asyncio
import time

import verifiers.v1 as vf
from pydantic import Field

HANGS = 3600.0


class BrokenData(vf.TaskData):
    answer: str


class BrokenTask(vf.Task[BrokenData]):
    @vf.reward(weight=1.0)
    async def given(self, trace: vf.Trace) -> float:
        match self.data.answer:
            case "hangs":
                await asyncio.sleep(HANGS)
            case "blocks":
                time.sleep(HANGS)
            case "raises":
                raise KeyError("gone")
            case "nothing":
                return None
            case "text":
                return "1.0 or so"
            case "nan":
                return float("nan")
            case "megabyte":
                trace.info["heavy"] = "x" * (1 << 20)
        return 1.0


class BrokenEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        if task.data.answer == "silent":
            return
        if task.data.answer == "unread":
            async with agents.agent.interaction(task) as talk:
                await talk.turn()
                await talk.turn("x" * (1 << 20))
            return
        await agents.agent.run(task)


class BrokenConfig(vf.TasksetConfig):
    ways: list[str] = Field(default_factory=list)


class BrokenSet(vf.Taskset[BrokenTask, BrokenConfig]):
    def load(self) -> list[BrokenTask]:
        return [BrokenTask(BrokenData(prompt=f"Say {way}.", answer=way), self.config.task) for way in self.config.ways]


__all__ = ["BrokenEnv", "BrokenSet"]
