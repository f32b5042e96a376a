"""Tables of relative positions for other windows, and the sizes of a model read off its shapes."""

import pytest
import torch
from einops import rearrange
from swin_peers import torchvision_swin

from zoo.convert import fit
from zoo.convert.rules import translate
from zoo.convert.torchvision_swin import TORCHVISION
from zoo.core import RelativePosition
from zoo.errors import ZooError


def table(height: int, width: int, heads: int = 2) -> torch.Tensor:
    return torch.randn((2 * height - 1) * (2 * width - 1), heads, generator=torch.Generator().manual_seed(0))


def turned(values: torch.Tensor, height: int) -> torch.Tensor:
    """The table of the window with its axes exchanged."""
    return rearrange(values, "(h w) heads -> (w h) heads", h=2 * height - 1)


@pytest.mark.parametrize("target", [(8, 8), (12, 12), (5, 9)])
def test_resize_is_timms(target):
    from timm.layers import resize_rel_pos_bias_table_simple

    grid = rearrange(table(7, 5), "(h w) heads -> heads h w", h=13)
    expected = resize_rel_pos_bias_table_simple(grid, target, (2, 2 * target[0] - 1, 2 * target[1] - 1))
    got = rearrange(fit.resize(table(7, 5), (7, 5), target), "(h w) heads -> heads h w", h=2 * target[0] - 1)
    assert torch.allclose(got, expected.reshape(got.shape))


def test_the_same_window_is_left_alone_to_the_bit():
    state = {"stages.0.blocks.0.attn.position.table": table(7, 7)}
    assert fit.fit_tables(state, fit.windows(state, {}), 7) == []
    assert torch.equal(state["stages.0.blocks.0.attn.position.table"], table(7, 7))


def test_a_resized_table_knows_rows_from_columns_and_left_from_right():
    wide = fit.resize(table(7, 5), (7, 5), (9, 4))
    assert torch.allclose(turned(wide, 9), fit.resize(turned(table(7, 5), 7), (5, 7), (4, 9)), atol=1e-5)
    assert torch.allclose(wide.flip(0), fit.resize(table(7, 5).flip(0), (7, 5), (9, 4)), atol=1e-5)
    assert torch.allclose(fit.resize(torch.full((117, 2), 3.0), (7, 5), (9, 4)), torch.tensor(3.0))


def test_reach_keeps_the_terms_of_a_small_map_and_repeats_the_farthest():
    small, large = RelativePosition((2, 3), 2), RelativePosition((4, 4), 2)
    large.table.data = fit.reach(small.table.data, (2, 3), (4, 4))
    assert torch.equal(large((2, 3)), small((2, 3)))
    column = rearrange(large((4, 1)), "heads n m -> n m heads")
    assert torch.equal(column[0, 3], column[0, 1]) and torch.equal(column[3, 0], column[1, 0])
    assert not torch.equal(column[0, 1], column[1, 0])


@pytest.mark.parametrize("window", [(3, 5), (5, 3), (1, 4), (4, 4)])
def test_windows_are_read_from_the_files_own_index(window):
    raw = torchvision_swin(window).state_dict()
    state, _ = translate(TORCHVISION, raw)
    assert set(fit.windows(state, raw).values()) == {window}


def test_windows_without_an_index():
    key = "stages.0.blocks.0.attn.position.table"
    assert fit.windows({key: table(4, 4)}, {}) == {key: (4, 4)}
    assert fit.windows({key: table(3, 5)}, {}, (3, 5)) == {key: (3, 5)}
    for given in (None, (4, 4)):
        with pytest.raises(ZooError, match=f"{key} has 45 rows, of no square window; say which: --source-window HEIGHTxWIDTH"):
            fit.windows({key: table(3, 5)}, {}, given)


def test_a_rectangular_window_becomes_a_square_one():
    raw = torchvision_swin((3, 5)).state_dict()
    state, _ = translate(TORCHVISION, raw)
    before = state["stages.1.blocks.1.attn.position.table"]
    assert fit.fit_tables(state, fit.windows(state, raw), 5) == ["4 tables of windows 3x5 -> 5x5 (bicubic)"]
    assert torch.equal(state["stages.1.blocks.1.attn.position.table"], fit.resize(before, (3, 5), (5, 5)))


def test_what_is_missing_is_named():
    raw = torchvision_swin().state_dict()
    state, _ = translate(TORCHVISION, raw)
    assert fit.sizes(state) == {"in_chans": 3, "patch": 4, "dims": [32, 64], "depths": [2, 2], "head_dim": 32}
    del state["stages.1.blocks.0.norm1.weight"]
    with pytest.raises(ZooError, match="nothing becomes stages.1.blocks.0.norm1.weight"):
        fit.sizes(state)
    with pytest.raises(ZooError, match="no table of relative positions"):
        fit.sizes({})
