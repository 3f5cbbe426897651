"""Why hardly any response is correct: counts of graded responses, the end of one, and what would help by the counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fairlen.console import visible
from fairlen.verify.answer import FORMS, after_thinking, match_exactly

FEW = 0.02
"""Share of correct responses below which it is explained."""
KEPT, SHOWN = 64, 60
"""Responses that other forms of answer are tried on; characters of one that are shown."""


@dataclass(frozen=True)
class Failures:
    """What happened to graded responses; it adds up."""

    counts: Counter[str] = field(default_factory=Counter)
    """By status; of truncated ones that are not correct; of all."""
    texts: tuple[tuple[str, str], ...] = ()
    """The first that are not correct, each with its reference answer."""
    takes_form: bool = False
    """Whether --answer, --shots and --instruction apply to the problems."""

    @classmethod
    def of(
        cls, status: str, is_truncated: bool, text: str, reference: str, takes_form: bool, starts_inside: bool = False
    ) -> Failures:
        """Count one response; `starts_inside`: its prompt ended with `<think>`."""
        if status == "correct":
            return cls(Counter(("all", status)))
        whole = f"<think>{text}" if starts_inside else text
        return cls(Counter(("all", status, *["truncated"] * is_truncated)), ((whole, reference),), takes_form)

    def __add__(self, other: Failures) -> Failures:
        texts = self.texts if len(self.texts) >= KEPT else self.texts + other.texts
        return Failures(self.counts + other.counts, texts, self.takes_form or other.takes_form)

    def explain(self, length: str = "raise --max-response-length") -> str:
        """A sentence where hardly any response is correct, else nothing; `length` is the advice against truncation."""
        found = self.counts
        if found["correct"] >= FEW * found["all"]:
            return ""
        end = visible(" ".join(self.texts[0][0].split())[-SHOWN:])
        return (
            f"{found['correct']} of {found['all']} responses are correct: {found['no_answer']} have no answer in the form that "
            f"is read, {found['incorrect']} are incorrect; {found['truncated']} are truncated. One ends {end!r}. What may help: "
            f"{self.advise(length)}"
        )

    def advise(self, length: str) -> str:
        """What may help, the surest first."""
        right = Counter(form for text, reference in self.texts for form in find_forms(text, reference))
        found = []
        if self.takes_form and right:
            (form, count), *_ = right.most_common(1)
            found.append(f"give --answer {form}, which finds the right answer in {count} of {len(self.texts)}")
        if self.counts["truncated"] > self.counts["all"] / 2:
            found.append(length)
        if self.takes_form and self.counts["no_answer"] > self.counts["all"] / 2:
            found.append("show the form with --shots FILE:3, or ask for it with --instruction")
        return "; ".join(found) or "give easier problems or a stronger model"


NO_FAILURES = Failures()


def find_forms(text: str, reference: str) -> list[str]:
    """The forms by which a text gives its reference answer."""
    rest = after_thinking(text) or ""
    answers = {name: form.read(rest, "") for name, form in FORMS.items() if name != "auto"}
    return [name for name, answer in answers.items() if answer and reference and match_exactly(answer, reference)]
