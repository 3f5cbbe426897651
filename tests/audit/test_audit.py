"""The audit: effects that were planted are found and others are not, and what the command prints."""

import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from loops import first_quickly
from rich.console import Console

from fairlen.audit.audit import Audit, AuditFinding, audit, audit_source, find_in_streams
from fairlen.audit.command import AuditConfig, parse_columns, show
from fairlen.audit.comparison import compare_logs
from fairlen.audit.conclusion import p_values_of
from fairlen.audit.log import Log, Malformed, Trained
from fairlen.audit.method_in_use import parse_method
from fairlen.audit.numbers import count_rollouts, line, to_json
from fairlen.audit.readers import Source
from fairlen.audit.readers.frameworks import VERL
from fairlen.audit.statistics.intervals import Estimate
from fairlen.audit.statistics.streams import StreamReport
from fairlen.audit.statistics.within import Effect
from fairlen.batch import build_responses, build_segments
from fairlen.cli import main
from fairlen.report.prompts import difficulty_figure

FORMATS = Path(__file__).parents[1] / "fixtures_formats"
PROMPTS, EACH, STEPS = 80, 8, 4


def make_log(seed: int = 0, *, longer: float = 1.0, grows: float = 0.0, spread: float = 0.2, **changes) -> Log:
    """80 prompts with 8 answers, over 4 steps, half of them correct; others `longer` times as long, `grows` words a step."""
    rng = np.random.default_rng(seed)
    size = PROMPTS * EACH
    prompt = np.repeat(np.arange(PROMPTS), EACH)
    step = prompt // (PROMPTS // STEPS)
    right = rng.random(size) < 0.5
    length = rng.uniform(1 - spread, 1 + spread, size) * 100 * np.where(right, 1.0, longer) + grows * step
    length = np.rint(length).astype(np.int64)
    responses = build_responses(prompt, length, right, right, np.zeros(size), 1000)
    segments = build_segments(responses, length)
    known = frozenset({"correct", "reward", "truncated"})
    return replace(Log("verl", "words", responses, step, segments, known=known), **changes)


def audited(log: Log, method: str = "") -> Audit:
    return audit_source(Source(VERL, "folder", ("file",), log, ()), parse_method(method) if method else None)


def found_in(log: Log) -> dict[str, AuditFinding]:
    return {one.measure: one for one in audited(log).findings}


def with_outcomes(log: Log, right: np.ndarray) -> Log:
    return replace(log, responses=replace(log.responses, correct=right, outcome=right.astype(float)))


@pytest.mark.parametrize("num", first_quickly([5, 20]))
def test_longer_wrong_answers_are_one_finding(num):
    """Incorrect ones 60% longer: one effect, told once, with its interval; another one falsely in a twentieth of logs."""
    audits = [audited(make_log(seed, longer=1.6)) for seed in range(num)]
    assert sum(len(each.findings) > 1 for each in audits) <= num / 5
    one = next(each for each in audits if len(each.findings) == 1)
    gap = one.findings[0].estimate
    assert 0.55 < gap.low < 0.6 < gap.high < 0.65
    assert one.conclusion.status == "effect" and one.conclusion.sentence.startswith(one.findings[0].text)
    assert one.findings[0].p_value == p_values_of(one.within)["within.length"]  # of both of its effects
    assert f"{Estimate(0.25):.0%}" == "25%"  # a number without an interval
    assert re.match(
        r"incorrect responses are 6\d% \[\d\d%, 6\d%\] longer than correct ones to the same prompt",
        one.findings[0].text,
    )


def test_shorter_wrong_answers_turn_the_sign():
    found = found_in(make_log(longer=0.6))["within.length"]
    assert "shorter than correct ones" in found.text and "-" not in found.text
    assert found.estimate.low < -0.4 < found.estimate.high


def test_difficulty_is_description():
    """Hard prompts have responses three times as long; within prompts length says nothing."""
    log = make_log(spread=0.1)
    hard = np.random.default_rng(3).permutation(PROMPTS)[log.responses.prompt] / PROMPTS
    length = np.rint(log.responses.length * (1 + 2 * hard)).astype(np.int64)
    right = np.random.default_rng(4).random(len(log)) < 0.9 - 0.8 * hard
    one = audited(with_outcomes(replace(log, responses=replace(log.responses, length=length)), right))
    assert one.lengths.difference.low > 20  # pooled over prompts incorrect responses are much longer
    assert one.shares.difficulty.high < -0.6
    assert one.conclusion.status != "effect" and one.findings == ()
    right = np.random.default_rng(4).random(len(log)) < (0.9 - 0.8 * hard) * (1 + log.batch) / 4
    drifts = replace(
        log, responses=replace(log.responses, length=length * 2**log.batch)
    )  # longer and better every step
    shares = [float(cells[1].split("%")[0]) for cells in difficulty_figure(with_outcomes(drifts, right)).table.rows]
    assert audited(with_outcomes(drifts, right)).shares.difficulty.high < 0 and shares[0] > shares[-1]


def test_growth_over_steps_is_description():
    one = audited(make_log(grows=20.0))
    assert one.lengths.trend.low > 10 and one.findings == ()


def test_truncation_alone_is_selection():
    """Every response beyond 110 words is cut there and incorrect; or has no verdict, which makes them no fewer."""
    log = make_log()
    cut = log.responses.length > 110
    table = replace(log.responses, length=np.minimum(log.responses.length, 110), truncated=cut)
    one = audited(with_outcomes(replace(log, responses=table), log.correct & ~cut), "token_mean")
    assert one.conclusion.status in ("none", "unknown")
    assert [found.measure for found in one.findings] == ["selection.truncated"]  # 25% of responses
    assert one.within_with_truncated.order.p_value < 1e-6
    assert one.selection.truncated_incorrect.low > 0.3 and one.selection.truncated_correct.high < 0.05
    assert audited(replace(log, known=frozenset({"correct"}))).selection.truncated.exists is False
    graded = with_outcomes(replace(log, responses=table, problem=table.prompt), log.correct & ~cut)
    ungraded = replace(graded, responses=replace(graded.responses, active=~cut))
    other, found = audited(ungraded), compare_logs(ungraded, graded)
    assert other.conclusion.sentence.startswith(f"{cut.mean():.0%} of responses end at the limit; of the others")
    assert other.selection.truncated == one.selection.truncated and not other.selection.truncated_incorrect.exists
    assert next(c for c in found.contrasts if c.measure == "truncated").difference.value == 0
    assert found.notes[-1].startswith(f"{cut.mean():.1%} of A and 0.0% of B have no verdict")


def test_an_effect_is_told_with_truncated_responses_too():
    log = make_log(longer=1.6)
    cut = np.random.default_rng(7).random(len(log)) < 0.1
    more = found_in(replace(log, responses=replace(log.responses, truncated=cut)))["within.length"].more
    assert len(more) == 2 and "truncated responses are left out; with them incorrect responses are" in more[0]
    assert "in these 4 steps" in more[1]  # an effect that changes from step to step is beyond the interval
    lost = replace(log, responses=replace(log.responses, truncated=cut, active=~cut))
    assert found_in(lost)["within.length"].more[0] == "truncated responses are left out: no verdict"
    unknown = found_in(replace(log, known=frozenset({"correct"})))["within.length"].more
    assert "which responses were truncated is not known" in unknown[0]


def test_responses_dropped_for_their_length_are_seen():
    """A timeout takes four in five of the responses beyond 110 words, and one in ten of the others."""
    log = make_log()
    gone = np.random.default_rng(5).random(len(log)) < np.where(log.responses.length > 110, 0.8, 0.1)
    one = audited(replace(log, responses=replace(log.responses, active=~gone)))
    found = {finding.measure: finding for finding in one.findings}["selection.dropped"]
    assert found.estimate.low > 0.05 and "responses without a verdict are" in found.text and "longer" in found.text
    assert one.selection.dropped.low < gone.mean() < one.selection.dropped.high
    assert one.selection.incomplete.value > 0.3
    either = np.random.default_rng(6).random(len(log)) < 0.3
    same = audited(replace(log, responses=replace(log.responses, active=~either)))
    assert "selection.dropped" not in {finding.measure for finding in same.findings}


def test_failures_of_unknown_length_are_in_no_gap():
    """One in ten broke off, half of them at a length that is not known, which counts as 1: ln(1 / 100) is no difference."""
    log, draws = make_log(), np.random.default_rng(5).random(PROMPTS * EACH)
    length = np.where(draws < 0.05, 1, log.responses.length)
    found = audited(replace(log, responses=replace(log.responses, active=draws > 0.1, length=length))).selection
    assert abs(found.dropped_gap.value) < 0.1 and found.dropped.low < 0.1 < found.dropped.high


def test_groups_without_contrast():
    log = make_log()
    right = np.where(log.responses.prompt % 4 == 0, True, np.where(log.responses.prompt % 4 == 1, False, log.correct))
    one = audited(with_outcomes(log, right))
    assert one.shares.all_correct.low < 0.25 < one.shares.all_correct.high
    assert one.shares.all_incorrect.low < 0.25 < one.shares.all_incorrect.high
    assert one.conclusion.num_prompts <= 40


def test_repeated_answers():
    repeated = (np.arange(PROMPTS * EACH) % 5 == 0).astype(float)
    one = audited(make_log(columns={"duplicate": repeated}))
    assert one.shares.duplicate.value == pytest.approx(0.2) and one.findings == ()


def trained_log(seed: int, slope: float) -> Log:
    """Every answer trained once; a bound lets lengths through by a line of that slope."""
    log = make_log(seed, spread=0.9)
    rng, size = np.random.default_rng(seed + 100), len(log)
    chance = 0.6 - slope * (log.segments.length - 100) / 100
    inside = (rng.random(size) < chance).astype(float)
    rows = Trained(
        np.arange(size), np.zeros(size, np.int64), np.ones(size), rng.normal(0, 0.1, size), 1 - inside, inside
    )
    return replace(log, trained=rows, known=log.known | {"trained"})


@pytest.mark.parametrize("num", first_quickly([5, 20]))
def test_unequal_acceptance_is_found_and_equal_acceptance_is_not(num):
    found = found_in(trained_log(0, 0.4))["acceptance.lre"]
    assert "of the shortest responses" in found.text and found.estimate.low > 0
    assert sum("acceptance.lre" in found_in(trained_log(seed, 0.0)) for seed in range(num)) <= num / 5


def test_copies_of_a_step_make_no_interval_narrower():
    """Every problem in three steps with the same responses: as much is known of problems as from one step."""
    log, found = trained_log(0, 0.2), []
    for copies in (1, 3):
        rows, step = np.tile(np.arange(len(log)), copies), np.repeat(np.arange(copies), len(log))
        table = log.responses.take(rows)
        prompt, right, length = table.prompt + PROMPTS * step, table.correct, table.length
        responses = build_responses(prompt, length, right, right, 0 * rows, 1000)
        trained = replace(log.trained.take(rows), segment=np.arange(len(rows)), update=step)
        columns = {
            "responses": responses,
            "batch": step,
            "segments": build_segments(responses, length),
            "trained": trained,
        }
        found.append(audited(replace(log, **columns, problem=table.prompt, columns={"duplicate": rows % 5 == 0})))
    once, thrice = (
        [*one.lengths.accuracy, *one.lengths.mean, *one.lengths.difference, *one.shares.all_correct, *one.shares.duplicate,
         *one.coupling.sign_length, *one.acceptance.overall] for one in found
    )  # fmt: skip
    assert once == pytest.approx(thrice, nan_ok=True)
    assert count_rollouts(found[1]).startswith("1,920 responses to 80 prompts in 3 steps, 80 with")


def test_optimism_and_eos_advantage_of_streams():
    """Over 10 prompts, errors of .1 and .05: t of 3 and -2 of 9 degrees; 9 prompts are too few to conclude from."""
    sure, less = Effect(0.3, 0.1, 9.0, 10), Effect(-0.1, 0.05, 9.0, 10)
    found = list(find_in_streams(StreamReport(Estimate(1.0), sure, less)))
    assert [one.measure for one in found] == ["streams.optimism", "streams.eos_advantage"]
    assert [one.p_value for one in found] == pytest.approx([0.01496, 0.07654], abs=1e-4)  # of any table of Student's t
    assert "stopping is penalised" in found[1].text
    assert not list(find_in_streams(StreamReport(Estimate(1.0), *[replace(sure, num_prompts=9)] * 2)))


def test_the_method_decides_the_advice():
    log = make_log(longer=1.6)
    advice = {name: audited(log, name).findings[0].advice for name in ("dapo", "dapo+balanced", "dr_grpo")}
    assert advice["dapo"] and "+balanced" in advice["dapo"].text and advice["dapo"].evidence
    assert all(not found or "+balanced" not in found.text for name, found in advice.items() if name != "dapo")
    assert audited(log).findings[0].advice is None  # the method is not known


def test_no_advice_where_the_weights_do_not_follow_the_effect():
    """Incorrect ones are 30% longer but for a tenth of the correct ones, which are eight times as long: 130 against 170."""
    log, rng = make_log(longer=1.3), np.random.default_rng(8)
    long = log.correct & (rng.random(len(log)) < 0.1)
    length = np.where(long, log.responses.length * 8, log.responses.length)
    log = replace(log, responses=replace(log.responses, length=length), segments=replace(log.segments, length=length))
    one = audited(log, "dapo")
    finding = next(each for each in one.findings if each.measure == "within.length")
    assert "the longer ones in" in finding.text
    assert one.weights["token_mean"].incorrect_to_correct.value < 1 and finding.advice is None


def test_digits_do_not_depend_on_the_process(capsys):
    """This one's hashes of texts are drawn, the other's are of seed 1."""
    arguments = ["audit", str(FORMATS / "trl_run"), "--json"]
    assert main(arguments) == 0
    command, env = [sys.executable, "-m", "fairlen", *arguments], os.environ | {"PYTHONHASHSEED": "1"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert capsys.readouterr().out == told


def test_few_prompts_give_numbers_and_no_findings():
    log = make_log(longer=3.0)
    few = log.responses.prompt < 9
    log = replace(log, responses=log.responses.take(few), segments=log.segments.take(few), batch=log.batch[few])
    one = audited(log)
    assert one.lengths.difference.value > 100 and one.findings == ()
    out = StringIO()
    show((one,), audit([str(FORMATS / "verl")])[1], Console(file=out))
    assert "fewer than 10 are too few" in out.getvalue()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    out, error = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main(["audit", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), error.getvalue())


def rollouts(path: Path, longer: bool) -> Path:
    """verl's lines: 30 prompts with 4 answers, the incorrect ones twice as long or not."""
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for row in range(120):
            right = row % 4 < 2
            words = int(rng.integers(40, 60)) * (2 if longer and not right else 1)
            answer = " ".join(str(n) for n in rng.integers(0, 99, words))
            file.write(
                json.dumps({"input": f"q{row // 4}", "output": answer, "gts": "", "score": float(right), "step": 1})
                + "\n"
            )
    return path


FOLDERS = sorted(path.name for path in FORMATS.iterdir() if path.is_dir() and path.name[0] != "_")


def test_one_of_a_thing_is_singular(tmp_path):
    """One answer to one prompt in one step, beside a file of another kind."""
    row = {"input": "1 + 1?", "output": "It is 2.", "gts": "2", "score": 1.0, "step": 1}
    (tmp_path / "1.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    shown = " ".join(run(str(tmp_path)).stdout.split())
    assert "1 response to 1 prompt in 1 step, 0 with correct and incorrect ones;" in shown
    assert "1 other file without rollouts; name one" in shown


def test_the_command_line(tmp_path):
    done = run(str(rollouts(tmp_path / "1.jsonl", longer=True)))
    assert done.returncode == 0, done.stderr
    assert "verl rollouts" in done.stdout and "lengths in words" in done.stdout
    assert "truncation: verl decodes responses without their EOS token" in done.stdout
    assert "effect: incorrect responses are" in done.stdout
    assert "method: not known" in done.stdout and "--method" in done.stdout
    known = run(str(tmp_path / "1.jsonl"), "--method", "dapo")
    assert "with dapo:" in known.stdout and "evidence: by a token mean" in known.stdout
    none = run(str(rollouts(tmp_path / "1.jsonl", longer=False)))
    assert none.returncode == 0
    assert re.search("(none|unknown): ", none.stdout) and "findings: none" in none.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing.jsonl"], 1, "nothing.jsonl: there is no such file or folder"),
        ([str(FORMATS / "make.py")], 1, "each row needs a prompt"),
        ([str(FORMATS / "verl"), "nothing/*.parquet"], 1, "no file matches it as a pattern"),
        ([], 2, "the following arguments are required: PATHS"),
        ([str(FORMATS / "generic"), "--columns", "promt=question"], 2, "did you mean 'prompt'?"),
        ([str(FORMATS / "generic"), "--unit", "tokens"], 2, "add --tokenizer FOLDER"),
        ([str(FORMATS / "generic"), "--tokenizer", "none"], 2, "no tokenizer.json there"),
        ([str(FORMATS / "generic"), "--max-response-length", "-1"], 2, "--max-response-length -1"),
    ],
)
def test_mistakes_end_with_one_message(arguments, code, message):
    done = run(*arguments)
    assert done.returncode == code and message in done.stderr


def test_what_can_be_read_is_audited_beside_what_cannot(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"\x80\x02N.")
    done = run(str(rollouts(tmp_path / "1.jsonl", longer=True)), str(tmp_path / "a.pt"))
    assert done.returncode == 1
    assert "a pickle" in done.stderr and "effect: " in done.stdout


LOG_KEYS = {
    "format", "title", "folder", "files", "unit", "counts", "malformed", "notes", "known", "missing", "lengths",
    "coupling", "weights", "shares", "acceptance", "streams", "channels", "turns", "findings", "method", "conclusion", "within",
    "within_with_truncated", "selection", "budgets", "untrained",
}  # fmt: skip


def test_json_has_the_documented_keys_and_no_nan(tmp_path):
    def refuse(word: str) -> None:
        raise AssertionError(word)

    done = run(str(FORMATS), str(rollouts(tmp_path / "1.jsonl", longer=True)), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout, parse_constant=refuse)
    assert set(told) == {"logs", "against", "unreadable", "skipped"}
    assert len(told["logs"]) == len(FOLDERS) + 1
    for log in told["logs"]:
        assert set(log) == LOG_KEYS
        assert set(log["counts"]) == {"responses", "prompts", "rollout_batches", "malformed"}
        assert set(log["lengths"]["mean"]) == {"value", "low", "high"}
    by_format = {log["format"]: log for log in told["logs"]}
    assert by_format["fairlen"]["streams"] is not None
    assert by_format["trl"]["acceptance"] is None
    one = next(log for log in told["logs"] if log["folder"] == str(tmp_path))
    assert one["conclusion"]["status"] == "effect"
    assert {"measure", "estimate", "p_value", "text", "more", "advice"} == set(one["findings"][0])
    assert one["conclusion"]["estimate"]["low"] > 0
    table = (Path(__file__).parents[2] / "docs" / "audit.md").read_text().partition("## In JSON")[2]
    assert all(re.search(rf"[`.]{key}`", table) for key in (*LOG_KEYS, *told))


def test_hostile_text_does_nothing_on_a_terminal(tmp_path):
    name = "a\x1b]0;title\x07\u202e[red]b"
    path = tmp_path / f"{name}.jsonl"
    row = {"input": "q", "output": "x \x1b[2J", "gts": "", "score": 1.0, "step": 1}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"score": "\x1b[31mred[/]"}) + "\n" + '{"a": "\x1b[2J\n')
    audits, reading = audit([str(path), str(tmp_path)])
    out = StringIO()
    show(audits, reading, Console(file=out, force_terminal=True, width=300, highlight=False, color_system=None))
    assert "\x1b]0" not in out.getvalue() and "\x07" not in out.getvalue() and "\u202e" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue() and "\x1b[31m" not in out.getvalue()
    assert "\\x1b[31mred[/]" in out.getvalue()
    done = run(str(path), str(tmp_path / "\x1b[31mnothing"))
    assert "\x1b" not in done.stdout + done.stderr


def test_malformed_rows_are_shown_by_file_and_line():
    rows = tuple(Malformed("f.jsonl", line, "no reward") for line in range(1, 31))
    one = audit_source(Source(VERL, "folder", ("file",), make_log(malformed=rows), ("a note",)))
    out = StringIO()
    show((one,), audit([str(FORMATS / "verl")])[1], Console(file=out))
    assert "30 rows could not be read and are left out:" in out.getvalue()
    assert "f.jsonl:10: no reward" in out.getvalue() and "f.jsonl:11:" not in out.getvalue()
    assert "and 20 more" in out.getvalue()
    assert to_json((one,), audit([str(FORMATS / "verl")])[1])["logs"][0]["counts"]["malformed"] == 30


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(str(rollouts(tmp_path / "1.jsonl", longer=False)), "--out", str(tmp_path / "file" / "page.html"))
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "file" in said and said.endswith("name a place that can be read and written") and "Errno" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("output", "code"), [("closed", 0), ("full", 2)])
def test_a_page_is_whole_where_its_text_cannot_be_printed(tmp_path, output, code):
    """As with `| head -1`, and on a full disk."""
    page, command = tmp_path / "page.html", [sys.executable, "-m", "fairlen", "audit"]
    rows = rollouts(tmp_path / "1.jsonl", longer=False)
    reads, writes = os.pipe()
    os.close(reads)
    with open("/dev/full", "w") as full, open(writes, "w") as closed:
        out = closed if output == "closed" else full
        done = subprocess.run([*command, str(rows), "--out", str(page)], stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (code, code // 2), done.stderr
    assert page.read_text().rstrip().endswith("</html>")


def test_lengths_of_thousands_are_written_out():
    """Three digits, and all of those before the point: 7,234 tokens, and not 7.23e+03."""
    assert line("length", Estimate(7234.2, 999.6, 81234.5)) == ("length", "7,234", "[1,000, 81,234]")
    assert line("length", Estimate(998.2, 12.345, 999.4)) == ("length", "998", "[12.3, 999]")
    assert line("change", Estimate(-1234.5, -3000, 2.0), "+.3g") == ("change", "-1,234", "[-3,000, +2]")


def test_settings():
    assert parse_columns("prompt=q, reward=a+b") == {"prompt": "q", "reward": "a+b"}
    with pytest.raises(ValueError, match="leave one of them out"):
        AuditConfig(("a",), unit="words", tokenizer="b").options()
