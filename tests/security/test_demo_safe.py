"""The demo answers this machine alone (or the address asked for), and gives out small pictures of the index, nothing else."""

import asyncio
import gc
import os
import sys
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

pytest.importorskip("gradio")
sys.path.append(str(Path(__file__).parents[1] / "retrieval"))

from colour_model import FakeModel, paint  # noqa: E402

from zoo.errors import UsageError  # noqa: E402
from zoo.retrieval import app  # noqa: E402
from zoo.retrieval.index import open_index  # noqa: E402
from zoo.retrieval.ingest import build  # noqa: E402
from zoo.retrieval.page import demo  # noqa: E402

# gradio leaves event loops open
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(folder with photos/, secret.txt and secret.png beside them, the page, its application)."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "secret.txt").write_text("secret words")
    paint(folder / "secret.png", "red", (9, 9))
    paint(folder / "photos" / "a.png", "green", (24, 16))
    paint(folder / "photos" / "was inside.png", "blue", (24, 16))
    os.symlink(folder / "photos" / "was inside.png", folder / "photos" / "link.png")
    build(folder / "index", folder / "photos", FakeModel())
    page = demo(open_index(folder / "index", FakeModel()))
    yield folder, page, app.application(page)
    gc.collect()  # here, where what gradio leaves open is not taken for a later test's


def ask(application, path: str, query: str = "", host: str = "127.0.0.1:7860", method: str = "GET", body: bytes = b"",
        headers: tuple = ()) -> tuple[int, bytes]:
    """(status, body), the path exactly as given: no client tidies it up."""
    got = {"status": None, "body": b""}
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
             "path": path, "raw_path": path.encode("utf-8", "surrogatepass"), "query_string": query.encode(), "root_path": "",
             "headers": [(b"host", host.encode()), *headers], "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 7860)}
    sent = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive():
        return next(sent, None) or await asyncio.sleep(60)

    async def send(message):
        got["status"] = message.get("status", got["status"])
        got["body"] += message.get("body", b"")

    with asyncio.Runner() as runner:
        try:
            runner.run(asyncio.wait_for(application(scope, receive, send), 20))
        except Exception:  # the server makes a 500 of it
            return 500, got["body"]
    return got["status"], got["body"]


def test_a_picture_of_the_index(place):
    status, body = ask(place[2], "/thumbnail", "key=a.png")
    assert status == 200 and max(Image.open(BytesIO(body)).size) <= 400


def test_keys_that_are_none(place):
    folder, _, application = place
    keys = ["../../etc/passwd", "/etc/passwd", "../secret.png", str(folder / "secret.png"), "a.png\0", "\0", "./a.png",
        "photos/a.png",
            "a.png/../../secret.png", "..%2fsecret.png", "%2e%2e/secret.png", "file:///etc/passwd", "x" * 100_000, "",
            "é' or 1=1 --",
            "C:\\x", "*"]
    for key in keys:
        for query in (f"key={quote(key)}", f"key={quote(quote(key))}"):
            status, body = ask(application, "/thumbnail", query)
            assert status == 404 and not body, key
    for query in ("", "key", "other=a.png", "key=%ff%fe", "key=a.png&key=../secret.png", "key=%"):
        assert ask(application, "/thumbnail", query)[0] in (404, 422), query


def test_a_link_that_leads_elsewhere_since(place):
    folder, page, application = place
    assert ask(application, "/thumbnail", "key=link.png")[0] == 200  # links are followed when the folder is indexed
    link = folder / "photos" / "link.png"
    link.unlink()
    os.symlink(folder / "secret.png", link)
    page.replies._small.cache_clear()
    assert ask(application, "/thumbnail", "key=link.png")[0] == 404
    link.unlink()
    os.symlink(folder / "photos" / "was inside.png", link)
    assert ask(application, "/thumbnail", "key=link.png")[0] == 200


@pytest.mark.parametrize("prefix", ["/file=", "/file/", "/gradio_api/file=", "/gradio_api/file/", "/proxy=", "/gradio_api/proxy=",
                                    "/gradio_api/stream/", "/static/", "/assets/", "/custom_component/", "/theme.css/",
                                    "/svelte/"])
def test_gradio_gives_no_file(place, prefix):
    folder, _, application = place
    ways = [str(folder / "secret.txt"), str(folder / "photos" / "a.png"), "/etc/passwd", "../" * 12 + "etc/passwd", "..%2f" * 12 +
            "etc%2fpasswd", "/proc/self/environ", "file:///etc/passwd", "http://127.0.0.1:1/", "....//....//etc/passwd", "a\0b"]
    for way in ways:
        status, body = ask(application, prefix + way)
        assert status >= 400 and b"root:" not in body and b"secret words" not in body and not body.startswith(b"\x89PNG"), way


def test_uploads_stay_where_they_are_put(place, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    folder, _, application = place
    bound = b"b0und"
    for name in ("../../../evil.txt", "/etc/evil.txt", "a\0.png", "..\\evil.txt"):
        body = (b"--" + bound + b'\r\nContent-Disposition: form-data; name="files"; filename="' + name.encode() +
                b'"\r\nContent-Type: text/plain\r\n\r\nevil\r\n--' + bound + b"--\r\n")
        status, found = ask(application, "/gradio_api/upload", method="POST", body=body,
                            headers=((b"content-type", b"multipart/form-data; boundary=" + bound),))
        assert status >= 400 or b"/.." not in found.replace(b"/..evil", b"") and b"/etc/evil" not in found, (name, status, found)
    assert not list(folder.rglob("evil*")) and not Path("/etc/evil.txt").exists()


def test_an_uploaded_bomb(place, tmp_path):
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png_of(50_000, 50_000))
    told = place[1]._told(place[1].replies.ask_picture)(str(bomb), False, None, None, None)
    assert "decompression bomb" in " ".join(map(str, told.values()))


def png_of(width: int, height: int) -> bytes:
    """A PNG of black pixels: a few bytes for any size."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "192.168.1.5",
    "[::1].evil",
                                  "0.0.0.0", "@127.0.0.1", "evil.example:7860"])
def test_a_foreign_host_is_refused(place, host):
    for path in ("/", "/thumbnail", "/config", "/gradio_api/info"):
        assert ask(place[2], path, "key=a.png", host)[0] == 400


def test_an_address_that_was_asked_for():
    one = app._Named(None, "192.168.1.5")
    assert one.knows("192.168.1.5") and one.knows("localhost") and not one.knows("192.168.1.6") and not one.knows("evil.example")
    every = app._Named(None, "0.0.0.0")
    assert every.knows("192.168.1.6") and every.knows("localhost") and not every.knows("evil.example")
    assert app.loopback("127.0.0.1") and app.loopback("::1") and app.loopback("localhost")
    assert not app.loopback("0.0.0.0") and not app.loopback("192.168.1.5") and not app.loopback("example.org")
    with app.listening(0, "127.0.0.2") as listener:
        assert listener.getsockname()[0] == "127.0.0.2"
    for host in ("203.0.113.7", "no such name", "x" * 300, ""):
        with pytest.raises(UsageError, match="--host"):
            app.listening(0, host)


def test_the_command_warns(monkeypatch, capsys, place):
    from zoo.cli import main

    served = []
    monkeypatch.setattr(app, "opened", lambda target, model: place[1].replies.index)
    monkeypatch.setattr(app, "Names", lambda *_: None)
    monkeypatch.setattr(app, "run", lambda page, listener, browser, host: served.append((listener.getsockname()[0], host)))
    assert main(["demo", str(place[0] / "photos"), "--host", "0.0.0.0", "--port", "0", "--no-browser"]) == 0
    assert "0.0.0.0 is not this machine alone: whoever reaches" in capsys.readouterr().err and served.pop() == ("0.0.0.0",
        "0.0.0.0")
    assert main(["demo", str(place[0] / "photos"), "--port", "0", "--no-browser"]) == 0
    assert capsys.readouterr().err == "" and served.pop() == ("127.0.0.1", "127.0.0.1")
    assert main(["demo", str(place[0] / "photos"), "--host", "203.0.113.7", "--no-browser"]) == 2
