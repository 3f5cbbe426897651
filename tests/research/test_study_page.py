"""The page of the study: order of parts, numbers of the ledger, pictures by their arithmetic, and no runs."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loops import over
from made_evidence import BATCHES, make_evidence, make_run

from research.ledger.claims import Ledger, load_ledger
from research.study.evidence import Evidence, load_evidence, write_kept
from research.study.intervals import summarize
from research.study.page import make_question, read_questions, spans, study_page, write_page
from research.study.pictures import Picture, mean_over_seeds
from research.study.plan import Plan

TEXT = {"ask": "Why?", "claims": ["eqlen-23"], "picture": "curves", "variants": {"grpo": "GRPO"}}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    variants = [text for question in read_questions() for text in question.picture.variants]
    return make_evidence(tmp_path_factory.mktemp("evidence"), list(dict.fromkeys(variants)), rows=80)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The claims with made-up figures of six seeds, stored and read."""
    path, rng = tmp_path_factory.mktemp("figures") / "figures.json", np.random.default_rng(0)
    found = {}
    for id, estimand in load_ledger().estimands.items():
        result = summarize(dict(enumerate(rng.normal(2, 3, 6), 1)), estimand.unit, estimand.what)
        found[id] = vars(result) | {"runs": 20}
    found["dr-grpo-minus-slow"] |= {"value": 9.0, "low": 8.0, "high": 10.0}  # the controls are as they should be
    found["dr-grpo-minus-again"] |= {"value": 0.0, "low": -1.0, "high": 1.0}
    path.write_text(json.dumps(found))
    return load_ledger(results=path)


@pytest.fixture(scope="module")
def page(evidence: Evidence, ledger: Ledger) -> str:
    return study_page(evidence, ledger)


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page by id."""
    return {id: text for id, text in re.findall(r'<section id="([\w-]+)">(.*?)</section>', page, re.DOTALL)}


def text_of(page: str) -> str:
    """Return the text of a page in one line, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_every_question_has_verdict_picture_number_and_link_in_this_order(page, ledger):
    found, known = sections(page), {claim.id: claim for claim in ledger.claims}
    for place, question in enumerate(read_questions(), 1):
        part, heads = (
            found[f"question-{place}"],
            [id for id in question.claims if known[id].primary] or question.claims[:1],
        )
        verdicts = [f"<b>{ledger.findings[id].status.capitalize()}.</b>" for id in heads]
        assert re.findall("<b>[A-Z][a-z ]+[.]</b>", part) == verdicts
        order = [f"<h2>{html.escape(question.ask, quote=False)}</h2>", verdicts[0], "<svg", "<h3>The numbers</h3>"]
        at = [part.index(text) for text in (*order, *(f'href="claims.html#{id}"' for id in question.claims))]
        assert at == sorted(at)


def test_every_claim_and_variant_of_a_question_exists(ledger):
    claims, planned = {claim.id for claim in ledger.claims}, {(v.world, v.text) for v in Plan().variants}
    questions = read_questions()
    assert 7 <= len(questions) <= 10
    for question in questions:
        picture = question.picture
        assert set(question.claims) <= claims
        assert {(picture.world, text) for text in (*picture.variants, picture.replayed) if text} <= planned


@pytest.mark.slow
def test_numbers_are_those_of_the_figures(page, ledger):
    text, known = text_of(page), {claim.id: claim for claim in ledger.claims}
    measured = [known[id] for question in read_questions() for id in question.claims if known[id].measure]
    assert len(measured) > 20
    for claim in measured:
        result = ledger.results[claim.measure.estimand]
        assert result.has_interval
        assert f"{result.value:.3g} {result.unit} [{result.low:.3g}, {result.high:.3g}], 6 seeds" in text


@pytest.mark.slow
def test_the_page_is_small_asks_for_nothing_and_is_the_same_twice(page, evidence, ledger, tmp_path):
    assert len(page.encode()) < 1_500_000
    assert "default-src &#39;none&#39;" in page and "<script src" not in page and 'href="http' not in page
    path = write_page(tmp_path, evidence, ledger)
    assert path == tmp_path / "index.html" and path.read_text(encoding="utf-8") == page


def test_without_runs_every_question_is_asked_and_every_missing_run_is_named(ledger):
    bare = replace(ledger, results={})
    page = study_page(None, bare)
    found = sections(page)
    assert "<svg" not in page.split("<main")[1]
    for place, question in enumerate(read_questions(), 1):
        assert f"It needs runs of {', '.join(question.picture.variants)} in the world long." in text_of(
            found[f"question-{place}"]
        )
        status = bare.findings[question.claims[0]].status
        assert status in ("open", "proved", "refuted", "out of reach")
    plan = Plan()
    for variant in plan.variants:
        assert f"{variant.name} {spans(plan.seeds(variant))} 0 - -" in text_of(found["runs"])


def test_texts_of_claims_figures_and_runs_are_escaped(ledger, tmp_path):
    bad = "<script>window.pwned=1</script>"
    id = read_questions()[0].claims[0]
    papers = tuple(
        replace(paper, title=bad, claims=tuple(replace(claim, claim=bad + claim.id) for claim in paper.claims))
        for paper in ledger.papers
    )
    hostile = Ledger(papers, ledger.summary, {name: replace(one, unit=bad) for name, one in ledger.results.items()})
    write_kept([make_run("grpo", 1), make_run("grpo", 2, rows=4)], tmp_path)
    stored = load_evidence(tmp_path)
    found = Evidence([replace(run, key=bad) for run in stored.runs], stored.tables)
    page = study_page(found, hostile)
    assert bad not in page and "&lt;script&gt;window.pwned=1&lt;/script&gt;" + id in page


def test_a_mean_over_seeds_by_hand():
    """1, 2, 3: mean 2, standard deviation 1, t = 4.3027 of two degrees of freedom; no interval of two seeds."""
    found = mean_over_seeds([np.array([1.0, 5.0]), np.array([2.0, 5.0]), np.array([3.0, 5.0])])
    half = 4.3027 / np.sqrt(3)
    assert found.value.tolist() == [2.0, 5.0]
    assert found.low == pytest.approx([2 - half, 5.0], abs=1e-4) and found.high == pytest.approx(
        [2 + half, 5.0], abs=1e-4
    )
    assert np.isnan(mean_over_seeds([np.array([1.0]), np.array([2.0])]).low).all()


def draw(folder: Path, kind: str, variants: dict[str, str], replayed: str = "") -> list:
    return Picture(kind, "long", variants, replayed).draw(make_evidence(folder, list(variants)))


def test_curves_are_read_where_costs_are_equal(tmp_path):
    """EqLen generates 1.7 times the tokens: `dapo` ends at 40 * 27.52 thousand, and has no number beyond."""
    figures = draw(tmp_path, "curves", {"eqlen+grpo": "EqLen", "dapo": "DAPO"})
    assert [one.title for one in figures] == [
        "Accuracy against seconds",
        "Accuracy against tokens",
        "Accuracy against updates",
    ]
    rows = figures[1].table.rows
    last = 1.7 * BATCHES * 27.52
    assert [row[0] for row in (rows[0], rows[-1])] == ["0", f"{last:,.0f}"]
    known = [row for row in rows if row[2] != "-"]
    assert len(known) == sum(last * step / 20 <= BATCHES * 27.52 for step in range(21)) < len(rows)
    assert rows[0][1] == rows[0][2]  # one model before training
    assert all("[" in row[1] for row in rows[1:])
    assert [row[0] for row in figures[2].table.rows][-1] == str(4 * BATCHES)


def test_acceptance_by_length_of_replayed_bands_and_of_the_run_s_own(tmp_path):
    """Log ratios that spread like the root of length: a fair band is flat, a fixed one refuses the long."""
    replayed, own = draw(tmp_path, "acceptance", {"rloo": "RLOO", "fspo_v3": "FSPO v3"}, replayed="rloo")
    assert replayed.table.head == ("length (tokens)", "RLOO", "GSPO", "FSPO", "FSPO v3")
    shares = np.array([[float(cell.split("%")[0]) for cell in row[1:]] for row in replayed.table.rows])
    assert shares.mean(0) == pytest.approx([80.0] * 4, abs=2.5)
    rloo, gspo, _, fair = (shares[-1] - shares[0]).tolist()
    assert rloo < -20 and gspo > 20 and abs(fair) < 10
    assert own.table.head[1:] == ("RLOO", "FSPO v3")
    shares = np.array([[float(cell.split("%")[0]) for cell in row[1:]] for row in own.table.rows])
    assert shares[0, 0] - shares[-1, 0] > 20  # of 0.3 in all, at a spread of 0.02 sqrt(length)
    assert shares[:, 1].mean() == pytest.approx(86.6, abs=3)  # 0.03 / 0.02 = 1.5 standard deviations
    assert "rloo" in own.note and "4 seeds" in own.note


@over(
    "change, message",
    [
        ({"picture": "pie"}, "picture='pie': give one of curves"),
        ({"claims": []}, "claims is missing or empty"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"variants": {str(i): str(i) for i in range(6)}}, "6 variants: a picture has 5 colours"),
    ],
)
def test_a_question_that_cannot_be_drawn_is_refused(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_question(TEXT | change)
