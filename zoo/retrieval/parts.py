"""The sources of an index: the folder or table it mirrors, those added to it, and pictures out of memory."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import ZooError
from zoo.retrieval.sources import open_source

FIRST, MEMORY = "source", "memory"  # origins of rows; those of an added source are named "added:PREFIX"


@dataclass
class Part:
    """Pictures of one source. root: the source's absolute path; None for pictures out of memory."""

    origin: str
    items: object  # zoo.data's Items: importing them here would bring torch before it is needed
    root: Path | None


def absolute(path) -> Path:
    return Path(os.path.abspath(Path(path).expanduser()))


def base(source: str | None) -> str | None:
    """The folder that the paths of the first source are written below."""
    return os.path.dirname(source) if source is not None and os.path.isfile(source) else source


def parts(manifest: dict) -> list[Part]:
    """Every source that the manifest names, opened. ZooError for one that is gone, but for a single added file."""
    found = []
    if manifest["source"] is not None:
        items, root = open_source(manifest["source"])
        found.append(Part(FIRST, items, root))
    for entry in manifest["added"]:
        try:
            found.append(_added(entry))
        except ZooError as error:
            if not os.path.isdir(os.path.dirname(entry["path"])) or not entry["file"]:
                raise ZooError(f"{error}\nwithout it: zoo index remove INDEX {entry['path']}") from None
    return [without(part, manifest["excluded"]) for part in found]


def part_of(manifest: dict, path: Path) -> Part:
    """The pictures at `path`, with the keys they have in the index; a new source is written into the manifest.

    A path within a source it has already is part of that one. Raises ZooError as `zoo.data` does.
    """
    source = manifest["source"]
    if source is not None and _within(path, source):
        items, root = open_source(source)
        return Part(FIRST, _below(items, path, root), root)
    for entry in manifest["added"]:
        if _within(path, entry["path"]):
            part = _added(entry)
            return Part(part.origin, _below(part.items, path, part.root), part.root)
    single = path.is_file()
    entry = {"path": str(path), "prefix": _prefix(manifest, path.parent if single else path), "file": single}
    part = _added(entry)
    manifest["added"].append(entry)
    return part


def together(parts: list[Part]):
    """The Items of all parts as one list. ZooError for a key that occurs twice."""
    from zoo.data.items import Items

    keys, sources, captions, meta = [], [], [], []
    for part in parts:
        keys += part.items.keys
        sources += part.items.sources
        captions += part.items.captions or [[]] * len(part.items)
        meta += part.items.meta
    if len(set(keys)) != len(keys):
        twice = Counter(keys).most_common(1)[0][0]
        raise ZooError(f"the key {twice!r} occurs twice in the source; keys must be unique")
    return Items(keys, sources, captions=captions, meta=meta)


def origin_of(entry: dict) -> str:
    return f"added:{entry['prefix']}"


def _added(entry: dict) -> Part:
    items, root = open_source(entry["path"])
    items.keys = [f"{entry['prefix']}/{key}" for key in items.keys]
    return Part(origin_of(entry), items, root)


def _within(path: Path, source: str) -> bool:
    return path == Path(source) or os.path.isdir(source) and path.is_relative_to(source)


def _below(items, path: Path, root: Path):
    if path == root:
        return items
    chosen = [i for i, s in enumerate(items.sources) if isinstance(s, Path) and (s == path or s.is_relative_to(path))]
    if not chosen:
        raise ZooError(f"{path}: no pictures")
    return items.subset(chosen)


def without(part: Part, excluded: list[str]) -> Part:
    """The part but for these keys."""
    excluded = set(excluded)
    if excluded.isdisjoint(part.items.keys):
        return part
    kept = [i for i, key in enumerate(part.items.keys) if key not in excluded]
    return Part(part.origin, part.items.subset(kept), part.root)


def _prefix(manifest: dict, base: Path) -> str:
    """The folder's own name; a number behind it where another folder has taken it, or its keys would be others'."""
    from zoo.data.folders import printable

    bases = {e["prefix"]: os.path.dirname(e["path"]) if e["file"] else e["path"] for e in manifest["added"]}
    for prefix, known in bases.items():
        if known == str(base):
            return prefix
    name, number = printable(base.name) or "root", 2
    taken = set(bases) | _top_folders(manifest["source"])
    prefix = name
    while prefix in taken:
        prefix, number = f"{name}-{number}", number + 1
    return prefix


def _top_folders(source: str | None) -> set[str]:
    if source is None or not os.path.isdir(source):
        return set()
    return {entry.name for entry in os.scandir(source) if entry.is_dir()}
