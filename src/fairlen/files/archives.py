"""Rollouts in zip archives: what torch.save wrote of plain data (`*/data.pkl`), and logs of Inspect (`samples/*.json`)."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from pickletools import genops
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import pyarrow as pa

from fairlen.files import limits
from fairlen.files.foreign import open_regular_file, require_regular_file
from fairlen.files.limits import MAX_DEPTH, RATIO, RefusedError, bounded_memory, is_deep, read_row

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
    with ZipFile(require_regular_file(path)) as archive:
        names = {info.filename.rpartition("/")[2] for info in archive.infolist()}
    if PICKLE not in names and not names & {"header.json", "start.json"}:
        raise RefusedError("an archive, but of neither torch.save nor Inspect: unpack it")
    return "pickle" if PICKLE in names else "log"


def read_pickle(path: Path) -> Any:
    """Read plain data that torch.save wrote. Raises RefusedError for anything else."""
    with open_regular_file(path) as regular, ZipFile(regular) as archive, bounded_memory():
        info = next(one for one in archive.infolist() if one.filename.rpartition("/")[2] == PICKLE)
        if info.compress_type != ZIP_STORED:
            raise RefusedError(f"a pickle that is compressed, which torch.save never does: {REMEDY}")
        return read_plain(unpack(archive, regular, info, limits.UNPACKED))


def read_log(path: Path) -> Iterator[tuple[int, dict[str, Any] | str, int]]:
    """Yield number, row, or the reason why it is none, and size of each sample in a log of Inspect."""
    room = limits.max_unpacked(path)
    with open_regular_file(path) as regular, ZipFile(regular) as archive:
        members = {one.filename: one for one in archive.infolist() if one.filename.startswith("samples/")}
        for number, info in enumerate(members.values(), 1):  # one that was written again counts once
            with bounded_memory():
                row = read_row(unpack(archive, regular, info, min(room, limits.MAX_JSON)))
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


REMEDY = "reading one runs whatever code is in it; load it where you trust it and write one JSON object a line"
MIN_COPIED = 64 * 2**20
"""Characters that may be repeated, 64 for a value, or 100 a byte of a larger file: a hundred bytes could stand for a billion."""
NUMBER = re.compile(rb"K.|M..|J....|G.{8}", re.DOTALL)
RUN = re.compile(rb"(?:%b){1,1000}" % NUMBER.pattern, re.DOTALL)  # numbers of one list, of which rollouts are full
SHAPES = dict(zip(b"KMJG", (struct.Struct(shape).unpack for shape in ("<xB", "<xH", "<xi", ">xd")), strict=True))
VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
NEW = {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": bool}
NEW |= {"EMPTY_LIST": list, "EMPTY_TUPLE": list, "EMPTY_DICT": dict}
TAKEN = {"APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": 0}
"""Values that an opcode takes from the stack; 0 is all from the last mark on."""


def read_plain(data: bytes) -> Any:
    """Read the value of a pickle: tuples as lists, keys as texts, and copies of values that occur twice.

    Raises RefusedError for more than plain data, ValueError for opcodes that make no value.
    """
    file, plain = BytesIO(data), Plain(max(MIN_COPIED, RATIO * len(data)))
    try:
        for opcode, argument, _ in genops(file):
            if opcode.name == "MARK" and (run := RUN.match(data, file.tell())):
                plain.marks.append(len(plain.stack))
                plain.stack += [SHAPES[one[0]](one)[0] for one in NUMBER.findall(run[0])]
                file.seek(run.end())
            elif opcode.name not in ("PROTO", "FRAME", "STOP"):
                plain.apply(opcode.name, argument)
        (value,) = plain.stack
        if is_deep(value):
            raise RefusedError(f"lists and objects nested more than {MAX_DEPTH} deep: write JSON lines")
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"opcodes that no program writes ({type(error).__name__})") from None
    return value


class Plain:
    """A pickle's machine without what constructs objects."""

    def __init__(self, room: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.room = self.most = room

    def apply(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in NEW:
            stack.append(NEW[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.copy(self.memo[argument]))
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in TAKEN:
            start = len(stack) - TAKEN[name] if TAKEN[name] else self.marks.pop()
            items, stack[start:] = stack[start:], []
            if name.startswith("TUPLE"):
                stack.append(items)
            elif name.startswith("APPEND"):
                stack[-1].extend(items)
            else:
                stack[-1].update(zip(map(str, items[::2]), items[1::2], strict=True))
        else:
            asked = f"{name} {argument}".strip()
            raise RefusedError(f"a pickle of more than plain data ({asked!r:.60}): {REMEDY}")

    def copy(self, value: Any) -> Any:
        """Raises RefusedError where all copies together are too large."""
        keys = sum(map(len, value)) if isinstance(value, dict) else 0
        self.room -= len(value) + 1 if isinstance(value, str) else 64 + keys
        if self.room < 0:
            size = f"more than {self.most >> 20} Mi characters"
            raise RefusedError(f"{size} occur in it again and again: write JSON lines")
        if isinstance(value, list):
            return [self.copy(one) for one in value]
        return {key: self.copy(one) for key, one in value.items()} if isinstance(value, dict) else value
