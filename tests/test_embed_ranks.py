"""`zoo embed` in several processes (torchrun), and gone on with after a kill: every item once, the file of one process."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import zoo
from tests.train.together import free_port
from zoo import cli, crew, embed, pieces
from zoo.retrieval.files import locked

SMALL = dict(dims=(16, 32), depths=(1, 1), head_dim=8, window=4)


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    return str(zoo.save(zoo.create_model("image_pico", num_classes=2, **SMALL), tmp_path / "m.safetensors"))


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """22 pictures, of which one is none, in pieces of 4."""
    monkeypatch.setattr(embed, "PIECE", 4)
    (tmp_path / "photos").mkdir()
    for i in range(22):
        pixels = np.random.default_rng(i).integers(0, 255, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / "9.png").write_bytes(b"no picture")
    return tmp_path / "photos"


def work(environment, words, folder, die):
    """The command in this process; what it embeds is told in embedded.txt; a rank in `die` kills itself at its second piece."""
    os.environ.update(environment)
    rank, real, made = int(os.environ["RANK"]), embed._piece, []
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / f"{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    crew.LINGER = 0.1

    def told(*given):
        if rank in die and made:
            os.kill(os.getpid(), signal.SIGKILL)
        piece = real(*given)
        made.append(piece)
        with open(folder / "embedded.txt", "a") as log:
            log.writelines(f"{name}\n" for name in piece.names)
        return piece

    embed._piece = told
    code = cli.main(words)
    sys.stdout.flush(), sys.stderr.flush()
    sys.exit(code)


def together(folder, words, world=2, die=()):
    """(exit codes, stdout, stderr) of the command in `world` processes."""
    import multiprocessing

    shared = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0",
              "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "test"}
    made = [multiprocessing.get_context("fork").Process(target=work, args=(
        {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, list(map(str, words)), folder, die)) for rank in range(world)]
    for process in made:
        process.start()
    for process in made:
        process.join(100)
        assert process.exitcode is not None, "a process hangs"
    out, err = ("".join((folder / f"{name}.{rank}").read_text() for rank in range(world)) for name in ("out", "err"))
    return [process.exitcode for process in made], out, err


def read(file):
    table = pq.read_table(file)
    return table["item"].to_pylist(), np.array(table["vector"].to_pylist(), np.float32)


@pytest.fixture
def whole(model, photos, tmp_path):
    """What one process writes."""
    result = embed.embed(zoo.load(model), [str(photos)], tmp_path / "whole.parquet", embed.Asked(batch_size=2))
    assert result.items == 21 and [Path(item).name for item, _ in result.bad] == ["9.png"]
    return read(tmp_path / "whole.parquet")


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_write_the_file_of_one(model, photos, whole, tmp_path, world):
    words = ["embed", model, photos, "--out", tmp_path / "v.parquet", "--batch-size", "2"]
    codes, out, err = together(tmp_path, words, world)
    assert codes == [1] + [0] * (world - 1) and out.count("items          21") == err.count("bad     ") == 1, err
    names, vectors = read(tmp_path / "v.parquet")
    assert names == whole[0] and np.allclose(vectors, whole[1], atol=1e-6)
    assert sorted((tmp_path / "embedded.txt").read_text().split()) == sorted(names)
    assert not pieces.folder_of(tmp_path / "v.parquet").exists()


@pytest.mark.parametrize("die, then", [((0, 1), 1), ((1,), 2), ((0,), 3)])
def test_a_kill_is_gone_on_from_with_any_number_of_processes(model, photos, whole, tmp_path, die, then):
    words = ["embed", model, photos, "--out", tmp_path / "v.parquet", "--batch-size", "2"]
    codes, _, err = together(tmp_path, words, die=die)
    assert all(codes[rank] == -signal.SIGKILL for rank in die) and not (tmp_path / "v.parquet").exists()
    for rank in {0, 1} - set(die):
        assert codes[rank] == 1 and "another process of this run has ended" in err and "finished pieces are kept in" in err
    before = (tmp_path / "embedded.txt").read_text().split()
    assert 0 < len(before) < 21
    codes, out, err = together(tmp_path, words, then)
    assert codes[0] == 1 and "items          21" in out and err.count("bad     ") == 1
    names, vectors = read(tmp_path / "v.parquet")
    assert names == whole[0] and np.allclose(vectors, whole[1], atol=1e-6)
    assert sorted((tmp_path / "embedded.txt").read_text().split()) == sorted(names), "no finished item was embedded again"


def test_what_has_changed_since_a_stop_is_embedded_again(model, photos, whole, tmp_path, monkeypatch):
    asked, out = embed.Asked(batch_size=2), tmp_path / "v.parquet"
    real, done = embed._piece, []

    def stops(model, chunk, *more):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append([name for name, _ in chunk])
        return real(model, chunk, *more)

    monkeypatch.setattr(embed, "_piece", stops)
    with pytest.raises(KeyboardInterrupt):
        embed.embed(zoo.load(model), [str(photos)], out, asked)
    assert pieces.kept(out) == f"3 finished pieces are kept in {tmp_path / '.v.parquet.pieces'}"
    os.utime(photos / "5.png", (1, 1))
    counted = lambda model, chunk, *more: done.append([name for name, _ in chunk]) or real(model, chunk, *more)  # noqa: E731
    monkeypatch.setattr(embed, "_piece", counted)
    embed.embed(zoo.load(model), [str(photos)], out, asked)
    assert sorted(map(len, done)) == [2, 4, 4, 4, 4, 4, 4] and sum(str(photos / "5.png") in names for names in done) == 2
    names, vectors = read(out)
    assert names == whole[0] and np.allclose(vectors, whole[1], atol=1e-6)
    done.clear()
    embed.embed(zoo.load(model), [str(photos)], out, embed.Asked(batch_size=2, layer=0))
    assert len(done) == 6, "other vectors are other pieces"


def test_wrong_uses_are_said_once(model, photos, tmp_path):
    words = ["embed", model, photos, "--out", tmp_path / "v.parquet"]
    codes, _, err = together(tmp_path, [*words, "--layer", "9"])
    folder = pieces.folder_of(tmp_path / "v.parquet")
    assert codes == [2, 2] and err.count("error: ") == 1 and "layer 9" in err and not folder.exists()
    folder.mkdir()
    with locked(folder / "lock"):
        codes, _, err = together(tmp_path, words)
    busy = f"error: {tmp_path / 'v.parquet'}: process {os.getpid()} is writing; try again when it is done\n"
    assert codes == [1, 1] and err == busy
    codes, _, err = together(tmp_path, ["eval", model, photos])
    assert codes == [2, 2] and err.startswith("error: zoo eval: runs in one process, start it without torchrun")
    assert err.count("\n") == 1
