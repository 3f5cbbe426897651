"""Rollouts in zip archives: what torch.save wrote of plain data (`*/data.pkl`), and logs of Inspect (`samples/*.json`)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import pyarrow as pa

from fairlen.files import limits
from fairlen.files.limits import RefusedError, bounded_memory, read_row
from fairlen.files.pickled import REMEDY, read_plain

ZSTANDARD = 93  # a compression that zipfile reads from Python 3.14 on
PICKLE = "data.pkl"
POINTER, FETCH = "pointer, not the file itself: git", "not the file itself: fetch it again, as one who may read it"
SIGNATURES: dict[str, tuple[bytes, ...]] = {
    f"a Git LFS {POINTER} lfs pull": (b"version https://git-lfs.github.com/spec/",),
    f"a git-annex {POINTER} annex get": (b"/annex/objects/",),
    f"a web page, or a server's error, {FETCH}": (b"<!doctype html", b"<html", b"<?xml"),
    "compressed as bzip2, xz, lz4, 7z or rar: unpack it first": (b"BZh", b"\xfd7zXZ\0", b"\x04\x22M\x18", b"7z\xbc\xaf", b"Rar!"),
    "text in UTF-16: save it as UTF-8": (b"\xff\xfe", b"\xfe\xff"),
    "a run's log of W&B: give its tables, files/media/table/*.table.json": (b":W&B",),
    "an SQLite database: write its table of rollouts as CSV": (b"SQLite format 3\0",),
    "HDF5, NumPy, Avro or ORC: write its rows as Parquet or JSON lines": (b"\x89HDF", b"\x93NUMPY", b"Obj\x01", b"ORC"),
}  # fmt: skip
"""Formats that hold no rows, with a remedy: their first bytes, in lower case."""


def name_foreign(start: bytes) -> str:
    """Name a format that holds no rows, with a remedy, by a file's first bytes; empty where it may hold some."""
    begins = (start, start.lstrip()[:64].lower())
    what = next((what for what, magic in SIGNATURES.items() if any(one.startswith(magic) for one in begins)), "")
    return "a tar archive: unpack it first" if start[257:262] == b"ustar" else what


def kind_of(path: Path) -> str:
    """Return "pickle" or "log". Raises RefusedError for other archives."""
    with ZipFile(path) as archive:
        names = {info.filename.rpartition("/")[2] for info in archive.infolist()}
    if PICKLE not in names and not names & {"header.json", "start.json"}:
        raise RefusedError("an archive, but of neither torch.save nor Inspect: unpack it")
    return "pickle" if PICKLE in names else "log"


def read_pickle(path: Path) -> Any:
    """Read plain data that torch.save wrote. Raises RefusedError for anything else."""
    with ZipFile(path) as archive, path.open("rb") as file, bounded_memory():
        info = next(one for one in archive.infolist() if one.filename.rpartition("/")[2] == PICKLE)
        if info.compress_type != ZIP_STORED:
            raise RefusedError(f"a pickle that is compressed, which torch.save never does: {REMEDY}")
        return read_plain(unpack(archive, file, info, limits.UNPACKED))


def read_log(path: Path) -> Iterator[tuple[int, dict[str, Any] | str, int]]:
    """Yield number, row, or the reason why it is none, and size of each sample in a log of Inspect."""
    room = limits.max_unpacked(path)
    with ZipFile(path) as archive, path.open("rb") as file:
        members = {one.filename: one for one in archive.infolist() if one.filename.startswith("samples/")}
        for number, info in enumerate(members.values(), 1):  # one that was written again counts once
            with bounded_memory():
                row = read_row(unpack(archive, file, info, min(room, limits.MAX_JSON)))
            room -= info.file_size
            yield number, f"{info.filename}: {row}" if isinstance(row, str) else row, info.file_size


def unpack(archive: ZipFile, file: IO[bytes], info: ZipInfo, most: int) -> bytes:
    """Read a member. Raises RefusedError for more than `most` bytes, ValueError for a wrong checksum."""
    if info.file_size > most:
        raise RefusedError(f"{info.filename} unpacks to more than {most:,} bytes: leave it out")
    if info.compress_type != ZSTANDARD:
        with archive.open(info) as member:
            return member.read(most)
    file.seek(info.header_offset + 26)  # where a member's header has the sizes of its name and of what follows
    file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
    packed = pa.BufferReader(file.read(info.compress_size))
    data = pa.CompressedInputStream(packed, "zstd").read(info.file_size + 1)
    if zlib.crc32(data) != info.CRC:
        raise ValueError(f"{info.filename} is not what was written")
    return data
