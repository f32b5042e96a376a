"""A pass over the sources of an index, by one process or by several (torchrun): lock and manifest, then the rows.

The first process holds the lock and writes the manifest; all others follow what it wrote.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from zoo import crew
from zoo.retrieval.index import Index, loaded
from zoo.retrieval.manifest import MANIFEST, NEXT, read_manifest, write_manifest
from zoo.retrieval.parts import Part
from zoo.retrieval.place import Bucket, Folder, place
from zoo.retrieval.store import drop
from zoo.retrieval.sync import Report, Sync

Progress = Callable[[int, int], None] | None


@contextmanager
def led(path, model, begin: Callable, find: Callable) -> Iterator[tuple[Index, str, list[Part]]]:
    """(index, name of its manifest, pictures to look at), with the lock held for all.

    begin(held) -> (index, name), in the first process only: checks, enters the lock into `held` (an ExitStack), opens or
    makes the index. find(index, name) -> the parts, in each process; the others see the manifest as the first one left it.
    """
    own: list = []
    with ExitStack() as held:

        def work() -> tuple[str, dict]:
            index, name = begin(held)
            own.extend((index, name, find(index, name)))
            return name, index.manifest

        crew.join()
        name, manifest = crew.lead(work)
        if not own:
            index = Index(path, name)
            index.manifest = manifest
            index.use(manifest["load"] if model is None else loaded(model))
            own.extend((index, name, find(index, name)))
        yield tuple(own)


def opened(path, model, held: ExitStack, load: bool = True) -> Index:
    """The index at `path`, locked, with the model that is to work on it."""
    where = place(path)
    manifest = read_manifest(where)
    usable = loaded(manifest["load"] if model is None else model) if load else None
    held.enter_context(where.locked())
    index = Index(path)
    if usable is not None:
        index.use(usable)
    return index


def run(index: Index, name: str, found: list[Part], progress: Progress, batch_size: int, mirror: bool) -> Report:
    """The pass itself; meanwhile the manifest called `name` says that it is under way. In each process the report of all."""
    begun = index.manifest["doing"]
    index.manifest["doing"] = begun or ("update" if mirror else "add")
    if crew.first():
        write_manifest(index.place, index.manifest, name)
    sync = Sync(index, found)
    sync.embed(progress or (lambda done, total: None), batch_size)
    return crew.lead(lambda: _finish(sync, name, found, begun, mirror))


def _finish(sync: Sync, name: str, found: list[Part], begun: str | None, mirror: bool) -> Report:
    index, report = sync.index, sync.finish(mirror)
    looked_at = {key for part in found for key in part.items.keys}
    before = [] if mirror else [pair for pair in index.manifest["unreadable"] if pair[0] not in looked_at]
    index.manifest |= {"unreadable": before + [list(pair) for pair in report.bad]}
    index.manifest["doing"] = None if mirror else begun  # what was begun before an `add` is still to be done
    write_manifest(index.place, index.manifest, name)
    if name == NEXT:
        index.place.move(NEXT, MANIFEST)  # from here on readers see the new rows
    _sweep(index.place)
    return report


def rows_folders(where: Folder | Bucket) -> list[str]:
    return [name for name in where.names() or [] if name.startswith("rows-") and name[5:].isdigit()]


def _sweep(where: Folder | Bucket) -> None:
    """Take away rows that no manifest names."""
    manifests = [read_manifest(where, name) for name in (MANIFEST, NEXT) if where.has(name)]
    for rows in rows_folders(where):
        if rows not in {manifest["store"]["folder"] for manifest in manifests}:
            where.drop(rows)
    dropped = [store for store in manifests[0].get("left", ()) if store not in [manifest["store"] for manifest in manifests]]
    for store in dropped:
        drop(store)
    if dropped:
        write_manifest(where, manifests[0] | {"left": []})
