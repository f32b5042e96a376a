"""Text: sub-word tokens, every real token sees every other, no term added to the score.

BERT (Devlin et al. 2019) to the letter, so that public weights load: post-norm blocks, learned positions
added to the tokens, LayerNorm after the embeddings. Sentence vectors are the mean over the real tokens
(Reimers and Gurevych 2019, Sentence-BERT).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.core import Attention, Forms, Place, PostNormBlock, attend, masked_mean
from zoo.core.packed import Packed, pack_mask
from zoo.core.recorder import recorder
from zoo.models.heads import layers, tables

WINDOW = 32  # tokens around one that a sliding or dilated form sees where nothing else is written
REFUSED = {"pattern": {"axial": "rows and columns are those of a map of two axes",
                       "windows": "their cells would move with padding on the left"}}


class Text(nn.Module):
    """BERT-shaped encoder. ids (b n) long, mask (b n) bool (True: real) -> logits (b num_classes).

    Without classifier (num_classes 0) the pooled vector (b dim) takes the place of the logits. What ids the
    padding holds, and how much of it there is on either side, changes nothing.
    Arguments: vocab_size, max_length (tokens), dim, depth, heads, hidden (width of the feed-forward), eps (of
    every LayerNorm), type_vocab (rows of the segment table; every token is of segment 0), attention (other forms
    than everybody and the learned position at the input, see zoo.core.forms). ValueError names a wrong one, or a
    text longer than max_length.
    """

    def __init__(
        self,
        num_classes: int = 0,
        vocab_size: int = 30522,
        max_length: int = 512,
        dim: int = 384,
        depth: int = 6,
        heads: int = 12,
        hidden: int = 1536,
        eps: float = 1e-12,
        type_vocab: int = 2,
        attention: dict | None = None,
    ):
        super().__init__()
        _check(num_classes, eps, heads, dim=dim, vocab_size=vocab_size, max_length=max_length, depth=depth,
               hidden=hidden, type_vocab=type_vocab)
        self.num_features, self.max_length = dim, max_length
        self.grad_checkpointing = False
        self.token = nn.Embedding(vocab_size, dim)
        own = {"pattern": "all", "position": {"form": "learned", "size": max_length}, "method": "softmax", "temperature": "fixed"}
        forms = Forms("Text", attention, own, REFUSED)
        name, arguments = forms.chosen["position"]
        if name == "learned":
            self.position, self.max_length = nn.Embedding(arguments["size"], dim), min(max_length, arguments["size"])
        else:
            self.position = forms.absolute(dim, 1)
        self.segment = nn.Embedding(type_vocab, dim)
        self.norm = nn.LayerNorm(dim, eps)
        ratio = (hidden + 0.5) / dim  # the block cuts dim * ratio to an integer: keep rounding away from it
        attns = [forms.attention(Place(dim, heads, window=WINDOW, index=i, everybody=None)) for i in range(depth)]
        self.blocks = nn.ModuleList(PostNormBlock(attn, dim, ratio, eps=eps) for attn in attns)
        self.apply(_init)
        self.reset_classifier(num_classes)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.forward_head(self.forward_features(ids, mask), mask)

    def forward_features(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (b n), mask (b n) -> token states (b n dim). Rows of padding are finite and mean nothing."""
        x = self.embed_tokens(ids, mask)
        if mask is None or not self._packs(mask):
            return self._encode(x, mask)
        if mask.all():  # one text, mostly: nothing to take out
            return self._encode(x, None)
        found = self._encode(x[mask], None, pack_mask(mask))
        out = found.new_zeros(x.shape)
        out[mask] = found
        return out

    def _packs(self, mask: Tensor) -> bool:
        """Whether the real tokens are taken out of the padding. A trace may not depend on lengths, a recorder wants the maps in
        one piece, and other forms count the places between, or what they see in one call."""
        if torch.compiler.is_compiling() or recorder() is not None or not mask.any():
            return False
        attns = [block.attn for block in self.blocks]
        return all(attn.pattern is None and attn.position is None and attn.method is attend for attn in attns)

    def _encode(self, x: Tensor, mask: Tensor | None, order: Packed | None = None) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, mask, order, use_reentrant=False) if self._checkpoint() else block(x, mask, order)
        return x

    def forward_head(self, x: Tensor, mask: Tensor | None = None, pre_logits: bool = False) -> Tensor:
        """Token states (b n dim) -> logits (b num_classes), or their mean (b dim) where `pre_logits`."""
        x = masked_mean(x, mask)
        return x if pre_logits else self.classifier(x)

    def forward_embed(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (b n), mask (b n) -> unit sentence vectors (b dim), float32."""
        pooled = self.forward_head(self.forward_features(ids, mask), mask, pre_logits=True)
        return F.normalize(pooled.float(), dim=-1)

    def forward_intermediates(
        self, ids: Tensor, mask: Tensor | None = None, indices: list[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The last token states and those after each block in `indices` (default all), each (b n dim)."""
        wanted = layers("Text", indices, len(self.blocks))
        x, states = self.embed_tokens(ids, mask), []
        for i, block in enumerate(self.blocks):
            x = block(x, mask)
            if i in wanted:
                states.append(x)
        return x, states

    def embed_tokens(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (b n) -> what the first block sees (b n dim)."""
        if ids.shape[1] > self.max_length:
            raise ValueError(f"Text: {ids.shape[1]} tokens; allowed: up to max_length={self.max_length}")
        if mask is None:
            place = torch.arange(ids.shape[1], device=ids.device)
        else:  # real tokens are counted, so that padding may stand on either side and hold any ids
            ids = ids.masked_fill(~mask, 0)
            place = (mask.long().cumsum(1) - 1).clamp(min=0)
        return self.norm(self.token(ids) + self._position(place) + self.segment.weight[0])

    def _position(self, place: Tensor) -> Tensor | float:
        """What is added to the tokens at `place` (... n)."""
        if self.position is None or isinstance(self.position, nn.Embedding):
            return 0.0 if self.position is None else self.position(place)
        blank = self.token.weight.new_zeros(1, place.shape[-1], self.num_features)
        return self.position(blank)[0, place]

    def reset_classifier(self, num_classes: int) -> None:
        """A new, untrained classifier for `num_classes` (0: none)."""
        self.num_classes = num_classes
        self.classifier = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.classifier.apply(_init)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict:
        """timm's description of the depth of every parameter, for layer-wise learning rates."""
        return {"stem": r"^(?:token|position|segment|norm)", "blocks": r"^blocks\.(\d+)"}

    def no_weight_decay(self) -> set[str]:
        """Names of the embedding and position tables."""
        known = {name for name, _ in self.named_parameters()}
        return {"token.weight", "position.weight", "segment.weight"} & known | tables(self)

    def _checkpoint(self) -> bool:
        return self.grad_checkpointing and self.training


def _init(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, Attention):
        module.start()  # apply() meets a module after its parts


def _check(num_classes: int, eps: float, heads: int, **at_least_one: int) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"Text: {name}={value!r}; allowed: {allowed}")

    if not isinstance(num_classes, int) or num_classes < 0:
        refuse("num_classes", num_classes, "an integer >= 0 (0: no classifier)")
    for name, value in {**at_least_one, "heads": heads}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
    if at_least_one["dim"] % heads:
        refuse("heads", heads, f"a divisor of dim={at_least_one['dim']}")
    if not 0 < eps < 1:
        refuse("eps", eps, "0 < eps < 1")
