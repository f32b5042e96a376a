import numpy as np
import pytest

from zoo.data.items import Items
from zoo.retrieval import names as module
from zoo.retrieval.index import open_index
from zoo.retrieval.ingest import build
from zoo.retrieval.names import Names


@pytest.fixture
def index(tmp_path, painted, fake):
    colours = ["red", "green", "blue", "red"]
    files = [painted(tmp_path / f"{i}.png", colour) for i, colour in enumerate(colours)]
    captions = [["red", "rot"], ["green"], ["blue"], ["red"]]
    build(tmp_path / "index", Items([f.name for f in files], files, captions=captions), fake)
    return open_index(tmp_path / "index", fake)


def test_the_names_of_a_picture_come_ranked(index, tmp_path, painted):
    names = Names(index, tmp_path / "cache")
    assert names.texts == ["red", "green", "blue"]
    found = names.rank(painted(tmp_path / "query.png", (200, 100, 0)), k=2)
    assert [(n.text, n.match, n.rank_before, n.rank_after) for n in found] == [("red", None, 1, 1), ("green", None, 2, 2)]
    query = np.array([200 / 255, 100 / 255, 0, 0.1])
    assert found[0].score == pytest.approx(query @ [1, 0, 0, 0.1] / np.linalg.norm(query) / np.sqrt(1.01), abs=1e-6)


def test_reranked_by_match(index, tmp_path, painted, monkeypatch):
    names = Names(index, tmp_path / "cache")
    logits = {"red": -1000.0, "green": 0.0}
    monkeypatch.setattr(index.model, "match", lambda texts, images: np.array([[logits[t]] for t in texts]))
    found = names.rank(painted(tmp_path / "query.png", (200, 100, 0)), k=3, rerank=2)
    assert [(n.text, n.match, n.rank_before, n.rank_after) for n in found] == [
        ("green", 0.5, 2, 1), ("red", 0.0, 1, 2), ("blue", None, 3, 3),
    ]  # fmt: skip


def test_embedded_once_per_weights_and_texts(index, tmp_path, monkeypatch):
    told = []
    first = Names(index, tmp_path / "cache", lambda done, total: told.append((done, total)))
    assert told == [(3, 3)]
    again = Names(index, tmp_path / "cache", lambda done, total: pytest.fail("embedded again"))
    assert np.array_equal(first.vectors, again.vectors)
    index.manifest["sha256"] = "2" * 64
    Names(index, tmp_path / "cache", lambda done, total: told.append((done, total)))
    assert len(told) == 2


def test_none_without_captions_or_with_too_many(index, tmp_path, photos, fake, monkeypatch):
    build(tmp_path / "bare", photos, fake)
    bare = Names(open_index(tmp_path / "bare", fake), tmp_path / "cache")
    assert not bare and bare.rank(photos / "red.jpg") == []
    monkeypatch.setattr(module, "MOST", 2)
    assert not Names(index, tmp_path / "cache")
