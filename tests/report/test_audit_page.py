"""The audit as a page: what it says of planted effects, which rollouts it shows, and what it is in a browser."""

import gzip
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import write_lines
from loops import first_quickly
from made_comparison import make_comparison
from report_browser import PAYLOADS, Watched, assert_unharmed
from report_runs import write_run

from fairlen.audit.audit import audit
from fairlen.audit.method_in_use import InUse, parse_method
from fairlen.audit.readers import Options
from fairlen.cli import main
from fairlen.compare.page import report_comparison
from fairlen.report.audit_page import MAX_LOGS, write_audit_page
from fairlen.report.prompts import relate
from fairlen.report.rollouts import NUM_ALONE, NUM_PAIRS, show_rollouts
from fairlen.report.run import visible
from fairlen.report.sections import TERMS

FORMATS = Path(__file__).parents[1] / "fixtures_formats"
WIDE, PHONE = {"width": 1180, "height": 900}, {"width": 390, "height": 844}


def make_rows(
    prompts: int = 80, each: int = 8, longer: float = 1.0, peak: float = 0.0, steps: int = 4
) -> list[dict[str, Any]]:
    """Rollouts whose incorrect responses are `longer` times as long; with a `peak` those near the median length are the best."""
    rng, rows = np.random.default_rng(0), []
    for prompt in range(prompts):
        hard = rng.random()
        for number in range(each):
            away = rng.normal(0, 0.3)
            is_correct = bool(rng.random() < 0.8 - 0.5 * hard - peak * abs(away))
            size = max(int(60 * (0.5 + hard) * np.exp(away) * (1.0 if is_correct else longer)), 1)
            text = " ".join(["word"] * (size - 1) + [f"end{prompt}.{number}"])
            rows.append({
                "step": prompt * steps // prompts, "prompt": f"Problem {prompt}", "response": text, "reward": float(is_correct),
                "finish_reason": "length" if number == 0 and prompt % 9 == 0 else "stop",
            })  # fmt: skip
    return rows


def write_page_of(out: Path, *paths: Path, method: str = "") -> Path:
    audits, reading = audit([str(path) for path in paths], method=parse_method(method) if method else None)
    return write_audit_page(out, audits, reading)


@pytest.fixture(scope="module")
def effect_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audits")
    write_lines(folder / "effect" / "rollouts.jsonl", *make_rows(longer=1.5))
    return write_page_of(folder / "page.html", folder / "effect", method="dapo")


@pytest.fixture(scope="module")
def three_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An effect, none, and too few prompts to know."""
    folder = tmp_path_factory.mktemp("audits")
    for name, rows in (
        ("a", make_rows(longer=1.5)),
        ("b", make_rows(prompts=600, each=16)),
        ("c", make_rows(prompts=40, each=2)),
    ):
        write_lines(folder / name / "rollouts.jsonl", *rows)
    return write_page_of(folder / "page.html", folder / "a", folder / "b", folder / "c")


def test_one_verdict_comes_first_in_words(effect_page):
    page = effect_page.read_text()
    assert "<h1>Length and correctness go together</h1>" in page
    verdict = re.search(r'<p class="sentence">(.*?) <a', page)
    assert verdict and re.match(r"Incorrect responses are \d\d% \[\d\d%, \d\d%\] longer than correct ones", verdict[1])
    assert page.index("</h1>") < page.index(verdict[1]) < page.index("<h2>")
    assert page.count('class="sentence"') == 1 and "An association, not a cause." in page
    assert ">median</text>" in page and "Truncated responses are left out." in page
    assert "Method: dapo, aggregation token_mean (--method)." in page
    assert "<b>What to do:</b>" in page and "Evidence: by a token mean each side" in page


def test_several_logs_are_sections_with_their_verdicts_listed_first(three_page):
    page = three_page.read_text()
    assert "<h1>3 logs: 1 with an effect of length, 1 with none, 1 not known yet</h1>" in page
    listed = re.findall(r'<b>(.*?)</b> · <a href="#(log\d)">(.*?), columns by name</a>', page)
    assert [(words, log, Path(file).parent.name) for words, log, file in listed] == [
        ("Length and correctness go together", "log1", "a"),
        ("Length and correctness do not go together", "log2", "b"),
        ("Not known yet", "log3", "c"),
    ]
    assert page.count("name it: --method grpo+balanced") == 3  # asked for once a log
    assert "it depends on the method in use; name it with --method" in page
    assert page.count("No finding stands at a false discovery rate of 5%") == 2
    assert page.count("Nothing to do about length.") == 1


def test_what_the_log_does_not_know_is_not_said(tmp_path):
    rows = [{name: row[name] for name in row if name != "finish_reason"} for row in make_rows(prompts=40)]
    page = write_page_of(tmp_path / "page.html", write_lines(tmp_path / "rows.jsonl", *rows)).read_text()
    assert "Which responses were truncated is not known." in page
    assert "Truncated responses are left out." not in page
    assert "Truncated responses, and those without a verdict" not in page


@pytest.mark.slow
def test_a_comparison_stands_before_its_logs(tmp_path, capsys):
    write_lines(tmp_path / "a" / "rows.jsonl", *make_rows(longer=1.5))
    write_lines(tmp_path / "b" / "rows.jsonl", *make_rows())
    out = tmp_path / "page.html"
    assert main(["audit", str(tmp_path / "a"), "--against", str(tmp_path / "b"), "--out", str(out)]) == 0
    assert f"page: {out}" in capsys.readouterr().out.replace("\n", "")
    page = out.read_text()
    assert "80 prompts are in both, 0 in A alone, 0 in B alone." in page
    table = page[page.index('id="comparison"') : page.index('id="log1"', page.index('id="comparison"'))]
    assert "incorrect responses longer, within prompts" in table and "<h3>B minus A: " in table


def test_the_command_writes_a_page_beside_json(tmp_path, capsys):
    rows, out = write_lines(tmp_path / "rows.jsonl", *make_rows(prompts=12)), tmp_path / "new" / "page.html"
    assert main(["audit", str(rows), "--json", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["logs"] and captured.err.startswith("page: ")
    assert out.read_text().startswith("<!doctype html>")
    assert main(["audit", str(rows), "--out", str(tmp_path)]) != 0
    assert "that is a folder; name a file in it" in capsys.readouterr().err


def test_what_cannot_be_read_is_said_on_the_page(tmp_path):
    write_lines(
        tmp_path / "rows.jsonl", *make_rows(prompts=12), {"step": 0, "prompt": "p", "response": "r", "reward": "x<b>"}
    )
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "notes.txt").write_text("some,names\n1,2\n")
    page = write_page_of(tmp_path / "page.html", tmp_path).read_text()
    assert "Left out: " in page and "broken.parquet" in page
    assert "rows.jsonl:97: the reward &#39;x&lt;b&gt;&#39; is not a finite number" in page
    assert "not in these files: tokens: lengths are in words" in page
    audits, reading = audit([str(tmp_path / "broken.parquet")])
    assert "<h1>No rollouts could be read</h1>" in write_audit_page(tmp_path / "none.html", audits, reading).read_text()


def test_every_link_leads_somewhere_and_every_measure_is_defined(effect_page, three_page):
    for page in (effect_page.read_text(), three_page.read_text()):
        ids = re.findall(r' id="([^"]+)"', page)
        assert len(ids) == len(set(ids))
        links = set(re.findall(r'href="#([^"]+)"', page))
        assert links <= set(ids), links - set(ids)
        assert {
            f"def-{name}" for name in ("within.length", "within.bend", "difficulty", "truncated", "weights")
        } <= links
        assert not re.search(r'(href|src)="(?!#)', page)  # nothing outside of it is linked to or asked for
    defined = re.findall(r'<dt id="def-([^"]+)">.*?</dt>(.*?)(?=<dt|</dl>)', effect_page.read_text(), re.S)
    assert [name for name, _ in defined] == [*TERMS, "aggregations"]
    assert all(len(re.sub("<.*?>", "", meaning)) > 20 for _, meaning in defined)
    assert "a typical incorrect response has 1.4 times the length" in dict(defined)["within.length"]
    assert not re.search(r"worse response|better one|\[K\]", "".join(meaning for _, meaning in defined))


def test_lengths_are_relative_to_the_median_of_their_prompt():
    """Prompt 3: 1, 2, 4, median 2, of which one is correct; prompt 5: 1, 3, median 2, both correct, so that nothing is above."""
    relative, above = relate(
        np.array([5, 3, 3, 3, 5]), np.array([1.0, 4.0, 1.0, 2.0, 3.0]), np.array([1, 0, 1, 0, 1], bool)
    )
    assert relative.tolist() == [-1, 2, -1, 0, 1]
    assert above.tolist() == [0, pytest.approx(-1 / 3), pytest.approx(2 / 3), pytest.approx(-1 / 3), 0]


def shown_of(*paths: Path, **options: Any) -> dict[str, list[list[Any]]]:
    (one,), _ = audit([str(path) for path in paths], Options(**options))
    return {title: rows for title, _, rows in show_rollouts(one)}


def test_the_rollouts_shown_are_the_extremes(tmp_path):
    """By hand: in prompt A the incorrect one is 8 times as long, in B 3 times, in C it is shorter and makes no pair."""
    lengths = {"A": [(2, 1), (16, 0), (4, 1)], "B": [(3, 1), (9, 0)], "C": [(10, 1), (5, 0)], "D": [(20, 0), (30, 0)]}
    rows = [
        {"prompt": name, "response": " ".join(f"{name}{place}" for _ in range(size)), "reward": right}
        for name, responses in lengths.items()
        for place, (size, right) in enumerate(responses)
    ]
    shown = shown_of(write_lines(tmp_path / "rows.jsonl", *rows))
    pairs = shown["Prompts where the difference is largest"]
    assert [[r.prompt for r in pair] for pair in pairs] == [["A", "A"], ["B", "B"]]
    assert [[(r.kind, r.length) for r in pair] for pair in pairs] == [
        [("incorrect", "16 words"), ("correct", "2 words")], [("incorrect", "9 words"), ("correct", "3 words")],
    ]  # fmt: skip
    assert [r.passages[0].text.split()[0] for r in pairs[0]] == ["A1", "A0"]
    longest = [side[0] for side in shown["Longest incorrect responses"]]
    assert [(r.prompt, r.length) for r in longest] == [("D", "30 words"), ("A", "16 words"), ("B", "9 words")]
    assert longest[0].where == f"{tmp_path / 'rows.jsonl'}:9"
    shortest = [side[0] for side in shown["Shortest correct responses"]]
    assert [(r.prompt, r.length) for r in shortest] == [("A", "2 words"), ("B", "3 words"), ("C", "10 words")]


def test_texts_are_read_again_from_every_container(tmp_path):
    rows = make_rows(prompts=12)
    data = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    heads = []
    for name in ("a.jsonl.gz", "b.json", "c.parquet", "d.csv"):
        shown = shown_of(tmp_path / name)
        assert len(shown["Longest incorrect responses"]) == NUM_ALONE
        assert len(shown["Prompts where the difference is largest"]) == NUM_PAIRS
        heads.append([(r.prompt, r.passages[0].text) for groups in shown.values() for side in groups for r in side])
        assert all(re.search(r"end\d+\.\d+$", head) for _, head in heads[-1])
    assert heads[0] == heads[1] == heads[2] == heads[3]


@pytest.mark.parametrize("name", ["fairlen", "fairlen_pairs", "trl", "trl_messages", "verl", "lm_eval", "prime_rl"])
def test_texts_of_every_format_are_read_again(name):
    """Each response has the number of words or tokens that the log says, or the log counts something else."""
    audits, _ = audit([str(FORMATS / name)])
    shown = [r for one in audits for _, _, rows in show_rollouts(one) for side in rows for r in side]
    assert shown and all(r.passages[0].text and "cannot be read again" not in r.passages[0].text for r in shown)
    if audits[0].log.unit == "words":
        assert all(r.length == f"{max(len(r.passages[0].text.split()), 1)} words" for r in shown)


def test_a_file_that_changed_since_is_no_source_of_texts(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", *make_rows(prompts=12))
    (one,), reading = audit([str(path)])
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    page = write_audit_page(tmp_path / "page.html", [one], reading).read_text()
    assert "the text cannot be read again: the file has changed since" in page
    path.unlink()
    page = write_audit_page(tmp_path / "page.html", [one], reading).read_text()
    assert "the text cannot be read again: " in page and "No such file" in page
    bare = replace(one, source=replace(one.source, log=replace(one.log, line=np.zeros(0, np.int64))))
    assert show_rollouts(bare) == []


@pytest.mark.slow
def test_texts_of_any_length_fit(tmp_path):
    """More logs than have pictures, every text a megabyte of what takes most room once it is escaped."""
    for number in range(MAX_LOGS + 2):
        rows = make_rows(prompts=4, each=4)
        rows[number]["response"] = "<\u202e&'\"" * 20_000
        rows[number]["prompt"] = "<" * 100_000
        for row in rows:
            row["response"] += " " + "&" * 20_000
        write_lines(tmp_path / f"run{number:02d}" / "rows.jsonl", *rows)
    page = write_page_of(tmp_path / "page.html", tmp_path)
    assert page.stat().st_size < 1_500_000
    text = page.read_text()
    assert "letters left out" in text and text.count('<div class="claim') == MAX_LOGS + 2
    assert text.count('<section id="log') == MAX_LOGS


@pytest.mark.slow
def test_a_hundred_thousand_rollouts_take_seconds(tmp_path):
    """Read, measured and written in 10 seconds of one processor; 3.3 where this was written."""
    words = " ".join(["word"] * 200)
    draw = np.random.default_rng(0)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for row, size in enumerate(draw.integers(50, 150, 100_000).tolist()):
            text = words[: 5 * size]
            file.write(
                f'{{"step": {row // 4000}, "prompt": "p{row // 8}", "response": "{text}", "reward": {row * 7 % 3 % 2}}}\n'
            )
    before = time.process_time()
    page = write_page_of(tmp_path / "page.html", tmp_path / "rows.jsonl")
    assert time.process_time() - before < 10
    assert page.stat().st_size < 1_500_000 and "100,000 rollouts" in page.read_text()


def test_steps_are_numbered_as_their_programs_number_them():
    """TRL writes steps from 1; our records count rollout batches from 0, our console from 1."""
    for name, last in (("trl", 10), ("run", 8)):
        (one,), _ = audit([str(FORMATS.parent / "fixtures_real" / name)])
        steps = {r.step for _, _, rows in show_rollouts(one) for side in rows for r in side}
        assert steps <= set(range(1, last + 1)) and {one.log.step.min(), one.log.step.max()} == {1, last}


def test_a_long_text_is_shown_by_its_ends(tmp_path):
    """Of 1,000,000 letters 4,000 from the beginning and 2,000 from the end: two thirds and a third of the room of 6,000 bytes."""
    rows = [
        {"prompt": "p", "response": "a" * 500_000 + "b" * 500_000, "reward": 0},
        {"prompt": "p", "response": "c", "reward": 1},
    ]
    (one, _), *_ = shown_of(write_lines(tmp_path / "rows.jsonl", *rows), unit="characters")[
        "Prompts where the difference is largest"
    ]
    head, gap, tail = (passage.text for passage in one.passages)
    assert (head, tail) == ("a" * len(head), "b" * len(tail))
    assert (len(head), len(tail)) == (pytest.approx(4000, abs=1), pytest.approx(2000, abs=1))
    assert gap == f" \u2026 {1_000_000 - len(head) - len(tail):,} letters left out \u2026 "


@pytest.mark.slow
def test_a_log_of_one_response_or_one_outcome_makes_a_page(tmp_path):
    for number, rows in enumerate(
        (
            [{"prompt": "p", "response": "r", "reward": 1.0}],
            [{"prompt": f"p{i // 4}", "response": "r s", "reward": 0.0} for i in range(40)],
        )
    ):
        page = write_page_of(tmp_path / f"{number}.html", write_lines(tmp_path / f"{number}.jsonl", *rows)).read_text()
        assert "<h1>Not known yet</h1>" in page and "too few to conclude from" in page


# In a browser.


def test_nothing_scrolls_sideways_and_no_texts_overlap(open_page, three_page):
    page = open_page(three_page).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    overlaps = """[...document.querySelectorAll('svg[role=img]')].flatMap((chart) => {
      const boxes = [...chart.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
      return boxes.flatMap(([a, one], i) => boxes.slice(i + 1).filter(([, other]) =>
        one.left < other.right && other.left < one.right && one.top + 2 < other.bottom && other.top + 2 < one.bottom)
        .map(([b]) => `${chart.getAttribute('aria-label')}: ${a} / ${b}`));
    })"""
    beyond = """[...document.querySelectorAll('svg text, h1, h2, h3, p, dd, li, a')]
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.textContent)"""
    for viewport in (WIDE, PHONE):
        page.set_viewport_size(viewport)
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.evaluate(overlaps) == page.evaluate(beyond) == []


def assert_values_under_the_pointer(watched: Watched, every: int = 1) -> int:
    """Points at the ends and the middle of charts: a name and a number for each series there. Returns how many there are."""
    watched.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    charts = watched.page.locator("svg[role=img]")
    for number in range(0, charts.count(), every):
        hits = charts.nth(number).locator(".hit")
        assert hits.count() > 0, charts.nth(number).get_attribute("aria-label")
        for place in {0, hits.count() // 2, hits.count() - 1}:
            hits.nth(place).scroll_into_view_if_needed()
            hits.nth(place).hover(force=True)
            shown = watched.page.locator(".values:visible")
            name, *numbers = shown.inner_text().split("\n")
            assert name and numbers and all(re.search(r"\d", text) for text in numbers), shown.inner_text()
            box = shown.bounding_box()
            assert box and box["x"] >= 0 and box["x"] + box["width"] <= watched.page.viewport_size["width"]  # type: ignore[index]
    watched.page.mouse.move(0, 0)
    assert watched.page.locator(".values:visible").count() == 0
    return charts.count()


@pytest.mark.slow
def test_every_picture_has_values_under_the_pointer(open_page, effect_page):
    watched = open_page(effect_page, viewport=WIDE)
    assert assert_values_under_the_pointer(watched) == 5
    watched.page.set_viewport_size(PHONE)
    assert assert_values_under_the_pointer(watched) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain_page", "pairs_page"])
def test_pictures_of_reports_have_them_too(open_page, request, name):
    assert assert_values_under_the_pointer(open_page(request.getfixturevalue(name)), every=2) >= 8


@pytest.mark.slow
def test_pictures_of_comparisons_have_them_too(open_page, tmp_path):
    """10 + seed of 80 samples: 12.5%, 13.75% and 15% of the seeds."""
    folder = make_comparison(tmp_path / "c", {"grpo": 10, "dapo+balanced": 30})
    watched = open_page(report_comparison(folder, folder / "report.html"))
    assert assert_values_under_the_pointer(watched) == 5
    watched.page.locator(".hit").first.hover(force=True)
    assert re.fullmatch(
        r"grpo\n14% \[[\d.]+%, \d+%\]; seeds 12%, 14%, 15%", watched.page.locator(".values").inner_text()
    )


def test_lines_have_values_without_a_script_too(effect_page):
    titles = re.findall(r'class="hit"><title>(.*?)</title>', effect_page.read_text(), re.S)
    assert any(
        re.fullmatch(r"length \S+ to \S+\ncorrect: \S+ \[\S+ \S+\]\nincorrect: \S+ \[\S+ \S+\]", t) for t in titles
    )


def test_keyboard_reaches_what_there_is(open_page, effect_page):
    page = open_page(effect_page).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    summary = page.locator("details.response > summary").first
    assert page.locator("details.response pre.text").first.is_visible()
    summary.focus()
    page.keyboard.press("Enter")
    assert not page.locator("details.response pre.text").first.is_visible()
    page.locator(".finding a").last.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector(':target').id") == "def-within.length"


def test_no_script_is_needed(open_page, effect_page):
    page = open_page(effect_page, java_script_enabled=False).page
    assert page.locator("svg[role=img]").count() == 5
    assert page.locator("h1").inner_text() == "Length and correctness go together"
    assert page.locator("details.response pre.text").first.inner_text().strip()


def name_of(payload: str) -> str:
    """A payload as the name of a file or folder."""
    return payload.replace("/", "\u2215").replace("\x00", "")[:100]


@pytest.mark.parametrize("start", first_quickly(range(0, len(PAYLOADS), 10)))
def test_no_text_of_rollouts_runs(open_page, tmp_path, start):
    """40 payloads, ten a page: in prompts, responses, names of files, folders and columns, rejected rewards, the method."""
    assert len(PAYLOADS) >= 40
    for payload in PAYLOADS[start : start + 10]:
        known = {"step": 0, "advantage": 0.5}
        said = [(f"{payload} {i // 4}", f"{payload} {i}" + " w" * (i % 4), float(i % 2)) for i in range(48)]
        rows = [known | {"prompt": p, "completion": r, payload: x} for p, r, x in (*said, (payload, "w", payload))]
        write_lines(tmp_path / name_of(payload) / f"{name_of(payload)}.jsonl", *rows)
    audits, reading = audit([str(tmp_path)])
    assert len(audits) == 10
    hostile = [
        replace(one, method=InUse(payload, payload, f"{payload}/run.json"))
        for one, payload in zip(audits, PAYLOADS[start:], strict=False)
    ]
    reading = replace(reading, unreadable=PAYLOADS[start : start + 10], skipped=PAYLOADS)
    watched = open_page(write_audit_page(tmp_path / "page.html", hostile, reading))
    watched.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert assert_values_under_the_pointer(watched, every=9) > 10
    assert_unharmed(watched)
    texts = {
        part: watched.page.locator(part).all_text_contents()
        for part in (".asked", ".own", ".claim", "h2", ".more li", ".note")
    }
    for payload in PAYLOADS[start : start + 10]:
        for part, found in texts.items():
            wanted = visible(name_of(payload)) if part == "h2" else visible(payload)
            assert any(wanted in text for text in found), (payload, part)


@pytest.mark.slow
def test_no_text_of_records_runs(open_page, tmp_path):
    folder = write_run(tmp_path / name_of(PAYLOADS[0]), batches=2)
    for path in sorted((folder / "records").glob("responses-*.parquet")):
        table = pq.read_table(path)
        for name in ("problem", "text"):
            words = [PAYLOADS[row % len(PAYLOADS)] for row in range(table.num_rows)]
            table = table.set_column(table.column_names.index(name), name, pa.array(words))
        pq.write_table(table, path)
    watched = open_page(write_page_of(tmp_path / "page.html", folder))
    watched.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert_unharmed(watched)
    assert set(watched.page.locator(".own").all_text_contents()) <= {visible(payload) for payload in PAYLOADS}
