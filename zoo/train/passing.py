"""Token states of captions that pass by: those of shards are too many to be kept, each is computed when its turn comes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.core import masked_mean
from zoo.data.stream_pairs import number


class Numbers:
    """{caption: its number}, of any caption."""

    def __getitem__(self, caption: str) -> int:
        return number(caption)


class Passing:
    """What `zoo.train.states.States` gives, from the frozen blocks of a text tower: the first `layers`, None: all.

    Rounded to half precision as kept states are, so that captions in shards and in a table train the same.
    """

    def __init__(self, model: nn.Module, layers: int | None):
        self.rows = Numbers()
        self._text, self._words, self._layers = model.text, model.preprocess_text, layers
        self.width = model.text.num_features

    def __deepcopy__(self, memo) -> "Passing":
        return self  # frozen: a moving average of a task need not hold the tower twice

    @torch.no_grad()
    def batch(self, captions: Sequence[str], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Token states (b n dim) float32, padded, and their mask (b n)."""
        ids, mask = (part.to(device) for part in self._words.batch(captions))
        text = self._text.to(device)
        with torch.autocast(torch.device(device).type, enabled=False):
            x = text.embed_tokens(ids, mask)
            for block in text.blocks[: self._layers]:
                x = block(x, mask)
        return x.half().float().masked_fill(~mask[..., None], 0), mask

    def sentences(self, states: Tensor, mask: Tensor) -> Tensor:
        """Unit sentence vectors (b dim) float16 of states after all blocks: see zoo.train.states.sentences."""
        return nn.functional.normalize(masked_mean(states, mask), dim=-1).half()
