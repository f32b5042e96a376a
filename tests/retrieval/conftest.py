"""Fixtures around the model of colour_model.py."""

import pytest
from colour_model import FakeModel, Picky, paint


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
