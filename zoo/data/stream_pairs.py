"""Pictures with captions in shards: as zoo.data.stream, with the texts read in place too.

Of a caption only a number is held, to tell which captions of a batch are the same text: 4 bytes, and 16 an item for its place.
"""

import hashlib
import json
import tarfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from zoo.data.images import CAPTION_COLUMNS
from zoo.data.media import texts
from zoo.data.medium import PICTURE
from zoo.data.shards import ParquetShard, Shard, TarShard, members, parted
from zoo.data.stream import Rows, Streamed, opened
from zoo.errors import ZooError


def number(caption: str) -> int:
    """Of a caption: 32 bits of its hash. Two captions of one batch of 1,000 share one by chance once in 8,000 batches."""
    return int.from_bytes(hashlib.blake2b(caption.encode(errors="surrogateescape"), digest_size=4).digest(), "big")


class PairShard(Shard):
    """What a shard knows of its captions: the numbers of row r are numbers[first[r]:first[r + 1]]."""

    def tell(self, file: Path, rows: Iterable[list[str]]) -> None:
        ends, numbers = array("q", [0]), array("I")
        for captions in rows:
            numbers.extend(map(number, captions))
            ends.append(len(numbers))
        Shard.__init__(self, file, [""] * (len(ends) - 1))
        self.labels = np.zeros(len(self), np.int8)  # there are none
        self.first, self.numbers = np.array(ends), np.array(numbers, np.uint32)

    @property
    def caption_count(self) -> int:
        return int((self.first[self.rows + 1] - self.first[self.rows]).sum())

    def owned(self, i: int) -> list[int]:
        """The numbers of an item's captions."""
        row = self.rows[i]
        return self.numbers[self.first[row] : self.first[row + 1]].tolist()

    def bare(self) -> list[int]:
        """The items without a caption."""
        return np.flatnonzero(self.first[self.rows + 1] == self.first[self.rows]).tolist()

    def captions(self, i: int) -> list[str]:
        """The texts of an item."""
        raise NotImplementedError


class ParquetPairs(PairShard, ParquetShard):
    """Rows with a column of encoded pictures and columns of captions: texts, lists or structs of texts."""

    def __init__(self, file: Path, columns: Sequence[str]):
        table = self.opened(file)
        for column in columns:
            table.need(column)
        self.columns = tuple(columns) or (table.need(*CAPTION_COLUMNS),)
        self.tell(file, self._all(file))

    def _all(self, file: Path) -> Iterable[list[str]]:
        try:
            with pa.parquet.ParquetFile(file) as parquet:
                for group in range(parquet.num_row_groups):
                    part = parquet.read_row_group(group, columns=list(self.columns), use_threads=False)
                    yield from map(texts, zip(*(part[column].to_pylist() for column in self.columns)))
        except (pa.ArrowException, OSError) as error:
            raise ZooError(f"{file}: torn, its captions cannot be read ({str(error).splitlines()[0]})") from error

    def captions(self, i: int) -> list[str]:
        return texts([self.value(i, column) for column in self.columns])


class TarPairs(PairShard, TarShard):
    """NAME.jpg (or any picture) with NAME.txt, one caption a line, or NAME.json, which holds captions under `keys`.

    keys: of the JSON, all of them; empty: the .txt, or else the first there is of caption, captions, text in the .json.
    """

    def __init__(self, file: Path, keys: Sequence[str]):
        self.keys, places = tuple(keys), array("q")
        try:
            self.tell(file, self._all(file, places))
        except (tarfile.TarError, OSError, ValueError) as error:
            if isinstance(error, ZooError):
                raise
            raise ZooError(f"{file}: torn or no tar file ({error}); --skip-bad leaves it out") from error
        self.places = np.array(places).reshape(-1, 4)  # offset and size of the picture, then of its text; size < 0: it is JSON

    def _all(self, file: Path, places: array) -> Iterator[list[str]]:
        with open(file, "rb", buffering=2**18) as stream:
            name, found = None, {}
            for path, at, size in members(stream):
                stem, kind = parted(path)
                if stem != name:
                    yield from self._sample(stream, found, places)
                    name, found = stem, {}
                what = "picture" if f".{kind}" in PICTURE.suffixes else kind
                if what in ("picture", "txt", "json"):
                    found[what] = at, size
            yield from self._sample(stream, found, places)

    def _sample(self, stream, found: dict[str, tuple[int, int]], places: array) -> Iterator[list[str]]:
        if "picture" not in found:
            return
        at, size = (0, 0) if self.keys else found.get("txt", (0, 0))
        captions = self._texts(stream, at, size)
        if not captions and "json" in found:
            at, size = found["json"][0], -found["json"][1]
            captions = self._texts(stream, at, size)
        places.extend((*found["picture"], at, size))
        yield captions

    def _texts(self, stream, at: int, size: int) -> list[str]:
        stream.seek(at)
        text = stream.read(abs(size)).decode("utf-8-sig")
        if size >= 0:
            return texts([text.splitlines()])
        held = json.loads(text)
        if not isinstance(held, dict):
            return []
        keys = self.keys or [key for key in CAPTION_COLUMNS if held.get(key)][:1]
        return texts([held.get(key) for key in keys])

    def captions(self, i: int) -> list[str]:
        _, _, at, size = self.places[self.rows[i]].tolist()
        with open(self.file, "rb") as stream:
            return self._texts(stream, at, size)

    def read(self, i: int) -> bytes:
        at, size, _, _ = self.places[self.rows[i]].tolist()
        with open(self.file, "rb") as stream:
            stream.seek(at)
            return stream.read(size)


class StreamedPairs(Streamed):
    """Pictures with captions, of which neither is in memory."""

    shards: list[PairShard]

    def __init__(self, shards: list[PairShard]):
        super().__init__(shards, [])
        self.labels = self.classes = None
        self.captions = Rows(len(self), lambda i: self._of(i, "captions"))
        self.owned = Rows(len(self), lambda i: self._of(i, "owned"))  # the numbers of the captions

    @property
    def caption_count(self) -> int:
        return sum(shard.caption_count for shard in self.shards)

    def of(self, shards: list[PairShard]) -> "StreamedPairs":
        return StreamedPairs(shards)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr([(shard.file.name, len(shard)) for shard in self.shards]).encode(errors="surrogateescape"))
        for shard in self.shards:
            digest.update(shard.rows.tobytes() + shard.numbers.tobytes())
        return digest.hexdigest()


def open_pair_shards(files: list[Path], captions: Sequence[str] = (), skip_bad: bool = False):
    """(StreamedPairs of every pair in the shards, (key, why) of torn files and of pictures without a caption).

    captions: columns of Parquet files, keys of the .json in tar files; empty: the first there is of caption, captions, text, in
    tar files the .txt first. What is bad is an error unless skip_bad. One pass over the captions and the headers.
    """
    shards, bad = opened(files, lambda file: (TarPairs if file.suffix == ".tar" else ParquetPairs)(file, captions), skip_bad)
    told = ", ".join(repr(key) for key in captions) or "a .txt, or caption, captions, text in the .json or the row"
    for shard in shards:
        lost = shard.bare()
        bad += [(shard.key(i), "no caption") for i in lost]
        if lost and not skip_bad:
            raise ZooError(f"{shard.file}: {len(lost)} of {len(shard)} pictures have no caption, {shard.key(lost[0])} first; "
                           f"looked for {told}; --skip-bad leaves them out")
        gone = set(lost)
        if gone:
            shard.keep([i for i in range(len(shard)) if i not in gone])
    if not sum(map(len, shards)):
        raise ZooError(f"{files[0].parent}: no pictures with captions in its {len(files)} shards; looked for {told}")
    return StreamedPairs([shard for shard in shards if len(shard)]), bad
