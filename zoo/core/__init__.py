"""One attention core. A modality is how it is cut into tokens, who sees whom, and a term added to the score."""

from zoo.core.absolute import LearnedPosition, SinusoidalPosition
from zoo.core.attention import Attention, attend, attention
from zoo.core.axial import Axial
from zoo.core.band import Band
from zoo.core.bias import ClippedPosition, RelativePosition
from zoo.core.block import Block, CrossBlock, FeedForward, Merge, PostNormBlock, PostNormCrossBlock, masked_mean, merge_mask
from zoo.core.chunked import Chunked
from zoo.core.dilated import Dilated
from zoo.core.forms import Forms, Place
from zoo.core.gated import Gated
from zoo.core.linear import LinearAttention
from zoo.core.patterns import SteadyWindows, Windows
from zoo.core.reach import CAUSAL, Reach
from zoo.core.recorder import Recorder
from zoo.core.scale import Temperature
from zoo.core.shaw import ShawPosition
from zoo.core.slide import Slide
from zoo.core.whole import Whole

__all__ = [
    "Attention", "Axial", "Band", "Block", "CAUSAL", "Chunked", "ClippedPosition", "CrossBlock", "Dilated", "FeedForward",
    "Forms", "Gated", "LearnedPosition", "LinearAttention", "Merge", "Place", "PostNormBlock", "PostNormCrossBlock", "Reach",
    "Recorder", "RelativePosition", "ShawPosition", "SinusoidalPosition", "Slide", "SteadyWindows", "Temperature", "Whole",
    "Windows", "attend", "attention", "masked_mean", "merge_mask",
]
