"""Samples in the folder of a stranger: it chooses no code and no place where programs run."""

import json
from pathlib import Path

import pytest
from attacks import write_attacks

from fairlen.cli import main
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.samples import Sample, sample_path, write_samples


def write_folder(folder: Path, text: str, **settings: object) -> Path:
    """An evaluation of one problem, twice the number given, with one response and settings of the folder's own."""
    data = folder / "problems.jsonl"
    folder.mkdir()
    tests = json.dumps([{"input": "4", "output": "8", "testtype": "stdin"}])
    row = {
        "question_title": "Double", "question_content": "Double the number.", "platform": "atcoder", "question_id": "q1",
        "contest_id": "c1", "contest_date": "2025-01-01T00:00:00", "starter_code": "", "difficulty": "easy",
        "public_test_cases": tests, "private_test_cases": "[]", "metadata": "{}",
    }  # fmt: skip
    data.write_text(json.dumps(row) + "\n")
    config = {"data": [str(data)], "task": "playground", "unsafe_exec_on_host": False, **settings}
    facts = {"config": config, "model": None, "sets": {"problems": {"fingerprint": "0"}}}
    (folder / "eval.json").write_text(json.dumps(facts))
    sample = Sample("problems/q1", "Double the number.", "", 0, f"```python\n{text}\n```")
    write_samples([sample], sample_path(folder, "problems"))
    return folder


def rescore(folder: Path, out: Path, *flags: str) -> int:
    return main(["eval", "--from-samples", str(folder), "--out", str(out), *flags])


def accuracy(out: Path) -> float:
    (found,) = json.loads((out / "summary.json").read_text())["sets"].values()
    return found["scores"]["avg@1"]["value"]


def test_a_folder_does_not_choose_the_host(tmp_path):
    path = tmp_path / "ran"
    folder = write_folder(tmp_path / "strange", f"open({str(path)!r}, 'w')\nprint(8)", unsafe_exec_on_host=True)
    assert rescore(folder, tmp_path / "out") == 0
    assert not path.exists() and accuracy(tmp_path / "out") == 0.0


def test_a_folder_names_no_code(tmp_path, capsys):
    """A task of one's own is not imported, and the refusal says what is possible."""
    path = tmp_path / "ran"
    code = tmp_path / "strange_code.py"
    code.write_text(f"open({str(path)!r}, 'w')\n")
    place = f"{code}:Task"
    for settings in ({"data": [place]}, {"data": [], "task": place}):
        folder = write_folder(tmp_path / f"strange{len(settings)}", "pass", **settings)
        assert rescore(folder, tmp_path / "out") == 2 and not path.exists()
        assert "which is not run to rescore samples" in " ".join(capsys.readouterr().err.split())


SETTINGS = sorted(set(EvalConfig.__dataclass_fields__) - {"data", "from_samples", "out", "model"})


@pytest.mark.slow
def test_no_setting_of_a_folder_runs_anything(tmp_path, capsys):
    """Every attack as the value of every setting that is a text: a refusal or a result, and no marker."""
    path = tmp_path / "ran"
    attacks = [*write_attacks(path, 9).values()]
    for number, name in enumerate(SETTINGS):
        for turn, attack in enumerate(attacks[number % 14 :: 14]):
            folder = write_folder(tmp_path / f"{name}{turn}", "pass", **{name: attack})
            assert rescore(folder, tmp_path / f"{name}{turn}-out") in (0, 1, 2)
            assert not path.exists(), (name, attack)
    capsys.readouterr()
