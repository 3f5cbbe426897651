"""Files of somebody else that become more than they look: the same limits for rollouts that are audited and for problems."""

import gzip
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from loops import first_quickly, over

from fairlen.cli import main

GIB = 2**30
MIB = 2**20
SENTENCE = json.dumps({"prompt": "1 + 1?", "response": "2", "answer": "2", "reward": 1.0}).encode() + b"\n"


def repeated(path: Path, piece: bytes, times: int, *around: bytes) -> None:
    """A gzip file of `piece` many times, made at once: one member, repeated."""
    before, after = (gzip.compress(part) for part in around or (b"", b""))
    path.write_bytes(before + gzip.compress(piece) * times + after)


def one_value(path: Path) -> None:
    """8,192 rows of one text of a MiB: 8 GiB in less than a KiB."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(8192, np.int32)), pa.array(["a" * MIB]))
    columns = {name: texts for name in ("prompt", "response", "answer")}
    pq.write_table(pa.table(columns | {"reward": [1.0] * 8192}), path, compression="zstd")


def one_batch(path: Path) -> None:
    """The same in an Arrow file."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(8192, np.int32)), pa.array(["a" * MIB]))
    table = pa.table(dict.fromkeys(("prompt", "response", "answer"), texts) | {"reward": pa.array([1.0] * 8192)})
    with ipc.new_file(str(path), table.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)


def one_line(path: Path) -> None:
    """A line of 3 GiB."""
    repeated(path, b"a" * (64 * MIB), 48, b'{"response": "', b'", "reward": 1.0}\n')


def many_lines(path: Path) -> None:
    """Lines of a MiB of spaces, 4 GiB together."""
    repeated(path, b" " * (MIB - 1) + b"\n", 4096, SENTENCE, SENTENCE)


def one_array(path: Path) -> None:
    """A JSON array of 3 GiB."""
    repeated(path, (SENTENCE.strip() + b",") * (16 * MIB // len(SENTENCE)), 192, b"[", SENTENCE + b"]")


BOMBS = {
    one_value: "x.parquet", one_batch: "arrow.parquet", one_line: "x.jsonl.gz", many_lines: "x.jsonl.gz",
    one_array: "x.json.gz",
}  # fmt: skip
COMMANDS = {"audit": ["audit"], "train": ["train", "--threads", "1", "--data"]}


def run(arguments: list[str], said: Path, most: int) -> None:
    """In a process that may take `most` bytes: the exit code and what stderr says, or the error that got through."""
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with said.open("w") as file:
        sys.stderr = file
        try:
            code = main(arguments)
        except BaseException as error:
            code = type(error).__name__
        file.write(f"\ncode {code}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "command"), first_quickly(((make, name) for name in COMMANDS for make in BOMBS), len(BOMBS) + 1, "nightly")
)
def test_a_small_file_that_becomes_a_large_one_is_refused(tmp_path, make, command):
    """In one line, within 12 GiB of address space, of which the libraries take some."""
    path, said = tmp_path / BOMBS[make], tmp_path / "said"
    make(path)
    assert path.stat().st_size < 16 * MIB
    process = multiprocessing.get_context("spawn").Process(
        target=run, args=([*COMMANDS[command], str(path)], said, 12 * GIB)
    )
    process.start()
    process.join(300)
    process.kill()
    lines = said.read_text().splitlines()
    assert lines[-1] in ("code 1", "code 2"), lines[-3:]
    assert any(
        word in lines[0] for word in ("longer than 64 MiB", "unpacks to more", "more than 256 MiB", "4 GiB of memory")
    )
    assert all(str(path) in line for line in lines[:-2])  # then an empty line and the code


def write_many(folder: Path) -> dict[Path, str]:
    """Small files of very many rows, lines, columns or levels, and what is said of each."""
    rows, columns, deep = "more than 2,097,152 rows", "more than 4,096 names of columns", "nested"
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2**21 + 1, np.int32)), pa.array(["2"]))
    table = pa.table({"prompt": texts, "response": texts, "reward": pa.array(np.zeros(2**21 + 1))})
    pq.write_table(table, folder / "rows.parquet")
    repeated(folder / "lines.jsonl.gz", b"\n" * 2**20, 64, SENTENCE * 100, b"")
    pq.write_table(pa.table({f"c{i}": [1] for i in range(5000)}), folder / "columns.parquet")
    keys = ({f"k{row}-{i}": 1 for i in range(60)} | json.loads(SENTENCE) for row in range(4000))
    (folder / "keys.jsonl").write_text("".join(json.dumps(row) + "\n" for row in keys))
    (folder / "keys.csv").write_text(f"{','.join(f'c{i}' for i in range(5000))}\n{','.join('1' * 5000)}\n")
    (folder / "deep.jsonl").write_bytes(SENTENCE[:-2] + b', "x": ' + b"[" * 900 + b"]" * 900 + b"}\n")
    return {
        folder / "rows.parquet": rows, folder / "lines.jsonl.gz": rows, folder / "columns.parquet": columns,
        folder / "keys.jsonl": columns, folder / "keys.csv": columns, folder / "deep.jsonl": deep,
    }  # fmt: skip


@pytest.mark.slow
def test_a_small_file_of_very_many_things_is_refused_at_once(tmp_path, capsys):
    """In one line that names the file, the limit and the fix, with at most 3 seconds of a processor for each."""
    for path, expected in write_many(tmp_path).items():
        start = time.process_time()
        assert main(["audit", str(path)]) == 1, path.name
        said = capsys.readouterr().err.strip()
        assert str(path) in said and expected in said, said
        assert time.process_time() - start < 3, path.name


ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "a \ud83d b", "answer": "2"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@over(
    "name, data, place, fault",
    [
        ("x.jsonl", LINES, "line 2: ", "'\\ud83d'"),
        ("y.jsonl.gz", gzip.compress(LINES), "line 2: ", "'\\ud83d'"),
        ("z.json", json.dumps(ROWS).encode(), "row 2: ", "'\\ud83d'"),
        ("bytes.jsonl", LINES.replace(b"\\ud83d", b"\xff"), "line 2: ", "not UTF-8"),
    ],
)
def test_half_of_a_character_and_bytes_that_are_no_text_are_named(tmp_path, capsys, name, data, place, fault):
    path = tmp_path / name
    path.write_bytes(data)
    assert main(["train", "--threads", "1", "--data", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"{path}, {place}" in said and fault in said, said


def test_a_file_without_an_object_is_looked_at_in_its_first_lines_alone(tmp_path, capsys):
    """A million lines of `{` in a few KiB: not one of them is an object, and only the first hundred are read."""
    repeated(tmp_path / "x.jsonl.gz", b"{\n" * 1000, 1000)
    start = time.process_time()
    assert main(["audit", str(tmp_path / "x.jsonl.gz")]) == 1
    assert time.process_time() - start < 1.0
    assert "no object in its first lines: line 1" in capsys.readouterr().err
