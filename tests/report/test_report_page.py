"""Reports in a browser: Debian's Chromium, without a network. What runs, what is asked for, what a phone shows, how it looks."""

import base64
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_comparison import make_comparison
from playwright.sync_api import Page
from report_browser import Watched, luminance
from report_runs import write_run

from fairlen.compare.page import report_comparison
from fairlen.report import write_report

pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parent / "reference"
UPDATE = bool(os.environ.get("FAIRLEN_UPDATE_REFERENCE"))
"""Set it to write the reference images anew; look at them before they are kept."""


@pytest.fixture(params=["plain_page", "pairs_page"])
def html(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_nothing_scrolls_sideways_every_chart_is_named_and_every_label_lies_within_the_page(open_page, html):
    page = open_page(html).page
    charts, texts = (f"[...document.querySelectorAll('{which}')]" for which in ("figure svg[role=img]", "svg text"))
    assert page.evaluate(f"{charts}.every((s) => s.getAttribute('aria-label'))")
    for state in (False, True):
        page.evaluate(f"document.querySelectorAll('details').forEach((d) => {{ d.open = {str(state).lower()} }})")
        for width in (320, 375, 768, 1180):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if width == 375:
                boxes = page.evaluate(f"{texts}.map((t) => t.getBoundingClientRect()).map((b) => [b.left, b.right])")
                assert all(left >= 0 and right <= 376 for left, right in boxes)


def test_everything_is_there_without_scripts(open_page, html):
    page = open_page(html, java_script_enabled=False).page
    figures = page.locator("figure:has(svg)")
    assert figures.count() >= 8
    assert page.locator("figure:has(svg) table").count() == figures.count()  # every chart has its table
    assert not page.locator("#filters").is_visible()
    page.locator("details.numbers > summary").first.click()
    assert page.locator("figure table").first.is_visible()
    answer = page.locator("details.response").first
    if page.locator("details.tracks").count():
        page.locator("details.tracks > summary").first.click()
    answer.locator("summary").click()
    assert answer.locator("pre.text").is_visible() and answer.locator("pre.text").inner_text().strip()


def test_filters(open_page, plain_page):
    page = open_page(plain_page).page
    everything = page.locator("details.response:visible").count()
    assert page.locator("#count").inner_text() == f"{everything} of {everything} shown"
    page.select_option("[name=kind]", "incorrect")
    page.select_option("[name=part]", "2")
    page.fill("[name=least]", "20")
    shown = page.locator("details.response:visible")
    found = shown.evaluate_all(
        "(rows) => rows.map((r) => [r.dataset.kind, Number(r.dataset.batch), Number(r.dataset.length)])"
    )
    assert 0 < len(found) < everything
    assert all(kind == "incorrect" and batch >= 5 and length >= 20 for kind, batch, length in found)
    page.fill("[name=words]", "no such text anywhere")
    assert page.locator("#count").inner_text() == f"0 of {everything} shown"


def test_responses_stand_by_prompt_and_can_be_ordered(open_page, plain_page):
    page = open_page(plain_page).page
    lengths = (
        "(all) => all.map((s) => [...s.querySelectorAll('details.response')].map((r) => Number(r.dataset.length)))"
    )
    before = page.locator("article.stream").evaluate_all(lengths)
    assert len(before) > 10 and sum(map(len, before)) == 200
    page.select_option("[name=order]", "-1")
    ordered = page.locator("article.stream").evaluate_all(lengths)
    assert ordered != before and all(one == sorted(one, reverse=True) for one in ordered)
    assert [one[0] for one in ordered] == sorted((max(one) for one in before), reverse=True)
    page.select_option("[name=order]", "")
    assert page.locator("article.stream").evaluate_all(lengths) == before


OVERLAPS = """[...document.querySelectorAll('figure svg[role=img]')].flatMap((svg) => {
  const card = svg.closest('figure').getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  const over = ([, a], [, b]) => shared(a, b, 'left', 'right') > 0.5 && shared(a, b, 'top', 'bottom') > 3;
  const pairs = boxes.flatMap((a, i) => boxes.slice(0, i).filter((b) => over(a, b)).map((b) => `${a[0]} / ${b[0]}`));
  return [...pairs, ...boxes.filter(([, b]) => b.left < card.left || b.right > card.right).map(([text]) => text)];
})"""
"""Labels that overlap, or lie beyond their card."""


def find_overlaps(page: Page) -> list[str]:
    """Return the labels that have no place on a phone or a screen, with everything open; nothing scrolls sideways there."""
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    found: list[str] = []
    for width in (390, 1180):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found += page.evaluate(OVERLAPS)
    return found


@pytest.mark.parametrize("correct", [0, 1])
def test_labels_have_their_place_where_all_is_incorrect_or_correct(open_page, tmp_path, correct):
    folder = write_run(tmp_path / "run", "grpo", num_updates=2)
    for path in sorted((folder / "records").glob("responses-*.parquet")):
        table = pq.read_table(path)
        status = pa.array(["correct" if correct else "incorrect"] * len(table))
        for name, values in (("outcome", pa.array([float(correct)] * len(table))), ("status", status)):
            table = table.set_column(table.column_names.index(name), name, values)
        pq.write_table(table, path)
    page = open_page(write_report(folder)).page
    assert find_overlaps(page) == []
    assert page.locator("figure").count() == page.locator("figure:has(svg, table)").count() > 0


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_comparison_has_no_overlap_and_no_empty_card(open_page, tmp_path, seeds):
    names = {"grpo": 10, "dapo+balanced": 12, "fspo:surrogate.width=0.01,surrogate.z=2,surrogate.warmup=3": 0}
    folder = make_comparison(tmp_path / "c", names, seeds)
    page = open_page(report_comparison(folder, tmp_path / "c.html")).page
    assert find_overlaps(page) == []
    assert page.locator("figure").count() == page.locator("figure:has(svg, table)").count() == 6
    assert page.locator("figure:has(svg)").count() == 5  # all but the table of equal costs


def test_tokens_are_coloured_and_the_text_stays(open_page, plain_page):
    page = open_page(plain_page).page
    answer = page.locator("details.response").nth(3)
    before = answer.locator("pre.text").text_content()
    answer.locator("summary").click()
    page.wait_for_function("document.querySelector('details[open] .own span')")
    assert answer.locator("pre.text").text_content() == before
    length = int(answer.get_attribute("data-length") or 0)
    assert answer.locator(".own > span").count() == length  # one span a token, the end included
    assert answer.locator(".t1, .t2, .t3, .t4").count() > 0
    page.uncheck("[name=colour]")
    assert answer.locator(".t1, .t2, .t3, .t4").count() == 0


def test_a_piece_is_read_by_keyboard_alone(open_page, pairs_page):
    page = open_page(pairs_page).page
    link = page.locator("a[data-from]").nth(2)
    begin, end = (int(link.get_attribute(f"data-{name}") or 0) for name in ("from", "to"))
    link.focus()
    page.keyboard.press("Enter")
    answer = page.locator(f"#r{link.get_attribute('data-track')}")
    assert answer.locator("pre.text").is_visible()
    assert answer.locator(".chosen").count() == end - begin
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_contrast(open_page, html):
    """Texts at least 4.5:1 against what they stand on; marks without letters, such as grey tracks, at least 3:1."""
    page = open_page(html).page
    style = "(e) => getComputedStyle(document.querySelector(e))"
    kinds = (
        ("h3", "color", 4.5), (".says", "color", 4.5), ("figcaption", "color", 4.5), (".tick", "fill", 4.5),
        ("svg .c-correct", "color", 4.5), (".c-incorrect", "color", 4.5), (".c-plain", "color", 4.5), (".c-third", "color", 4.5),
        (".c-fourth", "color", 4.5), (".base", "stroke", 3.0),
    )  # fmt: skip
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        paper = luminance(page.evaluate(f"({style})('figure').backgroundColor"))
        for selector, name, least in kinds:
            ink = luminance(page.evaluate(f"({style})('{selector}').{name}"))
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= least, (scheme, selector)


def test_a_hundred_thousand_responses_open_quickly(open_page, many_page):
    page = open_page(many_page.path).page
    seconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000")
    assert seconds < 30  # under one second on an idle machine


DIFFERENCE = """async ([old, now]) => {
  const read = async (data) => {
    const image = new Image(); image.src = 'data:image/png;base64,' + data; await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    return pen.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await read(old), await read(now)];
  if (a.width !== b.width || a.height !== b.height) return 1;
  let far = 0;
  for (let i = 0; i < a.data.length; i += 4)
    far += Math.max(...[0, 1, 2].map((c) => Math.abs(a.data[i + c] - b.data[i + c]))) > 48;
  return far / (a.data.length / 4);
}"""
SHOTS = {
    "head-light": ("plain_page", 1000, 1150, "light", "body"),
    "lengths-dark": ("plain_page", 1000, 1150, "dark", "#lengths"),
    "pairs-light": ("pairs_page", 1000, 1150, "light", "#pairs"),
    "streams-dark": ("pairs_page", 1000, 900, "dark", "#answers"),
    "update-phone": ("plain_page", 375, 1500, "light", "#weights"),
    "streams-phone": ("pairs_page", 375, 1100, "light", "#answers"),
}
FONTS = '* { font-family: "DejaVu Sans" !important; } pre { font-family: "DejaVu Sans Mono" !important; }'


@pytest.mark.parametrize("name", SHOTS)
def test_it_looks_as_it_did(browser, request, tmp_path, name):
    """At most 2% of the pixels differ clearly from the image that was looked at and kept."""
    page_name, width, height, scheme, part = SHOTS[name]
    settings = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "bypass_csp": True}
    watched = Watched(browser, request.getfixturevalue(page_name), **settings)
    watched.page.add_style_tag(content=FONTS)
    top = watched.page.evaluate(f"document.querySelector('{part}').getBoundingClientRect().top + scrollY")
    clip = {"x": 0, "y": top, "width": width, "height": height}
    now = watched.page.screenshot(full_page=True, clip=clip, animations="disabled")
    watched.context.close()
    kept, new = REFERENCE / f"report-{name}.png", tmp_path / f"report-{name}.png"
    if UPDATE:
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(now)
    new.write_bytes(now)
    blank = browser.new_page()
    far = blank.evaluate(DIFFERENCE, [base64.b64encode(data).decode() for data in (kept.read_bytes(), now)])
    blank.close()
    assert far <= 0.02, (
        f"{far:.1%} of the pixels differ from {kept}: see {new}; FAIRLEN_UPDATE_REFERENCE=1 keeps the new one"
    )
