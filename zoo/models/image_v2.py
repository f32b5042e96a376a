"""Swin v2 (Liu et al. 2022): the image model with cosine attention, a continuous position, and LayerNorm behind each branch."""

from einops import rearrange
from torch import Tensor, nn

from zoo.core import Attention, Block, Forms, Merge, Place
from zoo.core.attention import blank
from zoo.core.continuous import ContinuousPosition, Cosine, KeylessBias
from zoo.core.forms import windows
from zoo.core.patterns import pad_to_multiple
from zoo.models.image import Image, Stage


class ImageV2(Image):
    """Hierarchical windowed image model. x (b in_chans height width), any height and width >= 1 -> logits (b classes).

    Arguments: as of Image; trained (one entry a stage: tokens per side of the window that its position has seen; None: `window`).
    `window` may be another: the position is a function of the offset. ValueError names a wrong one.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        patch: int = 4,
        window: int = 8,
        dims: tuple[int, ...] = (96, 192, 384, 768),
        depths: tuple[int, ...] = (2, 2, 6, 2),
        head_dim: int = 32,
        drop_path: float = 0.0,
        trained: tuple[int, ...] | None = None,
    ):
        if trained is not None and (len(trained) != len(dims) or any(not isinstance(n, int) or n < 1 for n in trained)):
            raise ValueError(f"ImageV2: trained={trained!r}; allowed: integers >= 1, one entry per stage, dims={dims}")
        super().__init__(num_classes, in_chans, patch, window, dims, depths, head_dim, drop_path=drop_path)
        for stage, side in zip(self.stages, trained or ()):
            for block in stage.blocks:
                block.attn.position.trained = side, side

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters of position and temperature."""
        return {name for name, _ in self.named_parameters() if ".position." in name or name.endswith("log_scale")}

    def _attention(self, _forms: Forms, place: Place) -> Attention:
        position = ContinuousPosition((place.window,) * place.axes, place.heads)
        attn = Attention(place.dim, place.heads, pattern=windows(place), position=position, method=Cosine(place.heads))
        attn.qkv = KeylessBias(place.dim)
        return attn

    def _stage(self, *arguments) -> Stage:
        return StageV2(*arguments)


class NormedMerge(Merge):
    """As Merge, but normed behind the projection: norm(reduction(concatenated))."""

    def __init__(self, dim: int, out: int):
        super().__init__(dim, out)
        self.norm = nn.LayerNorm(out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = pad_to_multiple(blank(x, mask), (2, 2))
        return self.norm(self.reduction(rearrange(x, "b (h p) (w q) c -> b h w (q p c)", p=2, q=2)))


class ResPostNormBlock(Block):
    """x = x + norm1(attn(x)); x = x + norm2(mlp(x)): what a branch adds is never large. Norms start at 0. Sec. 3.2."""

    def __init__(self, attn: Attention, dim: int, drop_path: float = 0.0):
        super().__init__(attn, dim, drop_path=drop_path)
        for norm in (self.norm1, self.norm2):
            nn.init.zeros_(norm.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = blank(x, mask)
        x = x + self.drop_path(self.norm1(self.attn(x, mask=mask)))
        return x + self.drop_path(self.norm2(self.mlp(x)))


class StageV2(Stage):
    block, merging = ResPostNormBlock, NormedMerge
