"""Whole evaluations, small: the folder, its provenance, going on, grading again, and data sets."""

import asyncio
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from loops import over
from small_eval import small, write_set

from fairlen import playground
from fairlen.audit.audit import audit
from fairlen.console import make_console
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.estimators import mean_by_problem
from fairlen.evaluate.folder import merge_facts, rescore_settings
from fairlen.evaluate.generate import Drawing, open_model, sample_set
from fairlen.evaluate.samples import read_samples, read_tokens, sample_path, write_samples
from fairlen.evaluate.start import start_evaluation
from fairlen.files.folders import locked
from fairlen.policy.engines import build_engine
from fairlen.sampling.extend import Sampling
from fairlen.settings import flatten


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def numbers(summary: dict) -> dict:
    """What is measured, by set."""
    return {name: found["scores"] for name, found in summary["sets"].items()}


def test_the_summary_is_what_the_samples_say(finished):
    samples = pq.read_table(finished / "samples/playground.parquet").to_pylist()
    correct = np.array([row["status"] == "correct" for row in samples], float).reshape(12, 4)
    scores = summary_of(finished)["sets"]["playground"]["scores"]
    expected = mean_by_problem(correct)
    assert scores["avg@4"] == {"value": expected.value, "low": expected.low, "high": expected.high, "problems": 12}
    assert scores["pass@4"]["value"] == (correct.sum(1) > 0).mean()
    assert scores["length"]["all"]["value"] == pytest.approx(np.mean([row["length"] for row in samples]))
    assert scores["truncated"]["value"] == np.mean([row["finish"] == "length" for row in samples])
    for row in samples:
        assert row["length"] == len(row["token_ids"]) - row["num_prompt"] <= 60
        assert row["correct"] == (row["status"] == "correct") and (row["extracted"] == row["answer"]) == row["correct"]
    assert len({row["seed"] for row in samples}) == len(samples)


def test_the_provenance_is_complete(finished):
    facts = summary_of(finished)
    expected = {
        "samples": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_response_length": 60, "seed": 3,
        "template": "auto", "system_prompt": "", "thinking": "auto", "instruction": "auto", "engine": "embedded",
        "without_verdict": "inactive", "unsafe_exec_on_host": False,
    }  # fmt: skip
    assert flatten(facts["config"]).items() >= expected.items()
    assert facts["model"]["place"] == "playground" and len(facts["model"]["config_sha256"]) == 64
    weights = (playground.PATH / "model.safetensors").read_bytes()
    assert facts["model"]["weights"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["fairlen"] and facts["versions"]["math-verify"] == "0.9.0"
    found = facts["sets"]["playground"]
    assert found["problems"] == 12 and len(found["fingerprint"]) == 64
    assert facts["date"][:2] == "20" and facts["command"] and facts["machine"]
    recorded = json.loads((finished / "eval.json").read_text())
    assert {name: facts[name] for name in recorded if name != "sets"} == {
        name: value for name, value in recorded.items() if name != "sets"
    }


def test_the_audit_reads_the_samples(finished):
    (found,), reading = audit([str(finished / "samples")])
    assert not reading.unreadable
    scores = summary_of(finished)["sets"]["playground"]["scores"]
    assert found.log.unit == "tokens" and len(found.log) == 48 and found.log.responses.num_prompts == 12
    assert found.lengths.accuracy.value == pytest.approx(scores["avg@4"]["value"])
    assert found.lengths.correct.value == pytest.approx(scores["length"]["correct"]["value"])
    assert found.selection.truncated.value == pytest.approx(scores["truncated"]["value"])


def test_rescoring_gives_the_same_numbers(finished, tmp_path):
    again = start_evaluation(rescore_settings(str(finished), out=str(tmp_path / "again")))
    assert numbers(again) == numbers(summary_of(finished))
    one, other = (read_tokens(folder / "samples/playground.parquet") for folder in (finished, tmp_path / "again"))
    assert one.equals(other) and one.null_count == 0
    assert again["sampled"]["model"]["place"] == "playground" and again["model"] is None


def test_a_changed_verdict_shows(finished, tmp_path):
    """One right text is emptied: one right answer fewer of 48, and one more without an answer."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    samples = list(read_samples(copy / "samples/playground.parquet"))
    place = next(i for i, sample in enumerate(samples) if sample.status == "correct")
    samples[place] = replace(samples[place], text="")
    write_samples(samples, copy / "samples/playground.parquet")
    before = summary_of(finished)["sets"]["playground"]["scores"]
    after = start_evaluation(rescore_settings(str(copy), out=str(tmp_path / "again")))["sets"]["playground"]["scores"]
    assert after["avg@4"]["value"] == pytest.approx(before["avg@4"]["value"] - 1 / 48)
    assert read_samples(tmp_path / "again/samples/playground.parquet")[place].status == "no_answer"


def test_responses_are_cut_at_budgets_and_asked_for_their_answer(tmp_path):
    """One that ended within a budget counts alike with and without; each other is asked, and a changed answer shows once."""
    given = {"max_response_length": 0, "budgets": "40, 20,60", "ask": "#", "problems": 8}
    rows = start_evaluation(small(tmp_path / "one", **given))["sets"]["playground"]["scores"]["budgets"]
    samples = read_samples(tmp_path / "one/samples/playground.parquet")
    for place, (row, cut) in enumerate(zip(rows, (20, 40, 60), strict=True)):
        ended = [sample.length <= cut and sample.finish == "stop" for sample in samples]
        for sample, has_ended in zip(samples, ended, strict=True):
            assert sample.asked[place].startswith("#") != has_ended
            assert not has_ended or sample.forced[place] == sample.status
        within = [sample.status == "correct" and sample.length <= cut for sample in samples]
        forced = [sample.forced[place] == "correct" for sample in samples]
        assert (row["budget"], row["ended"]["value"]) == (cut, np.mean(ended))
        assert (row["correct"]["value"], row["forced"]["value"]) == (np.mean(within), np.mean(forced))
        assert row["gain"]["value"] == pytest.approx(np.mean(forced) - np.mean(within)) and any(ended)
    place = next(i for i, sample in enumerate(samples) if sample.asked[0])
    asked = (f"#{samples[place].answer}", *samples[place].asked[1:])
    wrong = [replace(one, asked=("#", *one.asked[1:])) if one.asked[0] else one for one in samples]
    wrong[place] = replace(samples[place], asked=asked)
    write_samples(wrong, tmp_path / "one/samples/playground.parquet")
    again = start_evaluation(rescore_settings(str(tmp_path / "one"), out=str(tmp_path / "two")))
    first = again["sets"]["playground"]["scores"]["budgets"][0]
    assert first["forced"]["value"] == pytest.approx(first["correct"]["value"] + 1 / len(samples))


def test_what_is_done_is_not_sampled_again(finished, tmp_path):
    folder = tmp_path / "same"
    shutil.copytree(finished, folder)
    stamp = (folder / "samples/playground.parquet").stat().st_mtime_ns
    assert numbers(start_evaluation(small(folder))) == numbers(summary_of(finished))
    assert (folder / "samples/playground.parquet").stat().st_mtime_ns == stamp


def test_an_interrupted_set_goes_on_with_the_same_samples(finished, tmp_path):
    """The engine breaks after 40 responses; problems that are done by then are kept, the rest is drawn as it would have been."""
    model = open_model(small(tmp_path))
    (found,) = model.sets
    engine = build_engine(model.config, model.policy, 120)
    path, asked = sample_path(tmp_path, found.name), []

    async def breaks(prefix, sampling):
        ended = await engine.extend(prefix, sampling)
        asked.append(sampling.seed)
        if len(asked) > 40:
            raise OSError("no space left")
        return ended

    drawing = Drawing(breaks, model.policy.decode, Sampling(60, 0), num_samples=4, seed=3)
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(sample_set(drawing, found, path, make_console()))
    assert not path.exists()
    kept = sum(len(read_samples(part)) for part in path.parent.glob(".*.parquet"))
    assert 0 < kept <= 40 and kept % 4 == 0
    asked.clear()
    engine = build_engine(model.config, model.policy, 120)

    async def counts(prefix, sampling):
        asked.append(sampling.seed)
        return await engine.extend(prefix, sampling)

    whole = asyncio.run(sample_set(replace(drawing, extend=counts), found, path, make_console()))
    assert len(asked) == 48 - kept
    expected = read_samples(finished / "samples/playground.parquet")
    assert [replace(s, verify_seconds=None) for s in whole] == [replace(s, verify_seconds=None) for s in expected]
    assert read_tokens(path).equals(read_tokens(finished / "samples/playground.parquet"))
    assert [file.name for file in path.parent.iterdir()] == ["playground.parquet"]


@over(
    "changes, message",
    [
        ({"temperature": 0.5}, "temperature: 1.0 -> 0.5"), ({"seed": 4}, "seed: 3 -> 4"),
        ({"problems": 11}, "problems: 12 -> 11"), ({"data": ("playground:sums",)}, "data"),
    ],
)  # fmt: skip
def test_a_folder_of_another_evaluation_is_refused(finished, changes, message):
    with pytest.raises(ValueError, match=message):
        start_evaluation(small(finished, **changes))


def test_greedy_responses_are_the_most_likely_ones(tmp_path):
    summary = start_evaluation(small(tmp_path / "a", temperature=0.0, samples=1, problems=6, seed=0))
    start_evaluation(small(tmp_path / "b", temperature=0.0, samples=1, problems=6, seed=1))
    one, other = (read_tokens(tmp_path / name / "samples/playground.parquet") for name in "ab")
    assert one.equals(other) and len(one) == 6  # whatever the seed
    assert "avg@1" in summary["sets"]["playground"]["scores"]


def test_data_sets_from_folders(tiny_model, tmp_path, capsys):
    """Two sets, one of them a configuration; then again with two texts that are now right: 2 of 16, one a set."""
    write_set(tmp_path / "sums/en/test.jsonl", 1)
    write_set(tmp_path / "more/test.jsonl", 2)
    config = EvalConfig.of(
        model=str(tiny_model), data=(f"{tmp_path}/sums/en:test", f"{tmp_path}/more"), samples=2,
        max_response_length=12,
        threads=1, max_num_seqs=8, out=str(tmp_path / "out"),
    )  # fmt: skip
    summary = start_evaluation(config)
    assert list(summary["sets"]) == ["en-test", "more"]
    assert "eval: en-test: 4 problems in 4 rows\n" in capsys.readouterr().out
    found = summary["sets"]["en-test"]
    assert found["problems"] == 4 and found["details"]["prompt"]["template"] == "chat"
    assert found["details"]["source"].endswith("sums/en:test")
    assert summary["overall"]["avg@2"]["value"] == 0.0
    rows = read_samples(tmp_path / "out/samples/more.parquet")
    assert "What is 0 + 2?" in rows[0].problem and "\\boxed{}" in rows[0].problem and rows[0].answer == "2"
    for name in summary["sets"]:
        path = tmp_path / f"out/samples/{name}.parquet"
        first, *others = read_samples(path)
        write_samples([replace(first, text=f"It is \\boxed{{{first.answer}.0}}"), *others], path)
    again = start_evaluation(rescore_settings(str(tmp_path / "out"), out=str(tmp_path / "again")))
    assert [found["scores"]["avg@2"]["value"] for found in again["sets"].values()] == [1 / 8, 1 / 8]
    assert again["overall"]["avg@2"]["value"] == 1 / 8
    assert again["sets"]["more"]["fingerprint"] == summary["sets"]["more"]["fingerprint"]


@pytest.mark.slow
def test_rows_that_are_left_out_are_told(tiny_model, tmp_path, capsys):
    """Two problems, one of them twice, and a row without an answer: 4 rows. Problems that are rescored are read again."""
    data = write_set(tmp_path / "sums.jsonl", 1, size=2)
    first = data.read_text().splitlines()[0]
    data.write_text(data.read_text() + first + "\n" + '{"problem": "What is 7 + 7?", "answer": ""}\n')
    line = "eval: sums: 2 problems in 4 rows, 1 copy left out, 1 dropped: no answer"
    settings = {"model": str(tiny_model), "data": (str(data),), "samples": 1, "max_response_length": 4}
    start_evaluation(small(tmp_path / "out", **settings))
    assert capsys.readouterr().out.splitlines()[:2] == [line, "eval: sums: 2 problems x 1"]
    start_evaluation(rescore_settings(str(tmp_path / "out"), out=str(tmp_path / "again")))
    assert capsys.readouterr().out.splitlines()[:2] == [line, "eval: sums: 2 samples, rescored"]


def test_settings_of_drawing_are_refused_where_samples_are_rescored(finished, tmp_path):
    for flag, value in (("temperature", 0.5), ("model", "other"), ("samples", 2), ("seed", 4)):
        config = rescore_settings(str(finished), out=str(tmp_path / "again")).replace(**{flag: value})
        with pytest.raises(
            ValueError, match=f"--{flag} {value} with --from-samples .*: the responses are there already"
        ):
            start_evaluation(config)
    assert not (tmp_path / "again").exists()


def test_a_prompt_that_leaves_no_room_for_the_budget_is_named(tiny_model, tmp_path):
    data = write_set(tmp_path / "long.jsonl", 1)
    with pytest.raises(
        ValueError,
        match=r"--max-response-length 500: the model has 512 positions, and the longest prompt \(long, .*give at most",
    ):
        start_evaluation(
            EvalConfig.of(
                model=str(tiny_model), data=(str(data),), max_response_length=500, threads=1, out=str(tmp_path / "o")
            )
        )
    assert not (tmp_path / "o").exists()


@over(
    "settings, message",
    [
        ({"temperature": 0.0}, "--temperature 0 with --samples 8: greedy responses"),
        ({"temperature": -1.0}, "temperature=-1.0: give a finite number, 0 or more"),
        ({"samples": 0}, "samples=0: give 1 or more"), ({"problems": -1}, "problems=-1: give 0 or more"),
        ({"suite": "eqlen"}, "without its sets"),
        ({"budgets": "256,x"}, "--budgets 256,x: x is no number of tokens"),
        ({"budgets": "256", "max_response_length": 512}, "the largest budget is the limit"),
    ],
)  # fmt: skip
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        EvalConfig.of(**settings)


def test_what_was_sampled_first_keeps_its_versions():
    """An evaluation that goes on with others says so beside them, each change once."""
    facts = {"date": "1", "versions": {"torch": "1"}, "machine": {}, "config": {"max_num_seqs": 1}}
    assert merge_facts(facts, facts | {"date": "2", "config": {"max_num_seqs": 2}}) == facts
    later = facts | {"date": "3", "versions": {"torch": "2"}}
    found = merge_facts(facts, later)
    assert found["versions"] == {"torch": "1"}
    assert found["resumed"] == [{name: later[name] for name in ("date", "versions", "machine")}]
    assert merge_facts(found, later | {"date": "4"}) == found


def test_a_second_evaluation_in_the_same_folder_is_refused_while_the_first_runs(finished, tmp_path):
    """Two of them would write each other's parts; when the first has ended, the same command finds everything done."""
    (folder := tmp_path / "eval").mkdir()
    with locked(folder):
        for config in (small(folder), rescore_settings(str(finished), out=str(folder))):
            with pytest.raises(
                ValueError, match="another process writes there; stop it, wait, or choose another folder"
            ):
                start_evaluation(config)
    start_evaluation(small(folder))
    assert start_evaluation(small(folder))["sets"].keys() == {"playground"}
