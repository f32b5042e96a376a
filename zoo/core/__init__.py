"""One attention core. A modality is how it is cut into tokens, who sees whom, and a term added to the score."""

from zoo.core.absolute import LearnedPosition, SinusoidalPosition
from zoo.core.attention import Attention, Recorder, attend, attention
from zoo.core.axial import Axial
from zoo.core.band import Band
from zoo.core.bias import ClippedPosition, RelativePosition
from zoo.core.block import Block, CrossBlock, FeedForward, Merge, PostNormBlock, masked_mean, merge_mask
from zoo.core.chunked import Chunked
from zoo.core.dilated import Dilated
from zoo.core.gated import Gated
from zoo.core.linear import LinearAttention
from zoo.core.patterns import SteadyWindows, Windows
from zoo.core.reach import CAUSAL, Reach
from zoo.core.scale import Temperature
from zoo.core.shaw import ShawPosition
from zoo.core.whole import Whole

__all__ = [
    "Attention", "Axial", "Band", "Block", "CAUSAL", "Chunked", "ClippedPosition", "CrossBlock", "Dilated", "FeedForward",
    "Gated", "LearnedPosition", "LinearAttention", "Merge", "PostNormBlock", "Reach", "Recorder", "RelativePosition",
    "ShawPosition", "SinusoidalPosition", "SteadyWindows", "Temperature", "Whole", "Windows", "attend", "attention",
    "masked_mean", "merge_mask",
]
