"""A linear layer and what follows it in one pass of oneDNN, so that the wide result is not read and written once more.

Private operators of torch: tried once on small numbers, and left alone where they are absent or differ. Inference in fp32 on
CPU, where 8 pictures of 32 x 32 gain 16 %; below 2^24 products the operators' own call costs more than the pass it saves, and in
bf16 they gain less than 5 % (Zen 5).
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ENOUGH = 2**24  # products of one layer


def linear_gelu(linear: nn.Module, x: Tensor) -> Tensor:
    """gelu(linear(x)), (... in) -> (... out)."""
    return _gelu(x, linear) if _worth(linear, x) else F.gelu(linear(x))


def linear_add(linear: nn.Module, x: Tensor, other: Tensor) -> Tensor:
    """other + linear(x), x (... in), other (... out)."""
    return _add(x, other, linear) if _worth(linear, x) and other.dtype == x.dtype else other + linear(x)


def _worth(linear: nn.Module, x: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or type(linear) is not nn.Linear:
        return False  # before any size is looked at: an export would keep the answer
    if x.numel() * linear.out_features < ENOUGH or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    plain = linear.bias is not None and not linear._forward_hooks and not linear._forward_pre_hooks
    return plain and x.dtype == linear.weight.dtype == torch.float32 and _works()


def _gelu(x: Tensor, linear: nn.Linear) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, linear.weight, linear.bias, "gelu", [], "none")


def _add(x: Tensor, other: Tensor, linear: nn.Linear) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.binary(x, other, linear.weight, linear.bias, "add")


@cache
def _works() -> bool:
    """Whether this torch has both, and they give what they should."""
    linear = nn.Linear(16, 16).requires_grad_(False)
    x = torch.linspace(-3, 3, 64).view(4, 16)
    try:
        pairs = (_gelu(x, linear), F.gelu(linear(x))), (_add(x, x, linear), x + linear(x))
    except (AttributeError, RuntimeError, TypeError):
        return False
    return all(torch.allclose(ours, right, rtol=1e-5, atol=1e-5) for ours, right in pairs)
