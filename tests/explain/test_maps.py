"""Recorded maps over the input's tokens: equal to attention written out over all pairs, rows sum to 1, the same answer."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from einops import rearrange
from small_models import audio, graph, image

import zoo
from zoo.errors import ZooError
from zoo.inference import inputs

PICTURE = np.random.default_rng(0).random((40, 50, 3))
WAVE = (np.random.default_rng(1).normal(size=16000 // 3).astype(np.float32) / 10, 16000)
MOLECULE = "CC(=O)Oc1ccccc1C(=O)[O-]"
CASES = {
    "image": (image, PICTURE), "windows": (audio, WAVE), "band": (lambda: audio(local="band"), WAVE),
    "graph": (graph, MOLECULE), "edges": (lambda: graph(path="edges", virtual_node=True), MOLECULE),
}


def attended(model, name, *inputs):
    """What the layer was called with, (tokens dim), and the layer."""
    layer, seen = model.get_submodule(name), []
    hook = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.inference_mode():
        model(*inputs)
    hook.remove()
    return seen[0], layer


def written_out(layer, x, bias, visible):
    """(h n n): softmax over visible keys of q k / sqrt(d) + bias."""
    q, k, _ = rearrange(layer.qkv(x), "n (three h d) -> three h n d", three=3, h=layer.heads)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


@pytest.mark.parametrize("build, item", CASES.values(), ids=list(CASES))
def test_rows_sum_to_1_and_the_answer_stays(build, item):
    model = build()
    maps = zoo.explain(model, item)
    with torch.no_grad():
        plain = model(*inputs(model, [model.preprocess(item)]))
    assert torch.allclose(maps.logits, plain, atol=1e-5) and len(maps) > 1
    for shown in maps.values():
        n = np.prod(shown.axes)
        assert shown.weights.shape == (shown.heads, n, n)
        np.testing.assert_allclose(shown.weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(shown.weight(), shown.weights.mean(0), atol=1e-6)
        np.testing.assert_allclose(shown.weight(slice(1, 2)), shown.weights[1], atol=1e-6)
        assert shown.received().shape == shown.axes and shown.received().sum() == pytest.approx(1, abs=1e-5)
        query, key, weight = shown.listed()
        full = np.zeros((n, n))
        full[query, key] = weight
        np.testing.assert_allclose(full, shown.weight(), atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("block, shift", [(0, 0), (1, 2)])
def test_windows_of_a_picture_lie_where_they_were(block, shift):
    model = image()
    maps = zoo.explain(model, PICTURE)
    shown = maps[f"stages.0.blocks.{block}.attn"]
    assert shown.axes == (11, 9) and shown.step == 2 and maps["stages.1.blocks.0.attn"].step == 4
    x, layer = attended(model, f"stages.0.blocks.{block}.attn", model.preprocess(PICTURE)[None])
    place = torch.cartesian_prod(torch.arange(11), torch.arange(9))
    cell = (place + 4 - shift) // 4
    offset = place[:, None] - place[None]
    visible = (cell[:, None] == cell[None]).all(-1)
    table = layer.position.table.view(7, 7, -1)
    bias = table[tuple((offset.clamp(-3, 3) + 3).unbind(-1))].movedim(-1, 0)
    expected = written_out(layer, x[0].flatten(0, 1), bias, visible)
    np.testing.assert_allclose(shown.weights, expected, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("local", ["windows", "band"])
def test_local_attention_of_a_sound_lies_where_it_was(local):
    model = audio(local=local)
    maps = zoo.explain(model, WAVE)
    name = "stages.0.blocks.1.attn"
    shown, whole = maps[name], maps["stages.1.blocks.0.attn"]
    assert shown.step == pytest.approx(0.02) and whole.step == pytest.approx(0.04) == model.frame_seconds
    x, layer = attended(model, name, model.preprocess(WAVE)[None])
    time = torch.arange(shown.axes[0])
    offset, cell = time[:, None] - time[None], (time + 8 - 4) // 8
    visible = offset.abs() <= 4 if local == "band" else cell[:, None] == cell[None]
    reach = (len(layer.position.table) - 1) // 2
    bias = layer.position.table[offset.clamp(-reach, reach) + reach].movedim(-1, 0)
    np.testing.assert_allclose(shown.weights, written_out(layer, x[0], bias, visible), atol=1e-5)
    assert (whole.weights > 0).all()


def test_atoms_written_in_another_order_take_their_weights_along():
    from rdkit import Chem

    mol = Chem.MolFromSmiles(MOLECULE)
    order = np.random.default_rng(0).permutation(mol.GetNumAtoms())
    moved = Chem.RenumberAtoms(mol, order.tolist())
    for model in (graph(), graph(path="edges")):
        one, other = zoo.explain(model, mol), zoo.explain(model, moved)
        for name in one:
            expected = one[name].weights[:, order][:, :, order]
            np.testing.assert_allclose(other[name].weights, expected, atol=1e-5)


def test_along_edges_nobody_else_is_seen():
    model = graph(path="edges")
    shown = zoo.explain(model, MOLECULE)["blocks.1.attn"]
    source, target = model.preprocess(MOLECULE).edge_index.numpy()
    linked = np.eye(shown.axes[0], dtype=bool)
    linked[target, source] = True
    assert shown.pairs is not None and ((shown.weights > 0) == linked).all()


def test_folded_picture_of_a_sound_becomes_time():
    from zoo.card import Card
    from zoo.inference import attach
    from zoo.models.htsat import HTSAT

    torch.manual_seed(0)
    model = HTSAT(2, dims=(24,) * 4, depths=(1,) * 4)
    attach(model, Card("audio_htsat", "audio", labels=["a", "b"], preprocess={"rate": 48000})).eval()
    wave = np.random.default_rng(0).normal(size=480000 + 9600).astype(np.float32) / 10  # two pieces of 10 s
    shown = zoo.explain(model, (wave, 48000))["image.stages.3.blocks.0.attn"]
    assert shown.axes == (64,) and shown.step == 10 / 32 and shown.recorded.shape == (2, 1, 1, 64, 64)
    expected = np.zeros((64, 64))
    for piece in range(2):
        for row in range(64):  # row = ((k bin) t): 4 strips of 2 bins, 8 frames wide
            for column in range(64):
                i, j = ((at // 16) * 8 + at % 8 for at in (row, column))
                expected[32 * piece + i, 32 * piece + j] += shown.recorded[piece, 0, 0, row, column] / 2
    np.testing.assert_allclose(shown.weights[0], expected, atol=1e-5)


def test_models_without_such_maps():
    with pytest.raises(ZooError, match="Linear is not a model from zoo.load"):
        zoo.explain(torch.nn.Linear(1, 1), PICTURE)
    with pytest.raises(ZooError, match="give a text too: explain"):
        zoo.explain(SimpleNamespace(card=SimpleNamespace(modality="text_image")), PICTURE)
