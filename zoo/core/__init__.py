"""One attention core. A modality is how it is cut into tokens, who sees whom, and a term added to the score."""

from zoo.core.attention import Attention, Recorder, attend, attention
from zoo.core.bias import RelativePosition
from zoo.core.block import Block, CrossBlock, FeedForward, Merge, PostNormBlock, masked_mean
from zoo.core.patterns import Windows

__all__ = [
    "Attention", "Block", "CrossBlock", "FeedForward", "Merge", "PostNormBlock", "Recorder", "RelativePosition",
    "Windows", "attend", "attention", "masked_mean",
]
