"""The pages of the study in a browser, wide and on a phone, light and dark; the tests of their words are in tests/research."""

from pathlib import Path

import pytest
from made_evidence import make_evidence

from research.ledger.claims import load_ledger
from research.ledger.details import details_page
from research.study.page import read_questions, write_page

pytestmark = pytest.mark.slow
OUTSIDE_OR_OVERLAPPING = """() => [...document.querySelectorAll('figure svg[role=img]')].flatMap((svg) => {
  const card = svg.closest('figure').getBoundingClientRect();
  const boxes = [...svg.querySelectorAll(':scope text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
  const outside = boxes.filter(([, b]) => b.left < card.left || b.right > card.right).map(([text]) => text);
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  const over = (a, b) => shared(a, b, 'left', 'right') > 0.5 && shared(a, b, 'top', 'bottom') > 3;
  const pairs = boxes.flatMap(([one, a], i) => boxes.slice(0, i).filter(([, b]) => over(a, b)).map(([two]) => `${one} ${two}`));
  return [...outside, ...pairs];
})"""


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    variants = [text for question in read_questions() for text in question.picture.variants]
    return write_page(folder, make_evidence(folder / "evidence", list(dict.fromkeys(variants)), rows=80), load_ledger())


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1200, "dark")])
def test_labels_have_their_place_and_nothing_scrolls_sideways(open_page, html, claims, width, scheme):
    page = open_page(claims, viewport={"width": width, "height": 900}, color_scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = open_page(html, viewport={"width": width, "height": 900}, color_scheme=scheme).page
    assert page.locator("figure svg[role=img]").count() >= 25
    assert page.evaluate(OUTSIDE_OR_OVERLAPPING) == []
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims") / "claims.html"
    path.write_text(details_page(load_ledger()), encoding="utf-8")
    return path


def test_claims_are_found_by_words_and_verdict_and_a_link_shows_what_they_hid(open_page, claims):
    page = open_page(claims).page
    known = load_ledger()
    refuted = [claim.id for claim in known.claims if known.findings[claim.id].status == "refuted"]
    page.select_option("[name=status]", "refuted")
    visible = "(all) => all.filter((one) => !one.closest('[hidden]')).map((one) => one.id)"
    assert page.locator("article").evaluate_all(visible) == refuted
    page.fill("[name=words]", "EqLen-29 51,456")
    assert page.locator("article").evaluate_all(visible) == ["eqlen-29"]
    page.evaluate("location.hash = '#fspo-10'")
    page.wait_for_function("document.getElementById('count').textContent === '143 of 143 shown'")
    assert page.evaluate("Math.abs(document.getElementById('fspo-10').getBoundingClientRect().top)") < 50
