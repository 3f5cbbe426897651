"""Reports of runs whose every text is an attack, in a browser: nothing runs or is asked for, everything is shown as it is."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_browser import PAYLOADS, Watched, assert_unharmed
from report_runs import VOCABULARY, write_run

from fairlen.report import write_report
from fairlen.report.run import visible

pytestmark = pytest.mark.slow


def poison(folder: Path) -> None:
    """Puts a payload into every text of the records, each field of each row another one."""
    for path in sorted((folder / "records").glob("*.parquet")):
        table = pq.read_table(path)
        number = int(path.stem.rpartition("-")[2])
        for column, name in enumerate(table.column_names):
            if table.schema.field(name).type == pa.string() and name != "role":
                words = [PAYLOADS[(row + 11 * number + column) % len(PAYLOADS)] for row in range(table.num_rows)]
                table = table.set_column(column, name, pa.array(words))
        pq.write_table(table, path)


@pytest.mark.parametrize("method", ["grpo+eqlen", "grpo"])
def test_no_text_of_the_records_runs(open_page, tmp_path, method):
    folder = write_run(tmp_path / "run", method)
    poison(folder)
    watched = open_page(write_report(folder))
    page = watched.page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert_unharmed(watched)
    shown = page.evaluate(
        "[...document.querySelectorAll('.text, .facts dd, .what, .stream h3, .stream .says')].map((e) => e.textContent)"
    )
    texts = page.evaluate("[...document.querySelectorAll('.text .own')].map((e) => e.textContent)")
    for payload in PAYLOADS:
        assert visible(payload) in texts
        assert sum(visible(payload) in text for text in shown) >= 3
    facts = page.evaluate("[...document.querySelectorAll('.facts')].map((e) => e.textContent)")
    assert all(any(visible(p) in text for text in facts) for p in PAYLOADS)  # status, finish, answer


def test_no_text_of_the_description_runs(open_page, tmp_path):
    folder = write_run(tmp_path / "run", batches=1, prompts=1)
    description = json.loads((folder / "run.json").read_text())
    each = {payload: payload for payload in PAYLOADS}
    description |= {"config": each | {"max_response_length": 60}, "versions": each, "machine": each}
    description["command"] = ["x", *PAYLOADS]
    choices = {p: {"kind": p, p: p} for p in PAYLOADS} | {f"{p} ": p for p in PAYLOADS}
    whole = "".join(PAYLOADS)
    description["method"] = {"name": whole, "hash": whole, "notes": list(PAYLOADS), "choices": choices}
    (folder / "run.json").write_text(json.dumps(description))
    watched = open_page(write_report(folder))
    watched.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert_unharmed(watched)
    parts = ".note", ".settings dt", ".settings dd", ".command", ".choices dt", ".choices b", ".choices span", "h1"
    texts = {part: watched.page.locator(part).all_text_contents() for part in parts}
    for payload in map(visible, PAYLOADS):
        for part, found in texts.items():
            assert any(payload in text for text in found), (payload, part)


def test_no_name_of_a_method_or_folder_runs(open_page, plain_page, tmp_path):
    watched = open_page(plain_page)
    for number, payload in enumerate(PAYLOADS):
        folder = tmp_path / str(number) / payload.replace("/", "\u2215").replace("\x00", "")
        folder.mkdir(parents=True)
        method = {"name": payload, "hash": payload, "notes": [payload], "choices": {payload: payload}}
        (folder / "run.json").write_text(json.dumps({"config": {}, "method": method}))
        watched.go(write_report(folder, tmp_path / f"{number}.html"))
        assert_unharmed(watched)
        assert watched.page.locator("h1").text_content() == visible(payload)
        assert watched.page.title().startswith(" ".join(visible(payload).split())[:20])


def test_no_token_of_a_tokenizer_runs(open_page, tmp_path):
    """Tokens that are payloads, and texts that are made of them: the script writes them one span a token."""
    folder = write_run(tmp_path / "run", batches=2)
    tokenizer = json.loads((folder / "model" / "tokenizer.json").read_text())
    words = {payload: 3 + i for i, payload in enumerate(PAYLOADS)}
    spelled = {i: PAYLOADS[(i - 3) % len(PAYLOADS)] for i in range(3, len(VOCABULARY))}
    special = {word: i for word, i in VOCABULARY.items() if i < 3}
    others = {f"{p}{i}": i for i, p in spelled.items() if i >= 3 + len(PAYLOADS)}
    tokenizer["model"]["vocab"] = special | words | others
    (folder / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    by_id = {i: word for word, i in tokenizer["model"]["vocab"].items()}
    for path in sorted((folder / "records").glob("responses-*.parquet")):
        table = pq.read_table(path)
        tokens = zip(table["token_ids"].to_pylist(), table["num_prompt"].to_pylist(), strict=True)
        text = pa.array(["".join(by_id.get(t, "") for t in ids[start:] if t >= 3) for ids, start in tokens])
        pq.write_table(table.set_column(table.column_names.index("text"), "text", text), path)
    watched = open_page(write_report(folder))
    watched.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    watched.page.wait_for_function("document.querySelectorAll('.own > span').length > 100")
    assert_unharmed(watched)
    spans = set(watched.page.locator(".own > span").all_text_contents())
    assert {visible(payload) for payload in PAYLOADS} <= spans


def test_the_policy_lets_nothing_else_in(browser, plain_page):
    """What the policy stops even if escaping failed: a script, a style and an image put into the page."""
    watched = Watched(browser, plain_page)
    inject = """() => {
      const script = document.createElement('script'); script.text = 'window.pwned = 1'; document.body.append(script);
    }"""
    with pytest.raises(Exception, match="TrustedScript"):
        watched.page.evaluate(inject)
    image = "() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i); }"
    with watched.page.expect_event("requestfailed") as blocked:
        watched.page.evaluate(image)
    assert blocked.value.failure == "csp"  # before it left
    assert watched.page.evaluate("window.pwned") is None
    watched.context.close()
