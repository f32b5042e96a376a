"""Memory bank: unit vectors of past batches as further wrong pairs, for batches that are too small to hold many."""

import torch
from torch import Tensor, nn


class Bank(nn.Module):
    """A ring of `size` past pairs: text and image vectors (size dim), the item of the picture and the number of its caption.

    words: width of the sentence vectors that are kept too (size words); 0: none are. Empty places have item -1.
    Buffers, so that a stopped run goes on with the same bank.
    Sources: Wu et al. 2018 (memory bank), Wang et al. 2020 (cross-batch memory: vectors of slightly older weights do).
    """

    def __init__(self, size: int, dim: int, words: int = 0):
        super().__init__()
        if words:
            self.register_buffer("sentence", torch.zeros(size, words, dtype=torch.half))
        self.register_buffer("text", torch.zeros(size, dim))
        self.register_buffer("image", torch.zeros(size, dim))
        self.register_buffer("item", torch.full((size,), -1))
        self.register_buffer("caption", torch.full((size,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, text: Tensor, image: Tensor, item: Tensor, caption: Tensor, sentence: Tensor | None = None) -> None:
        """Takes the place of the oldest ones. text, image (b dim), item, caption (b), sentence (b words)."""
        size = len(self.item)
        text, image, item, caption = (values[-size:] for values in (text, image, item, caption))
        at = (self.place + torch.arange(len(item), device=self.place.device)) % size
        self.text[at], self.image[at] = text.to(self.text.dtype), image.to(self.image.dtype)
        self.item[at], self.caption[at] = item, caption
        if sentence is not None:
            self.sentence[at] = sentence[-size:]
        self.place.copy_((self.place + len(item)) % size)
