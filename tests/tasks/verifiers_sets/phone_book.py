"""A set of tasks with a tool, in the shape of verifiers' public interface: numbers are in a book that only the tool can read."""

import verifiers.v1 as vf
from pydantic import Field

BOOK = {"Ada": "4711", "Bob": "0815", "Cyd": "1234"}


class Book(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "book"

    @vf.tool
    def number(self, name: str) -> str:
        """Return the telephone number of a person."""
        return BOOK.get(name, "not listed")


class CallData(vf.TaskData):
    answer: str


class CallConfig(vf.TaskConfig):
    book: vf.ToolsetConfig = vf.ToolsetConfig()


class CallTask(vf.Task[CallData, vf.State, CallConfig]):
    @classmethod
    def toolsets(cls, config: CallConfig) -> list[vf.Toolset]:
        return [Book(config.book)]

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 3

    @vf.reward(weight=1.0)
    async def was_read(self, trace: vf.Trace) -> float:
        return float(any(self.data.answer in str(message.content) for message in trace.tool_messages))


class CallSetConfig(vf.TasksetConfig):
    task: CallConfig = CallConfig()
    names: list[str] = Field(default_factory=lambda: list(BOOK))


class CallSet(vf.Taskset[CallTask, CallSetConfig]):
    def load(self) -> list[CallTask]:
        return [
            CallTask(CallData(prompt=f"Call {name}.", answer=BOOK[name]), self.config.task)
            for name in self.config.names
        ]


__all__ = ["CallSet"]

if __name__ == "__main__":
    Book.run()
