"""Several processes fill one index (torchrun): every picture once, the index of one process, kills and stops gone on from."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import rank_work

import zoo
import zoo.retrieval
from tests.train.together import free_port
from zoo.retrieval import build, update, verify
from zoo.retrieval.files import locked
from zoo.retrieval.store import matrix


@pytest.fixture(params=["numpy", pytest.param("lance", marks=pytest.mark.slow)])
def kind(request):
    if request.param == "lance":
        pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    return request.param


@pytest.fixture
def many(tmp_path, painted):
    """40 pictures, each of its own colour, and two that are none."""
    for i in range(40):
        painted(tmp_path / "photos" / f"{i % 3}" / f"{i}.png", (5 * i, 255 - 5 * i, 40 + i))
    for name in ("cut.jpg", "flat.png"):
        (tmp_path / "photos" / name).write_bytes(b"no picture")
    return tmp_path / "photos"


def start(tmp_path, words, world=2, die=(), slow=0.0, kind="numpy"):
    """The command in `world` processes that see what torchrun would tell them; what is embedded is told in embedded.txt.

    Forked, which is quick; but not where LanceDB is at work, whose threads do not live on in a fork.
    """
    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0",
              "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "test"}
    method = "spawn" if kind == "lance" else "fork"
    made = [multiprocessing.get_context(method).Process(target=rank_work.work, args=(
        {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, [str(word) for word in words], tmp_path, die, slow))
        for rank in range(world)]
    for rank, process in enumerate(made):
        for name in ("out", "err"):
            (tmp_path / f"{name}.{rank}").write_text("")
        process.start()
    return tmp_path, made


def ended(started):
    """(exit codes, what all wrote to stdout, to stderr)."""
    folder, processes = started
    for process in processes:
        process.join(240)
        assert process.exitcode is not None, "a process hangs"
    out, err = ("".join((folder / f"{name}.{rank}").read_text() for rank in range(len(processes))) for name in ("out", "err"))
    return [process.exitcode for process in processes], out, err


def told(tmp_path):
    """(rank, colour) of every picture that was embedded, in each call so far."""
    return [line.split(" ", 1) for line in (tmp_path / "embedded.txt").read_text().splitlines()]


def rows(path):
    found = zoo.retrieval.open(path).store.rows(["key", "vector"])
    return dict(zip(found["key"].to_pylist(), matrix(found, 4)))


def same(path, other):
    here, there = rows(path), rows(other)
    assert here.keys() == there.keys() and len(here) == len(zoo.retrieval.open(path))
    assert all(np.allclose(here[key], there[key], atol=1e-6) for key in here)
    return True


def test_two_ranks_make_the_index_of_one_process(tmp_path, many, fake, kind, painted):
    build(tmp_path / "one.index", many, fake, store=kind)
    codes, out, err = ended(start(tmp_path, ["index", "build", tmp_path / "i", many, "--model", "m", "--store", kind], kind=kind))
    assert codes == [1, 0], err  # the first one tells of bad pictures
    assert out.count("added          40") == 1 and err.count("bad     cut.jpg") == err.count("bad     flat.png") == 1
    assert same(tmp_path / "i", tmp_path / "one.index")
    assert max(Counter(colour for _, colour in told(tmp_path)).values()) == 1 and len(told(tmp_path)) == 40
    assert {rank for rank, _ in told(tmp_path)} == {"0", "1"}
    index = zoo.retrieval.open(tmp_path / "i")
    assert index.note() is None and [key for key, _ in index.manifest["unreadable"]] == ["cut.jpg", "flat.png"]

    (many / "0" / "0.png").unlink()
    for i in range(40, 46):
        painted(tmp_path / "more" / f"{i}.png", (i, 0, 0))
        painted(many / f"{i}.png", (0, i, 0))
    codes, out, err = ended(start(tmp_path, ["index", "update", tmp_path / "i"], kind=kind))
    assert "added          6" in out and "unchanged      39" in out and "removed        1" in out, err
    codes, out, err = ended(start(tmp_path, ["index", "add", tmp_path / "i", tmp_path / "more"], world=3, kind=kind))
    assert codes == [0, 0, 0] and "added          6" in out, err
    assert len(told(tmp_path)) == 52 and len(rows(tmp_path / "i")) == 51
    assert update(tmp_path / "i", fake).unchanged == 51
    assert [problem["what"] for problem in verify(tmp_path / "i")] == ["its model is not here"]


@pytest.mark.parametrize("die, then", [((0, 1), 1), ((1,), 2), pytest.param((0,), 3, marks=pytest.mark.slow)])
def test_kill_9_of_one_or_all_is_gone_on_from(tmp_path, many, fake, kind, die, then):
    """The others end by themselves, and say what is kept; nothing finished is embedded again, with any number of ranks."""
    words = ["index", "build", tmp_path / "i", many, "--model", "m", "--store", kind]
    codes, _, err = ended(start(tmp_path, words, die=die, kind=kind))
    assert all(codes[rank] == -signal.SIGKILL for rank in die)
    for rank in {0, 1} - set(die):
        assert codes[rank] == 1 and "another process of this run has ended" in err
        assert f"finished batches are kept: go on with zoo index build {tmp_path / 'i'} {many} --model m" in err, err
    done = rows(tmp_path / "i")
    kept = len(told(tmp_path))
    assert 0 < len(done) == kept < 40
    ended(start(tmp_path, words, world=then, kind=kind))
    build(tmp_path / "one.index", many, fake, store=kind)
    assert same(tmp_path / "i", tmp_path / "one.index") and zoo.retrieval.open(tmp_path / "i").note() is None
    assert max(Counter(colour for _, colour in told(tmp_path)).values()) == 1 and len(told(tmp_path)) == 40


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_says_once_what_is_kept(tmp_path, many, signum):
    words = ["index", "build", tmp_path / "i", many, "--model", "m"]
    processes = start(tmp_path, words, slow=0.6)
    until = time.monotonic() + 100
    while "1 " not in (Path(tmp_path / "embedded.txt").read_text() if (tmp_path / "embedded.txt").exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.05)
    for process in processes[1]:
        os.kill(process.pid, signum)
    codes, _, err = ended(processes)
    assert codes == [128 + signum] * 2, err
    assert err.count("stopped; finished batches are kept: go on with zoo index build") == 1, err
    ended(start(tmp_path, words, world=1))
    assert len(rows(tmp_path / "i")) == 40 and 40 <= len(told(tmp_path)) <= 48  # of a rank a batch in the making


def test_wrong_uses_are_said_once(tmp_path, many, photos, fake):
    build(tmp_path / "i", photos, fake)
    with locked(tmp_path / "i" / "lock"):
        codes, _, err = ended(start(tmp_path, ["index", "update", tmp_path / "i"]))
    assert codes == [1, 1] and err == f"error: {tmp_path / 'i'}: process {os.getpid()} is writing; try again when it is done\n"
    codes, _, err = ended(start(tmp_path, ["index", "build", tmp_path / "i", many / "0"]))
    assert codes == [2, 2] and err.count("error: ") == 1 and "holds the pictures of" in err
    codes, _, err = ended(start(tmp_path, ["search", tmp_path / "i", "red"]))
    assert codes == [2, 2] and err.count("\n") == 1
    assert err.startswith("error: zoo search: runs in one process, start it without torchrun")
    codes, _, err = ended(start(tmp_path, ["index", "build", tmp_path / "new", tmp_path / "gone", "--model", "m"]))
    assert codes[0] == 1 and err.count("error: ") == 1 and "gone" in err and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_torchrun_itself_ends_the_others(tmp_path, many):
    """The command of the README; rank 1 is killed, torchrun stops rank 0, which says what is kept; one process finishes."""
    model = zoo.create_model("image_pico", num_classes=2, dims=(16, 32), depths=(1, 1), head_dim=8, window=4)
    file, path = zoo.save(model, tmp_path / "m.safetensors"), tmp_path / "i"
    for i in range(300):
        os.link(many / "0" / "0.png", many / f"again{i}.png")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "zoo", "index", "build", path, many,
               "--model", file]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    agent = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment)
    until = time.monotonic() + 100
    while not (path / "rows-1" / "segments.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, err = agent.communicate(timeout=100)
    assert agent.returncode == 1 and "finished batches are kept: go on with zoo index build" in err
    done = len(zoo.retrieval.open(path))
    report = build(path, many, str(file))
    assert report.unchanged >= done > 0 and len(zoo.retrieval.open(path)) == 340
