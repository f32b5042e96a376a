"""The demo under load: visitors search by its page's own protocol while pictures come and go. ZOO_SOAK=1800 for half an hour."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from PIL import Image, ImageDraw

import zoo

pytest.importorskip("gradio", reason="the demo page needs gradio")

SECONDS = float(os.environ.get("ZOO_SOAK", 20))
VISITORS, STEADY, PASSING, PAUSE = 4, 240, 40, 0.4
QUERIES = ("red circle", "blue square", "a face", "night", "grinning cat", "sun", "ein Hund", "雨")
GROWTH = 96 * 2**20  # of the server after its first tenth, in bytes


def draw(folder: Path, count: int, seed: int) -> Path:
    """Discs and squares of `count` different colours and places."""
    folder.mkdir(parents=True)
    numbers = random.Random(seed)
    for i in range(count):
        picture = Image.new("RGB", (64, 64), tuple(numbers.randrange(256) for _ in range(3)))
        pen = ImageDraw.Draw(picture)
        box = (numbers.randrange(24), numbers.randrange(24), numbers.randrange(36, 64), numbers.randrange(36, 64))
        (pen.ellipse if i % 2 else pen.rectangle)(box, fill=tuple(numbers.randrange(256) for _ in range(3)))
        picture.save(folder / f"{folder.name}{i}.png")
    return folder


@contextmanager
def served(index: Path):
    """`zoo demo INDEX`: (its address, its process)."""
    command = [sys.executable, "-m", "zoo", "demo", str(index), "--no-browser", "--port", "0"]
    with open(index.parent / "log.txt", "w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        yield re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0], process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


class Visitor:
    """Asks as the page's own script does: joins gradio's queue, then reads events until the answer."""

    def __init__(self, url: str, name: str):
        self.url, self.name = url, name
        config = json.load(urlopen(f"{url}/config", timeout=60))
        (query,) = (part["id"] for part in config["components"] if part["props"].get("elem_id") == "zoo-query")
        asks = [call for call in config["dependencies"] if [query, "submit"] in [list(target) for target in call["targets"]]]
        (call,) = (call for call in asks if call["inputs"])
        self.submit = call["id"]
        shown = {part["id"]: part["props"].get("elem_id") for part in config["components"]}
        self.places = {shown[output]: i for i, output in enumerate(call["outputs"])}

    def ask(self, query: str, where: str) -> tuple[str, str]:
        """(status line, cards) as HTML."""
        asked = {"data": [query, False, None, "/", where], "fn_index": self.submit, "session_hash": self.name, "event_data": None}
        body = Request(f"{self.url}/gradio_api/queue/join", json.dumps(asked).encode(), {"content-type": "application/json"})
        urlopen(body, timeout=60).read()
        with urlopen(f"{self.url}/gradio_api/queue/data?session_hash={self.name}", timeout=60) as events:
            for line in events:
                event = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                if event.get("msg") == "process_completed":
                    assert event["success"], event
                    data = event["output"]["data"]
                    return data[self.places["zoo-status"]], data[self.places["zoo-results"]]
        raise AssertionError("the stream ended without an answer")


def resident(process) -> int:
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("store", ["numpy", "lance"])
def test_searches_while_pictures_come_and_go_lose_nothing_and_grow_nothing(store, tmp_path):
    if store == "lance":
        pytest.importorskip("lancedb", reason="lancedb is not installed")
    steady, passing = draw(tmp_path / "steady", STEADY, 1), draw(tmp_path / "passing", PASSING, 2)
    path = tmp_path / "photos.index"
    subprocess.run([sys.executable, "-m", "zoo", "index", "build", str(path), str(steady), "--store", store], check=True,
                   capture_output=True)
    index, end, wrong, times, writes = zoo.retrieval.open(path), time.monotonic() + SECONDS, [], [], 0
    with served(path) as (url, process):

        def visit(number: int) -> None:
            numbers, asked = random.Random(number), 0
            while time.monotonic() < end and not wrong:
                if asked % 50 == 0:  # a new visitor
                    visitor = Visitor(url, f"v{number}x{asked}")
                query, start = numbers.choice(QUERIES), time.perf_counter()
                try:
                    status, cards = visitor.ask(query, "key like 'steady%'" if asked % 2 else "")
                    times.append(time.perf_counter() - start)
                    total = int(re.search(r"of ([\d,]+) pictures", status)[1].replace(",", ""))
                    assert "zoo-error" not in status and cards.count("zoo-card") >= 24 and STEADY <= total <= STEADY + PASSING
                    assert asked % 2 == 0 or "passing" not in cards
                except Exception as error:  # noqa: BLE001 - said by the test, in its own thread
                    wrong.append(f"{query}: {error!r}")
                asked += 1
                time.sleep(PAUSE)

        visitors = [threading.Thread(target=visit, args=(i,)) for i in range(VISITORS)]
        for thread in visitors:
            thread.start()
        warm, sizes = time.monotonic() + SECONDS / 10, []
        while time.monotonic() < end and not wrong:
            index.add(passing)
            assert len(index) == STEADY + PASSING
            index.remove(where="key like 'passing%'")
            assert len(index) == STEADY
            writes += 2
            if time.monotonic() > warm:
                sizes.append(resident(process))
            time.sleep(PAUSE)
        for thread in visitors:
            thread.join()
        grown = max(sizes[-max(1, len(sizes) // 5):]) - sizes[0]
    assert not wrong, wrong
    assert index.verify() == [] and len(index.keys()) == len(set(index.keys())) == STEADY
    times.sort()
    print(f"{store}: {SECONDS:.0f} s, {len(times)} searches by {VISITORS} visitors, {writes} writes of {PASSING} pictures; "
          f"p50 {1000 * times[len(times) // 2]:.0f} ms, p99 {1000 * times[int(len(times) * 0.99)]:.0f} ms; "
          f"server, MiB: {' '.join(f'{size / 2**20:.0f}' for size in sizes[:: max(1, len(sizes) // 12)])}")
    assert grown < GROWTH, f"the server grew by {grown / 2**20:.0f} MiB"
