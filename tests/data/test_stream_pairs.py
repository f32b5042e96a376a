"""Pairs in shards: the captions of the list, every pair once an epoch over ranks and workers, exact restart, what is refused."""

import io
import json
import os
import tarfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from tests.train.together import together
from zoo.data.dataset import PairDataset
from zoo.data.loader import ResumableLoader
from zoo.data.shards import GROUPS
from zoo.data.stream import parts, shards_at
from zoo.data.stream_pairs import number, open_pair_shards
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess

PREPROCESS = ImagePreprocess(16)
EDGES = (0, 13, 22, 33, 40)


def write_tar(file, items, start, stop, kind="txt"):
    """Pictures and captions as WebDataset writes them: NAME.png with NAME.txt or NAME.json."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for i in range(start, stop):
            said = items.captions[i]
            text = "\n".join(said) + "\n" if kind == "txt" else json.dumps({"caption": said, "wrong": f"no {i}", "id": i})
            for suffix, data in (("png", items.sources[i]), (kind, text.encode())):
                about = tarfile.TarInfo(f"{i:05d}.{suffix}")
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))


def write_parquet(file, items, start, stop, group=4):
    """The first caption in a column of texts, the others as lists in another."""
    file.parent.mkdir(parents=True, exist_ok=True)
    said = items.captions[start:stop]
    table = pa.table({"image": pa.array(items.sources[start:stop], pa.binary()), "title": [texts[0] for texts in said],
                      "more": pa.array([texts[1:] for texts in said], pa.list_(pa.string()))})
    pa.parquet.write_table(table, file, row_group_size=group)


@pytest.fixture
def folders(items, tmp_path):
    """40 pairs as 4 tar files and as 4 Parquet files; the same as lists."""
    every = items(40)
    for n, (a, b) in enumerate(zip(EDGES, EDGES[1:])):
        write_tar(tmp_path / "tar" / f"part-{n}.tar", every, a, b, ("txt", "json")[n % 2])
        write_parquet(tmp_path / "parquet" / f"part-{n}.parquet", every, a, b)
    return {"tar": tmp_path / "tar", "parquet": tmp_path / "parquet", "items": every}


def opened(folders, kind, **more):
    columns = ("title", "more") if kind == "parquet" else ()
    return open_pair_shards(shards_at(folders[kind], "always"), columns, **more)


KINDS = pytest.mark.parametrize("kind", ["tar", "parquet"])


@KINDS
def test_shards_hold_the_pairs_of_the_list(folders, kind):
    found, bad = opened(folders, kind)
    want = folders["items"]
    assert bad == [] and len(found) == 40 and found.labels is None and found.caption_count == sum(map(len, want.captions))
    assert list(found.sources) == want.sources and list(found.captions) == want.captions
    assert list(found.owned) == [[number(text) for text in texts] for texts in want.captions]
    assert found.keys[13] == f"part-1.{kind}:0"
    train, val = parts(found, 0.25)
    assert sorted([*train.captions, *val.captions]) == sorted(want.captions) and train.fingerprint() != val.fingerprint()


@KINDS
def test_two_ranks_with_two_workers_get_every_pair_once_an_epoch(folders, kind):
    """The last batch, of 4 pairs, too; every caption is one of its picture's and changes from epoch to epoch."""
    want = folders["items"].captions

    def rank(_):
        torch.set_num_threads(1)
        import torch.distributed as dist

        dist.init_process_group("gloo")
        found, _ = opened(folders, kind)
        data, order = PairDataset(found, PREPROCESS, "light", 4), found.order(6, 4, buffer=10)
        loader = ResumableLoader(data, seed=4, num_workers=2, order=order)
        seen = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen.append([(int(i), text) for _, texts, places in loader for i, text in zip(places[:loader.real], texts)])
        return seen

    both = together(rank)
    drawn = []
    for epoch in range(2):
        pairs = both[0][epoch] + both[1][epoch]
        assert Counter(i for i, _ in pairs) == Counter(range(40)) and all(text in want[i] for i, text in pairs)
        drawn.append(sorted(pairs))
    assert drawn[0] != drawn[1] and both[0][0] and both[1][0]


@KINDS
def test_a_restart_is_exact_with_any_number_of_workers(folders, kind):
    def loader(workers=0):
        found, _ = opened(folders, kind)
        return ResumableLoader(PairDataset(found, PREPROCESS, "medium", 4), seed=4, num_workers=workers,
                               order=found.order(6, 4, buffer=10))

    straight = list(loader())
    assert all(len(set(places.tolist())) == len(places) for _, _, places in straight), "a picture comes once in a batch"
    for done, workers in ((1, 2), (5, 0)):
        first = loader()
        run = iter(first)
        for _ in range(done):
            next(run)
        second = loader(workers)
        second.load_state_dict(first.state_dict())
        for (x, texts, places), (y, others, there) in zip(second, straight[done:], strict=True):
            assert torch.equal(x, y) and list(texts) == list(others) and torch.equal(places, there)


def test_only_the_row_groups_of_a_buffer_stay(folders, monkeypatch):
    found, _ = opened(folders, "parquet")
    monkeypatch.setattr(GROUPS, "room", 0)
    GROUPS._kept.clear()
    order, reads = found.order(6, 4, buffer=8), Counter()
    original = pa.parquet.ParquetFile.read_row_group

    def counted(self, group, columns, **more):
        reads[columns[0]] += 1
        return original(self, group, columns=columns, **more)

    monkeypatch.setattr(pa.parquet.ParquetFile, "read_row_group", counted)
    for batch in order:
        for index, _, _ in batch:
            found.sources[index], found.captions[index]
            assert sum(map(len, GROUPS._kept.values())) <= 3 * (8 + 4)
    assert reads == {"image": 12, "title": 12, "more": 12}


def test_keys_of_the_json_and_columns_that_are_not_there(folders):
    files = shards_at(folders["tar"])[1::2]
    assert [texts[0] for texts in open_pair_shards(files, ("wrong",))[0].captions][:2] == ["no 13", "no 14"]
    with pytest.raises(ZooError, match=r"part-1.tar: 9 of 9 pictures have no caption, part-1.tar:0 first; looked for 'title'"):
        open_pair_shards(files, ("title",))
    with pytest.raises(ZooError, match=r"part-0.parquet: no column 'caption' or 'captions' or 'text' \(columns: image, "):
        open_pair_shards(shards_at(folders["parquet"], "always"))


@KINDS
def test_what_is_bad_is_named_or_left_out(folders, items, tmp_path, kind):
    broken = items(40)
    broken.captions[2], broken.sources[5] = ["   "], b"no picture"
    (write_tar if kind == "tar" else write_parquet)(tmp_path / kind / f"part-0.{kind}", broken, 0, 13)
    torn = tmp_path / kind / f"part-3.{kind}"
    torn.write_bytes(torn.read_bytes()[:-10240] if kind == "tar" else torn.read_bytes()[:-99])
    with pytest.raises(ZooError, match=f"part-[03].{kind}"):
        opened(folders, kind)
    found, bad = opened(folders, kind, skip_bad=True)
    assert [key for key, _ in bad] == [f"part-3.{kind}", f"part-0.{kind}:2"] and bad[1][1] == "no caption"
    found, more = found.readable()
    assert [key for key, _ in more] == [f"part-0.{kind}:5"] and len(found) == 31
    left = [i for i in range(33) if i not in (2, 5)]
    assert list(found.captions) == [broken.captions[i] for i in left]
    assert found.caption_count == sum(len(broken.captions[i]) for i in left)
    assert list(found.owned)[4] == [number(text) for text in broken.captions[6]]
    os.remove(torn)
