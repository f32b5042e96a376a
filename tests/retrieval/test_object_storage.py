"""An index in object storage (moto's) with a writer and several searchers, and with writers on several machines."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from moto_here import apart

import zoo.checkpoint
import zoo.retrieval
from zoo.errors import ZooError
from zoo.retrieval import add, build, claim, remove, update
from zoo.retrieval.place import place

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SEARCHER = """
import json, sys, time
import zoo.retrieval
from colour_model import FakeModel
index = zoo.retrieval.open(sys.argv[1], FakeModel())
while True:
    hits = index.search("red", k=100)
    first = {row["key"] for row in index.first(100, "folder = 'beach'")}
    time.sleep(0.2)  # two cores play the machines and the storage
    print(json.dumps([[hit.key for hit in hits], sorted(first), [round(hit.score, 4) for hit in hits]]), flush=True)
"""


class Searcher:
    """A process that searches on and on; its answers so far."""

    def __init__(self, address, home):
        command = [sys.executable, "-c", SEARCHER, address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=apart(home))
        self.answers = []
        self.thread = threading.Thread(target=lambda: self.answers.extend(map(json.loads, self.process.stdout)))
        self.thread.start()

    def end(self):
        begun = len(self.answers)
        deadline = time.monotonic() + 60
        while len(self.answers) < begun + 2 and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        died = self.process.poll()
        self.process.kill()
        self.thread.join()
        error = self.process.stderr.read()
        self.process.communicate()
        assert died is None, error
        return self.answers


def test_every_answer_is_one_state_while_a_writer_adds_and_removes(bucket, photos, tmp_path, make_model, painted):
    address = f"{bucket}/photos.index"
    build(address, photos, make_model())
    base, holiday = {"beach/1.png", "beach/2.png", "beach/10.png", "green.png", "red.jpg", "sky/blue.png"}, set()
    searchers = [Searcher(address, tmp_path / f"machine-{i}") for i in range(2)]
    try:
        while not all(searcher.answers or searcher.process.poll() is not None for searcher in searchers):
            time.sleep(0.05)
        for turn in range(2):
            for i in range(5):
                painted(tmp_path / "holiday" / f"{i}.png", (200 - i, 40 * turn, 9))
            add(address, tmp_path / "holiday", make_model())
            holiday = {f"holiday/{i}.png" for i in range(5)}
            if turn == 1:
                build(address, photos, make_model(), rebuild=True)  # other rows, and the old ones are swept
            assert set(remove(address, ["holiday"])) == holiday
    finally:
        answers = [searcher.end() for searcher in searchers]
    states = {frozenset(base), frozenset(base | holiday)}
    for mine in answers:
        for keys, beach, scores in mine:
            assert len(keys) == len(set(keys)) and frozenset(keys) in states
            assert beach == ["beach/1.png", "beach/10.png", "beach/2.png"] and scores == sorted(scores, reverse=True)
        assert {len(keys) for keys, _, _ in mine} == {6, 11} and set(mine[-1][0]) == base


HOLDER = """
import sys, time
from zoo.errors import ZooError
from zoo.retrieval import claim
from zoo.retrieval.place import place
claim.BEAT, claim.SILENT, claim.SAFE = 0.5, 4.0, 3.2
where = place(sys.argv[1])
where.prepare()
try:
    with where.locked():
        print("held", flush=True)
        for line in sys.stdin:
            where.write("note", b"x")
            print("written", flush=True)
except ZooError as error:
    print(error, flush=True)
"""


@pytest.fixture
def quick(monkeypatch):
    for name, value in {"BEAT": 0.5, "SILENT": 4.0, "SAFE": 3.2}.items():
        monkeypatch.setattr(claim, name, value)


def holder(address, home):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, address], env=apart(home), **pipes)
    assert process.stdout.readline() == "held\n"
    return process


def ended(process):
    process.kill()
    process.communicate()


def test_a_writer_on_another_machine_is_refused_until_the_first_is_dead(bucket, photos, tmp_path, make_model, quick):
    address = f"{bucket}/photos.index"
    build(address, photos, make_model())
    other = holder(address, tmp_path / "other")
    with pytest.raises(ZooError, match=rf"^{address}: \S+ process {other.pid} is writing; try again when it is done$"):
        update(address, make_model())
    assert f"process {other.pid} is writing" in zoo.retrieval.open(address).note()
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "written\n"  # the one that was refused has taken nothing away
    other.send_signal(signal.SIGKILL)
    ended(other)
    (photos / "green.png").unlink()
    assert update(address, make_model()).removed == 1
    begun = time.monotonic()
    assert update(address, make_model()).unchanged == 5 and time.monotonic() - begun < 30  # given back at the end


def test_a_writer_that_was_held_up_writes_no_more(bucket, photos, tmp_path, make_model, quick):
    address = f"{bucket}/photos.index"
    build(address, photos, make_model())
    other = holder(address, tmp_path / "other")
    os.kill(other.pid, signal.SIGSTOP)
    assert update(address, make_model()).unchanged == 6
    os.kill(other.pid, signal.SIGCONT)
    said, _ = other.communicate("\n")
    assert "this process was held up, and another may have begun to write" in said and "written" not in said


COUNTER = """
import sys, time
from zoo.errors import ZooError
from zoo.retrieval import claim
from zoo.retrieval.place import place
claim.BEAT, claim.SILENT, claim.SAFE = 2.0, 100.0, 80.0
where, done = place(sys.argv[1]), 0
where.prepare()
while done < 2:
    try:
        with where.locked():
            number = int(where.read("number")) if where.has("number") else 0
            time.sleep(0.05)
            where.write("number", str(number + 1).encode())
            done += 1
    except ZooError as error:
        if "is writing" not in str(error):
            raise
"""


def test_machines_that_write_at_once_take_turns(bucket, tmp_path):
    address = f"{bucket}/fresh.index"  # who makes the table of claims is a race too
    command = [sys.executable, "-c", COUNTER, address]
    machines = [subprocess.Popen(command, env=apart(tmp_path / str(i)), stderr=subprocess.PIPE, text=True) for i in range(3)]
    for machine in machines:
        _, error = machine.communicate(timeout=200)
        assert machine.returncode == 0, error
    assert place(address).read("number") == b"6"


def test_a_dead_writer_of_this_machine_is_not_waited_for(bucket, photos, tmp_path, make_model):
    address = f"{bucket}/photos.index"
    build(address, photos, make_model())
    other = holder(address, zoo.checkpoint.home())
    ended(other)
    begun = time.monotonic()
    assert update(address, make_model()).unchanged == 6 and time.monotonic() - begun < claim.SILENT
