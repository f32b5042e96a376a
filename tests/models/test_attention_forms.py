"""Every form of attention in the small model of every modality that has it: one answer alone, batched, padded, saved, loaded."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import zoo
from zoo.core import Recorder
from zoo.core.gated import penalties
from zoo.models.audio import Audio
from zoo.models.graph import Graph
from zoo.models.image import Image
from zoo.models.text import Text

POSITIONS = ["none", "table", {"form": "table", "limit": 2}, "shaw", {"form": "shaw", "limit": 3, "values": True}, "sinusoidal",
             {"form": "learned", "size": 64}]
GATED, LINEAR = {"form": "gated", "start": 0.3, "sparsity": 0.01}, {"method": "linear", "position": "sinusoidal"}
EVERYWHERE = [{}, *({"position": position} for position in POSITIONS), {"method": {"form": "chunked", "size": 7}},
              {"method": GATED}, {"temperature": "learned"}, {"gain": 0.7}, LINEAR]
LINES = ["all", {"form": "sliding", "radius": 2}, {"form": "dilated", "step": 3, "radius": 1}, "causal",
         {"form": "distance", "behind": [2, None], "ahead": 1}]
FORMS = {
    "image": [*EVERYWHERE, *({"pattern": p} for p in ("all", "sliding", "axial", {"form": "windows", "size": 3})),
              {"pattern": "axial", "position": "shaw", "method": GATED}, {"pattern": "sliding", **LINEAR}],
    "audio": [*EVERYWHERE, *({"pattern": p} for p in (*LINES, {"form": "windows", "size": 5})), {"pattern": "causal", **LINEAR},
              {"pattern": "dilated", "position": "shaw", "method": GATED, "temperature": "learned", "gain": 0.5}],
    "text": [*EVERYWHERE, *({"pattern": p, "position": "table"} for p in LINES), {"pattern": "causal", **LINEAR}],
    "graph": [{}, {"method": "softmax"}, {"method": GATED}, {"temperature": "learned"}, {"gain": 0.7}, {"method": "linear"},
              {"method": "linear", "temperature": "learned"}],
}
CASES = [(modality, form) for modality, forms in FORMS.items() for form in forms]
SMALL = {
    "image": ("image_pico", {"dims": [16, 32], "depths": [2, 1], "head_dim": 8, "window": 4}),
    "audio": ("audio_pico", {"dims": [16, 32], "depths": [2, 1], "windows": [8, None], "head_dim": 8, "mels": 16}),
    "text": ("text_bert", {"vocab_size": 99, "max_length": 64, "dim": 16, "depth": 2, "heads": 4, "hidden": 32}),
    "graph": ("graph_pico", {"dim": 16, "depth": 2, "pair_dim": 4}),
}


def create(modality, form, **arguments):
    name, small = SMALL[modality]
    if form.get("method") == "linear" and modality == "graph":
        arguments = {"bias": "none", **arguments}
    torch.manual_seed(0)
    model = zoo.create_model(name, num_classes=3, attention=form or None, **{**small, **arguments})
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.3, 0.2)
    return model.eval()


def ring(n: int) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(n)
    step = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    atoms, bonds = (torch.randint(1, 4, (n, 1), generator=generator) for _ in range(2))
    return SimpleNamespace(x_cat=atoms, x_float=torch.zeros(n, 0), edge_index=torch.cat([step, step.flip(0)], 1),
                           edge_cat=bonds.repeat(2, 1), edge_float=torch.zeros(2 * n, 0))


def batch(model) -> tuple:
    """Three items of different lengths where the modality has lengths."""
    generator = torch.Generator().manual_seed(1)
    match model.card.modality:
        case "graph":
            return (model.collate([ring(n) for n in (4, 9, 6)]),)
        case "audio":
            wave = torch.randn(3, 4000, generator=generator) * 0.3
            wave[1, 1500:], wave[2, 3000:] = torch.nan, torch.inf
            return wave, torch.tensor([4000, 1500, 3000])
        case "text":
            mask = torch.ones(3, 11, dtype=torch.bool)
            mask[1, 5:], mask[2, :3] = False, False
            return torch.randint(0, 99, (3, 11), generator=generator), mask
    return (torch.randn(3, 3, 22, 15, generator=generator),)


def alone(model, tensors, i) -> tuple:
    match model.card.modality:
        case "graph":
            return (model.collate([ring((4, 9, 6)[i])]),)
        case "audio":
            return (tensors[0][i : i + 1, : tensors[1][i]],)
        case "text":
            return (tensors[0][i : i + 1, tensors[1][i]],)
    return (tensors[0][i : i + 1],)


@pytest.mark.parametrize("modality, form", CASES, ids=str)
def test_gradients_alone_and_batched_saved_and_loaded(modality, form, tmp_path):
    model = create(modality, form)
    tensors = batch(model)
    out = model(*tensors)
    assert out.shape == (3, 3) and out.isfinite().all()
    for i in range(3):
        torch.testing.assert_close(model(*alone(model, tensors, i)), out[i : i + 1], rtol=1e-5, atol=1e-5)
    again = zoo.load(zoo.save(model, tmp_path / "m.safetensors"))
    assert again.card.arguments.get("attention") == (form or None) and torch.equal(again(*tensors), out)
    assert set(model.no_weight_decay()) <= {name for name, _ in model.named_parameters()}
    model.train()
    loss, cost = model(*tensors).square().sum(), penalties(model)
    assert (cost is not None) == (form.get("method") == GATED)
    (loss if cost is None else loss + cost).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@torch.no_grad()
@pytest.mark.parametrize("path", ["dense", "edges"])
@pytest.mark.parametrize("form", FORMS["graph"], ids=str)
def test_graphs_along_edges_and_with_virtual_nodes(form, path):
    model = create("graph", form, path=path, virtual_node=True)
    whole = model(*batch(model))
    for i in range(3):
        torch.testing.assert_close(model(*alone(model, None, i)), whole[i : i + 1], rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("form", [{"method": GATED}, {"method": "linear"}, {"temperature": "learned"}], ids=str)
def test_edges_of_a_complete_graph_are_all_pairs(form):
    n = 6
    index = torch.cartesian_prod(torch.arange(n), torch.arange(n)).T
    index = index[:, index[0] != index[1]]
    graph = SimpleNamespace(x_cat=torch.arange(n)[:, None] % 4, x_float=torch.zeros(n, 0), edge_index=index,
                            edge_cat=torch.ones(index.shape[1], 1, dtype=torch.long), edge_float=torch.zeros(index.shape[1], 0))
    models = [create("graph", form, bias="none", path=path) for path in ("dense", "edges")]
    for model in models:
        if model.blocks[0].attn.temperature is not None:
            nn.init.normal_(model.blocks[0].attn.temperature.log, generator=torch.Generator().manual_seed(0))
    records = []
    for model in models:
        with Recorder(model) as record:
            out = model(model.collate([graph]))
        records.append((out, record.closed, record.maps["blocks.0.attn"]))
    torch.testing.assert_close(records[0][0], records[1][0], rtol=1e-5, atol=1e-6)
    assert records[0][1] == pytest.approx(records[1][1])
    torch.testing.assert_close(records[0][2][0], records[1][2].T.reshape(-1, n, n), rtol=1e-5, atol=1e-6)  # sorted by query, key
    torch.testing.assert_close(models[0](models[0].collate([graph])), records[0][0], rtol=1e-5, atol=1e-6)


def shuffled(model, order) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of 36 tokens in order and shuffled, of models without any other sense of order."""
    x = torch.randn(1, 36, 12, generator=torch.Generator().manual_seed(2))
    if isinstance(model, Text):
        ids = torch.randint(0, 99, (1, 36), generator=torch.Generator().manual_seed(2))
        return model(ids), model(ids[:, order])
    if isinstance(model, Audio):
        model.frontend = Frames()
        x = x.repeat(1, 1, 2)
        return tuple(model(t.view(1, 72, 12)) for t in (x, x[:, order]))
    patches = [t.view(1, 6, 6, 3, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 3, 12, 12) for t in (x, x[:, order])]
    return tuple(model(t) for t in patches)


class Frames(nn.Module):
    """Gives out frames as they come."""

    def forward(self, mel, lengths):
        return mel, None


PLAIN = {
    Image: {"dims": (16,), "depths": (2,), "head_dim": 8, "patch": 2, "stem": "patch"},
    Audio: {"dims": (16,), "depths": (2,), "windows": (None,), "head_dim": 8, "mels": 12, "stem": "patch", "kernel": 0},
    Text: {"vocab_size": 99, "max_length": 64, "dim": 16, "depth": 2, "heads": 2, "hidden": 32},
}


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS, ids=str)
@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_order_counts_where_a_position_is_set(kind, position):
    torch.manual_seed(0)
    model = kind(3, **PLAIN[kind], attention={"pattern": "all", "position": position}).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.3)
    one, other = shuffled(model, torch.randperm(36, generator=torch.Generator().manual_seed(0)))
    moved = (one - other).abs().max() > 1e-4 * one.abs().max()
    assert moved == (position != "none")


@torch.no_grad()
@pytest.mark.parametrize("bias", ["none", "walks", "adjacency", "distance"])
def test_edges_count_where_a_graph_has_a_bias(bias):
    torch.manual_seed(0)
    model = Graph(3, node_categories=(9,), edge_categories=(9,), depth=2, dim=16, bias=bias, local="none").eval()
    graph, other = ring(7), ring(7)
    keep = ~((other.edge_index == 0).any(0) & (other.edge_index == 1).any(0))  # one edge less
    other.edge_index, other.edge_cat, other.edge_float = other.edge_index[:, keep], other.edge_cat[keep], other.edge_float[keep]
    one, two = (model(model.collate([g])) for g in (graph, other))
    assert (float((one - two).abs().max()) > 1e-5) == (bias != "none")


@torch.no_grad()
@pytest.mark.parametrize("kind", [*PLAIN, Graph], ids=lambda kind: kind.__name__)
def test_the_xavier_start_outlives_the_models_own(kind):
    """Entropy of the weights of the first block over that of uniform ones."""
    found = {}
    for gain in (2**-0.5, 3.0):
        torch.manual_seed(0)
        if kind is Graph:
            model = Graph(3, node_categories=(9,), edge_categories=(9,), depth=1, bias="none", local="none", attention={"gain": gain})
        else:
            model = kind(3, **PLAIN[kind], attention={"pattern": "all", "position": "none", "gain": gain})
        with Recorder(model.eval()) as record:
            model(model.collate([ring(36)])) if kind is Graph else shuffled(model, torch.arange(36))
        weights = next(iter(record.maps.values()))
        found[gain] = float(torch.special.entr(weights).sum(-1).mean() / math.log(weights.shape[-1]))
    assert found[2**-0.5] > 0.95 and found[3.0] < 0.8, found


@pytest.mark.parametrize("kind", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("modality, form", CASES, ids=str)
def test_half_precision_is_near(modality, form, kind):
    model = create(modality, form)
    tensors = batch(model)
    with torch.no_grad():
        exact = model(*tensors)
        with torch.autocast("cpu", kind):
            half = model(*tensors)
    assert half.isfinite().all()
    torch.testing.assert_close(half.float(), exact, rtol=0.03, atol=0.03 * float(exact.abs().max()))
