"""Files of strangers that try to run code where they are audited: in cells, in names of columns, in the settings beside them."""

import csv
import io
import json
import pickle
import socket
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attacks import write_attacks
from lines import write_lines
from loops import first_quickly

from fairlen.cli import main

RUN = {"compile", "exec", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pickle.find_class",
       "urllib.Request", "ctypes.dlopen"}  # fmt: skip
WATCHED: list[tuple[str, list[str]]] = []
"""A word of the attacks that are watched for, and the events with it."""


def listen(event: str, arguments: tuple) -> None:
    if WATCHED and event in RUN and WATCHED[0][0] in str(arguments):
        WATCHED[0][1].append(f"{event}: {str(arguments)[:200]}")


sys.addaudithook(listen)


@contextmanager
def nothing_runs(path: Path) -> Iterator[None]:
    """Within, no attack on `path` is compiled, run, or sent anywhere, and the path stays free."""
    WATCHED.append((str(path), []))
    try:
        yield
        assert WATCHED[0][1] == [] and not path.exists()
    finally:
        WATCHED.clear()


def rows_of(names: tuple[str, ...], attacks: dict[str, str]) -> list[dict]:
    """A row an attack, in every column; rewards of two kinds."""
    return [
        dict.fromkeys(names, attack) | {"reward": float(n % 2), "step": n // 8}
        for n, attack in enumerate(attacks.values())
    ]


COLUMNS = {
    "generic": ("prompt", "response", "answer", "finish_reason"),
    "verl": ("input", "output", "gts", "score"),
    "trl": ("prompt", "completion", "advantage", "reward_func"),
    "open-instruct": ("messages", "ground_truth", "dataset", "model_response"),
    "lm-eval": ("doc", "resps", "filtered_resps", "target", "doc_id"),
    "samples": ("problem_id", "problem", "text", "answer", "status", "extracted"),
}


def write_array(path: Path, rows: list[dict]) -> None:
    path.write_text(json.dumps(rows))


def write_csv(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: list[dict]) -> None:
    metadata = {"pandas": json.dumps({"columns": rows[0]}), "huggingface": str(rows[0])}
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(metadata), path)


def write_zip(path: Path, rows: list[dict]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": rows[0], "version": 2}))
        for number, row in enumerate(rows):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(row))


WRITERS = {
    ".jsonl": lambda path, rows: write_lines(path, *rows), ".json": write_array, ".csv": write_csv, ".parquet": write_parquet,
    ".eval": write_zip,
}  # fmt: skip


@pytest.mark.parametrize("ending", first_quickly(WRITERS, 2))
def test_no_cell_and_no_name_of_a_column_runs(tmp_path, capsys, ending):
    """Each attack in every cell under six frameworks' names; then as the name of a column."""
    path = tmp_path / "ran"
    attacks = write_attacks(path, 9)
    files = {name: rows_of(columns, attacks) for name, columns in COLUMNS.items()}
    named = {attack: "1" for attack in attacks.values()}
    files["names"] = [named | {"prompt": "1+1?", "response": "2", "reward": float(n % 2)} for n in range(8)]
    for name, rows in files.items():
        file = tmp_path / f"{name}{ending}"
        WRITERS[ending](file, rows)
        with nothing_runs(path):
            assert main(["audit", str(file)]) in (0, 1, 2)
            assert main(["audit", str(file), "--out", str(tmp_path / f"{name}.html")]) in (0, 1, 2)
    capsys.readouterr()


def honest_rows() -> list[dict]:
    """Two responses to each of 40 prompts, of which the longer is incorrect."""
    rows = []
    for n in range(40):
        for words, reward in ((10 + n % 5, 1.0), (20 + n % 7, 0.0)):
            rows.append({"prompt": f"{n}+1?", "response": " ".join(["so"] * words), "reward": reward})
    return rows


def audit(file: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["audit", str(file), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_honest_file_is_judged_after_hostile_ones_as_before(tmp_path, capsys):
    honest = tmp_path / "honest.jsonl"
    write_lines(honest, *honest_rows())
    before = audit(honest, capsys)
    path = tmp_path / "ran"
    for name, columns in COLUMNS.items():
        write_lines(tmp_path / f"{name}.jsonl", *rows_of(columns, write_attacks(path, 9)))
        with nothing_runs(path):
            main(["audit", str(tmp_path / f"{name}.jsonl")])
    capsys.readouterr()
    assert audit(honest, capsys) == before


SETTINGS = {
    "run.json": lambda attack: json.dumps(
        {"method": {"name": attack, "hash": attack}, "config": {"overrides": [attack]}}
    ),
    "method.json": lambda attack: json.dumps({"method": {"name": f"grpo+{attack}"}}),
    ".hydra/config.yaml": lambda attack: (
        f"algorithm:\n  fairlen:\n    method: {attack!r}\n  loss_agg_mode: {attack!r}\n"
    ),
    "configs/trainer.json": lambda attack: json.dumps({"loss": {"type": attack}}),
}


@pytest.mark.slow
def test_settings_beside_rollouts_run_nothing(tmp_path, capsys):
    """A method that is a file of the folder's own is not loaded, nor is any text of the files that say how a run trained."""
    path = tmp_path / "ran"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(f"open({str(path)!r}, 'w')\nclass Own: pass\n")
    attacks = [*write_attacks(path, 9).values()]
    for number, (name, write) in enumerate(SETTINGS.items()):
        for turn, attack in enumerate((f"grpo+{plugin}:Own", f"{plugin}:Own", *attacks[number::10])):
            folder = tmp_path / f"{number}-{turn}"
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(write(attack))
            write_lines(folder / "rollouts.jsonl", *honest_rows()[:8])
            with nothing_runs(path):
                assert main(["audit", str(folder / "rollouts.jsonl")]) in (0, 1, 2), (name, attack)
    capsys.readouterr()


class Reduced:
    """A pickle that runs something when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (str(self.path), "w")


def test_a_pickle_and_a_page_are_read_and_not_run(tmp_path, capsys):
    """As slime's rollouts and TRL's settings are saved."""
    path = tmp_path / "ran"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"samples": [Reduced(path)]}))
    (tmp_path / "training_args.bin").write_bytes(data.getvalue())
    write_lines(tmp_path / "rollouts.jsonl", *honest_rows()[:8])
    for name in ("0.pt", "0.pkl", "0.pickle"):
        (tmp_path / name).write_bytes(data.getvalue() if name == "0.pt" else pickle.dumps(Reduced(path)))
        with nothing_runs(path):
            assert main(["audit", str(tmp_path / name)]) in (1, 2)
    with nothing_runs(path):
        assert main(["audit", str(tmp_path / "rollouts.jsonl")]) == 0
    capsys.readouterr()


def test_what_is_watched_is_heard(tmp_path):
    path = tmp_path / "ran"
    with pytest.raises(AssertionError), nothing_runs(path):
        compile(f"open({str(path)!r}, 'w')", "<any>", "exec")
    with pytest.raises(AssertionError), nothing_runs(path):
        path.touch()
    with socket.socket() as client, pytest.raises(OSError):
        client.connect(("127.0.0.1", 9))
