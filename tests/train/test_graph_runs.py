"""Short real runs on small molecules and one small network: learning, units, missing targets, exact resume, links."""

import csv
from dataclasses import replace

import numpy as np
import pytest

import zoo
from tests.train.test_run import resumes_exactly
from zoo import evaluate, predict
from zoo.errors import UsageError, ZooError
from zoo.train import nodes, run
from zoo.train.recipe import Recipe

pytest.importorskip("torch_geometric")
pytest.importorskip("rdkit")
SMALL = {"dim": 16, "depth": 2, "heads": 2, "pair_dim": 8}


def write(path, rows):
    with open(path, "w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    """60 chains of carbon with oxygen or nitrogen ends. mass-like y = 100 + 3 C - 20 O; z is missing in two of three rows."""
    rows = []
    for i in range(60):
        carbons, end = 1 + i % 12, ("", "O", "N")[i % 3]
        y = 100 + 3 * carbons - 20 * (end == "O")
        rows.append({"smiles": "C" * carbons + end, "y": y, "z": "" if i % 3 else -y, "label": end or "none",
                     "acid": int(end == "O"), "base": "" if i % 5 == 0 else int(end == "N"),
                     "split": ("train", "train", "train", "val", "test")[i % 5]})
    return write(tmp_path_factory.mktemp("molecules") / "chains.csv", rows)


@pytest.fixture
def recipe(molecules):
    return Recipe(task="graph_regression", model="graph_pico", arguments=dict(SMALL), data=str(molecules), val="val", epochs=25,
                  batch_size=12, lr=5e-3, ema=0.9, precision="fp32", names=["mass"], units=["u"], seed=1)


def test_regression_answers_in_the_units_of_the_data(recipe, tmp_path, molecules, capsys):
    result = run.train(recipe, tmp_path)
    assert "36 training and 12 validation graphs, targets y" in capsys.readouterr().err
    model = zoo.load(result.folder)
    target = model.card.targets[0]
    train = [100 + 3 * (1 + i % 12) - 20 * (i % 3 == 1) for i in range(60) if i % 5 < 3]
    assert target["name"] == "mass" and target["unit"] == "u" and target["mean"] == pytest.approx(np.mean(train), abs=1e-4)
    assert target["std"] == pytest.approx(np.std(train), rel=1e-5)
    score = model.card.scores[0]
    assert result.score < 6 and score == {"metric": "RMSE", "value": pytest.approx(result.score, abs=1e-4), "unit": "u",
                                          "split": "val", "seed": 1, "epoch": score["epoch"]}
    found = evaluate.evaluate(model, molecules, evaluate.Options("val"))
    assert found["RMSE"] == pytest.approx(result.score, rel=1e-3) and found["unit"] == "u" and found["items"] == 12
    answers = [model.predict([smiles])[0]["mass"] for smiles in ("CCCC", "[Na+].[Cl-]", "C")]
    together = [row["mass"] for row in model.predict(["CCCC", "[Na+].[Cl-]", "C"])]
    assert answers == pytest.approx(together, abs=1e-3) and abs(answers[0] - 112) < 12


def test_predict_writes_a_table_with_units_and_lists_what_is_no_molecule(recipe, tmp_path, molecules):
    model = zoo.load(run.train(replace(recipe, epochs=1), tmp_path).folder)
    table = write(tmp_path / "new.csv", [{"smiles": "CCO"}, {"smiles": "C(("}, {"smiles": "C"}])
    good, bad = predict.predict(model, [str(table), "CC"])
    assert [row["item"] for row in good] == ["CCO", "C", "CC"]
    assert bad[0][0] == "new.csv:1" and "invalid SMILES 'C(('" in bad[0][1]
    predict.write_csv(good, tmp_path / "out.csv", predict.units(model.card))
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert list(rows[0]) == ["item", "mass [u]"] and float(rows[2]["mass [u]"]) == pytest.approx(good[2]["mass"])
    line = predict.lines(good, predict.units(model.card))[0]
    assert line.startswith("CCO  mass ") and line.endswith(" u")
    good, bad = predict.predict(model, ["nowhere.csv", "CC"])
    assert bad == [("nowhere.csv", "no such file")] and len(good) == 1


@pytest.mark.parametrize("batches, workers", [(2, 0), (5, 0), pytest.param(7, 2, marks=pytest.mark.slow)])
def test_resume_is_bit_exact(recipe, tmp_path, monkeypatch, batches, workers):
    """3 batches an epoch, with dropout and EMA."""
    recipe = replace(recipe, workers=workers, epochs=4, arguments={**SMALL, "dropout": 0.2})
    resumes_exactly(recipe, tmp_path, monkeypatch, batches)


def test_several_targets_with_missing_values(recipe, tmp_path, molecules):
    recipe = replace(recipe, targets=["y", "z"], names=[], units=[], epochs=40, metric="mae")
    model = zoo.load(run.train(recipe, tmp_path).folder)
    assert [target["name"] for target in model.card.targets] == ["y", "z"]
    known = [-(100 + 3 * (1 + i % 12)) for i in range(60) if i % 5 < 3 and not i % 3]
    assert model.card.targets[1]["mean"] == pytest.approx(np.mean(known))
    found = evaluate.evaluate(model, molecules, evaluate.Options("test"))["targets"]
    assert found["y"]["items"] == 12 and found["z"]["items"] == 4 and found["z"]["MAE"] < 25


def test_the_score_that_was_minimised_stands_first_in_the_card(recipe, tmp_path, molecules):
    from zoo import show

    folder = run.train(replace(recipe, metric="mae", epochs=1), tmp_path).folder
    result = evaluate.evaluate(zoo.load(folder), molecules, evaluate.Options("test"))
    evaluate.save_scores(folder, result)
    scores = [row for row in zoo.load(folder).card.scores if row["split"] == "test"]
    assert [row["metric"] for row in scores] == ["MAE", "RMSE"] and scores[0]["unit"] == "u" and scores[0]["items"] == 12
    assert show.score(scores) == f"MAE {result['MAE']:.3f} u (test)"


def test_labels_and_yes_or_no_answers(recipe, tmp_path, molecules):
    recipe = replace(recipe, task="graph_classification", names=[], units=[], epochs=15)
    model = zoo.load(run.train(recipe, tmp_path).folder)
    assert model.card.labels == ["N", "none", "O"] or set(model.card.labels) == {"N", "O", "none"}
    assert evaluate.evaluate(model, molecules, evaluate.Options("test"))["accuracy"] > 0.8
    assert model.predict(["CCCCO"])[0]["label"] == "O"
    many = zoo.load(run.train(replace(recipe, targets=["acid", "base"]), tmp_path).folder)
    assert many.card.head == "tags" and many.card.labels == ["acid", "base"]
    assert many.predict(["CCCCO", "CCN"])[0]["tags"] == ["acid"]
    assert evaluate.evaluate(many, molecules, evaluate.Options("test"))["mAP"] > 0.8


def test_fine_tuning_on_another_target(recipe, tmp_path):
    first = run.train(replace(recipe, epochs=2), tmp_path)
    tuned = replace(recipe, start=str(first.folder), targets=["z"], names=["less"], units=[], arguments={}, epochs=1)
    model = zoo.load(run.train(tuned, tmp_path).folder)
    assert model.card.targets[0]["name"] == "less"
    assert list(model.card.parents) == [zoo.load(first.folder).card.name or str(first.folder)]
    assert model.card.arguments["dim"] == 16


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Two communities of 30 nodes; 4 labelled for training in each. The features say nothing."""
    folder, random = tmp_path_factory.mktemp("network"), np.random.default_rng(0)
    split = ["train"] * 4 + ["val"] * 10 + ["test"] * 16
    write(folder / "nodes.csv", [{"id": f"n{i}", "a": random.standard_normal(), "b": random.standard_normal(),
                                  "label": "left" if i < 30 else "right", "split": split[i % 30]} for i in range(60)])
    edges = {(u, v) for u in range(60) for v in range(u) if random.random() < (0.3 if (u < 30) == (v < 30) else 0.01)}
    write(folder / "edges.csv", [{"source": f"n{u}", "target": f"n{v}"} for u, v in sorted(edges)])
    return folder


@pytest.mark.parametrize("how", [{}, {"neighbours": ["5", "5"], "batch_size": 4}, {"parts": 3, "batch_size": 2}])
def test_nodes_are_labelled(network, tmp_path, how, capsys):
    recipe = Recipe(task="node_classification", model="graph_pico", arguments={**SMALL, "path": "edges"}, data=str(network),
                    val="val", epochs=40, lr=1e-2, precision="fp32", **how)
    result = run.train(recipe, tmp_path)
    assert "60 nodes" in capsys.readouterr().err and result.score > 0.75
    model = zoo.load(result.folder)
    assert evaluate.evaluate(model, network, evaluate.Options("test", skip_bad=True))["items"] == 32
    with pytest.raises(ZooError, match="no split 'dev2'"):
        evaluate.evaluate(model, network, evaluate.Options("dev2"))
    model.card.labels = ["left", "up"]
    with pytest.raises(ZooError, match="labels differ.  only in data: right   only in checkpoint: up"):
        evaluate.evaluate(model, network, evaluate.Options("test"))
    model.card.labels = ["left", "right"]
    good, bad = predict.predict(model, [str(network)])
    assert len(good) == 60 and not bad and good[0]["label"] in ("left", "right")


def test_what_is_wrong_with_a_network_is_said(network, tmp_path):
    recipe = Recipe(task="node_classification", model="graph_pico", arguments=SMALL, data=str(network), val="dev2", epochs=1)
    with pytest.raises(ZooError, match="nodes of the splits train and dev2 are needed .has: test, train, val"):
        run.train(recipe, tmp_path)
    with pytest.raises(UsageError, match="neighbours and parts do not go together"):
        run.train(replace(recipe, val="val", neighbours=["3"], parts=2), tmp_path)


def test_links_asked_for_are_never_shown(network):
    from zoo.data.graphs import open_graphs
    from zoo.data.links import Links
    from zoo.schema import GraphPreprocess

    items = open_graphs(network)
    graph = items.encode(GraphPreprocess.fit(items.sources))[0]
    links = Links.of(graph, seed=0)
    sets = {name: set(map(tuple, part.T.tolist())) for name, part in links.part.items()}
    whole = set(map(tuple, graph.edge_index.T.tolist()))
    assert sum(map(len, sets.values())) == len(whole) // 2 and not sets["train"] & (sets["val"] | sets["test"])
    for name in ("train", "val", "test"):
        shown = nodes.LinkDataset(links, None, 0, name)[(0, 3, 0)]
        seen = set(map(tuple, shown.edge_index.T.tolist()))
        asked = list(map(tuple, shown.edge_label_index.T.tolist()))
        for (u, v), truth in zip(asked, shown.y.tolist()):
            assert ((u, v) in whole) == bool(truth) and (u, v) not in seen and (v, u) not in seen
        assert all((v, u) in seen for u, v in seen) and len(shown.edge_cat) == len(seen)


def test_links_are_predicted(network, tmp_path):
    recipe = Recipe(task="link_prediction", model="graph_pico", arguments={**SMALL, "path": "dense"}, data=str(network),
                    epochs=60, lr=1e-2, precision="fp32")
    result = run.train(recipe, tmp_path)
    model = zoo.load(result.folder)
    assert model.card.head == "links" and result.score > 0.62  # within a community all links are alike: 0.75 is the most
    assert evaluate.evaluate(model, network, evaluate.Options("test"))["AUC"] > 0.55
    with pytest.raises(UsageError, match="answers about links"):
        predict.predict(model, [str(network)])
