"""The one form in which data of any origin travels: parallel lists, nothing decoded yet."""

import hashlib
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from PIL import Image

from zoo.data.medium import MEDIA
from zoo.errors import ZooError
from zoo.preprocess import load_image


def natural(name: str) -> tuple:
    """Sort key that puts 2 before 10."""
    return [int(part) if i % 2 else part.casefold() for i, part in enumerate(re.split(r"(\d+)", name))], name


@dataclass
class Items:
    """Items as parallel lists. sources: files or encoded bytes; labels index classes; meta: plain values.

    tags: instead of labels any number of classes an item. kind: "image" or "sound".
    """

    keys: list[str]
    sources: list[Path | bytes]
    labels: list[int] | None = None
    classes: list[str] | None = None
    captions: list[list[str]] | None = None
    meta: list[dict] = field(default_factory=list)
    tags: list[list[int]] | None = None
    kind: str = "image"
    held = True  # no field: the sources lie in memory or in files, what is decoded may be kept

    def __post_init__(self):
        self.meta = self.meta or [{} for _ in self.keys]
        for name in ("sources", "labels", "captions", "meta", "tags"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.keys):
                raise ZooError(f"items: {len(values)} {name} for {len(self.keys)} keys")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def caption_count(self) -> int:
        return sum(map(len, self.captions or ()))

    def image(self, i: int) -> Image.Image:
        """The i-th picture, RGB, in full size. Raises ZooError that names its key."""
        return load_image(self.sources[i], self.keys[i])

    def subset(self, indices) -> "Items":
        """The items at `indices`, in that order; classes are kept whole."""
        parts = {}
        for f in fields(self):
            values = getattr(self, f.name)
            whole = f.name in ("classes", "kind") or values is None
            parts[f.name] = values if whole else [values[i] for i in indices]
        return Items(**parts)

    def __add__(self, other: "Items") -> "Items":
        """These items and then the others, of the same kind and classes."""
        return joined([self, other])

    def relabel(self, classes: list[str]) -> "Items":
        """The same items, labels and tags indexing `classes`, matched by name. Raises ZooError if the names differ."""
        here, there = self.classes or [], set(classes)
        if set(here) != there:
            parts = [f"only in {where}: {', '.join(names)}" for where, names in (
                ("data", [c for c in here if c not in there]),
                ("checkpoint", [c for c in classes if c not in set(here)])) if names]
            raise ZooError(f"labels differ.  {'   '.join(parts)}")
        position = {name: i for i, name in enumerate(classes)}
        place = [position[name] for name in here]
        labels = self.labels and [place[label] for label in self.labels]
        tags = self.tags and [sorted(place[tag] for tag in row) for row in self.tags]
        return replace(self, labels=labels, tags=tags, classes=list(classes))


def joined(parts: list[Items]) -> Items:
    """The items of all parts, one after the other. ZooError if their classes or kinds differ."""
    first = parts[0]
    if any((part.classes, part.kind) != (first.classes, first.kind) for part in parts):
        raise ZooError("items: only those of one kind and with the same classes can be joined")

    def chain(name: str) -> list | None:
        lists = [getattr(part, name) for part in parts]
        return None if any(values is None for values in lists) else [value for values in lists for value in values]

    shared = {"classes": first.classes, "kind": first.kind}
    return Items(**shared, **{f.name: chain(f.name) for f in fields(Items) if f.name not in shared})


def unreadable(items: Items) -> list[tuple[str, str]]:
    """(key, reason) of every item that does not decode, or that lacks the caption it should have."""
    def reason(i: int) -> str | None:
        try:
            MEDIA[items.kind].check(items.sources[i], items.keys[i])
        except ZooError as error:
            return str(error).removeprefix(f"{items.keys[i]}: ")
        return "no caption" if items.captions is not None and not items.captions[i] else None

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow and soundfile decode outside the interpreter lock
        reasons = pool.map(reason, range(len(items)))
        return [(items.keys[i], why) for i, why in enumerate(reasons) if why]


def balanced_weights(items: Items) -> list[float]:
    """One weight an item: drawn by them, every class comes equally often. Of tags the rarest of the item counts as its class."""
    strata = _strata(items)
    counts = Counter(strata)
    return [1 / counts[stratum] for stratum in strata]


def split(items: Items, fraction: float, seed: int = 0) -> tuple[Items, Items]:
    """(train, held out): about `fraction` of each class is held out, at least 1 where a class has 2 or more.

    Of tags the rarest of the item counts as its class. An item's rank depends on (seed, key) only: items that are
    added later move few others across.
    """
    if not 0 < fraction < 1:
        raise ZooError(f"split: fraction is {fraction}; it must lie between 0 and 1")
    groups: dict = {}
    for i, stratum in enumerate(_strata(items)):
        groups.setdefault(stratum, []).append(i)
    held = set()
    for group in groups.values():
        group.sort(key=lambda i: hashlib.blake2b(f"{seed}/{items.keys[i]}".encode()).digest())
        count = min(max(round(fraction * len(group)), 1), len(group) - 1)
        held.update(group[:count])
    order = range(len(items))
    return items.subset([i for i in order if i not in held]), items.subset([i for i in order if i in held])


def _strata(items: Items) -> list[int]:
    if items.tags is None:
        return items.labels or [0] * len(items)
    counts = Counter(tag for row in items.tags for tag in row)
    return [min(row, key=lambda tag: (counts[tag], tag), default=-1) for row in items.tags]
