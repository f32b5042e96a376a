"""Shard files that are read in place: Parquet tables with a column of encoded pictures, tar files as WebDataset writes them.

Of an item only its label and where it lies are held (some 20 bytes); its bytes are read when it is wanted.
"""

import json
import tarfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from zoo.data.media import PictureTable
from zoo.data.medium import PICTURE
from zoo.errors import ZooError

RUN = 256  # items of a tar file that count as one block of the order
LABELS = ("cls", "json", "txt")  # members that may hold the label, first come


class Shard:
    """Labelled items of one file. rows: their numbers in it; labels: codes into `names`, then into the classes of all shards.

    stored: ordered label names that the file holds, if any. Raises ZooError that names the file where it is torn.
    """

    stored: list[str] | None = None

    def __init__(self, file: Path, names: list[str]):
        self.file, self.rows = file, np.arange(len(names), dtype=np.int32)
        self.names = list(dict.fromkeys(names))
        code = {name: i for i, name in enumerate(self.names)}
        self.labels = np.array([code[name] for name in names], np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, i: int) -> str:
        return f"{self.file.name}:{self.rows[i]}"

    def keep(self, chosen: list[int]) -> None:
        """Forgets all other items."""
        self.rows, self.labels = self.rows[chosen], self.labels[chosen]

    def number(self, classes: list[str]) -> None:
        """Labels become places in `classes`."""
        place = {name: i for i, name in enumerate(classes)}
        self.labels = np.array([place[name] for name in self.names], np.int64)[self.labels]

    def blocks(self) -> list[tuple[int, int]]:
        """[start, stop) of runs of items that are read together."""
        raise NotImplementedError

    def read(self, i: int) -> bytes:
        """The encoded picture of an item."""
        raise NotImplementedError


class ParquetShard(Shard):
    """Rows of a Parquet file; blocks are its row groups, the last few of which stay in memory."""

    def __init__(self, file: Path, label: str):
        table = self.opened(file)
        super().__init__(file, table.labels(label))
        self.stored = table.label_names(label)

    def opened(self, file: Path) -> PictureTable:
        """The table, with its row groups known."""
        table = PictureTable(file)
        self.column = table.bytes_column
        if self.column is None:
            raise ZooError(f"{file}: no column {' or '.join(map(repr, PICTURE.bytes_columns))} of encoded pictures to stream")
        meta = pa.parquet.read_metadata(file)
        self.ends = np.cumsum([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
        return table

    def blocks(self) -> list[tuple[int, int]]:
        edges = [0, *np.searchsorted(self.rows, self.ends).tolist()]
        return [(a, b) for a, b in zip(edges, edges[1:]) if b > a]

    def value(self, i: int, column: str):
        """What a column holds of an item."""
        at = int(self.rows[i])
        group = int(np.searchsorted(self.ends, at, side="right"))
        first = int(self.ends[group - 1]) if group else 0
        return GROUPS.get(self.file, group, column)[at - first].as_py()

    def read(self, i: int) -> bytes:
        value = self.value(i, self.column)
        return (value.get("bytes") if isinstance(value, dict) else value) or b""


class Groups:
    """The row groups read last, of each column at most `room` rows, which an order sets so that those of one buffer fit."""

    def __init__(self):
        self.room, self._kept = 0, OrderedDict()

    def get(self, file: Path, group: int, column: str) -> pa.ChunkedArray:
        key = (file, group, column)
        if key not in self._kept:
            try:
                with pa.parquet.ParquetFile(file) as opened:
                    table = opened.read_row_group(group, columns=[column], use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise ZooError(f"{file}: torn, row group {group} cannot be read ({str(error).splitlines()[0]})") from error
            others = [known for known in self._kept if known[2] == column]  # the longest unused ones first
            while others and sum(len(self._kept[known]) for known in others) + len(table) > self.room:
                del self._kept[others.pop(0)]
            self._kept[key] = table[column]
        self._kept.move_to_end(key)
        return self._kept[key]


GROUPS = Groups()


class TarShard(Shard):
    """NAME.jpg (or any picture) with NAME.cls, NAME.json ({"label": ...}) or NAME.txt beside it, next to each other."""

    def __init__(self, file: Path, label: str):
        found = list(_samples(file, label))
        super().__init__(file, [name for _, _, name in found])
        self.places = np.array([(at, size) for at, size, _ in found], np.int64).reshape(-1, 2)

    def blocks(self) -> list[tuple[int, int]]:
        return [(start, min(start + RUN, len(self))) for start in range(0, len(self), RUN)]

    def read(self, i: int) -> bytes:
        at, size = self.places[self.rows[i]].tolist()
        with open(self.file, "rb") as stream:
            stream.seek(at)
            return stream.read(size)


def _samples(file: Path, label: str):
    """(offset, size, label) of every picture of a tar file, read through once by its headers."""
    try:
        with open(file, "rb", buffering=2**18) as stream:
            name, picture, told = None, None, {}
            for path, at, size in members(stream):
                stem, kind = parted(path)
                if stem != name:
                    yield from _sample(file, name, picture, told)
                    name, picture, told = stem, None, {}
                if f".{kind}" in PICTURE.suffixes:
                    picture = at, size
                elif kind in LABELS:
                    stream.seek(at)
                    told[kind] = _label(kind, stream.read(size), label)
            yield from _sample(file, name, picture, told)
    except (tarfile.TarError, OSError, ValueError) as error:
        if isinstance(error, ZooError):
            raise
        raise ZooError(f"{file}: torn or no tar file ({error}); --skip-bad leaves it out") from error


def members(stream):
    """(name, offset, size) of every file in a tar file, to its end mark; tarfile, which is slower, gets what is rare."""
    at, length = 0, stream.seek(0, 2)
    while True:
        stream.seek(at)
        head = stream.read(512)
        if len(head) < 512:
            raise tarfile.ReadError("the end is missing")
        if not head[0]:
            return
        if head[156:157] in b"xgLKS":  # long names and the like
            yield from _rare(stream, at)
            return
        size, check = int(head[124:136].strip(b" \0") or b"0", 8), int(head[148:156].strip(b" \0"), 8)
        if sum(head) - sum(head[148:156]) + 256 != check or at + 512 + size > length:
            raise tarfile.ReadError(f"no whole file at byte {at}")
        if head[156:157] in b"0\0":
            folder = head[345:500].rstrip(b"\0") + b"/" if head[257:262] == b"ustar" and head[345] else b""
            yield (folder + head[:100].split(b"\0", 1)[0]).decode("utf-8", "backslashreplace"), at + 512, size
        at += 512 + -(-size // 512) * 512


def _rare(stream, at: int):
    """What `members` gives, from byte `at` on, by the standard library."""
    length = stream.seek(0, 2)
    stream.seek(at)
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # or it keeps them all
            if member.isfile():
                yield member.name, member.offset_data, member.size
            if member.offset_data + member.size > length:
                raise tarfile.ReadError("the end is missing")
        if tar.offset + 512 > length:
            raise tarfile.ReadError("the end is missing")


def parted(name: str) -> tuple[str, str]:
    """WebDataset's rule: the key ends at the first dot of the file's name."""
    folder, _, base = name.rpartition("/")
    stem, _, kind = base.partition(".")
    return f"{folder}/{stem}", kind.lower()


def _sample(file: Path, name: str | None, picture: tuple[int, int] | None, told: dict[str, str | None]):
    if picture is None:
        return
    found = next((told[kind] for kind in LABELS if told.get(kind)), None)
    if found is None:
        raise ZooError(f"{file}: {name.lstrip('/')} has no label; a .cls, .txt or .json beside each picture holds it")
    yield *picture, found


def _label(kind: str, data: bytes, label: str) -> str | None:
    text = data.decode("utf-8-sig").strip()
    if kind != "json":
        return text
    value = json.loads(text).get(label) if text.startswith("{") else None
    return None if value is None else str(value)
