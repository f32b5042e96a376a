"""Graphormer of transformers 4.57 and ours: what graphormer_reference.py wrote down with random weights comes out here too."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.func import functional_call

import zoo
from zoo.cli import main
from zoo.convert import graphormer
from zoo.convert.rules import translate
from zoo.core.shortest import ENDLESS, _floyd_warshall, first_paths
from zoo.errors import ZooError

GOLDEN = Path(__file__).with_name("graphormer_golden.safetensors")


@pytest.fixture(scope="module")
def golden():
    return load_file(GOLDEN)


def part(golden: dict, prefix: str) -> dict:
    return {key.removeprefix(prefix): value for key, value in golden.items() if key.startswith(prefix)}


def config(name: str) -> dict:
    with safe_open(GOLDEN, "pt") as file:
        return json.loads(file.metadata()[name])


def folder(golden: dict, name: str, at: Path, **changes) -> Path:
    """The model as Hugging Face keeps it."""
    at.mkdir()
    save_file({key: value.float() for key, value in part(golden, f"{name}.weight.").items()}, at / "model.safetensors")
    (at / "config.json").write_text(json.dumps(config(name) | changes))
    return at


def data(golden: dict, name: str) -> list:
    """Its graphs as torch_geometric keeps them."""
    from torch_geometric.data import Data

    parts = [part(golden, f"{name}.graph.{i}.") for i in range(5)]
    return [Data(**{key: value.long() for key, value in values.items()}) for values in parts]


def close(ours: torch.Tensor, theirs: torch.Tensor, what: str, scale: float = 0.0) -> None:
    assert ours.shape == theirs.shape, what
    error = (ours - theirs).abs().max() / max(theirs.abs().max(), scale)
    assert error < 1e-5, f"{what}: {error:.1e} of the scale"


@pytest.mark.parametrize("name", ["post", "pre"])
def test_features_logits_and_gradients_equal_transformers(name, golden, tmp_path):
    pytest.importorskip("torch_geometric")
    ours = zoo.create_model("graph_graphormer", weights=f"auto:{folder(golden, name, tmp_path / name)}").eval()
    graphs = [ours.preprocess(graph) for graph in data(golden, name)]
    batch = ours.collate(graphs)
    theirs = {key: value.float().requires_grad_() for key, value in part(golden, f"{name}.weight.").items()}
    state, _ = translate(graphormer.HF, theirs)  # the whole of the conversion is differentiable
    graphormer.fit(state, graphormer.settings(config(name)), name == "pre")

    features = functional_call(_Features(ours), {f"model.{key}": value for key, value in state.items()}, (batch,))
    expected = golden[f"{name}.features"]
    virtual = features[len(batch.graph):]
    close(virtual, expected[:, 0], "graph token")
    for i, nodes in enumerate(features[: len(batch.graph)].split(batch.sizes.tolist())):
        close(nodes, expected[i, 1 : len(nodes) + 1], f"nodes of graph {i}")
    logits = functional_call(ours, state, (batch,))
    close(logits, golden[f"{name}.logits"], "logits")
    close(ours(batch), logits, "logits of the converted model")

    (logits * golden[f"{name}.loss"]).sum().backward()
    grads = part(golden, f"{name}.grad.")
    scale = max(grad.abs().max() for grad in grads.values())
    assert len(grads) > 45
    for key, grad in grads.items():
        got = theirs[key].grad
        if key.endswith("encoder.weight") and "edge_dis" not in key:
            got[0] = 0  # nn.Embedding gives the row of padding no gradient
        close(got, grad, key, 1e-3 * scale)  # the bias of the keys has none in exact arithmetic


class _Features(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model.forward_features(batch)


def test_the_command_tells_what_became_of_the_file(golden, tmp_path, capsys):
    source, out = folder(golden, "pre", tmp_path / "hf"), tmp_path / "g.safetensors"
    assert main(["convert", "auto", str(source), "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    weights = part(golden, "pre.weight.")
    assert facts["renamed"].keys() | facts["dropped"].keys() == weights.keys() and facts["left over"] == 0
    assert set(facts["dropped"].values()) == {"made but never applied"}  # the LayerNorm behind all layers
    assert facts["renamed"]["encoder.graph_encoder.graph_attn_bias.spatial_pos_encoder.weight"] == "position.table"
    assert "row for no edge is not 0" in " ".join(facts["changed"])

    model = zoo.load(out)
    assert (model.card.model, model.collate.route, model.position.closed) == ("graph_graphormer", 3, None)
    pytest.importorskip("torch_geometric")
    batch = model.collate([model.preprocess(graph) for graph in data(golden, "pre")])
    with torch.no_grad():
        close(model(batch), golden["pre.logits"], "logits")


def test_a_column_holds_512_values_and_unknown(golden, tmp_path):
    """Id of value v of column f: 512 f + v + 3 there, v + 1 in column f here."""
    model = zoo.create_model("graph_graphormer", weights=f"graphormer:{folder(golden, 'post', tmp_path / 'm')}")
    theirs = part(golden, "post.weight.encoder.graph_encoder.graph_node_feature.")["atom_encoder.weight"].float()
    assert model.card.arguments["node_categories"] == [513, 87] and len(theirs) == 601
    encoded = model.preprocess(loose_nodes([[5, 7], [600, 85]]))
    assert encoded.x_cat.tolist() == [[6, 8], [0, 86]]
    first = model.node_embed(encoded.x_cat, encoded.x_float)
    assert torch.allclose(first[0], theirs[5 + 3] + theirs[512 + 7 + 3]) and torch.allclose(first[1], theirs[600])


def loose_nodes(x: list):
    from torch_geometric.data import Data

    return Data(x=torch.tensor(x), edge_index=torch.zeros(2, 0, dtype=torch.long), edge_attr=torch.zeros(0, 2, dtype=torch.long))


@pytest.mark.parametrize("change, message", [
    ({"edge_type": "single"}, "edge_type is 'single'; allowed: 'multi_hop'"),
    ({"activation_fn": "relu"}, "activation_fn is 'relu'"),
    ({"model_type": "bert"}, "bring the model's config.json"),
])
def test_what_is_no_graphormer_of_ours_is_refused(change, message, golden, tmp_path):
    with pytest.raises(ZooError, match=message):
        zoo.create_model("graph_graphormer", weights=f"auto:{folder(golden, 'post', tmp_path / 'm', **change)}")


def test_nothing_may_be_left_over(golden, tmp_path):
    at = folder(golden, "post", tmp_path / "m")
    state = load_file(at / "model.safetensors") | {"encoder.graph_encoder.layers.0.extra.weight": torch.ones(2)}
    save_file(state, at / "model.safetensors")
    with pytest.raises(ZooError, match="1 of .* keys unknown, first: encoder.graph_encoder.layers.0.extra.weight"):
        zoo.create_model("graph_graphormer", weights=f"auto:{at}")


@pytest.mark.parametrize("argument, value", [("directed", True), ("norm", "both"), ("far", 5), ("far", 510), ("sees", 0),
                                             ("route", 0), ("hidden", 0), ("degrees", 0)])
def test_wrong_arguments_are_named(argument, value):
    with pytest.raises(ValueError, match=f"Graphormer: {argument}={value!r}; allowed: "):
        zoo.create_model("graph_graphormer", **{argument: value})


def test_paths_are_shortest_and_connected():
    networkx = pytest.importorskip("networkx")
    graph = networkx.gnm_random_graph(30, 36, seed=3)
    edges = np.array([end for a, b in graph.edges for end in ((a, b), (b, a))]).T
    hops, _ = _floyd_warshall(edges, 30)
    lengths = dict(networkx.all_pairs_shortest_path_length(graph))
    expected = [[lengths[i].get(j, ENDLESS) for j in range(30)] for i in range(30)]
    assert (hops == expected).all() and (hops == ENDLESS).any()
    found = first_paths(edges, 30, 40, 509)
    paths: dict[int, dict[int, int]] = {}
    for pair, edge, position in found.routes.tolist():
        paths.setdefault(pair, {})[position] = edge
    for pair, path in paths.items():
        walk = [edges[:, path[k]].tolist() for k in range(len(path))]
        i, j = divmod(pair, 30)
        assert len(path) == expected[i][j] and walk[0][0] == i and walk[-1][1] == j
        assert all(a[1] == b[0] for a, b in zip(walk, walk[1:]))
    assert len(paths) == int((0 < hops).sum() - (hops == ENDLESS).sum())


@pytest.mark.slow
def test_the_reference_can_be_made_again(golden, tmp_path):
    """In an environment of its own: this one's packages, but transformers 4.57 before the newer one."""
    if shutil.which("gcc") is None:
        pytest.skip("transformers' Graphormer needs a C compiler")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "v"], check=True)
    python = tmp_path / "v/bin/python"
    packages = ["transformers==4.57.*", "huggingface_hub<1", "tokenizers>=0.22,<=0.23", "cython<3", "setuptools<81", "requests",
                "urllib3", "idna", "certifi", "charset_normalizer"]
    done = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"transformers 4.57 is not to be had here: {done.stderr.strip().splitlines()[-1]}")
    site = next((tmp_path / "v/lib").glob("python*/site-packages"))
    (site / "rest.pth").write_text(str(Path(torch.__file__).parents[1]))
    out = tmp_path / "again.safetensors"
    script = GOLDEN.with_name("graphormer_reference.py")
    done = subprocess.run([python, script, out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    again = load_file(out)
    assert again.keys() == golden.keys()
    for key, value in golden.items():
        if value.numel():
            close(again[key].float(), value.float(), key, 1e-3)
    bench = [python, "-m", "zoo", "bench", "graph", "--quick", "--rounds", "1", "--json"]
    done = subprocess.run(bench, capture_output=True, text=True, cwd=Path(zoo.__file__).parents[1])
    assert done.returncode == 0, done.stderr[-2000:]  # 1: an output is wrong
    cases = [record["case"] for record in json.loads(done.stdout)["results"]]
    assert {"GraphormerMultiheadAttention", "GraphormerGraphEncoderLayer"} <= set(cases)
