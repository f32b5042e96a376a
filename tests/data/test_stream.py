"""Shards: every item once an epoch, in an order of (seed, epoch) only, exact restart, torn files named, memory of one buffer."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from zoo.data.dataset import ImageDataset
from zoo.data.loader import ResumableLoader
from zoo.data.shards import GROUPS, members
from zoo.data.share import Shared
from zoo.data.stream import open_shards, parts, shards_at, split_of
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess

PREPROCESS = ImagePreprocess(16)


def write_tar(file, items, start, stop, kind="cls"):
    """Items start to stop of `items`, as WebDataset writes them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for i in range(start, stop):
            name = items.classes[items.labels[i]]
            text = {"cls": str(items.labels[i]), "txt": name, "json": json.dumps({"label": name, "id": i})}[kind]
            for suffix, data in (("png", items.sources[i]), (kind, text.encode())):
                about = tarfile.TarInfo(f"./{i:05d}.{suffix}")
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))


def write_parquet(file, items, start, stop, group=4):
    names = [items.classes[label] for label in items.labels[start:stop]]
    table = pa.table({"image": pa.array(items.sources[start:stop], pa.binary()), "label": names})
    pa.parquet.write_table(table, file, row_group_size=group)


@pytest.fixture
def folders(items, tmp_path):
    """40 items as 4 tar files and as 4 Parquet files, of 13, 9, 11 and 7 items; the same items as lists."""
    every, edges = items(40), (0, 13, 22, 33, 40)
    for number, (a, b) in enumerate(zip(edges, edges[1:])):
        write_tar(tmp_path / "tar" / f"part-{number}.tar", every, a, b, ("txt", "txt", "json", "txt")[number])
        (tmp_path / "parquet").mkdir(exist_ok=True)
        write_parquet(tmp_path / "parquet" / f"part-{number}.parquet", every, a, b)
    return {"tar": tmp_path / "tar", "parquet": tmp_path / "parquet", "items": every}


KINDS = pytest.mark.parametrize("kind", ["tar", "parquet"])


@KINDS
def test_shards_hold_the_items_of_the_list(folders, kind):
    found, torn = open_shards(shards_at(folders[kind], "always"))
    want = folders["items"]
    assert torn == [] and len(found) == 40 and found.classes == ["a", "b", "c"]
    assert [found.sources[i] for i in range(40)] == want.sources and found.labels.tolist() == want.labels
    assert found.keys[13] == f"part-1.{kind}:0"


@KINDS
def test_an_epoch_has_every_item_once_and_depends_on_seed_and_epoch(folders, kind):
    found, _ = open_shards(shards_at(folders[kind], "always"))

    def epoch(seed, number, buffer=10):
        order = found.order(6, seed, buffer=buffer)
        order.set_epoch(number)
        batches = list(order)
        assert [len(batch) for batch in batches] == [6] * 6 + [4] and len(order) == 7
        return [index for batch in batches for index, _, _ in batch]

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0), epoch(0, 0, buffer=1), epoch(0, 0, buffer=1000)]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len(set(map(tuple, orders))) == 5 and orders[0] == epoch(0, 0)
    shard = [sum(index >= edge for edge in (13, 22, 33)) for index in orders[3]]
    assert len([1 for a, b in zip(shard, shard[1:]) if a != b]) == 3, "a small buffer goes through the shards one by one"


@KINDS
def test_ranks_and_workers_get_every_item_once_and_a_restart_is_exact(folders, kind):
    train, _ = open_shards(shards_at(folders[kind], "always"))

    def loader(workers=0):
        data = ImageDataset(train, PREPROCESS, "medium", seed=4)
        return ResumableLoader(data, seed=4, num_workers=workers, order=train.order(6, 4, buffer=10))

    straight = [batch for epoch in range(2) for batch in _epoch(loader(), epoch)]
    workers = loader(2)
    again = [batch for epoch in range(2) for batch in _epoch(workers, epoch)]
    assert all(_same(a, b) for a, b in zip(straight, again, strict=True))
    for done in (1, 4, 6):
        first = loader()
        run = iter(first)
        for _ in range(done):
            next(run)
        second = loader(2 if done == 4 else 0)
        second.load_state_dict(first.state_dict())
        assert all(_same(a, b) for a, b in zip(second, straight[done:7], strict=True))
    cut = [[index for places in Shared(train.order(6, 4), rank, 3) for index, _, _ in places] for rank in range(3)]
    assert sorted(sum(cut, [])) == list(range(40))


def _epoch(loader, number):
    loader.set_epoch(number)
    return list(loader)


def _same(a, b) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def test_each_row_group_is_read_once_and_few_stay(folders, monkeypatch):
    train, _ = open_shards(shards_at(folders["parquet"], "always"))
    monkeypatch.setattr(GROUPS, "room", 0)
    GROUPS._kept.clear()
    order, reads = train.order(6, 4, buffer=8), []
    original = pa.parquet.ParquetFile.read_row_group

    def counted(self, group, **more):
        reads.append(group)
        return original(self, group, **more)

    monkeypatch.setattr(pa.parquet.ParquetFile, "read_row_group", counted)
    most = 0
    for batch in order:
        for index, _, _ in batch:
            train.sources[index]
            most = max(most, sum(map(len, GROUPS._kept.values())))
    assert len(reads) == 4 + 3 + 3 + 2 and most <= 8 + 4


def test_a_torn_shard_is_named_or_left_out(folders):
    file = folders["tar"] / "part-1.tar"
    whole = file.read_bytes()
    for size in (len(whole) - 10240, 700, 5):
        file.write_bytes(whole[: max(size, 5)])
        with pytest.raises(ZooError, match=r"part-1.tar: torn or no tar file .*; --skip-bad leaves it out"):
            open_shards(shards_at(folders["tar"]))
    table = folders["parquet"] / "part-2.parquet"
    table.write_bytes(table.read_bytes()[:-100])
    with pytest.raises(ZooError, match="part-2.parquet: not a readable table"):
        open_shards(shards_at(folders["parquet"], "always"))
    for kind, name, count in (("tar", "part-1.tar", 31), ("parquet", "part-2.parquet", 29)):
        found, torn = open_shards(shards_at(folders[kind], "always"), skip_bad=True)
        assert len(found) == count and [key for key, _ in torn] == [name]


def test_broken_pictures_are_listed_and_left_out(folders, items, tmp_path):
    broken = items(40)
    broken.sources[3] = b"not a picture"
    write_tar(tmp_path / "tar" / "part-0.tar", broken, 0, 13, "txt")
    write_parquet(tmp_path / "parquet" / "part-0.parquet", broken, 0, 13)
    for kind in ("tar", "parquet"):
        found, bad = open_shards(shards_at(folders[kind], "always"))[0].readable()
        assert [key for key, _ in bad] == [f"part-0.{kind}:3"] and len(found) == 39
        assert [found.sources[i] for i in range(39)] == broken.sources[:3] + broken.sources[4:]
        assert found.labels.tolist() == broken.labels[:3] + broken.labels[4:]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_tarfile(tmp_path, form):
    """Long and foreign names, a folder, a link, an empty file: against the standard library."""
    names = ["a.jpg", "dir/" + "x" * 90 + ".jpg", "d" * 120 + "/e.jpg", "f" * 50 + ".cls", "last.jpg"]
    if form != tarfile.USTAR_FORMAT:
        names += ["g" * 200 + ".jpg", "after.cls"]
    with tarfile.open(tmp_path / "x.tar", "w", format=form) as tar:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for number, name in enumerate(names):
            about = tarfile.TarInfo(name)
            about.size = 400 * number
            tar.addfile(about, io.BytesIO(bytes([number]) * about.size))
    with open(tmp_path / "x.tar", "rb") as stream, tarfile.open(tmp_path / "x.tar") as tar:
        assert list(members(stream)) == [(m.name, m.offset_data, m.size) for m in tar if m.isfile()]


def test_classes_txt_names_the_integers(items, tmp_path):
    write_tar(tmp_path / "x" / "train" / "0.tar", items(9), 0, 9)
    assert open_shards(shards_at(tmp_path))[0].classes == ["0", "1", "2"]
    (tmp_path / "x" / "classes.txt").write_text("zebra\nant\nbee\nnever\n")
    found, _ = open_shards(shards_at(tmp_path))
    assert found.classes == ["zebra", "ant", "bee", "never"] and found.labels.tolist() == [0, 1, 2] * 3


def test_splits_come_from_names_or_whole_shards(folders, tmp_path):
    found, _ = open_shards(shards_at(folders["tar"]))
    train, val = parts(found, 0.25)
    names = [{shard.file.name for shard in part.shards} for part in (train, val)]
    assert len(names[1]) == 1 and names[0] | names[1] == {f"part-{i}.tar" for i in range(4)} and not names[0] & names[1]
    assert len(train) + len(val) == 40
    with pytest.raises(ZooError, match="no shards for 'val'; the shards' names say: no split in any name"):
        parts(found, "val")
    for number, name in enumerate(("train-0", "train-1", "val-0", "test-0")):
        (folders["tar"] / f"part-{number}.tar").rename(folders["tar"] / f"{name}.tar")
    train, val = parts(open_shards(shards_at(folders["tar"]))[0], "val")
    assert [len(train), len(val)] == [22, 11]
    assert split_of(tmp_path / "validation" / "0001.tar") == "val" and split_of(tmp_path / "x" / "0001.tar") is None


def test_what_is_streamed_by_itself(folders):
    assert shards_at(folders["parquet"]) == [] and len(shards_at(folders["tar"])) == 4
    assert shards_at(folders["tar"], "never") == []
    with pytest.raises(ZooError, match="no shards .* to stream"):
        shards_at(folders["tar"] / "nothing", "always")
    with pytest.raises(ZooError, match="both tar files and Parquet files"):
        shards_at(folders["tar"].parent)
