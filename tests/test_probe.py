"""Probes of frozen vectors against hand-written truths, and `zoo eval --probe` on folders, tables and graphs."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from zoo.cli import main
from zoo.errors import UsageError, ZooError
from zoo.probe import probe
from zoo.probe.data import Asked
from zoo.probe.learn import PROBES, Learnt, logistic, ridge


def cloud(n: int = 60, dim: int = 3, classes: int = 3, spread: float = 1.5):
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    x = torch.randn(n, dim, generator=draw, dtype=torch.float64) + spread * torch.eye(classes, dim, dtype=torch.float64)[y]
    return x, y


def test_logistic_is_what_plain_gradient_descent_finds():
    x, y = cloud()
    weight, bias = logistic(x, y, 0.05)
    w, b = np.zeros((3, 3)), np.zeros(3)
    for _ in range(4000):
        scores = x.numpy() @ w.T + b
        chance = np.exp(scores - scores.max(1, keepdims=True))
        chance = chance / chance.sum(1, keepdims=True) - np.eye(3)[y.numpy()]
        w, b = w - 0.3 * (chance.T @ x.numpy() / 60 + 0.05 * w), b - 0.3 * chance.mean(0)
    assert np.allclose(weight.numpy(), w, atol=1e-4) and np.allclose((bias - bias.mean()).numpy(), b - b.mean(), atol=1e-4)


def test_ridge_is_least_squares_with_rows_for_the_penalty():
    x, _ = cloud()
    y = x @ torch.tensor([1.0, -2, 0.5], dtype=torch.float64) + 3 + 0.1 * torch.arange(60) % 0.3
    weight, bias = ridge(x, y, 0.2)
    rows = np.vstack([x.numpy() - x.numpy().mean(0), np.sqrt(0.2 * 60) * np.eye(3)])
    expected = np.linalg.lstsq(rows, np.concatenate([y.numpy() - y.numpy().mean(), np.zeros(3)]), rcond=None)[0]
    assert np.allclose(weight.numpy(), expected) and np.isclose(float(bias), y.mean() - x.mean(0).numpy() @ expected)


def test_neighbours_vote_and_the_nearer_ones_break_ties():
    angles = torch.tensor([0.0, 10, 20, 90, 100]).deg2rad()
    train = Learnt(torch.stack([angles.cos(), angles.sin()], 1), torch.tensor([0, 1, 1, 0, 0]))
    asked = torch.tensor([2.0, 12, 93]).deg2rad()
    asked = torch.stack([asked.cos(), asked.sin()], 1)
    assert PROBES["knn"].fit(train, 1)(asked).argmax(1).tolist() == [0, 1, 0]
    assert PROBES["knn"].fit(train, 2)(asked).argmax(1).tolist() == [0, 1, 0]  # at 2 degrees one vote each: 0 is nearer
    assert PROBES["knn"].fit(train, 3)(asked).argmax(1).tolist() == [1, 1, 0]


def test_neighbours_average_values_that_are_there():
    x = torch.eye(3)
    train = Learnt(x, torch.tensor([[1.0, float("nan")], [3.0, 5.0], [8.0, 7.0]], dtype=torch.float64))
    found = PROBES["knn"].fit(train, 2)(torch.tensor([[0.9, 0.4, 0.0]]))
    assert found.tolist() == [[2.0, 5.0]]


def test_the_setting_is_chosen_on_what_is_held_out():
    x, y = cloud(90, spread=0.7)
    x = torch.nn.functional.normalize(x, dim=1).float()
    held = torch.arange(90) % 5 == 0
    for kind in PROBES.values():
        errors = {}
        for value in (v for v in kind.grid if v <= 72):
            errors[value] = float((kind.fit(Learnt(x[~held], y[~held]), value)(x[held]).argmax(1) != y[held]).double().mean())
        assert errors[kind.choose(Learnt(x, y), held)] == min(errors.values())


def test_values_that_are_missing_do_not_count():
    x = torch.nn.functional.normalize(cloud(40)[0], dim=1).float()
    y = torch.stack([2 * x[:, 0] + 5, x[:, 1]], 1).double()
    y[::3, 1] = float("nan")
    y[::3, 0] = y[::3, 0]
    found = PROBES["linear"].fit(Learnt(x, y), 1e-5)(x)
    assert torch.allclose(found[:, 0], y[:, 0], atol=1e-3) and torch.allclose(found[:, 1], x[:, 1].double(), atol=2e-2)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Dark, middle and bright pictures in class folders below train/ and test/, and a small untrained model."""
    folder = tmp_path_factory.mktemp("probe")
    rng = np.random.default_rng(0)
    for name, light in (("dark", 20), ("grey", 120), ("light", 220)):
        for part, count in (("train", 10), ("test", 4)):
            (folder / "data" / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(rng.normal(light, 10, (12, 12, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "data" / part / name / f"{i}.png")
    torch.manual_seed(0)
    model = zoo.create_model("image_pico", num_classes=2, dims=(16, 32), depths=(1, 1), head_dim=8, window=4)
    zoo.save(model, folder / "m.safetensors")
    return folder


@pytest.mark.parametrize("kind, setting", [("linear", "strength"), ("knn", "k")])
def test_pictures_of_other_labels_than_the_model_has(pictures, kind, setting):
    found = probe(zoo.load(pictures / "m.safetensors"), pictures / "data", kind)
    assert found["accuracy"] == 1.0 and found["per_class"] == {"dark": 1.0, "grey": 1.0, "light": 1.0}
    assert (found["split"], found["items"], found["trained on"], found["dim"]) == ("test", 12, 30, 32) and setting in found
    again = probe(zoo.load(pictures / "m.safetensors"), pictures / "data", kind)
    assert again == found


def test_without_splits_a_fifth_is_held_out(pictures):
    found = probe(zoo.load(pictures / "m.safetensors"), pictures / "data" / "train", "knn")
    assert found["split"] == "a fifth that was held out" and found["items"] == 6 and found["trained on"] == 24


def test_molecules_by_ridge_and_by_labels(tmp_path):
    smiles = ["C" * n + end for n in range(3, 23) for end in ("", "O", "N")]
    with open(tmp_path / "m.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["smiles", "y", "kind", "split"])
        rows.writerows([s, s.count("C"), s[-1], "test" if i % 5 == 0 else "train"] for i, s in enumerate(smiles))
    torch.manual_seed(0)
    model = zoo.create_model("graph_pico", dim=16, depth=1, heads=2, walks=4,
                             **zoo.inference.preprocessing("graph")({}).arguments())
    values = probe(model, tmp_path / "m.csv", "linear")
    assert values["RMSE"] < 3 and values["MAE"] <= values["RMSE"] and values["items"] == 12
    labels = probe(model, tmp_path / "m.csv", "linear", Asked(label="kind"))
    assert labels["accuracy"] > 0.8 and set(labels["per_class"]) <= {"C", "N", "O"}


def test_what_is_wrong_is_said(pictures, tmp_path):
    model = zoo.load(pictures / "m.safetensors")
    with pytest.raises(UsageError, match="--probe svm: expected linear or knn"):
        probe(model, pictures / "data", "svm")
    (tmp_path / "t.csv").write_text("file,label\n" + "".join(f"data/train/dark/{i}.png,{i % 6}\n" for i in range(10)))
    (tmp_path / "data").symlink_to(pictures / "data")
    with pytest.raises(ZooError, match="6 classes for 6 training items; name another column: --label"):
        probe(model, tmp_path / "t.csv", "knn")
    with pytest.raises(ZooError, match="no split 'fold9' "):
        probe(model, pictures / "data", "knn", Asked(split="fold9"))
    with pytest.raises(ZooError, match="no split 'train' to learn from .has: no splits."):
        probe(model, pictures / "data" / "test", "knn", Asked(split="test"))
    with pytest.raises(UsageError, match="a text model gives vectors: zoo embed"):
        probe(zoo.create_model("text_bert", dim=24, depth=1, heads=2, hidden=8, vocab_size=10), pictures, "knn")


def test_the_command(pictures, capsys):
    code = main(["eval", str(pictures / "m.safetensors"), str(pictures / "data"), "--probe", "knn"])
    out, _ = capsys.readouterr()
    assert code == 0 and "accuracy       1" in out and "probe          knn" in out
    for extra, why in ((["--save-score"], "its score is not the model's own"), (["--window", "2"], "--probe goes with")):
        assert main(["eval", str(pictures / "m.safetensors"), str(pictures / "data"), "--probe", "knn", *extra]) == 2
        assert why in capsys.readouterr().err
    assert main(["eval", str(pictures / "m.safetensors"), str(pictures / "data"), "--label", "x"]) == 2
