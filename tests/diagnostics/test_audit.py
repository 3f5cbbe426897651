"""The audit: effects that were planted are found and others are not, and what the command prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fairlen.batch import build_responses, build_segments
from fairlen.diagnostics.log import Log, Malformed, Trained
from fairlen.diagnostics.readers import Source
from fairlen.diagnostics.readers.frameworks import VERL
from fairlen.diagnostics.report import audit as conclusions
from fairlen.diagnostics.report.audit import Effect, audit, audit_source
from fairlen.diagnostics.report.summary import AuditConfig, parse_columns, show, to_json
from fairlen.diagnostics.streams import StreamReport
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.methods.modifiers import MODIFIERS
from fairlen.methods.presets import BASES

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


def found_in(log: Log) -> dict[str, Effect]:
    return {one.measure: one for one in audit_source(Source(VERL, "folder", ("file",), log, ())).findings}


def with_outcomes(log: Log, right: np.ndarray) -> Log:
    return replace(log, responses=replace(log.responses, correct=right, outcome=right.astype(float)))


def test_longer_wrong_answers_are_found_everywhere_they_show():
    found = found_in(make_log(longer=1.6))
    gap = found["lengths.difference"].estimate
    assert 55 < gap.value < 65 and gap.low < 60 < gap.high
    assert "words longer than correct ones" in found["lengths.difference"].text
    weight = found["weights.token_mean.negative_to_positive"]
    assert 1.5 < weight.estimate.low < 1.6 < weight.estimate.high
    assert re.match(
        r"a token mean gives incorrect responses 1\.\d\dx \[1\.\d\dx, 1\.\d\dx\] the weight of correct ones here",
        weight.text,
    )
    assert weight.advice == "`+balanced` removes it"
    assert found["coupling.gap"].estimate.low < 0.46 < found["coupling.gap"].estimate.high  # (160 - 100) / 130
    assert found["coupling.sign_length"].estimate.high < 0
    assert found["shares.accuracy_long_minus_short"].estimate.high < 0
    assert "lengths.trend" not in found


def test_shorter_wrong_answers_turn_every_sign():
    found = found_in(make_log(longer=0.6))
    assert "shorter than correct ones" in found["lengths.difference"].text
    assert "-" not in found["lengths.difference"].text.split("words")[0]
    assert found["weights.token_mean.negative_to_positive"].estimate.high < 1
    assert found["coupling.sign_length"].estimate.low > 0
    assert "rises with length" in found["shares.accuracy_long_minus_short"].text


def test_without_effects_there_are_hardly_any_findings():
    """Each has a rate of a twentieth at most; 20 seeds give more than 4 in one of 400."""
    counts = Counter(name for seed in range(20) for name in found_in(make_log(seed)))
    assert max(counts.values(), default=0) <= 4, counts
    assert set(counts) <= {
        "lengths.difference", "coupling.gap", "weights.token_mean.negative_to_positive", "coupling.sign_length",
        "shares.accuracy_long_minus_short", "lengths.trend",
    }  # fmt: skip


def test_growth_is_found_and_told_by_step():
    found = found_in(make_log(grows=20.0))["lengths.trend"]
    assert found.estimate.low < 20 < found.estimate.high
    assert "responses grow by" in found.text and "over steps 0 to 3" in found.text


def test_spread_within_a_sign_is_found_only_where_it_is_large():
    assert "coupling.variation_within_sign" not in found_in(make_log(spread=0.3))
    found = found_in(make_log(spread=0.9))["coupling.variation_within_sign"]
    assert 0.9 / np.sqrt(3) - 0.05 < found.estimate.value < 0.9 / np.sqrt(3) + 0.08  # means of eight vary too
    weight = float(re.search(r"longest responses ([\d.]+)x", found.text).group(1))  # type: ignore[union-attr]
    assert weight < 0.2


def test_truncation_among_wrong_answers():
    log = make_log()
    cut = ~log.correct & (np.random.default_rng(7).random(len(log)) < 0.3)
    cut_log = replace(log, responses=replace(log.responses, truncated=cut))
    found = found_in(cut_log)["shares.truncated_incorrect"]
    assert found.estimate.low < cut.sum() / (~log.correct).sum() < found.estimate.high
    assert "0% of correct ones" in found.text
    assert "shares.truncated_incorrect" not in found_in(replace(cut_log, known=frozenset({"correct"})))
    either = np.random.default_rng(7).random(len(log)) < 0.3
    same = replace(log, responses=replace(log.responses, truncated=either))
    assert "shares.truncated_incorrect" not in found_in(same)


def test_groups_without_contrast():
    log = make_log()
    right = np.where(log.responses.prompt % 4 == 0, True, np.where(log.responses.prompt % 4 == 1, False, log.correct))
    found = found_in(with_outcomes(log, right))["shares.idle_groups"]
    assert found.estimate.low < 0.5 < found.estimate.high
    assert "all correct 2" in found.text and "all incorrect 2" in found.text


def test_repeated_answers():
    repeated = (np.arange(PROMPTS * EACH) % 5 == 0).astype(float)
    found = found_in(make_log(columns={"duplicate": repeated}))["shares.duplicate"]
    assert found.estimate.value == pytest.approx(0.2)
    assert "shares.duplicate" not in found_in(make_log(columns={"duplicate": repeated * 0}))


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


def test_unequal_acceptance_is_found_and_equal_acceptance_is_not():
    found = found_in(trained_log(0, 0.4))["acceptance.lre"]
    assert "of the shortest responses" in found.text and found.estimate.low > 0
    assert found.advice.startswith("`fspo`")
    assert sum("acceptance.lre" in found_in(trained_log(seed, 0.0)) for seed in range(20)) <= 4


def test_optimism_and_eos_advantage_of_streams():
    no = Estimate(0.0, -0.1, 0.1)
    report = StreamReport(no, optimism=Estimate(0.3, 0.2, 0.4), eos_advantage=Estimate(-0.1, -0.2, -0.05))
    one = replace(audit_source(Source(VERL, "folder", ("file",), make_log(), ())), streams=report)
    found = {finding.measure: finding for finding in one.findings}
    assert found["streams.optimism"].estimate == Estimate(0.3, 0.2, 0.4)
    assert "stopping is penalised" in found["streams.eos_advantage"].text
    none = replace(one, streams=replace(report, optimism=no, eos_advantage=Estimate(1e-17, 1e-18, 2e-17)))
    assert (
        not {finding.measure for finding in none.findings} & set(found) & {"streams.optimism", "streams.eos_advantage"}
    )


def test_findings_come_largest_first_each_with_number_interval_and_advice():
    one = audit_source(Source(VERL, "folder", ("file",), make_log(longer=1.6, grows=5.0, spread=0.7), ()))
    sizes = [finding.size for finding in one.findings]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) >= 5
    for finding in one.findings:
        assert finding.estimate.low <= finding.estimate.value <= finding.estimate.high
        assert re.search(r"\[[^\]]+, [^\]]+\]", finding.text), finding.text
        assert finding.advice


def test_advice_names_what_exists():
    text = Path(conclusions.__file__).read_text()
    named = {name.lstrip("+") for name in re.findall(r"`(\+?[a-z_]+)`", text)}
    assert named - {"size", "max"} <= set(MODIFIERS) | set(BASES) | {"grpo"}


def test_few_prompts_give_numbers_and_no_findings():
    log = make_log(longer=3.0)
    few = log.responses.prompt < 9
    log = replace(log, responses=log.responses.take(few), segments=log.segments.take(few), batch=log.batch[few])
    one = audit_source(Source(VERL, "folder", ("file",), log, ()))
    assert one.lengths.difference.value > 100 and one.findings == ()
    out = StringIO()
    show((one,), audit([str(FORMATS / "verl")])[1], Console(file=out))
    assert "fewer than 10 prompts are too few" in out.getvalue()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlen", "audit", *arguments], capture_output=True, text=True, check=False
    )


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


@pytest.mark.parametrize(
    "folder", sorted(path.name for path in FORMATS.iterdir() if path.is_dir() and path.name[0] != "_")
)
def test_every_fixture_needs_no_flag(folder, capsys):
    from fairlen.cli import main

    assert main(["audit", str(FORMATS / folder)]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert "responses to" in shown.out and "95% interval" in shown.out
    assert "\x1b" not in shown.out  # plain when piped


def test_one_of_a_thing_is_singular(tmp_path, capsys):
    """One answer to one prompt in one step, beside a file of another kind."""
    from fairlen.cli import main

    row = {"input": "1 + 1?", "output": "It is 2.", "gts": "2", "score": 1.0, "step": 1}
    (tmp_path / "1.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    assert main(["audit", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 response to 1 prompt in 1 step;" in shown and "1 other file without rollouts; name one" in shown


def test_the_command_line(tmp_path):
    done = run(str(rollouts(tmp_path / "1.jsonl", longer=True)))
    assert done.returncode == 0, done.stderr
    assert "verl rollouts" in done.stdout and "lengths in words" in done.stdout
    assert "truncation: verl decodes responses without their EOS token" in done.stdout
    assert "try: `+balanced` removes it" in done.stdout
    none = run(str(rollouts(tmp_path / "1.jsonl", longer=False)))
    assert none.returncode == 0
    assert "none: no effect whose 95% interval excludes no effect" in none.stdout


def test_neither_torch_nor_transformers_is_imported():
    code = (
        "import sys; from fairlen.cli import main; main(['audit', sys.argv[1]]);"
        "sys.exit(9 if {'torch', 'transformers', 'tokenizers'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(FORMATS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "11 logs: one for each format and folder, never mixed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing.jsonl"], 1, "nothing.jsonl: there is no such file or folder"),
        ([str(FORMATS / "make.py")], 1, "name them: --columns"),
        ([str(FORMATS / "verl"), "nothing/*.parquet"], 1, "no file matches it as a pattern"),
        ([], 2, "name files, folders or patterns"),
        ([str(FORMATS / "generic"), "--columns", "promt=question"], 2, "did you mean 'prompt'?"),
        ([str(FORMATS / "generic"), "--unit", "tokens"], 2, "add --tokenizer FOLDER"),
        ([str(FORMATS / "generic"), "--tokenizer", "none"], 2, "no tokenizer.json there"),
        ([str(FORMATS / "generic"), "--max-response-length", "-1"], 2, "--max-response-length -1"),
    ],
)
def test_mistakes_end_with_one_message(arguments, code, message):
    done = run(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_can_be_read_is_audited_beside_what_cannot(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04")
    done = run(str(rollouts(tmp_path / "1.jsonl", longer=True)), str(tmp_path / "a.pt"))
    assert done.returncode == 1
    assert "a pickle" in done.stderr and "findings, largest effect first" in done.stdout


LOG_KEYS = {
    "format", "title", "folder", "files", "unit", "counts", "malformed", "notes", "known", "missing", "lengths", "by_length",
    "coupling", "weights", "shares", "acceptance", "streams", "findings",
}  # fmt: skip


def test_json_has_the_documented_keys_and_no_nan(tmp_path):
    def refuse(word: str) -> None:
        raise AssertionError(word)

    done = run(str(FORMATS), str(rollouts(tmp_path / "1.jsonl", longer=True)), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout, parse_constant=refuse)
    assert set(told) == {"logs", "unreadable", "skipped"}
    assert len(told["logs"]) == 12
    for log in told["logs"]:
        assert set(log) == LOG_KEYS
        assert set(log["counts"]) == {"responses", "prompts", "rollout_batches", "malformed"}
        assert set(log["lengths"]["mean"]) == {"value", "low", "high"}
    by_format = {log["format"]: log for log in told["logs"]}
    assert by_format["fairlen"]["streams"] is not None
    assert by_format["trl"]["acceptance"] is None
    one = next(log for log in told["logs"] if log["findings"])
    assert {"measure", "estimate", "size", "text", "advice"} == set(one["findings"][0])
    docs = re.sub(r"\s+", " ", sys.modules["fairlen.diagnostics.report.summary"].__doc__ or "")
    assert all(f'"{key}"' in docs for key in LOG_KEYS)


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


def test_settings():
    assert parse_columns("prompt=q, reward=a+b") == {"prompt": "q", "reward": "a+b"}
    with pytest.raises(ValueError, match="leave one of them out"):
        AuditConfig(("a",), unit="words", tokenizer="b").options()
