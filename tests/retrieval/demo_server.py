"""Serves the demo page over six painted pictures and the model of colour_model.py: `demo_server.py FOLDER PORT`.

Notes every address outside this machine that the process wants to reach in FOLDER/outside.txt.
"""

import socket
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np
from colour_model import FakeModel, paint

HOSTILE = "<img src=x onerror=\"document.title='owned'\"> ${1 + 1} {{#each}} `"
PICTURES = {
    "red": (255, 0, 0), "dark red": (90, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0),
    HOSTILE: (255, 0, 255),
}  # fmt: skip
GERMAN = {"red": "rot", "dark red": "dunkelrot"}


def explain(model, text, picture):
    """Each word looks at a corner of its own."""
    words = text.split()
    heats = np.full((len(words), 2, 2), 0.1, np.float32)
    heats.reshape(len(words), 4)[np.arange(len(words)), np.arange(len(words)) % 4] = 0.7
    return list(zip(words, heats))


def note_outside(file: Path) -> None:
    connect = socket.socket.connect
    look_up = socket.getaddrinfo

    def noted(host):
        if host not in ("127.0.0.1", "localhost", "::1", None):
            file.open("a").write(f"{host}\n")

    def connect_noted(self, address):
        noted(address[0] if isinstance(address, tuple) else None)
        return connect(self, address)

    def look_up_noted(host, *rest, **more):
        noted(host)
        return look_up(host, *rest, **more)

    socket.socket.connect, socket.getaddrinfo = connect_noted, look_up_noted


def main(folder: Path, port: int) -> None:
    note_outside(folder / "outside.txt")
    from zoo.data.items import Items
    from zoo.retrieval import app
    from zoo.retrieval.index import open_index
    from zoo.retrieval.ingest import build
    from zoo.retrieval.names import Names
    from zoo.retrieval.page import demo

    files = [paint(folder / "pictures" / f"{i}.png", colour, (24, 16)) for i, colour in enumerate(PICTURES.values())]
    meta = [{"en": name, "de": GERMAN.get(name, name), "year": 2015 + i} for i, name in enumerate(PICTURES)]
    keys = [f"sky/{file.name}" if i in (3, 4) else file.name for i, file in enumerate(files)]
    items = Items(keys, files, captions=[[name] for name in PICTURES], meta=meta)
    model = FakeModel()
    build(folder / "index", items, model)
    index = open_index(folder / "index", model)
    names = Names(index, folder / "names")
    page = demo(index, names, ("green", "blue"), {"en": "English", "de": "Deutsch"}, explain)
    with app.listening(port) as listener:
        app.run(page, listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
