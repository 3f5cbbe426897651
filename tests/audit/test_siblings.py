"""Siblings of reported logs are read right, or asked about with a flag that leads to the right verdict."""

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fairlen.audit.command import AuditConfig, read_audits
from fairlen.audit.conclusion import Margins

MODULES = ("siblings_own", "siblings_blind")
FLAG = re.compile(
    r"(--(?:columns|means|unit|max-response-length|pool|group-by|ignore-columns)(?: (?:'[^']*'|[^\s;,()]+(?:,[^\s;,()=]+=[^\s;,()]+)*))?)"
)
FIELDS = {
    "--columns": "columns",
    "--means": "means",
    "--unit": "unit",
    "--group-by": "group_by",
    "--ignore-columns": "ignore_columns",
}
QUESTIONS = 0.25  # share of logs that may be asked about


def list_siblings(name: str) -> list[Any]:
    """Return the logs of a module, none if it is not there."""
    try:
        return list(importlib.import_module(name).SIBLINGS)
    except ModuleNotFoundError:
        return []


def audit_folder(folder: Path, **flags: str) -> tuple[set[str], str]:
    """Return the verdicts on a folder, as siblings name their truths, and everything that the audit says about it."""
    config = AuditConfig((str(folder),), **flags)  # type: ignore[arg-type]
    audits, reading = read_audits(config.paths, config.options(), None, Margins())
    verdicts = set()
    for audit in audits:
        found = audit.conclusion
        side = "longer" if found.estimate.value > 0 else "shorter"
        is_shift = found.effect in ("gap", "order")
        verdicts.add(f"effect {side}" if found.status == "effect" and is_shift else found.status)
    return verdicts, "; ".join(
        [*(audit.conclusion.sentence for audit in audits), *reading.unreadable, *reading.skipped]
    )


def is_right(verdicts: set[str], truth: str) -> bool:
    """Return whether a log got one verdict, and it is the truth."""
    allowed = set(truth.split(" or "))
    return len(verdicts) == 1 and verdicts <= allowed


def find_flags(text: str) -> list[dict[str, str]]:
    """Return the flags that a sentence proposes, as fields of the command."""
    found = []
    for flag in dict.fromkeys(FLAG.findall(text)):
        option, *values = shlex.split(flag)
        if option in FIELDS and values:
            found.append({FIELDS[option]: values[0].rstrip(".:")})
    return found


def judge(sibling: Any, folder: Path) -> tuple[str, str]:
    """Return right, question or wrong, and why."""
    verdicts, text = audit_folder(folder)
    if is_right(verdicts, sibling.truth):
        return "right", text
    if verdicts - {"unknown"}:
        return "wrong", f"{sorted(verdicts)} and not {sibling.truth}: {text}"
    answers = find_flags(text)
    wanted = getattr(sibling, "after", "")
    results = []
    for answer in answers:
        if isinstance(wanted, str) and wanted and "=" in wanted and wanted not in next(iter(answer.values())):
            continue
        verdicts_after, text_after = audit_folder(folder, **answer)
        results.append((is_right(verdicts_after, sibling.truth), answer, sorted(verdicts_after), text_after))
    if any(right for right, *_ in results):
        return "question", text
    return "wrong", f"no flag leads to {sibling.truth}: {text}; {results}"


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_no_sibling_is_read_wrong_and_few_are_asked_about(module, tmp_path):
    """Each log has the verdict of its truth, or a question one of whose flags leads to it."""
    siblings = list_siblings(module)
    if not siblings:
        pytest.skip(f"{module} is not there")
    wrong, questions = list[str](), list[str]()
    for sibling in siblings:
        folder = tmp_path / f"{sibling.kind}-{sibling.name}"
        folder.mkdir()
        sibling.write(folder)
        result, why = judge(sibling, folder)
        wrong += [f"{sibling.kind} {sibling.name}: {why}"] * (result == "wrong")
        questions += [sibling.name] * (result == "question")
    assert not wrong, "\n".join(wrong)
    assert len(questions) <= QUESTIONS * len(siblings), questions
