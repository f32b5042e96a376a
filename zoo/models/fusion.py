"""Fusion: text and image ask each other by cross-attention, layer by layer; one match logit from what both found.

Each stream of a layer does self-attention (a setting), cross-attention to the other, feed-forward. Both ask what the other was
before the layer, so everything that the picture brings into layer 0 can be kept and used for any text (ImageSide).
Sources: Lu et al. 2019 (ViLBERT, co-attention), Li et al. 2021 (ALBEF, match score), Li et al. 2022 (BLIP, text asks only).
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core import CrossBlock, PostNormCrossBlock, masked_mean
from zoo.core.attention import blank
from zoo.core.recorder import recorder

HEAD_DIM = 32
CHOICES = {"norm": ("pre", "post"), "readout": ("mean", "token", "first")}
KeysValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Settings:
    """How text and image ask. ValueError names a wrong one.

    heads (None: 32 wide); self_attention in each stream; share_cross: one set of cross-attention weights for both directions;
    directions: who asks, the fused summaries are those of the streams that do; norm "post": streams enter unprojected, blocks
    and head as in BLIP, for imported weights; readout of a stream: "mean" of its real tokens, a learned "token" that leads it,
    or its "first" token ([CLS], text only). With the last two the last layer computes that token only.
    rerank_weight: candidates are ordered by rerank_weight * match logit + scaled cosine (a number of the trained model).
    """

    heads: int | None = None
    self_attention: bool = False
    share_cross: bool = False
    directions: tuple[str, ...] = ("text", "image")
    norm: str = "pre"
    readout: str = "mean"
    rerank_weight: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "directions", tuple(self.directions))  # a card holds lists
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                self._refuse(name, " or ".join(map(repr, allowed)))
        if self.directions not in (("text", "image"), ("text",), ("image",)):
            self._refuse("directions", "('text', 'image'), ('text',) or ('image',)")
        if self.share_cross and len(self.directions) < 2:
            self._refuse("share_cross", "False where only one side asks")
        if self.readout == "first" and self.directions != ("text",):
            self._refuse("readout", "'first' with directions=('text',) only")  # no token of a picture stands for all
        if self.readout == "token" and not self.self_attention:
            self._refuse("readout", "'token' with self_attention only: it asks the rest of its stream through that")
        if not self.rerank_weight >= 0:
            self._refuse("rerank_weight", "a number >= 0")

    def count(self, dim: int) -> int:
        """Heads of blocks of that width. ValueError where it cannot be divided by them."""
        if self.heads is None:
            if dim < 1 or dim % HEAD_DIM:
                raise ValueError(f"TextImage: fusion_dim={dim!r}; allowed: a multiple of {HEAD_DIM}, or give fusion['heads']")
            return dim // HEAD_DIM
        if not isinstance(self.heads, int) or self.heads < 1 or dim % self.heads:
            self._refuse("heads", f"a divisor of fusion_dim={dim}")
        return self.heads

    def _refuse(self, name: str, allowed: str) -> None:
        raise ValueError(f"TextImage: fusion[{name!r}]={getattr(self, name)!r}; allowed: {allowed}")


@dataclass(frozen=True)
class ImageSide:
    """What pictures bring to any text, computed once: tokens (b m dim) as they enter layer 0, `looked` the same after layer 0's
    self-attention, `keys` the keys and values of each layer that sees the pictures unchanged."""

    tokens: Tensor
    looked: Tensor
    keys: list[KeysValues] = field(default_factory=list)

    def pick(self, index) -> "ImageSide":
        """Those pictures."""
        return ImageSide(self.tokens[index], self.looked[index], [(k[index], v[index]) for k, v in self.keys])

    @classmethod
    def cat(cls, sides: "list[ImageSide]") -> "ImageSide":
        """All of their pictures, in order."""
        layers = zip(*(side.keys for side in sides))
        keys = [tuple(torch.cat(parts) for parts in zip(*layer)) for layer in layers]
        return cls(torch.cat([side.tokens for side in sides]), torch.cat([side.looked for side in sides]), keys)

    @property
    def shape(self) -> torch.Size:
        return self.tokens.shape


class Fusion(nn.Module):
    """text (b n text_dim), mask (b n) or None, image (b m image_dim) or its ImageSide -> match logits (b).

    One text against b images, or one image against b texts, is not repeated: each stays one as long as nothing has told its
    copies apart.
    """

    def __init__(self, text_dim: int, image_dim: int, dim: int, depth: int, dropout: float, settings: Settings = Settings()):
        super().__init__()
        self.settings, heads, post = settings, settings.count(dim), settings.norm == "post"
        asks, widths = settings.directions, {"text": text_dim, "image": image_dim}
        for side in asks if post else ():
            if widths[side] != dim:
                raise ValueError(f"TextImage: fusion_dim={dim}; allowed: {widths[side]}, the {side}'s (fusion['norm']='post')")
        self.text_in, self.image_in = (nn.Identity() if post else project(width, dim, dropout) for width in widths.values())
        block = PostNormCrossBlock if post else CrossBlock
        context = {"text": image_dim, "image": text_dim} if post else {"text": dim, "image": dim}
        self.text_asks, self.image_asks = None, None
        for side in asks:
            blocks = [block(dim, heads, context[side], self_attention=settings.self_attention) for _ in range(depth)]
            setattr(self, f"{side}_asks", nn.ModuleList(blocks))
            setattr(self, f"{side}_norm", nn.Identity() if post else nn.LayerNorm(dim))
            if settings.readout == "token":
                setattr(self, f"{side}_token", nn.Parameter(0.02 * torch.randn(1, 1, dim)))
        if settings.share_cross:
            for text, image in zip(self.text_asks, self.image_asks):
                image.attn.q, image.attn.kv, image.attn.proj = text.attn.q, text.attn.kv, text.attn.proj
        self.depth, parts = depth, 3 if len(asks) == 2 else 1
        self.head = nn.Linear(dim, 1) if post and parts == 1 else nn.Sequential(
            nn.Linear(parts * dim, dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim, 1))

    def forward(self, text: Tensor, mask: Tensor | None, image: Tensor | ImageSide) -> Tensor:
        side = image if isinstance(image, ImageSide) else self.image_side(image)
        text, mask = self._lead("text", self.text_in(blank(text, mask)), mask)
        image = side.tokens
        for i in range(self.depth):
            text, image = self._layer(i, text, mask, image, side)
            mask = None if mask is None else mask.expand(text.shape[0], -1)
        summaries = []
        if self.text_asks is not None:
            summaries.append(self._read(self.text_norm(text), mask))
        if self.image_asks is not None:
            summaries.append(self._read(self.image_norm(image), None))
        if len(summaries) == 2:
            t, i = torch.broadcast_tensors(*summaries)
            summaries = [t, i, t * i]
        return rearrange(self.head(torch.cat(summaries, -1)), "b 1 -> b")

    def image_side(self, image: Tensor) -> ImageSide:
        """Image tokens (b m image_dim) -> what any text can be matched with again and again."""
        tokens, _ = self._lead("image", self.image_in(image), None)
        looked = self.image_asks[0].look(tokens, None, self._rows(0)) if self.image_asks is not None else tokens
        # where pictures ask too, they know the text from layer 1 on
        alone = () if self.text_asks is None else self.text_asks if self.image_asks is None else self.text_asks[:1]
        return ImageSide(tokens, looked, [asks.keys_values(tokens) for asks in alone])

    def _layer(self, i: int, text: Tensor, mask: Tensor | None, image: Tensor, side: ImageSide) -> tuple[Tensor, Tensor]:
        said, seen, rows = text, image, self._rows(i)
        if self.text_asks is not None:
            asks = self.text_asks[i]
            known = side.keys[i] if i < len(side.keys) else asks.context(seen)
            text = asks.ask(asks.look(said, mask, rows), known)
        if self.image_asks is not None:
            asks = self.image_asks[i]
            looked = side.looked if i == 0 else asks.look(seen, None, rows)
            image = asks.ask(looked, asks.context(said, mask), mask)
        return text, image

    def _rows(self, i: int) -> int | None:
        """How many leading tokens of a stream layer i must give: of the last only the read-out; a recorder wants all."""
        return 1 if i == self.depth - 1 and self.settings.readout != "mean" and recorder() is None else None

    def _lead(self, side: str, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The learned read-out token before the others, where there is one."""
        token = getattr(self, f"{side}_token", None)
        if token is None:
            return x, mask
        x = torch.cat([token.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)
        return x, None if mask is None else F.pad(mask, (1, 0), value=True)

    def _read(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return masked_mean(x, mask) if self.settings.readout == "mean" else x[:, 0]


def project(dim: int, out: int, dropout: float) -> nn.Sequential:
    """(... dim) -> (... out), normed first."""
    return nn.Sequential(nn.LayerNorm(dim), nn.Dropout(dropout), nn.Linear(dim, out))
