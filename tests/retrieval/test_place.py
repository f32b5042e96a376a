"""Where an index lies: a folder, or object storage as moto plays it on this machine."""

import os
import socket
import subprocess
import sys
import time
from urllib.request import urlopen

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


@pytest.fixture
def bucket(monkeypatch):
    """The address of an empty bucket; credentials come from the environment alone."""
    for package in ("moto", "boto3", "lancedb"):
        pytest.importorskip(package, reason="object storage is played by moto: pip install 'moto[server]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    settings = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url, "AWS_ENDPOINT": url, "AWS_ALLOW_HTTP": "true"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            urlopen(url).close()
            break
        except OSError:
            time.sleep(0.1)
    import boto3

    boto3.client("s3").create_bucket(Bucket="photos")
    yield "s3://photos"
    server.terminate()
    server.wait()


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
