"""Claims are decided as the commit that made the runs says, or the protocol says why not."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from research.ledger.claims import DATA, ROOT, Ledger, load_ledger
from research.ledger.protocol import CHANGED, JUDGING, PROTOCOL, check_protocol
from research.ledger.protocol import DATA as FOLDER


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> tuple[Path, str]:
    """A repository with the ledger's data in one commit, and its name."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(DATA, root / FOLDER)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Before the runs"]):
        subprocess.run([*git, *words], check=True)
    return root, subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def changed(ledger: Ledger, id: str, **values) -> Ledger:
    """Return the ledger with fields of one claim changed."""
    papers = tuple(
        replace(paper, claims=tuple(replace(c, **values) if c.id == id else c for c in paper.claims))
        for paper in ledger.papers
    )
    return replace(ledger, papers=papers)


@pytest.mark.slow
def test_changes_after_the_runs_are_found_unless_the_protocol_names_them(repository):
    """A verdict turned round, a sign turned round, a size changed; words may change."""
    root, commit = repository
    ledger = load_ledger()
    given = next(claim for claim in ledger.claims if claim.verdict == "proved")
    measured = next(claim for claim in ledger.claims if claim.measure and claim.measure.predicted == "positive")
    assert measured.measure
    assert list(check_protocol(ledger, root, {commit})) == []
    worded = changed(ledger, measured.id, claim="In other words.", measure=replace(measured.measure, why="As before."))
    assert list(check_protocol(worded, root, {commit})) == []
    for id, values in (
        (given.id, {"verdict": "refuted"}),
        (measured.id, {"measure": replace(measured.measure, predicted="negative")}),
        (measured.id, {"measure": replace(measured.measure, smallest=measured.measure.smallest / 2)}),
        (measured.id, {"primary": not measured.primary}),
    ):
        (line,) = check_protocol(changed(ledger, id, **values), root, {commit})
        assert line.startswith(f"{id}: decided otherwise in {commit[:10]}")
    (root / PROTOCOL).parent.mkdir(parents=True)
    (root / PROTOCOL).write_text(f"{given.id}\n{CHANGED}\n")  # named elsewhere: that is no reason
    assert len(list(check_protocol(changed(ledger, given.id, verdict="refuted"), root, {commit}))) == 1
    (root / PROTOCOL).write_text(
        f"{CHANGED}\n- 2026-12-01: {given.id} is a counterexample to the statement as it is written.\n"
    )
    assert list(check_protocol(changed(ledger, given.id, verdict="refuted"), root, {commit})) == []


def test_an_estimand_that_is_measured_otherwise_is_found(repository):
    """The quantity or the variants behind an unchanged name."""
    root, commit = repository
    ledger = load_ledger()
    claim = next(claim for claim in ledger.claims if claim.measure)
    paper = next(paper for paper in ledger.papers if claim in paper.claims)
    estimand = paper.estimands[claim.estimands[0]]
    other = replace(paper, estimands={**paper.estimands, claim.estimands[0]: replace(estimand, quantity="length")})
    moved = replace(ledger, papers=tuple(other if one is paper else one for one in ledger.papers))
    found = [line.split(":")[0] for line in check_protocol(moved, root, {commit})]
    assert claim.id in found


@pytest.mark.slow
def test_runs_of_two_commits_and_what_measures_otherwise_are_found_unless_the_protocol_names_them(repository, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(repository[0], root)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for name in JUDGING:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for words in (["add", "-A"], ["commit", "-qm", "What measures"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    ledger, changed_file = load_ledger(), root / JUDGING[0]
    two = [line.split(":")[0] for line in check_protocol(ledger, root, {commit, "1" * 40})]
    assert two == sorted([commit[:10], "1" * 10])
    changed_file.write_text("# another comment\n" + changed_file.read_text())
    assert list(check_protocol(ledger, root, {commit})) == []
    changed_file.write_text(changed_file.read_text().replace("NUM_BINS = 8", "NUM_BINS = 9"))
    (line,) = check_protocol(ledger, root, {commit})
    assert line.startswith(f"{JUDGING[0]}: not what it was in {commit[:10]}")
    (root / PROTOCOL).parent.mkdir(parents=True, exist_ok=True)
    (root / PROTOCOL).write_text(f"{CHANGED}\n- 2026-12-01: `{JUDGING[0]}` has nine bins, as eight hid the shortest.\n")
    assert list(check_protocol(ledger, root, {commit})) == []
