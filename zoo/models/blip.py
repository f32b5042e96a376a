"""BLIP's image-text matching to the letter (Li et al. 2022): one text encoder, which asks the picture or does not, and a ViT.

The layers of the text are those of the fusion: for the unit vector they run without cross-attention (unimodal encoder), for the
match score with it (image-grounded encoder). Both share self-attention and feed-forward, as the released weights do.
"""

from inspect import signature
from math import log

import torch
from torch import Tensor, nn

from zoo.models.fusion import Fusion, ImageSide, Settings
from zoo.models.text_image import TextImage, _init, _unit
from zoo.models.vit import ViT


class Blip(TextImage):
    """ids, mask (b_text n), x (b_image c height width) -> {"logits": similarity (b_text b_image)}; the methods of TextImage.

    Arguments: image, those of zoo.models.vit.ViT; vocab_size, max_length, dim, depth, heads of the text encoder (its
    feed-forward is 4 dim wide); embed_dim of the shared space; first (id that takes the place of [CLS] in `forward_match`, BLIP's
    [ENC]; None: [CLS] stays, as transformers' BlipForImageTextRetrieval has it). Real tokens come first. ValueError names a
    wrong one. States of a text are its embedded tokens; image tokens are those of the ViT, the leading one included.
    """

    def __init__(
        self,
        image: dict | None = None,
        vocab_size: int = 30524,
        max_length: int = 512,
        dim: int = 192,
        depth: int = 6,
        heads: int = 12,
        embed_dim: int = 256,
        first: int | None = 30523,
    ):
        super(TextImage, self).__init__()  # other parts than TextImage, the same use
        _check(image or {}, dim, heads, first, vocab_size=vocab_size, max_length=max_length, depth=depth, embed_dim=embed_dim)
        self.num_features, self.tower, self.frozen_prefixes, self.first = embed_dim, None, (), first
        self.image = ViT(**(image or {}))
        self.text = Embedding(vocab_size, max_length, dim)
        settings = Settings(heads, True, directions=("text",), norm="post", readout="first")
        self.fusion = Fusion(dim, self.image.num_features, dim, depth, 0.0, settings)
        self.text_proj, self.image_proj = nn.Linear(dim, embed_dim), nn.Linear(self.image.num_features, embed_dim)
        self.logit_scale = nn.Parameter(torch.tensor(log(1 / 0.07)))
        for module in (self.fusion, self.text_proj, self.image_proj):
            module.apply(_init)

    def forward_features(self, ids: Tensor, mask: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Embedded tokens (b_text n dim) and image tokens (b_image m c)."""
        return self.text_states(ids, mask), self.image(x)

    def text_states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(b n) -> embedded tokens (b n dim)."""
        return self.text(ids)

    def project_text(self, states: Tensor, mask: Tensor) -> Tensor:
        """Embedded tokens (b n dim) -> unit vectors (b embed_dim)."""
        return _unit(self.text_proj(self.encode_states(states, mask)[:, 0]))

    def encode_states(self, states: Tensor, mask: Tensor) -> Tensor:
        """Embedded tokens (b n dim) -> what the text encoder makes of them without a picture (b n dim)."""
        for block in self.fusion.text_asks:
            states = block.look(states, mask)
            states = block.norm2(states + block.mlp(states))
        return states

    def encode_image(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (b c height width) -> image tokens (b m c) and unit vectors (b embed_dim)."""
        tokens = self.image(x)
        return tokens, _unit(self.image_proj(tokens[:, 0]))

    def forward_match(self, text_states: Tensor, text_mask: Tensor | None, image_tokens: Tensor | ImageSide) -> Tensor:
        """See TextImage.forward_match; the logit is BLIP's logit of a match less that of none."""
        if self.first is not None:
            lead = self.text(torch.full((1, 1), self.first, device=text_states.device)).to(text_states.dtype)
            text_states = torch.cat([lead.expand(len(text_states), -1, -1), text_states[:, 1:]], 1)
        return super().forward_match(text_states, text_mask, image_tokens)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.image.set_grad_checkpointing(enable)

    def no_weight_decay(self) -> set[str]:
        """Names of the scale, the positions and the embedding tables."""
        return {"logit_scale", "text.token.weight", "text.position.weight"} | {f"image.{n}" for n in self.image.no_weight_decay()}


class Embedding(nn.Module):
    """norm(token[ids] + position[place]): (b n) -> (b n dim). ValueError for a text longer than max_length."""

    def __init__(self, vocab_size: int, max_length: int, dim: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, dim), nn.Embedding(max_length, dim)
        self.norm = nn.LayerNorm(dim, 1e-12)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        n, most = ids.shape[1], self.position.num_embeddings
        if n > most:
            raise ValueError(f"Blip: {n} tokens; allowed: up to max_length={most}")
        return self.norm(self.token(ids) + self.position.weight[:n])


def _check(image: dict, dim: int, heads: int, first: int | None, **at_least_one: int) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"Blip: {name}={value!r}; allowed: {allowed}")

    known = signature(ViT).parameters
    if unknown := sorted(set(image) - set(known)):
        refuse(f"image[{unknown[0]!r}]", image[unknown[0]], ", ".join(known))
    for name, value in {**at_least_one, "dim": dim, "heads": heads}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
    if dim % heads:
        refuse("heads", heads, f"a divisor of dim={dim}")
    if first is not None and not (isinstance(first, int) and 0 <= first < at_least_one["vocab_size"]):
        refuse("first", first, f"None, or an id below vocab_size={at_least_one['vocab_size']}")
