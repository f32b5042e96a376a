"""Fixtures around the model of colour_model.py."""

import moto_here
import pytest
from colour_model import FakeModel, Picky, paint
from milvus_here import collections, running


@pytest.fixture(scope="session")
def object_storage():
    yield from moto_here.running()


@pytest.fixture
def bucket(object_storage, monkeypatch):
    """The address of an empty bucket; credentials come from the environment alone."""
    for name, value in object_storage.items():
        monkeypatch.setenv(name, value)
    return moto_here.new_bucket()


@pytest.fixture(scope="session")
def milvus(tmp_path_factory):
    """The address of a Milvus server: that of ZOO_TEST_MILVUS, or one out of the package `milvus` for these tests."""
    yield from running(tmp_path_factory)


@pytest.fixture
def milvus_uri(milvus):
    """uri(path): the collection that stands for a path in this test; all are dropped at its end."""
    yield from collections(milvus)


@pytest.fixture
def fake():
    return FakeModel()


@pytest.fixture
def make_model():
    return FakeModel


@pytest.fixture
def picky():
    return Picky()


@pytest.fixture
def painted():
    """paint(path, colour name or RGB, size) writes one picture."""
    return paint


@pytest.fixture
def photos(tmp_path):
    """A folder of six pictures: sky/blue, beach/{yellow, dark red, red}, green and red at the top."""
    folder = tmp_path / "photos"
    paint(folder / "beach" / "1.png", "yellow")
    paint(folder / "beach" / "2.png", (90, 0, 0))
    paint(folder / "beach" / "10.png", (200, 0, 0))
    paint(folder / "sky" / "blue.png", "blue", (4, 4))
    paint(folder / "green.png", "green")
    paint(folder / "red.jpg", "red")
    return folder
