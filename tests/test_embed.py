"""`zoo embed`: the same vectors as the model gives, in a file that is whole or not there, bad items listed."""

import json
import wave

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import zoo
from zoo import embed, features
from zoo.cli import main
from zoo.errors import UsageError

SMALL = dict(dims=(16, 32), depths=(1, 1), head_dim=8, window=4)
TINY_TEXT = dict(dim=32, depth=1, heads=4, hidden=64)


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    return {
        "image": zoo.create_model("image_pico", num_classes=2, **SMALL),
        "audio": zoo.create_model("audio_pico", num_classes=2, dims=(16, 32), depths=(1, 1), head_dim=8, windows=(4, None)),
        "graph": zoo.create_model("graph_pico", dim=16, depth=2, heads=2, walks=4,
                                  **zoo.inference.preprocessing("graph")({}).arguments()),
        "text": zoo.create_model("text_bert", **TINY_TEXT),
        "pairs": zoo.create_model("text_image_pico", image={**SMALL, "patch": 4}, fusion_dim=32),
    }


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(5):
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def read(file):
    table = pq.read_table(file)
    assert str(table.schema.field("vector").type).startswith("fixed_size_list<") and "float" in str(table.schema)
    return table["item"].to_pylist(), np.array(table["vector"].to_pylist(), np.float32)


def test_pictures_in_batches_are_what_embed_gives(models, photos, tmp_path):
    (photos / "3.png").write_bytes(b"no picture")
    result = embed.embed(models["image"], [str(photos), str(photos / "nope.png")], tmp_path / "v.parquet",
                         embed.Asked(batch_size=2))
    names, vectors = read(tmp_path / "v.parquet")
    assert names == [str(photos / f"{i}.png") for i in (0, 1, 2, 4)] and (result.items, result.dim) == (4, 32)
    assert np.allclose(vectors, models["image"].embed(names).numpy(), atol=1e-6)
    assert [item for item, _ in result.bad] == [str(photos / "3.png"), str(photos / "nope.png")]
    assert result.bad[0][1].startswith("not a picture") and result.bad[1][1] == "no such file or folder"
    facts = json.loads(pq.read_schema(tmp_path / "v.parquet").metadata[b"zoo"])
    assert facts["model"] == "image_pico" and facts["layer"] is None


def test_sounds_of_any_length_keep_their_order(models, tmp_path):
    rng = np.random.default_rng(0)
    for i, samples in enumerate((9000, 2000, 16000, 700)):
        with wave.open(str(tmp_path / f"{i}.wav"), "wb") as sound:
            sound.setparams((1, 2, 16000, samples, "NONE", ""))
            sound.writeframes(rng.integers(-9000, 9000, samples, dtype=np.int16).tobytes())
    embed.embed(models["audio"], [str(tmp_path)], tmp_path / "v.parquet")
    names, vectors = read(tmp_path / "v.parquet")
    alone = torch.cat([models["audio"].embed([name]) for name in names])
    assert len(names) == 4 and np.allclose(vectors, alone.numpy(), atol=1e-5)


def test_molecules_and_their_table(models, tmp_path):
    (tmp_path / "m.csv").write_text("smiles\nCCO\nc1ccccc1\n")
    result = embed.embed(models["graph"], ["CCN", str(tmp_path / "m.csv"), "C1CC", "gone.csv"], tmp_path / "v.parquet")
    names, vectors = read(tmp_path / "v.parquet")
    assert names == ["CCN", "CCO", "c1ccccc1"] and {item for item, _ in result.bad} == {"C1CC", "gone.csv"}
    assert np.allclose(vectors, models["graph"].embed(names).numpy(), atol=1e-5)


def test_nodes_of_a_network_are_rows(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "nodes.csv").write_text("id,colour\na,red\nb,blue\nc,red\n")
    (tmp_path / "net" / "edges.csv").write_text("source,target\na,b\nb,c\n")
    steps = zoo.inference.preprocessing("graph")({"source": "data", "edge_categories": [], "node_categories": [
        {"name": "colour", "values": ["blue", "red"], "column": 0}]})
    model = zoo.create_model("graph_pico", level="node", num_classes=2, dim=16, depth=1, heads=2, **steps.arguments())
    zoo.inference.set_preprocess(model, steps.to_dict())
    result = embed.embed(model, [str(tmp_path / "net")], tmp_path / "v.parquet")
    names, vectors = read(tmp_path / "v.parquet")
    assert names == ["net:0", "net:1", "net:2"] and not result.bad and vectors.shape == (3, 16)
    assert np.allclose(vectors[0], vectors[2], atol=1e-6)  # both red, both ends of the path


def test_texts_lines_and_columns(models, tmp_path):
    (tmp_path / "t.txt").write_text("a dog\n\nein Hund\n", encoding="utf-8")
    (tmp_path / "t.csv").write_text("title,n\nred flower,1\n,2\nblue,3\n")
    for model, asked in ((models["text"], embed.Asked(column="title")), (models["pairs"], embed.Asked(True, "title"))):
        items = ["hello world", str(tmp_path / "t.txt"), str(tmp_path / "t.csv")]
        result = embed.embed(model, items, tmp_path / "v.parquet", asked)
        names, vectors = read(tmp_path / "v.parquet")
        assert names == ["hello world", "a dog", "ein Hund", "red flower", "blue"] and not result.bad
        expected = model.embed_text(names) if model is models["pairs"] else model.embed(names)
        assert np.allclose(vectors, expected.numpy(), atol=1e-5)


def test_pictures_of_a_text_image_model(models, photos, tmp_path):
    embed.embed(models["pairs"], [str(photos)], tmp_path / "v.parquet")
    names, vectors = read(tmp_path / "v.parquet")
    assert np.allclose(vectors, models["pairs"].embed_image(names).numpy(), atol=1e-6)


@torch.no_grad()
def test_a_layer_is_the_mean_over_its_real_tokens(models):
    x = torch.randn(2, 3, 20, 28)
    _, maps = models["image"].eval().forward_intermediates(x)
    first = torch.nn.functional.normalize(maps[0].flatten(2).mean(-1), dim=-1)
    assert torch.allclose(features.vectors(models["image"], (x,), 0), first, atol=1e-6)
    assert torch.equal(features.vectors(models["image"], (x,), -1), features.vectors(models["image"], (x,), 1))
    wave, lengths = torch.randn(2, 6000) * 0.1, torch.tensor([6000, 2500])
    both = features.vectors(models["audio"].eval(), (wave, lengths), 0)
    alone = features.vectors(models["audio"], (wave[1:, :2500], lengths[1:]), 0)
    assert both.shape == (2, 16) and torch.allclose(both[1:], alone, atol=1e-5)
    ids, mask = models["text"].preprocess("a word"), torch.tensor([[True] * 4 + [False] * 3])
    padded = torch.cat([ids, torch.zeros(3, dtype=torch.long)])[None]
    alone = features.vectors(models["text"].eval(), (ids[None], mask[:, :4]), 0)
    assert torch.allclose(features.vectors(models["text"], (padded, mask), 0), alone, atol=1e-5)


@torch.no_grad()
def test_layers_of_graphs(models):
    model = models["graph"].eval()
    graphs = [model.preprocess(smiles) for smiles in ("CCO", "c1ccccc1N")]
    batch = model.collate(graphs)
    last, states = model.forward_intermediates(batch)
    assert torch.equal(last, model.forward_features(batch)) and [part.shape for part in states] == [(10, 16)] * 2
    assert torch.allclose(last, model.norm(states[-1]), atol=1e-6)
    pooled = torch.nn.functional.normalize(torch.stack([states[0][:3].mean(0), states[0][3:].mean(0)]), dim=-1)
    assert torch.allclose(features.vectors(model, (batch,), 0), pooled, atol=1e-6)


@pytest.mark.parametrize("name, items, asked, why", [
    ("image", ["a"], embed.Asked(text=True), "--text: image_pico, a model of images, reads no texts"),
    ("pairs", ["a"], embed.Asked(column="title"), "give --text with it"),
    ("image", ["0.png"], embed.Asked(layer=7), r"layer 7: Image: indices=\[7\]; allowed: -2 .. 1"),
    ("text", ["a"], embed.Asked(layer=3), r"layer 3: Text: indices=\[3\]; allowed: -1 .. 0"),
    ("graph", ["CC"], embed.Asked(layer=2), r"layer 2: Graph: indices=\[2\]; allowed: -2 .. 1"),
])
def test_wrong_wishes(models, photos, tmp_path, monkeypatch, name, items, asked, why):
    monkeypatch.chdir(photos)
    with pytest.raises(UsageError, match=why):
        embed.embed(models[name], items, tmp_path / "v.parquet", asked)
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]


def test_a_failure_leaves_the_old_file(models, photos, tmp_path, monkeypatch):
    (tmp_path / "v.parquet").write_bytes(b"before")
    real, calls = features.vectors, []

    def stops(*args, **more):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr(embed, "vectors", stops)
    with pytest.raises(KeyboardInterrupt):
        embed.embed(models["image"], [str(photos)], tmp_path / "v.parquet", embed.Asked(batch_size=2))
    assert (tmp_path / "v.parquet").read_bytes() == b"before"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["photos", "v.parquet"]


def test_the_command(models, photos, tmp_path, capsys):
    model, out = str(zoo.save(models["image"], tmp_path / "m.safetensors")), str(tmp_path / "v.parquet")
    assert main(["embed", model, str(photos), "--out", out]) == 0
    assert "items          5" in capsys.readouterr().out
    assert main(["embed", model, "gone.png", "--out", str(tmp_path / "none.parquet"), "--json"]) == 1
    shown, err = capsys.readouterr()
    assert json.loads(shown)["file"] is None and "bad     gone.png: no such file or folder" in err
    assert not (tmp_path / "none.parquet").exists()
    assert main(["embed", model, str(photos), "--out", str(photos / "0.png" / "v.parquet")]) == 1
    assert "could not be written" in capsys.readouterr().err
    assert main(["embed", model, str(photos), "--out", out, "--batch-size", "0"]) == 2
    assert main(["embed", model, "--out", out]) == 2 and "give files" in capsys.readouterr().err
    assert main(["embed", model, "--out", out, str(photos / "1.png"), "--json", str(photos / "2.png")]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == 2
