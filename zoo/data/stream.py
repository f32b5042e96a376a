"""Data larger than memory: folders of shards, whose items are read in an order that goes through the files in turn."""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from zoo.data.folders import SPLITS, split_name
from zoo.data.gather import ordered_classes
from zoo.data.items import Items, natural
from zoo.data.loader import EpochOrder
from zoo.data.shards import GROUPS, ParquetShard, Shard, TarShard
from zoo.errors import ZooError
from zoo.preprocess import load_image

LARGE = 2**30  # bytes of Parquet files in a folder from which on they are streamed


class Rows(Sequence):
    """A list whose values are made when they are asked for."""

    def __init__(self, count: int, get: Callable):
        self._count, self._get = count, get

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int):
        if not 0 <= i < self._count:
            raise IndexError(i)
        return self._get(i)


class Streamed(Items):
    """Items of `shards`, one after the other; keys are SHARD:ROW. Only labels and places are in memory, some 30 bytes an item."""

    held = False

    def __init__(self, shards: list[Shard], classes: list[str]):
        self.shards, self.ends = shards, np.cumsum([len(shard) for shard in shards]).tolist()
        count = self.ends[-1] if shards else 0
        super().__init__(Rows(count, lambda i: self._of(i, "key")), Rows(count, lambda i: self._of(i, "read")),
                         np.concatenate([np.zeros(0, np.int64), *(shard.labels for shard in shards)]), classes,
                         meta=Rows(count, lambda i: {}))

    def _of(self, i: int, what: str):
        shard = bisect_right(self.ends, i)
        return getattr(self.shards[shard], what)(i - (self.ends[shard - 1] if shard else 0))

    def order(self, batch_size: int, seed: int = 0, shuffle: bool = True, buffer: int = 2048) -> "StreamOrder":
        return StreamOrder([shard.blocks() for shard in self.shards], batch_size, seed, shuffle, buffer)

    def readable(self) -> tuple["Streamed", list[tuple[str, str]]]:
        """The items that decode, and (key, why) of the others. Reads everything once, a block at a time."""
        bad: list[tuple[str, str]] = []

        def broken(shard: Shard, i: int, data: bytes) -> bool:
            try:
                load_image(data, shard.key(i))
            except ZooError as error:
                bad.append((shard.key(i), str(error).removeprefix(f"{shard.key(i)}: ")))
                return True
            return False

        with ThreadPoolExecutor(2) as pool:
            for shard in self.shards:
                lost: set[int] = set()
                for start, stop in shard.blocks():
                    data = [shard.read(i) for i in range(start, stop)]
                    found = pool.map(broken, [shard] * len(data), range(start, stop), data)
                    lost |= {i for i, gone in zip(range(start, stop), found, strict=True) if gone}
                if lost:
                    shard.keep([i for i in range(len(shard)) if i not in lost])
        return self.of(self.shards), bad

    def of(self, shards: list[Shard]) -> "Streamed":
        """The items of some of the shards."""
        return Streamed(shards, self.classes)

    def fingerprint(self) -> str:
        about = [[(shard.file.name, len(shard)) for shard in self.shards], self.classes]
        return hashlib.sha256(repr(about).encode(errors="surrogateescape") + self.labels.tobytes()).hexdigest()


class StreamOrder(EpochOrder):
    """Batches of places (index, epoch, 0): the shards in a new order every epoch, `buffer` items at a time permuted.

    blocks: of every shard the runs [start, stop) that are read together. A buffer is made of whole blocks, so each is read once
    by a process. Depends on (seed, epoch) only: the same for any number of ranks and workers, and a restart skips what is done
    without reading it.
    """

    def __init__(self, blocks: list[list[tuple[int, int]]], batch_size: int, seed: int = 0, shuffle: bool = True,
                 buffer: int = 2048):
        sizes = [sum(stop - start for start, stop in runs) for runs in blocks]
        super().__init__(sum(sizes), batch_size, seed, shuffle)
        self.blocks, self.starts, self.buffer = blocks, np.cumsum([0, *sizes]).tolist(), buffer
        GROUPS.room = max(GROUPS.room, buffer + max(stop - start for runs in blocks for start, stop in runs))

    def indices(self) -> Iterator[int]:
        """Every index of the epoch, once."""
        if not self.shuffle:
            yield from range(self.n)
            return
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        held, count = [], 0
        for shard in torch.randperm(len(self.blocks), generator=generator).tolist():
            for start, stop in self.blocks[shard]:
                held.append(torch.arange(start, stop) + self.starts[shard])
                count += stop - start
                if count >= self.buffer:
                    yield from torch.cat(held)[torch.randperm(count, generator=generator)].tolist()
                    held, count = [], 0
        if held:
            yield from torch.cat(held)[torch.randperm(count, generator=generator)].tolist()

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        indices = islice(self.indices(), self.skip * self.batch_size, None)
        while batch := [(index, self.epoch, 0) for index in islice(indices, self.batch_size)]:
            yield batch


def shards_at(path: str | Path, stream: str = "auto") -> list[Path]:
    """The shard files of a folder, those in sub-folders too, or of one file; [] where the data is not to be streamed.

    stream: auto (tar files always, Parquet files from 1 GiB on) | always | never.
    """
    path = Path(path).expanduser()
    if stream == "never":
        return []
    below = path.rglob("*") if path.is_dir() else [path] if path.is_file() else []
    files = sorted((file for file in below if file.suffix in (".tar", ".parquet")), key=lambda file: natural(file.as_posix()))
    tars = [file for file in files if file.suffix == ".tar" and not file.name.startswith(".")]
    tables = [file for file in files if file.suffix == ".parquet" and not file.name.startswith(".")]
    if tars and tables:
        raise ZooError(f"{path}: both tar files and Parquet files; --data takes the folder of one kind")
    large = sum(file.stat().st_size for file in tables) >= LARGE
    found = tars or (tables if stream == "always" or large else [])
    if stream == "always" and not found:
        raise ZooError(f"{path}: no shards (*.parquet, *.tar) to stream; leave out --stream always")
    return found


def split_of(file: Path) -> str | None:
    """The split that a shard's name or its folder's says: train-00001.tar, val/00001.tar."""
    words = [file.parent.name.lower(), *re.split(r"[-_.]", file.stem.lower())]
    return next((split_name(word) for word in words if any(word in known for known in SPLITS.values())), None)


def open_shards(files: list[Path], label: str = "label", skip_bad: bool = False) -> tuple[Streamed, list[tuple[str, str]]]:
    """Every item of the shards, and (file, why) of torn ones, which are an error unless skip_bad. One pass over the headers.

    Classes: the lines of `classes.txt` beside the shards or above; those that Parquet files store; or all labels there are.
    With classes.txt an integer label is a line of it, counted from 0.
    """
    shards, torn = opened(files, lambda file: (TarShard if file.suffix == ".tar" else ParquetShard)(file, label), skip_bad)
    listed = _listed(files[0])
    for shard in shards if listed else ():
        shard.names = [listed[int(name)] if name.isdigit() and int(name) < len(listed) else name for name in shard.names]
    present = {name for shard in shards for name in shard.names}
    classes = ordered_classes(files[0].parent, present, [listed] if listed else [shard.stored for shard in shards])
    for shard in shards:
        shard.number(classes)
    return Streamed(shards, classes), torn


def opened(files: list[Path], make: Callable[[Path], Shard], skip_bad: bool) -> tuple[list[Shard], list[tuple[str, str]]]:
    """The shards that hold items, and (file, why) of torn ones, which are an error unless skip_bad."""
    shards, torn = [], []
    for file in files:
        try:
            shards.append(make(file))
        except ZooError as error:
            if not skip_bad:
                raise
            torn.append((file.name, str(error).removeprefix(f"{file}: ").removesuffix("; --skip-bad leaves it out")))
    if not sum(map(len, shards)):
        raise ZooError(f"{files[0].parent}: no readable pictures in its {len(files)} shards")
    return [shard for shard in shards if len(shard)], torn


def _listed(file: Path) -> list[str]:
    for folder in (file.parent, file.parent.parent):
        if (names := folder / "classes.txt").is_file():
            return [line.strip() for line in names.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    return []


def parts(items: Streamed, val: float | str, seed: int = 0) -> tuple[Streamed, Streamed]:
    """(train, held out): by the split in the shards' names; or a fraction of the shards, whole, by (seed, name)."""
    named = [split_of(shard.file) for shard in items.shards]
    train = [i for i, name in enumerate(named) if name == "train"] or [i for i, name in enumerate(named) if name is None]
    if isinstance(val, str):
        if not train:
            of_split(items, "train")
        return items.of([items.shards[i] for i in train]), of_split(items, val)
    if len(train) < 2:
        raise ZooError(f"val: {val}: of {len(train)} shard none can be held out; give the name of a split, or more shards")
    ranked = sorted(train, key=lambda i: hashlib.blake2b(f"{seed}/{items.shards[i].file.name}".encode()).digest())
    held = ranked[: min(max(round(val * len(train)), 1), len(train) - 1)]
    out = set(held)
    return tuple(items.of([items.shards[i] for i in chosen]) for chosen in ([i for i in train if i not in out], sorted(held)))


def of_split(items: Streamed, name: str) -> Streamed:
    """The items whose shards' names say this split. ZooError where none does."""
    named = [split_of(shard.file) for shard in items.shards]
    chosen = [shard for shard, found in zip(items.shards, named) if found == split_name(name)]
    if not chosen:
        have = ", ".join(sorted({found for found in named if found})) or "no split in any name"
        raise ZooError(f"no shards for {name!r}; the shards' names say: {have}")
    return items.of(chosen)
