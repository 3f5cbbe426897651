"""Logs of Inspect that recipes/inspect_logs.py writes: their own reader where it is installed, ours, and Inspect's fixture."""

import json
import os
import shutil
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from report_runs import write_run

from fairlen.audit.log import Log
from fairlen.audit.readers import read
from fairlen.evaluate.samples import Sample, sample_path, write_samples
from fairlen.files.archives import unpack
from recipes.inspect_logs import main, write_logs

OWN = Path(__file__).parents[1] / "fixtures_formats" / "inspect" / "inspect.eval"
"""As Inspect writes it."""


def open_log(path: Path) -> tuple[dict, list[dict], list[dict]]:
    """The header, the table of samples, and the samples."""
    with ZipFile(path) as archive, path.open("rb") as file:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        header, summaries, *samples = (
            json.loads(unpack(archive, file, archive.getinfo(name), 10**7))
            for name in ("header.json", "summaries.json", *names)
        )
    assert names == [f"samples/{one['id']}_epoch_{one['epoch']}.json" for one in samples]
    return header, summaries, samples


def only_log(place: Path) -> Log:
    (source,) = read([str(place)]).sources
    return source.log


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "first", "grpo+turns", batches=3, in_turns=True)


@pytest.fixture(scope="module")
def logs(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("logs")
    assert main(str(run), str(out)) == 0
    return out


def test_a_run_has_a_log_for_each_rollout_batch_and_reads_as_its_records_do(run, logs):
    assert [path.name.split("_")[1] for path in sorted(logs.iterdir())] == [
        f"first-responses-00000{i}" for i in range(3)
    ]
    before, after = only_log(run), only_log(logs)
    assert after.format == "inspect" and after.unit == "tokens" and not after.malformed
    assert before.batch.tolist() == after.batch.tolist()
    for name in ("length", "outcome", "correct", "truncated", "active", "num_turns"):
        assert np.array_equal(getattr(before.responses, name), getattr(after.responses, name)), name
    pairs = set(zip(before.responses.prompt.tolist(), after.responses.prompt.tolist(), strict=True))
    assert len(pairs) == before.responses.num_prompts == after.responses.num_prompts  # one to one


def test_what_was_written_and_read_are_messages(logs):
    """A response of 8 tokens or more is two turns: 4 letters, 2 that were read, and the rest up to the special token."""
    _, summaries, samples = open_log(min(logs.iterdir()))
    in_two = [one for one in samples if one["metadata"]["num_turns"] == 2]
    assert in_two and len(in_two) < len(samples)
    for one in in_two:
        roles = [message["role"] for message in one["messages"]]
        asked, first, read, last = (message["content"] for message in one["messages"])
        assert roles == ["user", "assistant", "user", "assistant"] and asked == one["input"]
        assert (len(first), len(read)) == (4, 2)
        length = (
            4 + len(last) + (one["output"]["choices"][0]["stop_reason"] == "stop")
        )  # of which one token is no letter
        assert one["output"]["usage"]["output_tokens"] == length and one["output"]["completion"] == last
    turns = {(one["id"], one["epoch"]): one["turn_count"] for one in summaries}
    assert all(turns[one["id"], one["epoch"]] == one["metadata"]["num_turns"] for one in samples)


def write_evaluation(folder: Path) -> Path:
    """Of a one is correct and one truncated; of b one has no verdict, of c none has; of d nobody knows the length."""
    rows = [
        ("a", "correct", "stop", 3), ("a", "incorrect", "length", 9), ("b", "correct", "stop", 4), ("b", "timeout", "stop", 5),
        ("c", "error", "stop", 2), ("d", "no_answer", None, None),
    ]  # fmt: skip
    samples = [
        Sample(
            name, f"{name}?", "1", place, "text", float(status == "correct"), status, "1",  # type: ignore[arg-type]
            length=length, finish=finish,  # type: ignore[arg-type]
        )
        for place, (name, status, finish, length) in enumerate(rows)
    ]  # fmt: skip
    write_samples(samples, sample_path(folder, "sums"))
    config = {"model": "org/name", "temperature": 0.5, "max_response_length": 9, "from_samples": ""}
    (folder / "eval.json").write_text(json.dumps({"config": config, "versions": {"fairlen": "0.1.0"}}))
    return folder


def test_an_evaluation_has_a_log_for_each_set(tmp_path):
    """Means over problems with a verdict: a 1/2, b 1/1, d 0/1, so (1/2 + 1 + 0) / 3 = 1/2."""
    assert write_logs(write_evaluation(tmp_path / "e"), tmp_path / "logs") == 1
    header, _, samples = open_log(next((tmp_path / "logs").iterdir()))
    assert header["eval"]["model"] == "org/name" and header["eval"]["config"] == {"epochs": 2}
    assert header["eval"]["model_generate_config"] == {"temperature": 0.5, "max_tokens": 9}
    results = header["results"]
    assert (results["total_samples"], results["completed_samples"]) == (6, 4)
    assert [one["metrics"]["accuracy"]["value"] for one in results["scores"]] == [0.5]
    assert [one["model_usage"].get("org/name", {}).get("output_tokens") for one in samples] == [3, 9, 4, 5, 2, None]
    assert header["stats"]["model_usage"]["org/name"]["output_tokens"] == 3 + 9 + 4 + 5 + 2
    assert [one["epoch"] for one in samples] == [1, 2, 1, 2, 1, 1]
    assert [one["scores"].get("verdict", {}).get("value") for one in samples] == ["C", "I", "C", None, None, "N"]
    assert [one.get("error", {}).get("message") for one in samples][3:5] == ["no verdict: timeout", "no verdict: error"]
    assert [one["output"]["choices"][0]["stop_reason"] for one in samples][::5] == ["stop", "unknown"]
    log = only_log(tmp_path / "logs")
    assert log.responses.active.tolist() == [True, True, True, False, False, True]
    assert log.responses.correct[log.responses.active].tolist() == [True, False, True, False]


def test_fields_are_among_those_that_inspect_writes(logs):
    theirs, ours = open_log(OWN), open_log(min(logs.iterdir()))
    more = {"tags", "metadata"}  # of EvalSpec, null there; log/_log.py has them
    assert ours[0].keys() <= theirs[0].keys() and ours[0]["version"] == theirs[0]["version"]
    for name in ("eval", "results", "stats", "plan"):
        assert ours[0][name].keys() <= theirs[0][name].keys() | more, name
    for name in ("output", "messages", "scores"):
        assert type(ours[2][0][name]) is type(theirs[2][0][name]), name
    for own, their in zip(ours[1:], theirs[1:], strict=True):
        assert own[0].keys() <= their[0].keys() | {"error"}
    assert ours[2][0]["output"].keys() <= theirs[2][0]["output"].keys()


def test_inspect_reads_them(logs):
    """In environments that have it: every field is checked by its own classes."""
    reader = pytest.importorskip("inspect_ai.log")
    for path in sorted(logs.iterdir()):
        header, summaries, samples = open_log(path)
        log = reader.read_eval_log(str(path))
        assert log.status == "success" and len(log.samples) == len(samples) == log.results.total_samples
        shown = header["results"]["scores"][0]["metrics"]["accuracy"]["value"]
        assert log.results.scores[0].metrics["accuracy"].value == shown
        assert len(reader.read_eval_log_sample_summaries(str(path))) == len(summaries)


def test_what_is_no_run_and_no_evaluation_is_refused(tmp_path, capsys):
    (tmp_path / "comparison.json").write_text("{}")
    assert main(str(tmp_path), str(tmp_path / "logs")) == 2
    assert "has no responses of a run or an evaluation; name the folder of one" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_a_damaged_table_is_named(tmp_path):
    folder = write_evaluation(tmp_path / "e")
    path = sample_path(folder, "sums")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"sums\.parquet"):
        write_logs(folder, tmp_path / "logs")


def test_ids_of_problems_lead_nowhere_out_of_a_log(tmp_path):
    """As members of a zip, which may be unpacked; ordinary ids stay what they are."""
    ids = ("../../evil", "/root/x", "a/../../b", "..", "c:\\x", "HumanEval/0", "sums:4+5=?"), ("x" * 100_000,)
    for number, names in enumerate(ids):
        folder, out = tmp_path / f"evaluation-{number}", tmp_path / f"logs-{number}"
        write_samples(
            [Sample(name, "1 + 1?", "2", 0, "2", 1.0, "correct") for name in names], sample_path(folder, "some")
        )
        (folder / "eval.json").write_text("{}")
        assert write_logs(folder, out) == 1
        found = {
            one["id"]: f"/out/samples/{one['id']}_epoch_{one['epoch']}.json" for one in open_log(next(out.iterdir()))[2]
        }
        assert len(found) == len(names) and ("HumanEval/0" in found) is (number == 0)
        for name, place in found.items():
            assert ".." not in Path(place).parts and "\\" not in name and os.path.normpath(place) == place, name
            assert len(place) < 300, name


def test_a_link_planted_in_a_run_is_not_followed(run, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    (tmp_path / "elsewhere").mkdir()
    (folder / "logs").symlink_to(tmp_path / "elsewhere")
    assert main(str(folder), str(folder / "logs")) != 0
    assert not list((tmp_path / "elsewhere").iterdir())
    assert "logs: a link to" in capsys.readouterr().err
