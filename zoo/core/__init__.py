"""One attention core. A modality is how it is cut into tokens, who sees whom, and a term added to the score."""

from zoo.core.attention import Attention, Recorder, attend, attention
from zoo.core.band import Band
from zoo.core.bias import ClippedPosition, RelativePosition
from zoo.core.block import Block, CrossBlock, FeedForward, Merge, PostNormBlock, masked_mean, merge_mask
from zoo.core.patterns import SteadyWindows, Windows
from zoo.core.whole import Whole

__all__ = [
    "Attention", "Band", "Block", "ClippedPosition", "CrossBlock", "FeedForward", "Merge", "PostNormBlock", "Recorder",
    "RelativePosition", "SteadyWindows", "Whole", "Windows", "attend", "attention", "masked_mean", "merge_mask",
]
