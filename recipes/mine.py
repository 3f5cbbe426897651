"""A reward, a task and a stage of our own."""

from dataclasses import dataclass
from typing import ClassVar

from fairlen.tasks.task import Problem, Verdict


def brief(prompts, completions, **columns):
    """A reward as TRL calls them: lists in, a number for each completion out, or None where it does not apply."""
    return [1.0 / (1.0 + len(text)) for text in completions]


class Sums:
    """A task: a+b=? with digits, asked and answered as the playground's model does: steps, then # and the sum."""

    name = "sums"
    notes = ("sums of 6 and more with a digit are held out",)
    longest_prompt = 16

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def pose(self, side, number):
        a, b = divmod(number, 10)
        text = f"{a}+{b}=?"
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        bos = self.tokenizer.bos_token_id
        return Problem(f"{side}-{number}", text, (bos, *ids), str(a + b))

    def train(self, index):
        return self.pose("train", index % 60)

    def held_out(self, count):
        return [self.pose("held-out", 60 + place) for place in range(min(count, 40))]

    async def verify(self, problem, text):
        answer = text.rpartition("#")[2] or None
        is_correct = answer == problem.answer
        return Verdict("correct" if is_correct else "incorrect", float(is_correct), answer)

    def describe(self):
        return {"name": self.name, "version": 1}

    def close(self):
        pass


@dataclass(frozen=True)
class RootLength:
    """Every sequence weighs by the root of its length: 1 / (N T^power) on each token."""

    choice: ClassVar = "aggregation"
    power: float = 0.5

    def __call__(self, segments, advantage):
        return self.term_weight(segments)

    def term_weight(self, segments):
        return 1 / (len(segments) * segments.length**self.power)
