"""How large the scores are: a learned temperature, and the start of the query and key projections."""

import torch
from einops import rearrange
from torch import Tensor, nn


class Temperature(nn.Module):
    """q / tau_h, so that softmax((q k^T) / (tau_h sqrt(d)) + bias): one tau per head, exp of what is learned, 1 at the start."""

    def __init__(self, heads: int):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(heads))

    def forward(self, q: Tensor) -> Tensor:
        """q (... h n d)."""
        return q * rearrange((-self.log).exp(), "h -> h 1 1").to(q.dtype)


@torch.no_grad()
def xavier_(linear: nn.Linear, rows: slice, gain: float) -> None:
    """The projection in these rows of `linear`, by itself: uniform with variance 2 gain^2 / (inputs + outputs); its bias 0.

    Where queries and keys start so from normed tokens, scores have variance about gain^4, and the entropy of the weights over
    n keys is about log n - gain^4 / 2. Source: Glorot & Bengio 2010, eq. 16; fairseq's multi-head attention has gain 2^-0.5.
    """
    nn.init.xavier_uniform_(linear.weight[rows], gain)
    nn.init.zeros_(linear.bias[rows])
