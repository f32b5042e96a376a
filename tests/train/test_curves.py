"""What a run leaves to look at: curves.png, the share of time spent waiting for data, TensorBoard where it is installed."""

import csv
import time

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.train import tiny
from zoo.data.loader import ResumableLoader
from zoo.train import callbacks, curves, run

HEAD = "epoch,train_loss,score,lr,seconds,items_per_second,data_wait\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "log.csv").write_text(HEAD + "1,2.0,0.5,1e-3,1,9,0.1\n2,1.0,0.8,2e-3,1,9,0.1\n3,0.9,0.7,1e-4,1,9,0.1\n")
    return tmp_path


def test_three_curves_over_the_epochs(folder, monkeypatch):
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *given, **more: (drawn.append(self), save(self, *given, **more)))
    assert curves.draw(folder, "val RMSE u", 2) == folder / "curves.png"
    axes = drawn[0].axes
    assert [axis.get_title() for axis in axes] == ["training loss", "val RMSE u", "learning rate"]
    lines = [axis.lines[0].get_xydata().T.tolist() for axis in axes]
    assert lines == [[[1, 2, 3], values] for values in ([2.0, 1.0, 0.9], [0.5, 0.8, 0.7], [1e-3, 2e-3, 1e-4])]
    assert axes[1].lines[1].get_xydata().tolist() == [[2, 0.8]]
    assert axes[1].get_legend().texts[0].get_text() == "best: 0.8, epoch 2"
    with Image.open(folder / "curves.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 5


def test_nothing_logged_is_nothing_drawn(tmp_path):
    assert curves.draw(tmp_path, "accuracy", 0) is None and not list(tmp_path.iterdir())
    (tmp_path / "log.csv").write_text(HEAD + "garb")
    assert callbacks.read_log(tmp_path) == []


def test_one_epoch_alone_has_a_picture(folder):
    (folder / "log.csv").write_text(HEAD + "1,2.0,0.5,1e-3,1,9,0.1\n")
    assert curves.draw(folder, "accuracy", 1).exists()


def test_the_loader_counts_only_the_time_that_it_is_waited_for(monkeypatch):
    now = [0.0]

    class Slow(list):
        def __getitem__(self, at):
            now[0] += 2
            return super().__getitem__(at[0])

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    loader = ResumableLoader(Slow(range(4)), 1)
    for _ in loader:
        now[0] += 5
    assert loader.waited == 8
    for _ in loader:
        break
    assert loader.waited == 2, "of this epoch"


def test_the_log_says_how_long_data_was_waited_for(tmp_path, capsys, monkeypatch):
    recipe = tiny.recipe("image", tmp_path / "tiny")
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    folder = run.train(recipe, tmp_path / "runs").folder
    rows = list(csv.DictReader((folder / "log.csv").read_text().splitlines()))
    assert tuple(rows[0]) == callbacks.Log.fields and all(0 < float(row["data_wait"]) < 1 for row in rows)
    assert f"items/s  data wait {float(rows[0]['data_wait']):.0%}\n" in capsys.readouterr().err
    written = sorted(file.name for file in folder.iterdir())
    assert written == ["best.safetensors", "curves.png", "last.ckpt", "log.csv", "recipe.yaml"]


def test_a_log_of_before_there_was_a_column_goes_on(tmp_path):
    old = HEAD.replace(",data_wait", "")
    (tmp_path / "log.csv").write_text(f"{old}1,2.0,0.5,1e-3,1,9\n2,2.0,0.5,1e-3,1,9\n")
    log = callbacks.Log(tmp_path, None)
    log.on_train_start(type("Trainer", (), {"current_epoch": 1}), None)
    log._write()
    assert (tmp_path / "log.csv").read_text() == HEAD + "1,2.0,0.5,1e-3,1,9,\n"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_where_it_is_installed(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is optional")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run.train(tiny.recipe("image", tmp_path / "tiny"), tmp_path / "runs").folder
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= {"loss/train", "val/accuracy", "lr", "data_wait"}
    assert [event.step for event in events.Scalars("loss/train")] == [1, 2]
