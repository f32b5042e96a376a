"""`zoo demo`: an index opened, or made at first start, and its page served to this machine alone."""

import errno
import hashlib
import ipaddress
import os
import socket
import sys
import webbrowser
from pathlib import Path

from zoo.checkpoint import home
from zoo.errors import UsageError, ZooError
from zoo.retrieval import gallery
from zoo.retrieval.index import Index, loaded, open_index
from zoo.retrieval.ingest import build
from zoo.retrieval.manifest import MANIFEST, identity, made_by, read_manifest
from zoo.retrieval.names import Names
from zoo.retrieval.place import place
from zoo.show import Progress

MODEL = "text_image_nano.openmoji"
PORTS = range(7860, 7960)
LARGEST_UPLOAD = 64 * 2**20  # bytes
LOOPBACK, ANY = "127.0.0.1", ("0.0.0.0", "::")
GALLERY_QUERIES = ("grinning cat", "red heart", "hot drink", "rain", "fast train", "musical instrument")
FOLDER_QUERIES = ("a dog on a beach", "people eating", "a red car", "night sky")
# The browser itself refuses whatever a library's page might want to fetch from elsewhere
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"


def serve(
    target: str | None = None, model: str = MODEL, port: int | None = None, open_browser: bool = True, host: str = LOOPBACK
) -> None:
    """Serve the search page on 127.0.0.1, or `host`, until Ctrl-C (KeyboardInterrupt, as from any program).

    target: an index; or a folder or table of pictures, whose index is kept in $ZOO_HOME/indexes; None: the
    OpenMoji gallery. model: makes a new index; of an existing one it must be the maker. port: 0 for any.
    Prints one line on stdout once the page answers. Raises ZooError: no gradio, port taken, target unusable.
    """
    _require_gradio()
    with listening(port, host) as listener:
        if not loopback(host):
            print(f"warning: {host} is not this machine alone: whoever reaches the address can search and see the indexed "
                  "pictures, without a password", file=sys.stderr)
        index = opened(target, model)
        names = Names(index, home() / "names", Progress("reading names"))
        from zoo.retrieval.page import demo

        if target is None:
            page = demo(index, names, GALLERY_QUERIES, gallery.LANGUAGES)
        else:
            page = demo(index, names, FOLDER_QUERIES)
        run(page, listener, open_browser, host)


def opened(target: str | None, model: str = MODEL) -> Index:
    """The index of `target` (see `serve`), up to date, with its model loaded."""
    if target is not None and ("://" in target or place(target).has(MANIFEST)):
        index = open_index(target, None if model == MODEL else model)
        index.model  # noqa: B018 - loaded now: what is wrong with it is said here, not at the first query
        return index
    if target is not None and not Path(target).expanduser().exists():
        raise ZooError(f"{target}: no such folder, table or index; the OpenMoji gallery: zoo demo")
    model = loaded(model)
    if target is None:
        path, source = home() / "openmoji.index", gallery.openmoji(progress=Progress("drawing the gallery"))
    else:
        source = Path(os.path.abspath(Path(target).expanduser()))
        digest = hashlib.sha256(f"{source}\0{model.card.name}".encode()).hexdigest()[:12]
        path = home() / "indexes" / f"{source.stem}-{digest}"
    report = build(path, source, model, Progress("indexing"), rebuild=_stale(path, model))
    _tell(path, report)
    return open_index(path, model)


def _stale(path: Path, model) -> bool:
    """True for an index of ours that another model made, say before a new training: it is only a cache."""
    where = place(path)
    return where.has(MANIFEST) and made_by(read_manifest(where)) != identity(model)


def _tell(path: Path, report) -> None:
    made = report.added + report.changed
    lines = [f"index   {path}: {made + report.unchanged} pictures, {made} new, {report.removed} removed"]
    lines += [f"        left out: {key}: {reason}" for key, reason in report.bad[:5]]
    lines += [f"        left out: {len(report.bad) - 5} more"] * (len(report.bad) > 5)
    print(*lines, sep="\n", file=sys.stderr)


def _require_gradio() -> None:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ZooError(
            f"the demo page needs gradio: {error}\npip install 'zoo-attention[demo]'   (or: pip install gradio)"
        ) from None


def loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def listening(port: int | None, host: str = LOOPBACK) -> socket.socket:
    """A socket that listens on `host`, at `port` or at the first free one of PORTS; held from here on."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        socket.create_server(place, family=kind).close()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: cannot be listened on ({error}); an address of this machine, or 0.0.0.0 for all of "
                         f"them; default: {LOOPBACK}") from None
    for candidate in PORTS if port is None else [port]:
        listener = socket.socket(kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections just closed do not count
        try:
            listener.bind((place[0], candidate))
            listener.listen(128)
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            if port is not None:
                taken = getattr(error, "errno", None) == errno.EADDRINUSE
                why = "is taken by another program" if taken else f"cannot be used ({error})"
                hint = "give another --port, or none for the first free one"
                raise ZooError(f"port {port} {why}; {hint}") from None
    raise ZooError(f"ports {PORTS[0]} to {PORTS[-1]} are all taken; give a free --port")


def run(page, listener: socket.socket, open_browser: bool = False, host: str = LOOPBACK) -> None:
    """Serve the page (see `zoo.retrieval.page.demo`) on the socket until the process is told to stop."""
    import uvicorn

    named = LOOPBACK if host in ANY else host
    url = f"http://{f'[{named}]' if ':' in named else named}:{listener.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            print(f"demo ready at {url} (Ctrl-C stops)", flush=True)
            if open_browser:
                webbrowser.open(url)

    # A page left open in a browser holds a connection: the server does not wait for it
    settings = uvicorn.Config(application(page, host), log_level="warning", timeout_graceful_shutdown=1)
    Server(settings).run(sockets=[listener])


def application(page, host: str = LOOPBACK):
    """The page as an ASGI application: fetches nothing, answers to this machine's names (and `host`), serves no files of it.

    /thumbnail?key=... is a small copy of a picture of the index, and of nothing else.
    """
    import gradio as gr
    from fastapi import FastAPI
    from starlette.responses import Response

    from zoo.retrieval.style import CSS

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Policy)
    app.add_middleware(_Named, host=host)

    @app.get("/thumbnail")
    def thumbnail(key: str) -> Response:
        found = page.thumbnail(key)
        if found is None:
            return Response(status_code=404)
        return Response(found[0], media_type=f"image/{found[1]}", headers={"cache-control": "private, max-age=600"})

    fonts = {
        "font": ["system-ui", "sans-serif"],
        "font_mono": ["ui-monospace", "monospace"],
    }  # none is fetched
    return gr.mount_gradio_app(
        app, page.blocks, path="/", server_name="127.0.0.1", allowed_paths=[], footer_links=[], run_history=False,
        show_error=False, ssr_mode=False, max_file_size=LARGEST_UPLOAD, enable_monitoring=False, pwa=False, mcp_server=False,
        theme=gr.themes.Default(primary_hue="blue", **fonts), css=CSS,
    )  # fmt: skip


class _Named:
    """400 for a Host that is no name of ours: a page of another name that resolves to this machine cannot read the pictures
    (DNS rebinding). Served on every address of the machine, any address is one, and no name but localhost."""

    def __init__(self, app, host: str):
        self.app, self.host = app, host

    def knows(self, name: str) -> bool:
        return name in (LOOPBACK, "localhost", self.host) or self.host in ANY and _address(name) is not None

    async def __call__(self, scope, receive, send):
        if scope["type"] in ("http", "websocket"):
            given = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            name = given[1:].split("]")[0] if given.startswith("[") else given.split(":")[0]
            if not self.knows(name):
                from starlette.responses import PlainTextResponse

                return await PlainTextResponse("unknown host", 400)(scope, receive, send)
        await self.app(scope, receive, send)


def _address(text: str):
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class _Policy:
    """Adds the Content-Security-Policy to every answer."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def with_policy(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await self.app(scope, receive, with_policy)
