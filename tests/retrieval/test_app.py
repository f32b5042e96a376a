import io
import json
import socket
import sys

import pytest

from zoo.errors import ZooError
from zoo.retrieval import app
from zoo.retrieval.ingest import build


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def names_below(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_a_folder_is_indexed_in_the_cache_and_not_touched(photos, fake, cache, capsys):
    (photos / "broken.jpg").write_bytes(b"no picture")
    before = names_below(photos)
    index = app.opened(str(photos), fake)
    assert len(index) == 6 and index.path.parent == cache / "indexes" and index.path.name.startswith("photos-")
    assert names_below(photos) == before
    told = capsys.readouterr()
    assert told.out == "" and "6 pictures, 6 new, 0 removed" in told.err
    assert "left out: broken.jpg: not a picture" in told.err
    (photos / "red.jpg").unlink()
    assert len(app.opened(str(photos), fake)) == 5  # brought up to date
    assert "5 pictures, 0 new, 1 removed" in capsys.readouterr().err


def test_an_index_is_opened_as_it_is(photos, make_model, tmp_path, monkeypatch):
    build(tmp_path / "my.index", photos, make_model())
    (photos / "red.jpg").unlink()
    monkeypatch.setattr("zoo.load", lambda name: make_model(name))
    index = app.opened(str(tmp_path / "my.index"))
    assert len(index) == 6 and index.model.card.name == "fake.colours"  # the maker, not the default model
    with pytest.raises(ZooError, match="was built with fake.colours"):
        app.opened(str(tmp_path / "my.index"), "fake.shapes")


def test_a_cached_index_of_older_weights_is_made_anew(photos, make_model):
    first = app.opened(str(photos), make_model())
    second = app.opened(str(photos), make_model(sha256="2" * 64))
    assert first.path == second.path and len(second) == 6
    assert json.loads((second.path / "manifest.json").read_text())["sha256"] == "2" * 64


def test_another_folder_or_model_has_another_index(photos, make_model):
    paths = {app.opened(str(photos), make_model()).path, app.opened(str(photos / "beach"), make_model()).path}
    assert len(paths | {app.opened(str(photos), make_model(name="fake.other")).path}) == 3


def test_what_is_no_folder_is_named(tmp_path, fake):
    with pytest.raises(ZooError, match="nowhere"):
        app.opened(str(tmp_path / "nowhere"), fake)


def test_a_taken_port_is_named_and_the_next_free_one_found(monkeypatch):
    with app.listening(0) as first:
        port = first.getsockname()[1]
        assert first.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ZooError, match=f"^port {port} is taken by another program; give another --port"):
            app.listening(port)
        monkeypatch.setattr(app, "PORTS", [port])
        with pytest.raises(ZooError, match=f"ports {port} to {port} are all taken"):
            app.listening(None)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            other = free.getsockname()[1]
        monkeypatch.setattr(app, "PORTS", [port, other])
        with app.listening(None) as second:
            assert second.getsockname()[1] == other


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_an_impossible_port(port):
    with pytest.raises(ZooError, match=f"^port {port} cannot be used"):
        app.listening(port)


def test_gradio_missing_is_said_before_anything_is_made(monkeypatch, cache):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ZooError, match=r"needs gradio.*\npip install 'zoo-attention\[demo\]'"):
        app.serve()
    assert not cache.exists()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal_one_line_elsewhere(monkeypatch):
    for stream, expected in (
        (Terminal(), "\rindexing [          ] 0/4\rindexing [#####     ] 2/4\rindexing [##########] 4/4\n"),
        (io.StringIO(), "indexing: 4\n"),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        progress = app.Progress("indexing", width=10)
        for done in (0, 2, 4):
            progress(done, 4)
        assert stream.getvalue() == expected
