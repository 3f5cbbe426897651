"""Reports without a browser: what is read, how estimates are made, what is shown of long and strange texts, size and speed."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_runs import BUDGET, write_run
from tokenizers import Tokenizer, decoders, models

from fairlen.audit.readers import read
from fairlen.audit.statistics.intervals import mean, rate
from fairlen.cli import main
from fairlen.metrics import find_metric
from fairlen.report import write_report
from fairlen.report.figure import NAME, middles, nice_axis, plain, share, span_axis, windows
from fairlen.report.page import render_page
from fairlen.report.run import MAX_SHOWN, OF_PROMPT, choose_rows, cut, read_run, show_sample, split_tokens, visible
from fairlen.report.sections import curves_section
from fairlen.report.streams import find_parents, gather_streams


def describe(name: str) -> str:
    """Return the unit and the meaning that docs/metrics.md has for a metric, as a report shows them."""
    metric = find_metric(name)
    return f"{metric.unit}: {metric.meaning}"


def test_the_command_writes_one_page(plain_run, plain_page, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(plain_run), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(str(out))
    page = out.read_text()
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert plain_page == plain_run / "report.html"
    assert plain_page.read_text() == page  # the same run gives the same page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: RUN"),
        (["nowhere"], "nowhere/run.json: there is no such file"),
        ([".", "--out"], "--out"),
        ([".", "--bogus"], "no flag --bogus"),
        ([".", "second"], "second: one argument too many"),
    ],
)
def test_mistakes_end_with_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2 and message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eqlen+grpo", "dapo"])
def test_a_real_run_has_a_report(tmp_path, method):
    """What a run writes is what a report reads: every figure, and tokens split by the tokenizer that was saved."""
    from fairlen.train.run.config import TrainConfig
    from fairlen.train.start import start_training

    config = TrainConfig.of(
        method=method, prompts_per_batch=4, rollout_batches=2, updates_per_batch=2, max_response_length=40,
        problems=8, samples=2,
        threads=1, max_num_seqs=32, out=str(tmp_path / "run"),
    )  # fmt: skip
    start_training(config)
    page = write_report(tmp_path / "run").read_text()
    chosen, _, logged = page.partition('<section id="logged">')
    assert chosen.count("<figure") == (10 if "eqlen" in method else 8)
    assert "Acceptance by length" in page
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    names = {
        name for entry in entries if "eval/accuracy" not in entry for name, value in entry.items() if value is not None
    }
    shown = {*re.findall("<h3>(.*?)</h3>", logged), *re.findall('<th scope="row">(.*?)</th>', logged)}
    assert names - {"update", "rollout_batch"} <= shown
    assert describe("entropy/mean") in logged
    assert f"To look for: {html.escape(find_metric('entropy/mean').look)}" in logged
    tokens = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    run = read_run(tmp_path / "run")
    assert run.records is not None and len(tokens) == len(show_sample(run.folder, run.records)) > 50


@pytest.mark.slow
def test_columns_of_all_batches_are_joined(pairs_run):
    records = read_run(pairs_run).records
    assert records is not None and "streams" in records.log.known
    log, tables = records.log, [pq.read_table(p) for p in sorted(pairs_run.glob("records/responses-*"))]
    assert len(log) == sum(t.num_rows for t in tables)
    assert log.responses.num_prompts == 8 * 4
    row = int(np.flatnonzero(log.batch == 5)[3])
    assert Path(records.files[log.file[row]]).name == "responses-000005.parquet" and log.line[row] == 4
    told = {name: tables[5][name][3].as_py() for name in ("length", "track", "inherited")}
    assert told == {
        "length": log.responses.length[row],
        "track": log.columns["track"][row],
        "inherited": log.columns["inherited"][row],
    }
    pair = np.flatnonzero(log.segments.group == log.segments.num_groups - 1)
    assert len(pair) == 2 and len(set(log.segments.length[pair])) == 1  # equal lengths, numbered over batches
    assert set(log.batch[log.segments.response[pair]]) == {7}


def test_a_half_written_run_has_a_report(pairs_run, tmp_path):
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((pairs_run / name).read_bytes())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 3, "roll')
    assert "No rollout batch was recorded" in write_report(tmp_path).read_text()
    (tmp_path / "metrics.jsonl").unlink()
    assert "nothing was measured" in write_report(tmp_path).read_text()


def test_a_broken_file_is_named(plain_run, tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: not JSON"):
        write_report(tmp_path)
    (tmp_path / "run.json").write_text((plain_run / "run.json").read_text())
    (tmp_path / "metrics.jsonl").write_text(
        '{"rollout_batch": 0, "update": 1}\n{oops}\n{"rollout_batch": 1, "update": 2}\n'
    )
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not JSON"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b'\xef\xbb\xbf{"rollout_batch": 0, "update": 1}\n{"\xe9": 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not UTF-8"):  # of line 1 a mark of UTF-8 is none
        write_report(tmp_path)


@pytest.mark.parametrize(
    "line", ['"rollout_batch": NaN, "update": 1', '"update": 1', '"rollout_batch": 1, "update": 1e999']
)
def test_a_metric_of_no_known_time_is_named(plain_run, tmp_path, line):
    (tmp_path / "run.json").write_text((plain_run / "run.json").read_text())
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"rollout_batch": 0, "update": 0}}\n\n{{{line}, "eval/accuracy": 0.5}}\n'
    )
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl:3: (rollout_batch=(nan|None)|update=inf): give a whole number"
    ):
        write_report(tmp_path)


def test_what_is_damaged_or_half_written_is_named_and_the_rest_is_shown(pairs_run, pairs_page, tmp_path):
    """8 rollout batches: a table of the 2nd is cut off, the last one's segments are not there yet: 6 are shown."""
    shutil.copytree(pairs_run, tmp_path / "run")
    records = tmp_path / "run" / "records"
    cut = records / "segments-000001.parquet"
    cut.write_bytes(cut.read_bytes()[:2000])
    (records / "segments-000007.parquet").unlink()
    page = write_report(tmp_path / "run").read_text()
    left_out = re.findall(r'class="note">Left out: ([^<]*)', page)
    assert len(left_out) == 2 and left_out[0].startswith(f"{cut}: ") and "damaged" in left_out[0]
    assert left_out[1].startswith(f"{records}/responses-000001.parquet: rollout batch 1 and 1 more: responses without")
    assert "6 rollout batches" in page and page.count("<figure>") == pairs_page.read_text().count("<figure>")
    (found,) = read([str(records)]).sources  # an audit reads the same
    run = read_run(tmp_path / "run")
    assert run.records is not None and np.array_equal(found.log.batch, run.records.log.batch)
    assert np.unique(found.log.batch).tolist() == [0, 2, 3, 4, 5, 6]


def test_texts_that_are_damaged_are_told_in_their_place(plain_run, tmp_path):
    """A file whose numbers can be read and whose texts cannot: its answers count, and one that is shown says why."""
    shutil.copytree(plain_run, tmp_path / "run")
    path = tmp_path / "run" / "records" / "responses-000003.parquet"
    group = pq.ParquetFile(path).metadata.row_group(0)
    (at,) = [
        (c.dictionary_page_offset or c.data_page_offset, c.total_compressed_size)
        for c in map(group.column, range(group.num_columns))
        if c.path_in_schema == "text"
    ]
    data = bytearray(path.read_bytes())
    data[at[0] : sum(at)] = bytes(at[1])
    path.write_bytes(data)
    page = write_report(tmp_path / "run").read_text()
    assert "8 rollout batches" in page and "Left out" not in page
    assert f"{path}: " in page and "the file is damaged" in page


def test_of_many_damaged_files_some_are_named(plain_run, tmp_path):
    shutil.copytree(plain_run, tmp_path / "run")
    for path in (tmp_path / "run" / "records").iterdir():
        path.write_bytes(b"PAR1 no table")
    page = write_report(tmp_path / "run").read_text()
    assert page.count("Left out: ") == 11 and "Left out: and 6 more" in page  # 8 rollout batches x 2 tables
    assert "No rollout batch was recorded" in page


def test_a_rollout_batch_without_a_pair_counts(pairs_run, tmp_path):
    """The budget cut every stream: no segment, and its responses are still there."""
    shutil.copytree(pairs_run, tmp_path / "run")
    for path in (tmp_path / "run" / "records").glob("segments-*"):
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    run, whole = read_run(tmp_path / "run"), read_run(pairs_run)
    assert run.left_out == () and run.records is not None and whole.records is not None
    assert np.array_equal(run.records.log.responses.length, whole.records.log.responses.length)
    assert "8 rollout batches" in write_report(tmp_path / "run").read_text()


def test_copies_of_a_prompt_tell_nothing_new():
    """Every prompt answered four times alike: the interval of one answer each, within the C / (C - 1) of few clusters."""
    hits, cluster = np.arange(100) % 4 < 3, np.arange(100)
    once = rate(hits, cluster, np.zeros(100, np.int64), 1)
    copied = rate(np.repeat(hits, 4), np.repeat(cluster, 4), np.zeros(400, np.int64), 1)
    assert copied.high[0] - copied.low[0] == pytest.approx(once.high[0] - once.low[0], rel=0.01)


def test_intervals_of_clustered_rows_cover():
    """20 prompts x 8 answers, a rate for each prompt: 95% intervals hold the mean in 92% to 98% of 400 draws."""
    draw, held, hits = np.random.default_rng(1), 0, 0
    cluster = np.repeat(np.arange(20), 8)
    for _ in range(400):
        chance = draw.beta(3, 2, 20)
        found = rate(draw.random(160) < chance[cluster], cluster, np.zeros(160, np.int64), 1)
        hits += found.low[0] <= 0.6 <= found.high[0]
        size = draw.normal(10, 2, 20)
        found = mean(size[cluster] + draw.normal(0, 3, 160), cluster, np.zeros(160, np.int64), 1)
        held += found.low[0] <= 10 <= found.high[0]
    assert 0.92 <= hits / 400 <= 0.98 and 0.92 <= held / 400 <= 0.98


def test_empty_bins_and_single_clusters():
    found = rate(np.array([True, False]), np.array([0, 0]), np.array([0, 0]), 2)
    assert np.isnan(found.value[1]) and found.count.tolist() == [2, 0]
    assert found.high[0] - found.low[0] > 0.8  # one prompt says little
    assert np.isnan(mean(np.array([3.0]), np.array([0]), np.array([0]), 1).low[0])
    assert np.isnan(found.of_at_least(3).value[0])
    none = rate(np.zeros(6), np.arange(6), np.zeros(6, np.int64), 1)
    assert none.low[0] == 0.0 and 0.3 < none.high[0] < 0.4  # 1.96^2 / (6 + 1.96^2), and no 1e-17 of rounding


def test_few_clusters_need_wider_intervals():
    """The share of hits in clusters that differ has a wider interval than in clusters that are all alike."""
    fair = rate(np.tile([0.8, 0.9], 50), np.arange(100), np.zeros(100, np.int64), 1)  # shares of tokens, all alike
    assert fair.high[0] - fair.low[0] < 0.03 and fair.low[0] < 0.85 < fair.high[0]


def test_numbers_are_written_with_three_digits_or_as_whole_ones():
    numbers = (999.4, 999.6, 1234.5, 999_999.0, 1_234_567.0, 2e9, -0.00025)
    assert [plain(one) for one in numbers] == ["999", "1,000", "1,234", "999,999", "1.23e6", "2e9", "-2.5e-4"]


def test_windows_hold_equal_numbers_of_batches():
    window, middle = windows(np.arange(1, 301))
    assert len(middle) == 38 and np.bincount(window).tolist() == [8] * 37 + [4]
    assert middle[0] == 4.5  # batches 1 to 8
    assert middles(2).tolist() == [0.25, 0.75]


def test_axes_hold_their_data():
    for values in ([0.0], [1.0, 1.0], [-3.0, 0.2], [np.nan], [1e-9, 2e-9], [0.97, 1.0]):
        axis = nice_axis([np.array(values)], most=1.0 if max(values) <= 1 else np.inf)
        finite = [v for v in values if np.isfinite(v)]
        assert axis.low < axis.high and all(axis.low <= v <= axis.high for v in finite), values
    late, whole = span_axis(5011.0, 5000.0), span_axis(5011.0, 1.0)
    assert (late.low, late.high, late.ticks) == (5000.0, 5011.0, [5000.0, 5005.0, 5010.0])
    assert (whole.low, whole.high, whole.ticks) == (0.0, 5011.0, [0.0, 2000.0, 4000.0])


def test_the_sample_is_of_every_part_and_outcome(plain_run, pairs_run):
    records = read_run(plain_run).records
    assert records is not None
    rows = choose_rows(records.log)
    assert len(rows) == MAX_SHOWN == len(set(rows.tolist()))
    _, size = np.unique(records.log.responses.prompt[rows], return_counts=True)
    assert (size == OF_PROMPT).mean() > 0.5  # of a prompt together
    counts = np.bincount(records.log.batch[rows], minlength=8)
    assert counts.min() >= MAX_SHOWN // 8 - 8
    pairs = read_run(pairs_run).records
    assert pairs is not None
    chosen = choose_rows(pairs.log)
    key = pairs.log.responses.prompt * 100 + pairs.log.responses.stream
    assert len(chosen) <= MAX_SHOWN
    assert all((key == k).sum() == (key[chosen] == k).sum() for k in set(key[chosen].tolist()))  # whole streams


def test_forks_hang_on_the_track_that_they_continue(pairs_run):
    run = read_run(pairs_run)
    assert run.records is not None
    files = [pq.read_table(p) for p in sorted(pairs_run.glob("records/responses-*"))]
    num_forks = 0
    for stream in gather_streams(show_sample(run.folder, run.records)):
        for fork, parent in find_parents(stream.tracks).items():
            child = next(t for t in stream.tracks if t.track == fork)
            both = [
                files[t.batch - 1]["token_ids"][int(run.records.log.line[t.number]) - 1].as_py()
                for t in (child, parent)
            ]
            assert both[0][: 2 + child.inherited] == both[1][: 2 + child.inherited]
            num_forks += 1
        assert len(find_parents(stream.tracks)) == len(stream.tracks) - 2
    assert num_forks > 20


@pytest.mark.slow
def test_a_stream_whose_last_round_has_no_bar_says_so(pairs_run):
    """Rounds count from 0, as in the records: of n tracks the last one is n - 2. Truncated pairs and equal texts have none."""
    run = read_run(pairs_run)
    assert run.records is not None
    seen = set()
    for stream in gather_streams(show_sample(run.folder, run.records)):
        last = max((piece.round for track in stream.tracks for piece in track.pieces), default=-1)
        has_pair = last == len(stream.tracks) - 2
        both_cut = sum(track.truncated for track in stream.tracks) == 2
        assert ("no pair in its last round" in stream.ending) == (not has_pair)
        assert ("wrote the same" in stream.ending) == (not has_pair and not both_cut)
        seen.add(has_pair)
    assert seen == {True, False}


def test_tokens_are_split_where_they_end():
    letters = Tokenizer(models.WordLevel({"<eos>": 0, "ab": 1, "c": 2}, unk_token="<eos>"))
    letters.decoder = decoders.Fuse()
    letters.add_special_tokens(["<eos>"])
    assert split_tokens(letters, [1, 2, 0], "abc") == ["ab", "c", "\u220e"]
    assert split_tokens(letters, [1, 2, 0], "ab c") is None
    euro = {chr(c): i for i, c in enumerate((0xE2, 0x0124, 0xAC))}  # the sign's three bytes, as byte-level letters
    of_bytes = Tokenizer(models.BPE(euro, []))
    of_bytes.decoder = decoders.ByteLevel()
    assert split_tokens(of_bytes, [0, 1, 2], "\u20ac") == ["", "", "\u20ac"]
    assert split_tokens(of_bytes, [0, 1], "\ufffd") is None  # ends within a letter


def test_long_texts_keep_both_ends():
    words = "<b>" * 4000 + "end"
    (head, gap, tail), tokens = cut({"text": words}, None, 3000)
    assert head.text.startswith("<b>") and tail.text.endswith("end") and not tokens
    shown = len(head.text) + len(tail.text)
    assert gap.text == f" \u2026 {len(words) - shown:,} letters left out \u2026 " and shown < 3000
    assert visible("a\u202eb\x00\n\u2028") == "a\\u202eb\\x00\n\\u2028"


def test_markup_and_data_are_escaped(plain_run, tmp_path):
    written = NAME.format(y=1, tone='"x"', text="</text><script>")
    assert written.endswith('class="name c-&#34;x&#34;">&lt;/text&gt;&lt;script&gt;</text>')
    run, tokens = read_run(plain_run), {"p": "</script><!--&\u2028"}
    assert run.records is not None
    shown = replace(show_sample(run.folder, run.records)[0], tokens=tokens)
    page = render_page({"name": "x", "folder": "y"}, [], [], [shown])
    (data,) = re.findall(r'id="data">(.*?)</script>', page)
    assert not re.search("[<>&\u2028]", data) and json.loads(data) == {str(shown.number): tokens}


def test_a_report_begins_with_what_was_learned_and_what_the_audit_finds(plain_page):
    """The headline, the verdict, then learning before length; every word that a page links to is defined on it; no secret is."""
    page = plain_page.read_text()
    sentence = re.search(r'<p class="sentence">(.*?) <a href="#def-verdict">', page)
    assert sentence and page.index("</h1>") < sentence.start() < page.index("<figure")
    assert (
        page.index("<h1>")
        < page.index('class="headline"')
        < sentence.start()
        < page.index('id="learning"')
        < page.index('id="lengths"')
    )
    assert set(re.findall('href="#(.*?)"', page)) <= set(re.findall('id="(.*?)"', page))
    assert "eps_in" not in page[: page.index('class="more"')]  # fields of stages are folded in
    assert "hf_s3cret" not in page and "<dt>learning_rate</dt><dd>0.0003</dd>" in page


def test_a_run_without_evaluations_begins_with_training(tmp_path):
    """As one of TRL's: the first and the last two of 8 steps of SmolLM2-135M, counted from their records."""
    run = Path(shutil.copytree(Path(__file__).parents[1] / "fixtures_real/run", tmp_path / "run"))
    lines = [line for line in (run / "metrics.jsonl").read_text().splitlines() if "eval/accuracy" not in line]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    tables = [pq.read_table(path) for path in sorted(run.glob("records/responses-*"))]
    first, last = (pa.concat_tables(part) for part in (tables[:2], tables[-2:]))
    accuracy = [(one["outcome"].to_numpy() > 0.5).mean() for one in (first, last)]
    length = [one["length"].to_numpy().mean() for one in (first, last)]
    page = write_report(run).read_text()
    assert f"<strong>{share(accuracy[1])}</strong><span>in training; {share(accuracy[0])} at first" in page
    assert f"<strong>{plain(length[1])}</strong><span>in training; {plain(length[0])} at first" in page
    assert "<h3>Training accuracy rose from " in page and "nothing was measured" not in page


def test_one_evaluation_is_no_change(plain_run, tmp_path):
    """As of a run that was interrupted: what was measured at first is neither before nor after training."""
    run = Path(shutil.copytree(plain_run, tmp_path / "run"))
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    page = write_report(run).read_text()
    assert "<strong>40%</strong><span>40% [34%, 45%]</span>" in page and "<span>tokens, held out</span>" in page
    assert " before" not in page[: page.index("<figure")] and " after" not in page[: page.index("<figure")]


def test_responses_without_a_verdict_are_neither_correct_nor_incorrect(tmp_path):
    """Every other response of a rollout batch timed out: accuracy and mean lengths are those of the rest."""
    run = write_run(tmp_path / "run", batches=1)
    path = run / "records/responses-000000.parquet"
    table, gone = pq.read_table(path), np.arange(64) % 2 == 1
    columns = {"active": pa.array(~gone), "status": np.where(gone, "timeout", table["status"].to_numpy(False))}
    pq.write_table(pa.table(dict(zip(table.column_names, table.columns, strict=True)) | columns), path)
    (run / "metrics.jsonl").unlink()
    graded = table.filter(pa.array(~gone | (table["finish"].to_numpy(False) == "length")))
    is_correct, length = (graded["status"].to_numpy(False) == "correct"), graded["length"].to_numpy()
    page = write_report(run).read_text()
    assert f"<dt>accuracy</dt><dd><strong>{share(is_correct.mean())}</strong>" in page
    cells = re.search(r"incorrect \(tokens\)</th>.*?<td>(\S+) .*?<td>(\S+) ", page, re.S)
    assert cells and cells.groups() == (plain(length[is_correct].mean()), plain(length[~is_correct].mean()))
    assert page.count('data-kind="ungraded"') == (gone & (table["finish"].to_numpy(False) == "stop")).sum() > 0


def test_curves_are_means_in_a_band_of_extremes(tmp_path):
    """Two updates of batch 0: 1 and 3, mean 2 [1, 3]; one of batch 1: 5. What never changes is a row."""
    run = write_run(tmp_path / "run", batches=1, prompts=1)
    rows = [(1, 0, 1.0), (2, 0, 3.0), (3, 1, 5.0)]
    entries = [{"update": u, "rollout_batch": b, "entropy/mean": y, "my/own": 7.0, "<i>": y} for u, b, y in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (section,) = curves_section(read_run(run))
    groups = dict(section.groups)
    assert list(groups) == ["The update", "Other", "Constant"]
    (entropy,) = groups["The update"]
    assert entropy.table and list(entropy.table.rows) == [("1", "2 [1, 3]"), ("2", "5")]
    assert entropy.title == "entropy/mean" and entropy.says == describe("entropy/mean") != ": "
    constant = groups["Constant"][0].table
    assert constant and list(constant.rows) == [("my/own", "7", "", "")]
    assert "<h3>&lt;i&gt;</h3>" in write_report(run).read_text()


def test_titles_say_what_is_seen(plain_page, pairs_page):
    page = plain_page.read_text()
    assert "Held-out accuracy rose from 40% to 90%" in page and "Acceptance by length" in page
    assert f"the limit of {BUDGET} tokens" in page
    page = pairs_page.read_text()
    assert "Nothing could be clipped" in page and "Survivors win" in page and "pairs on average" in page


@pytest.mark.slow
def test_a_hundred_thousand_responses_fit(many_page):
    assert many_page.path.stat().st_size <= 1_500_000
    assert many_page.seconds < 60  # some seconds on an idle machine
    assert many_page.megabytes < 600
