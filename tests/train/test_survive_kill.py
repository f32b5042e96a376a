"""kill -9, a full disk, signals at awkward moments: nothing finished is lost, and it is said what was kept."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import lightning.pytorch as pl
import pytest
import torch
import yaml

from tests.train import tiny
from tests.train.test_run import weights
from zoo import checkpoint, cli
from zoo.errors import ZooError
from zoo.train import callbacks, resume, run

EPOCHS = 3


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return tiny.recipe("image", tmp_path_factory.mktemp("survive"), epochs=EPOCHS, ema=0.9)


@pytest.fixture(scope="module")
def straight(recipe, tmp_path_factory):
    """The run that nothing happens to."""
    return run.train(recipe, tmp_path_factory.mktemp("straight")).folder


def rows(folder):
    return [(row["epoch"], row["train_loss"], row["score"], row["lr"])
            for row in csv.DictReader((folder / "log.csv").read_text().splitlines())]


def is_as(straight, folder):
    here, there = weights(straight), weights(folder)
    assert here.keys() == there.keys() and [name for name in here if not torch.equal(here[name], there[name])] == []
    assert rows(folder) == rows(straight), "each epoch is logged once"
    best = [checkpoint.tensors(each / "best.safetensors") for each in (straight, folder)]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])
    assert not list(folder.glob(".*.part"))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def at(number, action):
    """`action` at the call of that number."""
    calls = iter(range(1, 100))
    return lambda *given: action(*given) if next(calls) == number else None


def half(path):
    os.truncate(path, os.path.getsize(path) // 2)
    die()


def in_state(number):
    """Half of the training state of epoch `number` is written."""
    save, hit = pl.Trainer.save_checkpoint, at(number, half)
    return pl.Trainer, "save_checkpoint", lambda self, path, *rest: (save(self, path, *rest), hit(path))


def before_rename(number):
    replace, hit = os.replace, at(number, die)
    return resume.os, "replace", lambda part, path: (hit() if path.name == "last.ckpt" else None, replace(part, path))


def after_rename(number):
    replace, hit = os.replace, at(number, die)
    return resume.os, "replace", lambda part, path: (replace(part, path), hit() if path.name == "last.ckpt" else None)


def in_best(number):
    """Half of best.safetensors is written."""
    write = checkpoint.write
    hit = at(number, lambda file, part: (file.with_name(f".{file.name}.1.part").write_bytes(part), die()))
    return checkpoint, "write", lambda file, data: hit(file, data[:500]) if file.suffix == ".safetensors" else write(file, data)


def after_log(number):
    """The row of the epoch is logged, its state is not yet saved."""
    write, hit = callbacks.Log._write, at(number, die)
    return callbacks.Log, "_write", lambda self: (write(self), hit())


def killed(recipe, runs, patch, delay=None):
    """The run folder of a process that was killed at `patch`, or `delay` seconds after it first saved."""
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if patch:
            setattr(*patch)
        run.train(recipe, runs)
        os._exit(0)
    if delay is not None:
        while not list(runs.glob("*/last.ckpt")):
            time.sleep(0.005)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert delay is not None or os.WTERMSIG(status) == signal.SIGKILL
    return next(runs.iterdir())


@pytest.mark.parametrize("moment", [in_state, before_rename, after_rename, after_log])
def test_killed_in_the_middle_of_a_save(recipe, straight, tmp_path, moment):
    folder = killed(recipe, tmp_path, moment(2))
    assert rows(folder)[:1] == rows(straight)[:1], "the first epoch was finished"
    run.train(run.load_recipe(folder), resume_from=folder)
    is_as(straight, folder)


def test_killed_while_the_best_is_written(recipe, straight, tmp_path):
    folder = killed(recipe, tmp_path, in_best(1))
    with pytest.raises(ZooError, match="no complete training state .* start anew"):
        run.train(run.load_recipe(folder), resume_from=folder)
    assert not (folder / "best.safetensors").exists()


@pytest.mark.slow
def test_killed_at_any_moment(recipe, straight, tmp_path):
    chance = random.Random(0)
    for i in range(12):
        folder = killed(recipe, tmp_path / str(i), None, delay=chance.uniform(0, 2))
        run.train(run.load_recipe(folder), resume_from=folder)
        is_as(straight, folder)


@pytest.fixture
def disk(tmp_path):
    """A disk of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder):
    """All that is left of the disk."""
    with open(folder / "ballast", "wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError:
            pass


def test_a_disk_that_fills_up_keeps_what_is_finished(recipe, straight, disk, monkeypatch):
    with monkeypatch.context() as patch:
        save = resume.KeepState._save
        patch.setattr(resume.KeepState, "_save", lambda self, trainer: (save(self, trainer), fill(disk)))
        with pytest.raises(ZooError, match="No space left on device.*\nkept .*last.ckpt     continue: zoo train --resume"):
            run.train(recipe, disk)
    folder = next(folder for folder in disk.iterdir() if folder.is_dir())
    assert rows(folder)[:1] == rows(straight)[:1] and checkpoint.tensors(folder / "best.safetensors")
    (disk / "ballast").unlink()
    run.train(run.load_recipe(folder), resume_from=folder)
    is_as(straight, folder)


def test_a_full_training_state_is_said(recipe, disk, monkeypatch):
    save = pl.Trainer.save_checkpoint
    monkeypatch.setattr(pl.Trainer, "save_checkpoint", lambda self, path: (fill(disk), save(self, path)))
    with pytest.raises(ZooError, match="last.ckpt: the training state could not be written .*\nno epoch is kept in"):
        run.train(recipe, disk)
    assert not list(disk.glob("*/.*.part"))


def test_a_picture_that_finds_no_room_takes_nothing_away(recipe, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.curves, "draw", full)
    result = run.train(replace(recipe, epochs=1), tmp_path)
    assert "note: no curves.png ([Errno 28] No space left on device)" in capsys.readouterr().err and result.stopped == 0


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_its_code(recipe, tmp_path, signum, code):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(replace(recipe, epochs=500).to_dict()))
    pid = os.fork()
    if not pid:
        os.dup2(os.open(tmp_path / "err", os.O_CREAT | os.O_WRONLY), 2)
        sys.stderr = open(2, "w", closefd=False)
        os._exit(cli.main(["train", str(file), "--runs", str(tmp_path / "runs")]))
    while not list(tmp_path.glob("runs/*/last.ckpt")):
        time.sleep(0.01)
    os.kill(pid, signum)
    _, status = os.waitpid(pid, 0)
    folder = tmp_path / "runs" / "image_pico-1"
    assert os.waitstatus_to_exitcode(status) == code
    said = (tmp_path / "err").read_text()
    assert f"saved   {folder / 'last.ckpt'}     continue: zoo train --resume {folder}\n" in said and "Traceback" not in said
    assert (folder / "curves.png").exists() and run.newest(folder)


def test_a_signal_while_validating_stops_after_the_epoch(recipe, straight, tmp_path, monkeypatch):
    score, interrupt = callbacks.Log.on_validation_epoch_end, lambda: os.kill(os.getpid(), signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Log, "on_validation_epoch_end", lambda *given: (score(*given), interrupt()))
        result = run.train(recipe, tmp_path)
    assert result.stopped == signal.SIGINT and rows(result.folder) == rows(straight)[:1]
    run.train(recipe, resume_from=result.folder)
    is_as(straight, result.folder)
