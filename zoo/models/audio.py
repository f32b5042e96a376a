"""Audio: log-mel frames are tokens, merged in time between stages; local attention first, the last stage sees every frame.

Local stages: shifted windows (Liu et al. 2021) or a sliding band (Beltagy et al. 2020) over time, linear in the length.
Global stage: table[time offset], clipped (Shaw et al. 2018). Every output of an item is the same alone and in any batch.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.core import Attention, Block, Forms, Merge, Place, masked_mean, merge_mask
from zoo.core.attention import blank
from zoo.models.audio_stem import ConvStem, MergeStem
from zoo.models.heads import Staged, init_linear, layers
from zoo.models.mel import LogMel

FAR = 128  # tokens: farther offsets share a row of the global table
OWN = {"position": "table", "method": "softmax", "temperature": "fixed"}
REFUSED = {"pattern": {"axial": "rows and columns are those of a map of two axes"}}


class Audio(Staged):
    """Local-to-global attention over time. wave (b samples) in -1 .. 1, lengths (b) | None -> logits (b classes).

    Arguments: num_classes (0: no classifier), dims and depths (one entry a stage), windows (tokens each stage sees around a
    token; None: all), head_dim, local ("windows" | "band": of radius w // 2), stem ("patch" | "conv"), kernel (tokens of a
    depthwise convolution before attention, odd; 0: none), drop_path (rate of the deepest block), attention (other forms than
    these, see zoo.core.forms), and those of the front end, LogMel: rate, n_fft, win, hop, mels, f_min, f_max. ValueError names a
    wrong one.

    `lengths` are the real samples of each item; None: all. What stands behind them changes nothing. `augment`, None or a module
    (mel (b frames mels), mask) -> mel, runs at training between the front end and the stem.
    """

    stem_name = "stem"

    def __init__(
        self,
        num_classes: int = 10,
        dims: tuple[int, ...] = (64, 128, 192),
        depths: tuple[int, ...] = (2, 2, 4),
        windows: tuple[int | None, ...] = (16, 16, None),
        head_dim: int = 32,
        local: str = "band",
        stem: str = "conv",
        kernel: int = 3,
        drop_path: float = 0.0,
        attention: dict | None = None,
        **mel,
    ):
        super().__init__()
        _check(num_classes, dims, depths, windows, head_dim, local, stem, kernel, drop_path)
        self.num_classes, self.num_features = num_classes, dims[-1]
        self.grad_checkpointing, self.augment = False, None
        self.frontend = LogMel(**mel)
        self.frame_seconds = self.frontend.hop * 2 ** len(dims) / self.frontend.rate  # of one output token
        self.stem = (MergeStem if stem == "patch" else ConvStem)(self.frontend.mels, dims[0])
        forms = Forms("Audio", attention, {"pattern": "sliding" if local == "band" else "windows", **OWN}, REFUSED)
        self.absolute = forms.absolute(dims[0], 1)
        rates = [drop_path * i / max(sum(depths) - 1, 1) for i in range(sum(depths))]
        self.stages = nn.ModuleList()
        for i, (dim, depth) in enumerate(zip(dims, depths)):
            attns = [forms.attention(Place(dim, dim // head_dim, 1, windows[i], j, FAR)) for j in range(depth)]
            drops = rates[sum(depths[:i]) : sum(depths[: i + 1])]
            self.stages.append(Stage(dims[i - 1] if i else None, dim, attns, drops, kernel))
        self.norm = nn.LayerNorm(self.num_features)
        self.apply(init_linear)
        self.reset_classifier(num_classes)

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.forward_head(*self.forward_features(wave, lengths))

    def forward_features(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """wave (b samples), lengths (b) -> normed tokens (b t num_features), mask (b t) or None: all real.

        A token spans `frame_seconds`. ValueError for a wave without samples and for a length outside of 1 .. samples.
        """
        x, mask = self._tokens(wave, lengths)
        for stage in self.stages:
            x, mask = checkpoint(stage, x, mask, use_reentrant=False) if self._checkpoint() else stage(x, mask)
        return self.norm(x), mask

    def forward_head(self, x: Tensor, mask: Tensor | None = None, pre_logits: bool = False) -> Tensor:
        """Tokens (b t num_features), mask (b t) -> logits (b num_classes), or the pooled vector where `pre_logits`."""
        x = masked_mean(x, mask)
        return x if pre_logits else self.classifier(x)

    def forward_frames(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """wave, lengths -> the classifier's logits of every token (b t num_classes) and the mask (b t) of real ones."""
        x, mask = self.forward_features(wave, lengths)
        return self.classifier(x), mask

    def forward_embed(self, wave: Tensor, lengths: Tensor | None = None) -> Tensor:
        """wave, lengths -> unit vectors (b num_features)."""
        return F.normalize(self.forward_head(*self.forward_features(wave, lengths), pre_logits=True), dim=-1)

    def forward_intermediates(
        self, wave: Tensor, lengths: Tensor | None = None, indices: list[int] | None = None
    ) -> tuple[tuple[Tensor, Tensor | None], list[tuple[Tensor, Tensor | None]]]:
        """Last normed tokens, and those after each stage in `indices` (default all): (b t dim) and the mask (b t) | None."""
        wanted = layers("Audio", indices, len(self.stages))
        (x, mask), kept = self._tokens(wave, lengths), []
        for i, stage in enumerate(self.stages):
            x, mask = stage(x, mask)
            if i in wanted:
                kept.append((x, mask))
        return (self.norm(x), mask), kept

    def _tokens(self, wave: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mel, mask = self.frontend(wave, lengths)
        if self.augment is not None and self.training:
            mel = self.augment(mel, mask)
        x, mask = self.stem(mel.to(self.norm.weight.dtype), mask)
        return x if self.absolute is None else self.absolute(x), mask


class Stage(nn.Module):
    """Merge in time (but for the first), then blocks: (b t c), mask (b t) -> (b t' dim), its mask."""

    def __init__(self, merge_from: int | None, dim: int, attns: list[Attention], drops: list[float], kernel: int):
        super().__init__()
        self.merge = Merge(merge_from, dim, axes=1) if merge_from else None
        self.local = nn.ModuleList(Local(dim, kernel) for _ in drops) if kernel else None
        self.blocks = nn.ModuleList(Block(attn, dim, drop_path=drop) for attn, drop in zip(attns, drops))

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.merge is not None:
            x, mask = self.merge(x, mask), merge_mask(mask)
        for j, block in enumerate(self.blocks):
            x = block(self.local[j](x, mask) if self.local else x, mask)
        return x, mask


class Local(nn.Module):
    """x + depthwise convolution of x over time, padding counts as 0: (b t dim) -> (b t dim). Source: Chu et al. 2021, eq. 1."""

    def __init__(self, dim: int, kernel: int):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = blank(x, mask)
        return x + self.conv(x.transpose(1, 2).contiguous()).transpose(1, 2)


def _check(num_classes, dims, depths, windows, head_dim, local, stem, kernel, drop_path) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"Audio: {name}={value!r}; allowed: {allowed}")

    if not isinstance(num_classes, int) or num_classes < 0:
        refuse("num_classes", num_classes, ">= 0 (0: no classifier)")
    if not isinstance(head_dim, int) or head_dim < 1:
        refuse("head_dim", head_dim, "an integer >= 1")
    if not dims or any(not isinstance(dim, int) or dim < 1 or dim % head_dim for dim in dims):
        refuse("dims", dims, f"multiples of head_dim={head_dim}")
    if len(depths) != len(dims) or any(not isinstance(depth, int) or depth < 1 for depth in depths):
        refuse("depths", depths, f"integers >= 1, one a stage, dims={dims}")
    if len(windows) != len(dims) or any(w is not None and (not isinstance(w, int) or w < 1) for w in windows):
        refuse("windows", windows, f"integers >= 1 or None, one a stage, dims={dims}")
    if local not in ("windows", "band"):
        refuse("local", local, "'windows', 'band'")
    if stem not in ("patch", "conv"):
        refuse("stem", stem, "'patch', 'conv'")
    if not isinstance(kernel, int) or kernel < 0 or (kernel and kernel % 2 == 0):
        refuse("kernel", kernel, "0 (none) or an odd integer")
    if not 0 <= drop_path < 1:
        refuse("drop_path", drop_path, "0 <= drop_path < 1")
