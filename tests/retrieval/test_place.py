"""Where an index lies: a folder, or object storage as moto plays it on this machine."""

import os

import pytest

import zoo.retrieval
from zoo.errors import ZooError
from zoo.retrieval import add, build, remove, update
from zoo.retrieval.place import Folder, place


def test_what_is_a_folder_and_what_is_not(tmp_path):
    assert isinstance(place(tmp_path), Folder) and place(f"file://{tmp_path}").path == tmp_path
    assert isinstance(place("photos.index"), Folder)
    with pytest.raises(ZooError, match="^nowhere://bucket/x: cannot be opened as object storage"):
        place("nowhere://bucket/x")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_index_in_object_storage(bucket, photos, tmp_path, make_model, painted):
    address = f"{bucket}/deep/photos.index"
    with pytest.raises(ZooError, match="no index here"):
        zoo.retrieval.open(address)
    assert build(address, photos, make_model()).added == 6
    index = zoo.retrieval.open(address, make_model())
    assert index.search("red", k=1)[0].path == str(photos / "red.jpg") and index.info()["store"]["kind"] == "lance"
    assert len(index.search("red", where="folder = 'beach'")) == 3 and index.info()["bytes"] > 1000
    painted(tmp_path / "holiday" / "1.png", "white")
    (photos / "green.png").unlink()
    assert add(address, tmp_path / "holiday", make_model()).added == 1
    assert update(address, make_model()).removed == 1 and remove(address, ["sky"]) == ["sky/blue.png"]
    assert len(index) == 5 and sorted(index.keys())[-1] == "red.jpg"
    fake = make_model()
    assert build(address, photos, fake, rebuild=True).added == 5 and len(index.search("red")) == 5
    assert sorted(index.place.names()) == ["manifest.json", "rows-2"] and not os.path.exists("s3:")
    with index.place.locked(), pytest.raises(ZooError, match=f"{address}: process {os.getpid()} is writing"):
        update(address, fake)
