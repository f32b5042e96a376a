"""Mixup: each item of a batch blended with another one. Source: Zhang et al. 2018."""

import torch
from torch import Tensor


def mixup(inputs: list[Tensor], target: Tensor, alpha: float) -> tuple[list[Tensor], Tensor]:
    """(x, ...), target (b classes) -> the same, item i as share_i x_i + (1 - share_i) x_j, j a permutation; any b >= 1.

    share ~ Beta(alpha, alpha), at least 1/2 (which of the two is i is arbitrary). inputs: (pictures (b c h w)) or
    (waves (b samples), lengths (b)): a mixed sound is as long as the longer of the two. Draws from torch's global generator.
    """
    x, *lengths = inputs
    other = torch.randperm(len(x)).to(x.device)
    share = torch.distributions.Beta(alpha, alpha).sample((len(x),))
    share = torch.maximum(share, 1 - share).to(x)
    if lengths:
        real = torch.arange(x.shape[1], device=x.device) < lengths[0][:, None]
        x = x.masked_fill(~real, 0)
        lengths = [torch.maximum(lengths[0], lengths[0][other])]
    x = x.lerp(x[other], 1 - share.view(-1, *[1] * (x.ndim - 1)))
    return [x, *lengths], target.lerp(target[other], 1 - share[:, None])
