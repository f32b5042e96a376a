"""A Parquet file that takes long to make: finished pieces lie in a folder beside it, and become the file once all are there.

A kill loses no finished piece, whatever number of processes (torchrun) goes on.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from zoo import crew
from zoo.data.tables import tables_in
from zoo.errors import ZooError
from zoo.retrieval.files import locked

GROUP = 4096  # rows that are written together in the end


@dataclass
class Piece:
    """What of the items at some place has become: names and vectors (rows dim) float32 of the good, (item, reason) of the bad."""

    names: list[str]
    vectors: list
    bad: list[tuple[str, str]]


class Pieces:
    """The folder of `out`. A piece is known by its place among all and by a digest of what it is made of and how."""

    def __init__(self, out: Path, facts: dict):
        self.out, self.facts, self.folder = out, facts, folder_of(out)
        self.finished: set[str] = set()

    @contextmanager
    def opened(self) -> Iterator["Pieces"]:
        """With the folder made and locked by the first process. ZooError where something cannot be written."""
        with ExitStack() as held, _told(self.out):
            crew.join()
            self.finished = crew.lead(lambda: self._begin(held))
            try:
                yield self
            finally:
                if crew.first() and not any(self.folder.glob("*.parquet")):
                    shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, held: ExitStack) -> set[str]:
        with _told(self.out):
            self.folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(self.folder / "lock", name=str(self.out)))
            return {file.name for file in self.folder.glob("*.parquet")}

    def file(self, place: int, digest: str) -> str:
        return f"{place:06d}-{digest}.parquet"

    def put(self, file: str, piece: Piece) -> None:
        """Writes a finished piece, all of it or nothing."""
        columns = {"item": pa.array(piece.names, pa.string())}
        if piece.names:
            flat = [row.ravel() for row in piece.vectors]
            values = pa.concat_arrays([pa.array(row, pa.float32()) for row in flat])
            columns["vector"] = pa.FixedSizeListArray.from_arrays(values, piece.vectors[0].shape[1])
        table = pa.table(columns).replace_schema_metadata({"bad": json.dumps(piece.bad)})
        temporary = self.folder / f"{file}.{os.getpid()}.tmp"
        pq.write_table(table, temporary)
        os.replace(temporary, self.folder / file)

    def join(self, files: list[str]) -> tuple[int, int, list[tuple[str, str]]]:
        """Makes `out` of all pieces in this order, drops the folder: (rows, dim, bad). Without a good item there is no file."""
        with _told(self.out):
            rows, dim, bad, waiting, writer = 0, 0, [], [], None
            temporary = self.folder / "whole.tmp"
            for file in files:
                table = pq.read_table(self.folder / file)
                bad += [tuple(pair) for pair in json.loads(table.schema.metadata[b"bad"])]
                if len(table):
                    rows, dim = rows + len(table), table.schema.field("vector").type.list_size
                    waiting.append(table.replace_schema_metadata({"zoo": json.dumps(self.facts)}))
                if waiting and (sum(map(len, waiting)) >= GROUP or file == files[-1]):
                    writer = writer or pq.ParquetWriter(temporary, waiting[0].schema)
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if writer:
                writer.close()
                os.replace(temporary, self.out)
            shutil.rmtree(self.folder)
            return rows, dim, bad


def folder_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.pieces")


def kept(out: Path) -> str:
    """What is finished, in words."""
    count = len(list(folder_of(out).glob("*.parquet")))
    return f"{count} finished pieces are kept in {folder_of(out)}" if count else "nothing was finished yet"


def digest(about, chunk: list[tuple[str, object]]) -> str:
    """Of names and contents of (name, source): of files size and time stand for it. about: all else that the vectors go by."""
    found = hashlib.blake2b(json.dumps(about, default=str).encode(), digest_size=12)
    for name, source in chunk:
        found.update(b"\0" + name.encode("utf-8", "surrogateescape") + b"\0")
        if isinstance(source, Path):
            found.update(repr(stamp(source)).encode())
        elif isinstance(source, bytes | str):
            found.update(source if isinstance(source, bytes) else source.encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def stamp(path: Path) -> list:
    """What changes with a file: its size and time; of a folder those of the tables in it; [] of what is not there."""
    try:
        files = tables_in(path) if path.is_dir() else [path]
        return [(file.name, status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]]
    except (OSError, ValueError):
        return []


@contextmanager
def _told(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ZooError(f"{out}: could not be written ({error.strerror or error})") from error
