"""What is Milvus' own: filters as expressions, servers that do not answer, an index whose rows lie on a server."""

import json
import random
import shutil
import socket
import sys
import time
import warnings

import numpy as np
import pytest
from test_lance_filter import selected, table, tree
from test_store import contents, filled, rows

import zoo.retrieval
from zoo.errors import UsageError, ZooError
from zoo.retrieval import add, build, remove, update
from zoo.retrieval.milvus_filter import as_expression
from zoo.retrieval.store import described, open_store
from zoo.retrieval.where import parse

pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")


def written(text, values=()):
    found = as_expression(parse(text), lambda column: values)
    return found if isinstance(found, bool) else found.text


def test_expressions_by_hand():
    assert written("folder = 'it''s \"x\"\\'") == 'text__folder == "it\'s \\"x\\"\\\\"'
    assert written("year > 2019.5") == '(whole__year > 2019 or (real__year > 2019.5 or real__year == "inf"))'
    assert written("not flag > false") == "((exists flag__flag) and (not (flag__flag == true)))"
    assert written("name in ('b', 'a', 'b')") == 'text__name in ["a", "b"]'
    assert written("name like 'IMG%'") == '(text__name >= "IMG" and text__name < "IMH")'
    assert written("name like '%a_'", ["xab", "ba", "a"]) == 'text__name in ["xab"]'
    assert written("name like 'a%b'", ["xab"]) is False
    assert written("x >= -9223372036854775808").startswith("((exists whole__x) or (real__x >= -9.22")  # no server reads -2^63
    assert written('"x; DROP" = 1').count("DROP") == 0
    assert written(" or ".join(f"x = {i}" for i in range(1500))).count("whole__x") == 1500
    with pytest.raises(UsageError, match="nested too deeply"):
        written("x = 1 and (y = 2 or " * 30 + "x = 3" + ")" * 30)


def test_pymilvus_missing_is_said_with_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ZooError, match=r"client is not installed.*\npip install 'zoo-attention\[milvus\]'"):
        open_store("milvus", "http://127.0.0.1:19530#x", 4)


def test_servers_out_of_reach_are_told_soon_and_nothing_is_written(tmp_path, photos, make_model, monkeypatch):
    monkeypatch.setattr("zoo.retrieval.milvus_server.REACH", 1.0)
    with socket.socket() as silent:  # takes connections, says nothing
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(ZooError, match="no Milvus server answers .*start it, or check host and port") as error:
            build(tmp_path / "i", photos, make_model(), store=f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.listen(8)
        begun = time.monotonic()
        with pytest.raises(ZooError, match=r"^http://127.0.0.1:\d+: ") as silence:
            build(tmp_path / "i", photos, make_model(), store=f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - begun < 10 and "\n" not in str(error.value) + str(silence.value)
    assert not (tmp_path / "i" / "manifest.json").exists()


@pytest.mark.parametrize("wrong, said", [
    ("milvus://host", "written like http://host:19530"), ("http://", "written like"),
    ("http://root:secret@host:19530", "set MILVUS_TOKEN"), ("http://host:19530#x", "written like"),
])  # fmt: skip
def test_wrong_addresses_are_refused(wrong, said, tmp_path, photos, make_model):
    with pytest.raises(UsageError, match=said):
        build(tmp_path / "i", photos, make_model(), store=wrong)


@pytest.mark.slow
def test_random_filters_select_the_same_rows_as_the_numpy_store(tmp_path, milvus_uri):
    stores = open_store("numpy", str(tmp_path / "n"), 2), open_store("milvus", milvus_uri(tmp_path), 2)
    for store in stores:
        store.append(table(random.Random(0)))
    draw, sizes = random.Random(1), set()
    for _ in range(150):
        where = tree(draw)
        right = selected(stores[0], where)
        assert selected(stores[1], where) == right, where
        sizes.add(len(right))
    assert len(sizes) > 20
    texts = ["year = ''' OR TRUE --'", "имя = 'x'' ; DELETE FROM rows'", "not " * 38 + "year = 2019"]
    wide, deep = " or ".join(f"year = {i}" for i in range(1500)), "year = 2 or (key = 'k1' and " * 12 + "year = 3" + ")" * 12
    for text in [*texts, wide, deep]:
        assert selected(stores[1], parse(text)) == selected(stores[0], parse(text))


@pytest.mark.slow
def test_more_results_than_a_server_gives_and_equal_scores(tmp_path, milvus_uri, monkeypatch):
    store = open_store("milvus", milvus_uri(tmp_path), 4)
    vectors = filled(store)
    whole = [(score, row["key"]) for score, row in store.search(vectors[3], 301)]
    monkeypatch.setattr("zoo.retrieval.milvus_store.MOST", 100)
    monkeypatch.setattr("zoo.retrieval.milvus_store.PAGE", 7)
    again = [(score, row["key"]) for score, row in store.search(vectors[3], 301)]
    np.testing.assert_allclose([a for a, _ in again], [b for b, _ in whole], atol=2e-6)
    assert {key for _, key in again} == {key for _, key in whole} and len(store.rows()) == 301
    same = [f"s{i:03}" for i in range(90)]
    store.append(rows(same, value=3.0))  # one vector ninety times
    vector = np.array(contents(store)["s000"], np.float32)
    assert [row["key"] for _, row in store.search(vector, 5)] == same[:5]


@pytest.mark.slow
def test_blobs_of_any_size_and_their_sweeping(tmp_path, milvus_uri, monkeypatch):
    store, big = open_store("milvus", milvus_uri(tmp_path), 4), np.random.default_rng(0).bytes(200_001)
    store.append(rows(["a"], blob=big))
    store.append(rows(["b"], blob=b""))
    store.append(rows(["c"]))
    assert store.blob("a") == big and store.blob("b") == b"" and store.blob("c") is None
    assert store.rows(["key", "blob"])["blob"].to_pylist() == [big, b"", None]
    store.append(rows(["a"], blob=b"new"))
    monkeypatch.setattr("zoo.retrieval.milvus_store.KEPT", 0)
    store.optimize()
    assert store.blob("a") == b"new" and store.server.call("query", store.blobs, filter='key != ""', output_fields=["count(*)"],
                                                           consistency_level="Strong")[0]["count(*)"] == 1  # fmt: skip
    with pytest.raises(ZooError, match="d: its metadata are .* bytes; Milvus keeps 65535 of a row"):
        store.append(rows(["d"], meta=[json.dumps({"text": "x" * 70_000})]))
    assert len(store) == 3
    store.drop()
    with pytest.raises(ZooError, match="the collection is gone; build the index again"):
        len(store)


def collections(address):
    names = open_store("milvus", f"{address}#x", 4).server.call("list_collections")
    return [name for name in names if name.startswith("photos_index_")]


@pytest.mark.slow
def test_an_index_whose_rows_lie_on_a_server(milvus, tmp_path, photos, make_model, painted):
    path, fake, before = tmp_path / "photos.index", make_model(), set(collections(milvus))
    assert build(path, photos, fake, store=milvus).added == 6
    index, quiet = zoo.retrieval.open(path, make_model()), make_model()
    assert index.search("red", k=1)[0].key == "red.jpg" and len(index.search("red", where="folder = 'beach'")) == 3
    assert index.info()["store"]["kind"] == "milvus" and index.info()["store"]["search"] == "exact"
    assert index.info()["store"]["collection"].startswith("photos_index_")
    assert build(path, photos, quiet).unchanged == 6 and quiet.embedded == []  # the manifest knows the server
    painted(tmp_path / "holiday" / "1.png", "white")
    assert add(path, tmp_path / "holiday", make_model()).added == 1 and remove(path, ["sky"]) == ["sky/blue.png"]
    (photos / "green.png").unlink()
    assert update(path, make_model()).removed == 1 and sorted(index.keys())[-1] == "red.jpg" and len(index) == 5
    assert [problem["what"] for problem in index.verify()] == ["its model is not here"]
    build(path, photos, make_model(), rebuild=True)
    assert len(index.search("red", k=9)) == 5 and len(set(collections(milvus)) - before) == 1  # the old one is dropped
    moved = make_model()
    assert build(path, photos, moved, store="numpy").unchanged == 5 and moved.embedded == [1]  # a grey one, for its dim
    assert index.info()["store"]["kind"] == "numpy" and len(index) == 5 and set(collections(milvus)) == before
    assert build(path, photos, make_model(), store=milvus).removed == 0
    assert index.info()["store"]["kind"] == "milvus" and len(index.search("red", k=9)) == 5 and index.first(9, "width > 1")
    shutil.rmtree(path)


@pytest.mark.slow
def test_two_indexes_of_one_name_have_two_collections(milvus):
    one, other = (described(milvus, "2 my photos.index", "rows-1") for _ in range(2))
    assert one["folder"] != other["folder"] and one["folder"].startswith("_2_my_photos_index_")


def test_importing_the_client_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_store("milvus", "http://127.0.0.1:19530#x", 4)
