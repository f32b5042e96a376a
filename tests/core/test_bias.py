"""The relative-position table: looked up by offset, right gradients on every path."""

import itertools
from importlib import import_module

import pytest
import torch

from zoo.core import ClippedPosition, RelativePosition, attend

attention_file = import_module("zoo.core.attention")  # the package's attribute of this name is the function


def make(window, heads=2):
    torch.manual_seed(0)
    position = RelativePosition(window, heads).double()
    torch.nn.init.normal_(position.table)
    return position


@pytest.mark.parametrize("window, size", [((5,), (3,)), ((4,), (4,)), ((3, 4), (3, 4)), ((4, 3), (2, 1)), ((2, 3, 2), (2, 2, 2))])
def test_every_pair_gets_the_row_of_its_offset(window, size):
    position = make(window)
    rows = position.table.view(*[2 * w - 1 for w in window], -1)
    bias = position(size)
    places = list(itertools.product(*[range(n) for n in size]))
    assert bias.shape == (2, len(places), len(places))
    for (i, a), (j, b) in itertools.product(enumerate(places), repeat=2):
        offset = tuple(x - y + w - 1 for x, y, w in zip(a, b, window))
        assert torch.equal(bias[:, i, j], rows[offset])


def test_gradcheck_of_the_table_on_the_plain_path():
    position = make((2, 3))
    q, k, v = (torch.randn(2, 3, 2, 6, 4, dtype=torch.double, requires_grad=True) for _ in range(3))
    mask = torch.rand(3, 1, 6, 6) < 0.5
    mask |= torch.eye(6, dtype=torch.bool)
    assert attention_file.kernel(q, k, mask, position((2, 3))) == "plain"

    def out(table, q, k, v):
        bias = torch.func.functional_call(position, {"table": table}, ((2, 3),))
        return attend(q, k, v, mask, bias)

    assert torch.autograd.gradcheck(out, (position.table.detach().requires_grad_(), q, k, v))


def test_all_paths_give_the_same_gradients(monkeypatch):
    position = make((3, 3)).float()
    q, k, v = (torch.randn(2, 4, 2, 9, 8, requires_grad=True) for _ in range(3))
    weight = torch.randn(2, 4, 2, 9, 8)
    for mask in (None, (torch.rand(4, 1, 9, 9) < 0.5) | torch.eye(9, dtype=torch.bool)):
        grads = {}
        for path in ("plain", "fused"):
            monkeypatch.setattr(attention_file, "kernel", lambda *_, path=path: path)
            out = attend(q, k, v, mask, position((3, 3)))
            grads[path] = [out, *torch.autograd.grad((out * weight).sum(), [position.table, q, k, v])]
        for a, b in zip(*grads.values()):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n, limit", [(1, 3), (4, 3), (9, 3), (5, 0)])
def test_far_offsets_share_the_last_row(n, limit):
    position = ClippedPosition(limit, 2).double()
    bias, reverse = position((n,)), position.reversed(n)
    for i, j in itertools.product(range(n), repeat=2):
        row = position.table[min(max(i - j, -limit), limit) + limit]
        assert torch.equal(bias[:, i, j], row) and torch.equal(reverse[:, i, n - 1 - j], row)

    def out(table):
        return torch.func.functional_call(position, {"table": table}, ((n,),))

    assert torch.autograd.gradcheck(out, position.table.detach().requires_grad_())
    with pytest.raises(ValueError, match="ClippedPosition: limit=-1; allowed: >= 0"):
        ClippedPosition(-1, 2)


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"size \(4, 3\) does not fit into the window \(3, 3\)"):
        make((3, 3))((4, 3))
    with pytest.raises(ValueError, match=r"size \(3,\) does not fit"):
        make((3, 3))((3,))
