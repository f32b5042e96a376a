"""`zoo bench rerank`: a query against 64 candidates by cross-attention, ours against the same model on nn.MultiheadAttention."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from zoo.bench import Settings
from zoo.bench.rounds import Case, Row
from zoo.core import Attention
from zoo.models.fusion import Fusion
from zoo.models.fusion import Settings as Asking

CANDIDATES, IMAGE_TOKENS, TEXT_TOKENS = 64, 50, 32
TEXT_DIM, IMAGE_DIM, DIM, DEPTH = 384, 256, 192, 2  # those of text_image_nano on MiniLM, in two layers
ROWS = {"text asks": ("text",), "both ask": ("text", "image")}


def rows(settings: Settings) -> Iterator[Row]:
    """One text against 64 pictures, whose side is kept; and one picture against 64 captions of 4 to 32 tokens.

    The peers start from the same projected tokens, so that only attention and feed-forward are compared.
    """
    candidates = 4 if settings.quick else CANDIDATES
    generator = torch.Generator().manual_seed(0)
    for name, directions in ROWS.items():
        torch.manual_seed(0)
        asking = Asking(self_attention=True, directions=directions, readout="token")
        fusion = Fusion(TEXT_DIM, IMAGE_DIM, DIM, DEPTH, 0.0, asking).eval()
        peer = Written(fusion).eval()
        images = torch.randn(candidates, IMAGE_TOKENS, IMAGE_DIM, generator=generator)
        text = torch.randn(1, TEXT_TOKENS, TEXT_DIM, generator=generator)
        yield Row(f"text query, {name}", candidates, "candidates", _cases(fusion, peer, text, None, images))
        captions = torch.randn(candidates, TEXT_TOKENS, TEXT_DIM, generator=generator)
        lengths = torch.randint(4, TEXT_TOKENS + 1, (candidates, 1), generator=generator)
        mask = torch.arange(TEXT_TOKENS) < lengths
        yield Row(f"picture query, {name}", candidates, "candidates", _cases(fusion, peer, captions, mask, images[:1]))


def _cases(fusion: Fusion, peer: "Written", text: Tensor, mask: Tensor | None, image: Tensor) -> tuple[Case, ...]:
    side = fusion.image_side(image)
    count = max(len(text), len(image))

    def loop() -> Tensor:
        lone = lambda t, i: t if len(t) == 1 else t[i : i + 1]  # noqa: E731
        trim = lambda i: slice(None) if mask is None else slice(int(mask[i].sum()))  # noqa: E731
        return torch.cat([peer(lone(text, i)[:, trim(i)], None, lone(side.tokens, i)) for i in range(count)])

    def batch() -> Tensor:
        return peer(text.expand(count, -1, -1), mask, side.tokens.expand(count, -1, -1))

    return (Case("zoo", lambda: fusion(text, mask, side)),
            Case("zoo, image side not kept", lambda: fusion(text, mask, image)),
            Case("nn.MultiheadAttention, a loop", loop),
            Case("nn.MultiheadAttention, one batch", batch))


class Written(nn.Module):
    """The same fusion as one writes it: everything for every token of every pair. text, mask, image tokens as in ImageSide."""

    def __init__(self, fusion: Fusion):
        super().__init__()
        self.fusion = fusion
        self.peers = nn.ModuleDict({name.replace(".", "/"): multihead(module)
                                    for name, module in fusion.named_modules() if isinstance(module, Attention)})

    def forward(self, text: Tensor, mask: Tensor | None, image: Tensor) -> Tensor:
        fusion = self.fusion
        text, mask = fusion._lead("text", fusion.text_in(text), mask)
        for i in range(fusion.depth):
            said, seen = text, image
            text = self._block("text_asks", i, said, mask, seen, None)
            if fusion.image_asks is not None:
                image = self._block("image_asks", i, seen, None, said, mask)
        t = fusion.text_norm(text)[:, 0]
        if fusion.image_asks is None:
            return fusion.head(t)[:, 0]
        i = fusion.image_norm(image)[:, 0]
        return fusion.head(torch.cat([t, i, t * i], -1))[:, 0]

    def _block(self, side: str, i: int, x: Tensor, own: Tensor | None, context: Tensor, mask: Tensor | None) -> Tensor:
        block = getattr(self.fusion, side)[i]
        own, mask = (None if real is None else ~real for real in (own, mask))
        y = block.norm_self(x)
        x = x + self.peers[f"{side}/{i}/self_attn"](y, y, y, key_padding_mask=own, need_weights=False)[0]
        y = block.norm_context(context)
        x = x + self.peers[f"{side}/{i}/attn"](block.norm1(x), y, y, key_padding_mask=mask, need_weights=False)[0]
        return x + block.mlp(block.norm2(x))


def multihead(attn: Attention) -> nn.MultiheadAttention:
    """torch's module with the weights of a cross-attention of equal widths."""
    peer = nn.MultiheadAttention(attn.q.out_features, attn.heads, batch_first=True)
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([attn.q.weight, attn.kv.weight]))
        peer.in_proj_bias.copy_(torch.cat([attn.q.bias, attn.kv.bias]))
        peer.out_proj.load_state_dict(attn.proj.state_dict())
    return peer
