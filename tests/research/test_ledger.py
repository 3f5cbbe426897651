"""The ledger: what its data may say, that its pages and evidence agree, and that the checker notices when they do not."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from loops import over
from markupsafe import escape

from fairlen.cli import read_eval_config
from research.ledger.__main__ import main
from research.ledger.arithmetic import holds
from research.ledger.check import check, check_tests, numbers
from research.ledger.claims import DATA, UNCOUNTED, Claim, Ledger, load_ledger, make_claim, make_line
from research.ledger.details import details_page, inline
from research.ledger.page import claims_page, command_of
from research.ledger.real import load_real
from research.ledger.rule import EXCLUDED, SIGN
from research.study.intervals import Result

ROOT = Path(__file__).parents[2]
PLAIN = {"id": "eqlen-01", "place": "Section 1", "claim": "It is so.", "done": "Looked."}
TESTED = PLAIN | {
    "verdict": "proved",
    "tests": ["tests/test_batch.py::test_sums_counts_and_means_by_hand"],
    "figure": "so",
}
MEASURE = {"estimand": "x", "predicted": "positive", "smallest": 0.2, "why": "half of .4"}
MEASURED = PLAIN | {"measure": MEASURE}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package's data, to be changed."""
    return Path(shutil.copytree(str(DATA), tmp_path / "data"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


# the data


@over(
    "entry, message",
    [
        (TESTED | {"verdit": "x"}, "eqlen-01: unknown key 'verdit'"),
        ({k: v for k, v in TESTED.items() if k != "place"}, "place is missing"),
        (TESTED | {"id": "fspo-01"}, r"write eqlen- and two digits"),
        (PLAIN, "give either a verdict"),
        (TESTED | {"measure": MEASURE}, "give either a verdict"),
        (TESTED | {"verdict": "reproduced"}, "verdict='reproduced': give proved, refuted, out of reach"),
        (PLAIN | {"verdict": "refuted", "figure": "so"}, "verdict=refuted: name its tests or its arithmetic"),
        (TESTED | {"figure": ""}, "and their figure"),
        (PLAIN | {"verdict": "out of reach"}, "what is out of reach needs one"),
        (TESTED | {"command": "make study"}, "a command belongs to what is out of reach"),
        (TESTED | {"tests": ["test_batch.py"]}, "write tests/FILE.py::test_name"),
        (MEASURED | {"measure": MEASURE | {"predicted": "up"}}, "eqlen-01, measure: predicted='up'"),
        (MEASURED | {"premise": [{"estimand": "y"}]}, "eqlen-01, premise: y: give least, most or both"),
        (MEASURED | {"limit": {"status": "open", "why": "so"}}, "eqlen-01, limit: status='open': give sign shown"),
        (TESTED | {"arms": [{"estimand": "y", "least": 1}]}, "belong to what is measured"),
    ],
)
def test_claims_that_contradict_themselves_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        make_claim(entry, "eqlen")


@over(
    "entry, message",
    [
        ({"text": "So it is."}, "'So it is.' names no claim"),
        ({"text": "So it is.", "needs": {"eqlen-23": ["not reproduced"]}}, "needs eqlen-23 'not reproduced': give proved"),
        ({"text": "So it is.", "decide": ["x > 0"]}, "unknown key 'decide'"),
    ],
)  # fmt: skip
def test_sentences_without_evidence_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        make_line(entry)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("fspo.toml", '"fspo-02"', '"fspo-01"', "fspo-01: two claims have this id"),
        ("eqlen.toml", 'measure = { estimand = "', 'measure = { estimand = "no-', "there is no estimand no-"),
        ("summary.toml", '"eqlen-', '"eqlen-9', "there is no claim eqlen-9"),
        ("eqlen.toml", "title =", "titel =", r"eqlen\.toml: unknown key 'titel'"),
    ],
)
def test_names_that_lead_nowhere_are_refused(copied, name, old, new, message):
    change(copied / name, old, new)
    with pytest.raises(ValueError, match=message):
        load_ledger(copied)


# the page


def with_results(ledger: Ledger, low: float, high: float) -> Ledger:
    """Return the ledger with every figure of the study stored, with one interval."""
    found = {
        id: Result((low + high) / 2, low, high, 0.001, 5, one.unit, one.what, (), runs=20)
        for id, one in ledger.estimands.items()
    }
    again = "dr-grpo-minus-again"  # the negative control is silent
    found[again] = replace(found[again], value=0.0, low=-1.0)
    return replace(ledger, results=found)


def test_without_figures_every_measured_claim_is_open_and_with_them_none():
    """Every summary sentence that needs a status is left out before, and the ones whose status came are shown after."""
    ledger = load_ledger()
    before, after = replace(ledger, results={}), with_results(ledger, 1e3, 2e3)
    for claim in ledger.claims:
        status = before.findings[claim.id].status
        assert status == (UNCOUNTED if claim.uncounted else "open" if claim.measure else claim.verdict)
        assert after.findings[claim.id].status != "open"
    shown = " ".join(claims_page(before, []).partition("## Verdicts")[0].split())
    for line in (line for lines in ledger.summary.values() for line in lines):
        assert (f"- {line.text} (" in shown) == (not line.needs), line.text


def test_the_page_is_short_and_leads_to_a_table_with_everything_about_each_claim():
    ledger = load_ledger()
    page, details = claims_page(ledger, [load_real(ROOT)]), details_page(ledger)
    ids = [claim.id for claim in ledger.claims]
    assert len(page.split()) <= 1200
    assert set(re.findall(r"study/claims\.html#([a-z]+-\d\d)", page)) <= set(ids)
    assert re.findall(r'<article id="([\w-]+)"', details) == ids
    for claim in ledger.claims:
        article = details.partition(f'<article id="{claim.id}"')[2].partition("</article>")[0]
        texts = [inline(text, set(ids)) for text in (claim.claim, claim.done, claim.figure, claim.note)]
        texts += [escape(text) for text in (claim.place, *claim.arithmetic, *claim.tests)]
        assert [text for text in texts if str(text) not in article] == []


def test_words_of_a_claim_are_escaped_and_its_links_lead_from_the_page():
    found = inline("**Bold** `a < b` of fspo-01, not of fspo-99, in [papers.md](papers.md): <script>", {"fspo-01"})
    assert found == (
        '<b>Bold</b> <code>a &lt; b</code> of <a href="#fspo-01">fspo-01</a>, not of fspo-99, in '
        '<a href="../papers.md">papers.md</a>: &lt;script&gt;'
    )


def allows(claim: Claim, found: Result) -> set[str]:
    """Return the words that an interval allows a claim, its predicted side being the positive one."""
    low, value, high, size = found.low, found.value, found.high, claim.measure.smallest
    if claim.measure.predicted == "negative":
        low, value, high = -high, -value, -low
    if claim.measure.predicted == "silent":
        return {"reproduced"} if low <= 0 <= high else {"contradicted"}
    if claim.measure.predicted == "none":
        inside, outside = -size < low and high < size, low > size or high < -size
        return {"reproduced"} if inside else {"contradicted"} if outside else {"undecided"}
    sign = {SIGN, "undecided"} if low > 0 else {"undecided"}
    ends = {"contradicted"} if high < -size else {EXCLUDED} if high < size else sign
    return ends | ({"reproduced"} if low > 0 and value >= size else set())


def test_no_word_stands_on_an_interval_that_its_rule_does_not_allow():
    """Interval, premises, arms, and p <= .05 rank / number among directional claims (Benjamini-Hochberg)."""
    ledger = load_ledger()
    places = sorted(ledger.family, key=ledger.family.__getitem__)
    passes = {id: ledger.family[id] <= 0.05 * rank / len(places) for rank, id in enumerate(places, 1)}
    last = max(rank for rank, id in enumerate(places) if passes[id])
    words = {"reproduced": 0, "contradicted": 0, SIGN: 0, EXCLUDED: 0}
    for claim in (claim for claim in ledger.claims if claim.measure):
        status = ledger.findings[claim.id].status
        if status not in words:
            continue
        words[status] += 1
        assert status in allows(claim, ledger.results[claim.measure.estimand]), claim.id
        assert all(one.holds(ledger.results[one.estimand]) for one in claim.premise), claim.id
        if status == "reproduced":
            assert all(one.holds(ledger.results[one.estimand]) for one in claim.arms) and not claim.limit, claim.id
        if status != EXCLUDED and claim.id in places:
            assert places.index(claim.id) <= last, claim.id
    assert min(words.values()) > 0


# the checker


@pytest.mark.slow
def test_pages_tests_and_figures_agree():
    """The whole check but for running the quick tests, which are in the suite anyway."""
    assert check(load_ledger(), ROOT, run=False) == []


FSPO = "tests/claims_oracles/test_claims_fspo.py"


def one_claim(**fields) -> Claim:
    known = {
        "verdict": "proved",
        "tests": (f"{FSPO}::test_fspo_and_gspo_differ_by_the_length_where_nothing_is_clipped",),
    }
    return Claim(**(PLAIN | known | {"figure": "1/4 and 1/20"} | fields))


def test_a_renamed_test_and_a_changed_number_are_found():
    assert list(check_tests(one_claim(), ROOT)) == []
    for missing in (f"{FSPO}::test_fspo_and_gspo", "tests/nowhere.py::test_x"):
        assert list(check_tests(one_claim(tests=(missing,), figure=""), ROOT)) == [
            f"eqlen-01: there is no test {missing}"
        ]
    changed = one_claim(figure="1/4 and 1/21")
    assert list(check_tests(changed, ROOT)) == ["eqlen-01: 21 of its figure occurs in none of its tests and lines"]
    without = one_claim(tests=(*one_claim().tests, f"{one_claim().tests[0]}[AIME]"))
    assert "has no parameters" in next(iter(check_tests(without, ROOT)))


def test_arithmetic_is_computed_to_its_last_digit():
    """2.95 / 2 = 1.475 may be written as 1.47 or 1.48; a comparison that is so counts as 1."""
    right = ("2.95 / 2 = 1.48", "2.95 / 2 = 1.47", "max(2, 3) - 1.0 ** 2 = 2", "(1 < 2) + (2 < 1) = 1", "33.19 > 32.92")
    assert [line for line in right if not holds(line)] == []
    for line in ("2.95 / 2 = 1.46", "84.2 - 78.8 = 5.5", "33.19 < 32.92", "2 - 1"):
        assert not holds(line), line
    for line in ("__import__('os') = 1", "abs(1) = 1", "'a' = 1", "1 < 2 < 3", "[1] = 1"):
        with pytest.raises(ValueError, match="give numbers"):
            holds(line)


def test_wrong_arithmetic_and_numbers_that_are_in_none_of_it_are_found():
    line = "84.2 - 78.8 = 5.4"
    assert list(check_tests(one_claim(tests=(), figure="5.4 points", arithmetic=(line,)), ROOT)) == []
    wrong = one_claim(tests=(), figure="5.5 points", arithmetic=("84.2 - 78.8 = 5.5",))
    assert list(check_tests(wrong, ROOT)) == ["eqlen-01: 84.2 - 78.8 = 5.5: it is not so"]
    other = one_claim(tests=(), figure="5.5 points", arithmetic=(line,))
    assert list(check_tests(other, ROOT)) == ["eqlen-01: 5.5 of its figure occurs in none of its tests and lines"]


def test_numbers_are_read_as_they_are_written():
    assert numbers("51_456 = 536 * 96, -1.24 of 1e-12, 51,456 and x2 in 0.5.") == {51456, 536, 96, 1.24, 1e-12, 0.5}
    share = one_claim(
        figure="22%", tests=("tests/claims_oracles/test_claims_balanced.py::test_balanced_adds_no_number",)
    )
    assert "22" in next(iter(check_tests(share, ROOT)))


@pytest.mark.slow
def test_the_command_shows_one_claim(capsys):
    assert main(["eqlen-23"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("### eqlen-23: ") and "smallest effect of interest" in shown
    assert main(["eqlen-23", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "eqlen-23"
    assert main(["eqlen-99"]) == 2
    assert "did you mean" in capsys.readouterr().err


# what the page asks a reader to type


def commands() -> list[list[str]]:
    """Every command of fairlen's that a claim names, as words."""
    ledger = load_ledger()
    blocks = [command_of(claim, ledger) for claim in ledger.claims]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in dict.fromkeys(lines) if line.startswith("fairlen ")]


@over("words", commands())
def test_commands_for_real_hardware_have_methods_and_flags_that_exist(words):
    from fairlen.flags import read_flags

    if words[0] == "verl":
        from fairlen.integrations.verl.launch import VerlConfig

        cut = words.index("--")
        config = read_flags(VerlConfig, "fairlen verl", words[1:cut], "")
        assert config.model and config.data and all("=" in word for word in words[cut + 1 :])
    elif words[0] == "eval":
        assert read_eval_config(words[1:]).run.suite in ("eqlen", "fspo", "balanced", "grpo_lambda")
    else:
        from fairlen.compare.config import CompareConfig

        assert words[0] == "compare" and len(read_flags(CompareConfig, "fairlen compare", words[1:], "").variants) == 3
