"""Make an index and bring it up to date: build, update, add, remove. One writer at a time, be it several processes (torchrun)."""

import json
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from zoo.errors import UsageError, ZooError
from zoo.retrieval.index import Index, embedded, loaded
from zoo.retrieval.manifest import (
    MANIFEST,
    NEXT,
    identity,
    left_on_servers,
    new_manifest,
    read_manifest,
    reference,
    refuse_other,
    write_manifest,
)
from zoo.retrieval.parts import FIRST, MEMORY, Part, absolute, origin_of, part_of, parts, together, without
from zoo.retrieval.passes import Progress, led, opened, rows_folders, run
from zoo.retrieval.place import Bucket, Folder, place
from zoo.retrieval.sources import need_one, open_source
from zoo.retrieval.store import HEAVY, chosen, described, kind_of
from zoo.retrieval.sync import Report

COPIED = 4096  # rows at a time, from one store to another


def build(
    path, source, model=None, progress: Progress = None, batch_size: int = 64, rebuild: bool = False, store: str | None = None
) -> Report:
    """Make the index at `path` mirror `source` (a folder, a table, or `Items`), and what was added to it since.

    Pictures whose size and time, or else content, are as before are not embedded again; vanished ones are
    removed; bad ones are reported. Finished batches are durable: after a kill the next build goes on there.

    path: a folder or the address of one in object storage. model: loaded, or its name or file; an index that exists
    knows its own. progress: called with (pictures done, pictures in all). rebuild: everything anew, as another model
    requires; the old index answers until the new one is complete. store: "numpy", "lance" or "auto" (see `chosen`); an
    index that exists keeps its own, or moves to this one without embedding again. Raises ZooError where `path` is
    something else or in use, the source has no pictures, or another model made the index.
    """
    where, given = place(path), model

    def begin(held: ExitStack) -> tuple[Index, str]:
        exists = _is_index(where)
        if given is None and not exists:
            raise UsageError(f"{path}: a new index needs a model")
        first = source_part()
        together([first])  # a key that occurs twice is said before anything is written
        if not exists:
            need_one(first.items, path, source)
        model = read_manifest(where)["load"] if given is None else given
        load, model = reference(model), loaded(model)
        where.prepare()
        held.enter_context(where.locked())
        return _prepared(where, model, load, first, rebuild, store)

    @cache
    def source_part() -> Part:
        items, root = open_source(source)
        return Part(FIRST, items, root)

    def find(index: Index, name: str) -> list[Part]:
        known = [without(source_part(), index.manifest["excluded"]), *parts(index.manifest | {"source": None})]
        return [*known, *_remembered(where, name, index)]

    with led(path, given, begin, find) as (index, name, found):
        return run(index, name, found, progress, batch_size, mirror=True)


def update(path, model=None, progress: Progress = None, batch_size: int = 64) -> Report:
    """Look at every source of the index again: what is new comes in, what changed is embedded, what is gone leaves."""

    def find(index: Index, name: str) -> list[Part]:
        found = parts(index.manifest)
        if not found:
            raise UsageError(f"{path}: made of pictures out of memory, there is no folder to look at; use add and remove")
        return found

    with led(path, model, lambda held: (opened(path, model, held), MANIFEST), find) as (index, name, found):
        return run(index, name, found, progress, batch_size, mirror=True)


def add(path, source, model=None, progress: Progress = None, batch_size: int = 64) -> Report:
    """Add the pictures of `source` (a file, folder, table or `Items`); nothing else is touched.

    Keys of another folder begin with its name. `update` looks at it too from now on. What was taken out by `remove`
    comes back.
    """

    def find(index: Index, name: str) -> list[Part]:
        if isinstance(source, str | Path):
            part = part_of(index.manifest, absolute(source))
        else:
            part = Part(MEMORY, source, None)
        back = set(part.items.keys)
        index.manifest["excluded"] = [key for key in index.manifest["excluded"] if key not in back]
        _no_others(index, part)
        return [part]

    with led(path, model, lambda held: (opened(path, model, held), MANIFEST), find) as (index, name, found):
        return run(index, name, found, progress, batch_size, mirror=False)


def remove(path, keys: Iterable[str] = (), where=None) -> list[str]:
    """Take pictures out, files untouched: by key, by folder within the index, by an added source, or by filter.

    They stay out when the index is updated. Returns their keys. Raises ZooError, and removes nothing, where one of
    `keys` names no picture.
    """
    keys = list(keys)
    with ExitStack() as held:
        index = opened(path, None, held, load=False)
        chosen_keys = _chosen(index, keys, where)
        gone = {str(absolute(key)) for key in keys}
        left = [entry for entry in index.manifest["added"] if entry["path"] not in gone]
        dropped = {origin_of(entry) for entry in index.manifest["added"] if entry not in left}
        rows = [index.store.get(key) for key in chosen_keys]
        kept_out = [row["key"] for row in rows if row.get("origin") not in (MEMORY, *dropped)]
        index.manifest |= {"added": left, "excluded": sorted({*index.manifest["excluded"], *kept_out})}
        write_manifest(index.place, index.manifest)  # first: an update after a kill does not bring them back
        index.store.delete(chosen_keys)
        index.store.optimize()
        return chosen_keys


def _prepared(where: Folder | Bucket, model, load: str, first: Part, rebuild: bool, store: str | None) -> tuple[Index, str]:
    """The index opened or created with this model, and the name of its manifest (NEXT: a new one beside the old)."""
    who, source = identity(model), str(first.root) if first.root is not None else None
    old = read_manifest(where) if where.has(MANIFEST) else None
    if old is not None and not rebuild:
        refuse_other(where.path, old, who, load)
    own = old["store"].get("server", "auto") if old is not None else "auto"  # what lies on a server stays there
    kind = chosen(store or own, len(first.items), where.remote)
    move = old is not None and store not in (None, "auto") and kind != kind_of(old["store"])
    name = MANIFEST if old is None or not (rebuild or move) else NEXT
    doing = "build" if old is None else "rebuild" if rebuild else "move"
    if old is None or name == NEXT and not _goes_on(where, who, {"source": source, "doing": doing}, kind):
        folder = f"rows-{1 + max((int(rows[5:]) for rows in rows_folders(where)), default=0)}"
        dim = embedded(model, [_blank()]).shape[1]
        rows = described(kind, where.path.rpartition("/")[2] if where.remote else where.path.name, folder)
        manifest = new_manifest(who, load, dim, source, rows) | {"doing": doing, "left": left_on_servers(where)}
        if old is not None and (move or source == old["source"]):
            manifest |= {"added": old["added"], "excluded": old["excluded"]}
        write_manifest(where, manifest, name)
    index = Index(where.path, name)
    index.manifest["source"] = source
    index.use(model)
    if move and not rebuild:
        _copy(Index(where.path), index)
    return index, name


def _goes_on(where: Folder | Bucket, who: dict, what: dict, kind: str) -> bool:
    """Whether the same was begun, and interrupted."""
    if not where.has(NEXT):
        return False
    begun = read_manifest(where, NEXT)
    return {key: begun[key] for key in who | what} == who | what and kind_of(begun["store"]) == kind


def _copy(old: Index, new: Index) -> None:
    have = set(new.keys())
    keys = [key for key in old.keys() if key not in have]
    rows = old.store.rows([*old.store.rows().column_names, *HEAVY])
    places = {key: place for place, key in enumerate(rows["key"].to_pylist())}
    for start in range(0, len(keys), COPIED):
        new.store.append(rows.take([places[key] for key in keys[start : start + COPIED]]))


def _remembered(where: Folder | Bucket, name: str, index: Index) -> list[Part]:
    """Pictures out of memory that were added to the old index: their bytes lie in it."""
    if name != NEXT:
        return []
    old = Index(where.path)
    if old.manifest["source"] is None and index.manifest["source"] is None:
        return []  # the source is given again, out of memory too
    try:
        rows = [row for row in old.store.rows().to_pylist() if row.get("origin") == MEMORY]
    except ZooError as error:  # what is damaged is built anew; only pictures that lie nowhere else are lost
        warnings.warn(f"pictures out of memory are left behind, if there were any: {error}", stacklevel=3)
        return []
    from zoo.data.items import Items

    captions, meta = [row["captions"] or [] for row in rows], [json.loads(row["meta"]) for row in rows]
    keys = [row["key"] for row in rows]
    return [Part(MEMORY, Items(keys, [old.store.blob(key) for key in keys], captions=captions, meta=meta), None)]


def _chosen(index: Index, keys: list[str], where) -> list[str]:
    """The keys of the pictures that these words name, and of those that `where` selects."""
    rows = index.store.rows().to_pylist()
    origins = {entry["path"]: origin_of(entry) for entry in index.manifest["added"]}
    found = set()
    for word in keys:
        origin, file, folder = origins.get(str(absolute(word))), str(absolute(word)), word.rstrip("/") + "/"
        mine = {row["key"] for row in rows if row["key"] == word or row["key"].startswith(folder) or index.file(row) == file
                or origin is not None and row.get("origin") == origin}  # fmt: skip
        if not mine and origin is None:
            raise ZooError(f"{index.path}: no picture, folder or added source {word!r} in this index; nothing was removed")
        found |= mine
    if where is not None:
        found |= {row["key"] for row in index.first(len(rows), where)}
    return [row["key"] for row in rows if row["key"] in found]


def _no_others(index: Index, part: Part) -> None:
    """Raise ZooError where a key of `part` belongs to a picture of another source."""
    origins = {row["key"]: (row.get("origin") or FIRST) for row in index.store.rows().to_pylist()}
    for key in part.items.keys:
        if origins.get(key, part.origin) != part.origin:
            raise ZooError(f"{index.path}: the key {key!r} belongs to another picture of the index; rename yours")


def _is_index(where: Folder | Bucket) -> bool:
    """False for a place where one can be made. Raises ZooError for anything else, a folder of photos say."""
    if where.has(MANIFEST):
        return True
    names = where.names()
    if names is not None and not all(name == "lock" or name.startswith(MANIFEST) for name in names):
        raise ZooError(f"{where.path}: exists and is no index; give the path of an index, or of a new folder")
    return False


def _blank():
    from PIL import Image

    return Image.new("RGB", (32, 32))
