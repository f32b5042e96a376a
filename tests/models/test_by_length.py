"""Groups of like length: the same states as of the whole batch, whatever the padding, and less of it computed."""

import pytest
import torch

from zoo.core import Recorder
from zoo.models.by_length import by_length
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


def test_little_padding_is_computed_and_a_recorder_sees_the_batch_in_one_piece():
    seen = []

    def run(x, mask):
        seen.append((tuple(x.shape[:2]), mask))
        return x

    mask = masks()["right"]
    by_length(run, torch.zeros(*mask.shape, 4), mask)
    tokens = sum(b * n for (b, n), _ in seen)
    assert len(seen) > 2 and sum(b for (b, _), _ in seen) == 60 and tokens < 1.3 * int(mask.sum()) < 0.7 * mask.numel()
    seen.clear()
    by_length(run, torch.zeros(60, 30, 4), torch.ones(60, 30, dtype=torch.bool))
    assert seen == [((60, 30), None)]  # no mask where nothing is masked
    model, ids = build(), torch.randint(1, 101, mask.shape)
    with Recorder(model) as record, torch.no_grad():
        model.forward_features(ids, mask)
    assert record.maps["blocks.1.attn"].shape == (60, 3, 30, 30)
