"""Packed tokens: the same states as of the whole batch, whatever the padding, and none of it computed."""

import pytest
import torch

from zoo.core import Recorder
from zoo.core.packed import pack_mask
from zoo.models.text import Text


def build() -> Text:
    torch.manual_seed(0)
    model = Text(vocab_size=101, max_length=40, dim=36, depth=2, heads=3, hidden=50)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def masks() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 31, (60, 1), generator=generator)
    right = torch.arange(30) < lengths
    holes = right & (torch.rand(60, 30, generator=generator) < 0.8)
    mixed = torch.where(torch.arange(60)[:, None] % 2 == 0, right, right.flip(1))
    return {"right": right, "left": right.flip(1), "mixed": mixed, "holes and empty rows": holes,
            "none": torch.ones(60, 30, dtype=torch.bool), "empty": torch.zeros(60, 30, dtype=torch.bool)}


@pytest.mark.parametrize("kind", masks())
def test_states_and_gradients_are_those_of_the_whole_batch(kind):
    model, mask = build(), masks()[kind]
    ids = torch.randint(1, 101, mask.shape)
    found = model.forward_features(ids, mask)
    expected = model._encode(model.embed_tokens(ids, mask), mask)
    assert found.shape == expected.shape and found.isfinite().all()
    assert torch.allclose(found[mask], expected[mask], atol=1e-5)
    if mask.any():
        weights = list(model.blocks.parameters())
        pairs = (torch.autograd.grad(states[mask].pow(3).sum(), weights) for states in (found, expected))
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(*pairs))


def test_no_padding_is_computed_and_a_recorder_sees_the_batch_in_one_piece():
    mask, seen = masks()["right"], []
    model, ids = build(), torch.randint(1, 101, mask.shape)
    model.blocks[1].mlp.register_forward_hook(lambda _module, given, _out: seen.append(tuple(given[0].shape)))
    with torch.no_grad():
        states = model.forward_features(ids, mask)
    assert seen == [(int(mask.sum()), 36)] and not states[~mask].any()
    squares = pack_mask(mask).squares
    assert len(squares) > 1 and sum(square.items for square in squares) == 60
    assert sum(square.items * square.tokens**2 for square in squares) < 0.6 * mask.numel() * mask.shape[1]
    with Recorder(model) as record, torch.no_grad():
        model.forward_features(ids, mask)
    assert record.maps["blocks.1.attn"].shape == (60, 3, 30, 30)


@pytest.mark.parametrize("attention", [{"pattern": "sliding"}, {"position": "table"}, {"method": "linear"}], ids=str)
def test_other_forms_are_the_same_with_padding_anywhere(attention):
    """They see the batch whole."""
    torch.manual_seed(0)
    model = Text(vocab_size=101, max_length=40, dim=36, depth=2, heads=3, hidden=50, attention=attention).eval()
    mask = masks()["right"]
    ids = torch.randint(1, 101, mask.shape)
    found = model.forward_features(ids, mask)
    for i in range(6):
        n = int(mask[i].sum())
        assert torch.allclose(found[i, :n], model.forward_features(ids[i : i + 1, :n])[0], atol=1e-5)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_gives_states(half):
    mask = masks()["holes and empty rows"]
    ids, model = torch.randint(1, 101, mask.shape), build()
    with torch.autocast("cpu", half):
        found = model.forward_features(ids, mask)
    assert (found.float() - model.forward_features(ids, mask)).abs().max() < 0.15
