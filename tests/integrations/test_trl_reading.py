"""The folder of a run of TRL: read by report, audit and compare without a flag, and whole after a resume."""

import json
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from trl_runs import ScriptedFair, scripted, weights_of

from fairlen.cli import main
from fairlen.report.run import read_run

pytestmark = pytest.mark.slow

SETTINGS = {
    "max_steps": 4, "num_iterations": 2, "eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8,
    "save_strategy": "steps", "save_steps": 2,
}  # fmt: skip


def train(
    out: Path, method: str = "grpo+balanced", resume: Path | None = None, run_folder: bool = True, **changes: object
) -> ScriptedFair:
    """Two rollout batches of 4 prompts with 4 responses, two updates each; 4 held-out problems after each of them."""
    made = scripted(out, **(SETTINGS | changes), learning_rate=1e-5)
    made["eval_dataset"] = made["train_dataset"].select(range(40, 44))
    trainer = ScriptedFair(**made, method=method, run_folder=run_folder)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer


def lines(out: Path) -> list[dict]:
    """Of metrics.jsonl, without what time it took."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in one.items() if not name.startswith("time/")} for one in found]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) for name in ("grpo+balanced", "dapo+eqlen")}
    for name, out in found.items():
        train(out, name)
    return found


def test_all_three_commands_read_it(folders, capsys):
    runs = [str(folder) for folder in folders.values()]
    for name, folder in folders.items():
        run = read_run(folder)
        assert run.records and set(run.records.log.batch.tolist()) == {0, 1} and not run.left_out
        assert run.description["method"]["name"] == name and {"trl", "torch"} <= run.description["versions"].keys()
        assert [entry["update"] for entry in run.updates] == [1, 2, 3, 4]
        assert [entry["update"] for entry in run.evaluations] == [2, 4]
        assert run.records.log.known >= {"trained", "truncated", "reward"}
        assert main(["report", str(folder)]) == 0 and name in (folder / "report.html").read_text()
        assert main(["audit", str(folder)]) == 0
        printed = capsys.readouterr().out
        assert printed.count("fairlen records") == 1 and f"method: {name}" in printed
    assert main(["compare", *runs]) == 0
    printed = capsys.readouterr().out
    assert all(run in printed for run in runs) and "against the reference" in printed


def test_a_resumed_run_has_every_line_and_rollout_batch_once(folders, tmp_path):
    """What came after the checkpoint is taken back."""
    train(tmp_path, max_steps=2)
    assert [one["update"] for one in lines(tmp_path)] == [1, 2, 2]
    (tmp_path / "records" / "responses-000007.parquet").write_bytes(b"of an update that the checkpoint does not have")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 3, "rollout_batch": 1}\n')
    train(tmp_path, resume=tmp_path / "checkpoint-2")
    whole = folders["grpo+balanced"]
    assert [one["update"] for one in lines(tmp_path)] == [1, 2, 2, 3, 4, 4] == [one["update"] for one in lines(whole)]
    assert sorted(os.listdir(tmp_path / "records")) == sorted(os.listdir(whole / "records"))
    assert lines(tmp_path)[-1]["tokens/generated_total"] > lines(tmp_path)[2]["tokens/generated_total"]


def test_two_runs_do_not_mix_in_one_folder(tmp_path):
    """A new run, of this or another method, and a checkpoint of a run elsewhere leave every file as it was."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        train(folder, "dapo+balanced", max_steps=2, eval_strategy="no")
    before = {path: path.read_bytes() for path in one.rglob("*") if path.is_file()}
    for method, resume in (("grpo", None), ("dapo+balanced", None), ("dapo+balanced", other / "checkpoint-2")):
        with pytest.raises(
            FileExistsError, match=r"another run is there already \(dapo\+balanced\); choose another folder"
        ):
            train(one, method, resume, eval_strategy="no")
    with pytest.raises(ValueError, match="resuming with another method"):
        train(one, "grpo", one / "checkpoint-2", eval_strategy="no")
    assert {path: path.read_bytes() for path in one.rglob("*") if path.is_file()} == before
    assert train(one, "dapo+balanced", one / "checkpoint-2", eval_strategy="no").state.global_step == 4


def test_without_a_run_folder_nothing_is_written_and_the_run_is_the_same(tmp_path):
    runs = [train(tmp_path / name, run_folder=name == "with", max_steps=2) for name in ("with", "without")]
    assert not {"run.json", "records", "metrics.jsonl"} & {path.name for path in (tmp_path / "without").iterdir()}
    assert torch.equal(*map(weights_of, runs))
