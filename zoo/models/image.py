"""Images: `b c (row p) (col q) -> b row col (c p q)`, shifted windows, table[row offset, col offset].

Swin (Liu et al. 2021) where `stem="patch"` and the sizes are Swin's; the native small models have a convolutional stem
(Xiao et al. 2021, "Early convolutions") and a depthwise convolution as position signal before each attention
(Chu et al. 2021, conditional position encoding), which small data sets need.
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.core import Attention, Block, Forms, Merge, Place, masked_mean, order
from zoo.core.patterns import pad_to_multiple
from zoo.models.heads import Staged, init_linear, layers

FAR = 16  # tokens on an axis: farther offsets share a row of a table of a whole map
OWN = {"pattern": "windows", "position": "table", "method": "softmax", "temperature": "fixed"}
_NO_ORDER = "a picture has no order; by distance both ways: sliding"
REFUSED = {"pattern": {"causal": _NO_ORDER, "distance": _NO_ORDER, "dilated": "gaps over one axis only"}}


class Image(Staged):
    """Hierarchical windowed image model. x (b in_chans height width), any height and width >= 1 -> logits (b classes).

    Arguments: num_classes (0: no classifier), in_chans, patch (pixels per token at the first stage), window (tokens per side),
    dims and depths (one entry a stage), head_dim, stem ("patch" | "conv"), local (depthwise 3x3 before attention),
    drop_path (rate of the deepest block), attention (other forms than shifted windows with a table, see zoo.core.forms).
    ValueError names a wrong one.
    """

    stem_name = "patch_embed"

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        patch: int = 4,
        window: int = 7,
        dims: tuple[int, ...] = (96, 192, 384, 768),
        depths: tuple[int, ...] = (2, 2, 6, 2),
        head_dim: int = 32,
        stem: str = "patch",
        local: bool = False,
        drop_path: float = 0.0,
        attention: dict | None = None,
    ):
        super().__init__()
        _check(num_classes, in_chans, patch, window, dims, depths, head_dim, stem, drop_path)
        self.num_classes, self.num_features, self.patch = num_classes, dims[-1], patch
        self.grad_checkpointing = False
        self.patch_embed = (PatchEmbed if stem == "patch" else ConvStem)(in_chans, dims[0], patch)
        forms = Forms("Image", attention, OWN, REFUSED)
        self.absolute = forms.absolute(dims[0], 2)
        rates = [drop_path * i / max(sum(depths) - 1, 1) for i in range(sum(depths))]
        self.stages = nn.ModuleList()
        for i, (dim, depth) in enumerate(zip(dims, depths)):
            attns = (self._attention(forms, Place(dim, dim // head_dim, 2, window, j, FAR)) for j in range(depth))
            drops = rates[sum(depths[:i]) : sum(depths[: i + 1])]
            self.stages.append(self._stage(dims[i - 1] if i else None, dim, attns, drops, local))
        self.norm = nn.LayerNorm(self.num_features)
        self.apply(init_linear)
        self.reset_classifier(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """(b c height width) -> last map (b rows cols num_features), normed."""
        x = self._tokens(x)
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False) if self._checkpoint() else stage(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map (b rows cols num_features) -> logits (b num_classes), or the pooled vector where `pre_logits`."""
        x = masked_mean(x)
        return x if pre_logits else self.classifier(x)

    def forward_embed(self, x: Tensor) -> Tensor:
        """(b c height width) -> unit vectors (b num_features)."""
        return F.normalize(self.forward_head(self.forward_features(x), pre_logits=True), dim=-1)

    def forward_intermediates(self, x: Tensor, indices: list[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Last normed map and the map after each stage in `indices` (default all), each (b dim rows cols)."""
        wanted = layers("Image", indices, len(self.stages))
        x, maps = self._tokens(x), []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in wanted:
                maps.append(rearrange(x, "b h w c -> b c h w"))
        return self.norm(x), maps

    def _attention(self, forms: Forms, place: Place) -> Attention:
        return forms.attention(place)

    def _stage(self, *arguments) -> "Stage":
        return Stage(*arguments)

    def _tokens(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        return x if self.absolute is None else self.absolute(x)


class Stage(nn.Module):
    """Merge (but for the first), then a block for each attention. (b h w c) -> (b h' w' dim)."""

    block, merging = Block, Merge

    def __init__(self, merge_from: int | None, dim: int, attns: Iterable[Attention], drops: list[float], local: bool):
        super().__init__()
        self.merge = self.merging(merge_from, dim) if merge_from else nn.Identity()
        self.local = nn.ModuleList(Local(dim) for _ in drops) if local else None
        self.blocks = nn.ModuleList(self.block(attn, dim, drop_path=drop) for attn, drop in zip(attns, drops))

    def forward(self, x: Tensor) -> Tensor:
        x = self.merge(x)
        if self.local is None and (ways := order.orders([block.attn for block in self.blocks], x)):
            return order.run(self.blocks, ways, x)
        for j, block in enumerate(self.blocks):
            x = block(self.local[j](x) if self.local else x)
        return x


class Local(nn.Module):
    """x + depthwise 3x3 convolution of x: (b h w dim) -> (b h w dim). Source: Chu et al. 2021, eq. 1."""

    def __init__(self, dim: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + rearrange(self.conv(rearrange(x, "b h w c -> b c h w")), "b c h w -> b h w c")


class PatchEmbed(nn.Module):
    """One linear map per patch, then LayerNorm: (b c height width) -> (b rows cols dim). Ragged edges are padded with 0."""

    def __init__(self, in_chans: int, dim: int, patch: int):
        super().__init__()
        self.patch = patch
        self.proj, self.norm = nn.Conv2d(in_chans, dim, patch, patch), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_to_multiple(rearrange(x, "b c h w -> b h w c"), (self.patch, self.patch))
        x = rearrange(x, "b (row p) (col q) c -> b row col (c p q)", p=self.patch, q=self.patch)
        return self.norm(F.linear(x, self.proj.weight.flatten(1), self.proj.bias))


class ConvStem(nn.Module):
    """3x3 convolutions with batch norm, halving the map until a token is `patch` pixels wide: -> (b rows cols dim)."""

    def __init__(self, in_chans: int, dim: int, patch: int):
        super().__init__()
        strides = [2] * (patch.bit_length() - 1)
        strides = strides if len(strides) > 1 else [1, *strides]  # small patches keep one layer at full resolution
        widths = [in_chans, dim // 2] + [dim] * (len(strides) - 1)
        layers = [_conv(*pair, stride) for pair, stride in zip(pairwise(widths), strides)]
        self.convs = nn.Sequential(*layers, _conv(widths[-1], dim, 1))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x.contiguous(memory_format=torch.channels_last))  # the layout that CPUs and tensor cores prefer
        return self.norm(rearrange(x, "b c h w -> b h w c"))


def _conv(cin: int, cout: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(cin, cout, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), nn.GELU())


def _check(num_classes, in_chans, patch, window, dims, depths, head_dim, stem, drop_path) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"Image: {name}={value!r}; allowed: {allowed}")

    if not isinstance(num_classes, int) or num_classes < 0:
        refuse("num_classes", num_classes, ">= 0 (0: no classifier)")
    for name, value in {"in_chans": in_chans, "patch": patch, "window": window, "head_dim": head_dim}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
    if stem not in ("patch", "conv"):
        refuse("stem", stem, "'patch', 'conv'")
    if stem == "conv" and patch & (patch - 1):
        refuse("patch", patch, "a power of 2 with stem='conv'")
    if len(dims) != len(depths) or not dims:
        refuse("depths", depths, f"one entry per stage, dims={dims}")
    if any(not isinstance(dim, int) or dim < 1 or dim % head_dim for dim in dims):
        refuse("dims", dims, f"multiples of head_dim={head_dim}")
    if any(not isinstance(depth, int) or depth < 1 for depth in depths):
        refuse("depths", depths, "integers >= 1")
    if not 0 <= drop_path < 1:
        refuse("drop_path", drop_path, "0 <= drop_path < 1")
