"""`zoo bench image`: the image model against timm's Swin of equal weights, inference and training step."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo import registry
from zoo.bench import Settings
from zoo.bench.rounds import Case, Row
from zoo.convert.swin import from_timm
from zoo.errors import UsageError, ZooError
from zoo.models.image import Image

SHAPES = {"image_tiny": 224, "image_nano": 32}  # side of the pictures
EAGER, COMPILES = "timm Swin, eager", "inference"
BATCHES, QUICK, STEPS = (1, 8, 32), (1,), {"image_tiny": 2, "image_nano": 32}


def rows(settings: Settings) -> Iterator[Row]:
    """Each shape: inference by batch, then a training step (forward and backward). Size: pictures.

    image_nano is taken with the stem of Swin and without convolutions in its stages, which timm's model has not. timm runs
    eagerly in its default settings; or, where both are compiled, with its fused attention switched on, and no training step is
    measured. UsageError for a model that is no windowed image model.
    """
    for name in (settings.model,) if settings.model else tuple(SHAPES)[::-1] if settings.quick else SHAPES:
        if registry.find(name).entry != "zoo.models.image:Image":
            raise UsageError(f"bench image: --model {name} has no windows of Swin; one of: {', '.join(SHAPES)}")
        side, (ours, peer) = SHAPES.get(name, 224), pair(name, SHAPES.get(name, 224))
        ours.eval(), peer.eval()
        for batch in QUICK if settings.quick else BATCHES:
            yield _inference(name, ours, peer, _pictures(batch, side), settings.compile)
        if settings.compile:
            continue
        ours.train(), peer.train()
        batch = 1 if settings.quick else STEPS.get(name, 2)
        cases = [Case(label, lambda m=m, x=_pictures(batch, side): _step(m, x)) for label, m in ((name, ours), (EAGER, peer))]
        yield Row(f"{name} {side}, training step", batch, "pictures", tuple(cases))


def _inference(name: str, ours: nn.Module, peer: nn.Module, x: Tensor, compile: bool) -> Row:
    runs = {name: partial(ours, x), EAGER: partial(peer, x)}
    cases = [Case(label, run) for label, run in runs.items()]
    if compile:
        torch.compiler.reset()  # what was made for other sizes
        for module in peer.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = True  # timm leaves it off in windows
        labels = name, "timm Swin, fused attention"
        cases = [Case(label, _compiled(run), counted=run) for label, run in zip(labels, runs.values())]
    return Row(f"{name} {x.shape[-1]}, {'compiled' if compile else 'inference'}", len(x), "pictures", tuple(cases))


def _compiled(run: partial) -> Callable[[], Tensor]:
    """A model on one input by inductor, weights being constants of its code ("freezing"); called once: the code is there."""
    from torch._inductor import config

    compiled = torch.compile(run.func, dynamic=False)
    with config.patch(freezing=True):
        compiled(*run.args)
    return partial(compiled, *run.args)


def pair(name: str, side: int) -> tuple[Image, nn.Module]:
    """Our model and timm's, of equal weights with biases and tables away from 0. ZooError where timm is not installed."""
    try:
        from timm.models.swin_transformer import SwinTransformer
    except ImportError as error:
        raise ZooError("bench image: timm is not installed; pip install timm") from error
    torch.manual_seed(0)
    arguments = registry.find(name).arguments | {"stem": "patch", "local": False}
    ours, dims = Image(**arguments), arguments["dims"]
    peer = SwinTransformer(
        img_size=side, patch_size=ours.patch, window_size=arguments["window"], embed_dim=dims[0], depths=arguments["depths"],
        num_heads=[stage.blocks[0].attn.heads for stage in ours.stages], num_classes=ours.num_classes, drop_path_rate=0.0)
    for parameter in peer.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, 0.2)
    own = ours.state_dict()
    ours.load_state_dict({key: _fit(value, own[key]) for key, value in from_timm(peer.state_dict()).items()})
    return ours, peer


def _fit(value: Tensor, own: Tensor) -> Tensor:
    """A table of timm's for a map smaller than the window, in the middle of ours."""
    if value.shape == own.shape:
        return value
    side, most = round(value.shape[0] ** 0.5), round(own.shape[0] ** 0.5)
    edge = (most - side) // 2
    table = nn.functional.pad(rearrange(value, "(h w) heads -> heads h w", h=side), (edge,) * 4)
    return rearrange(table, "heads h w -> (h w) heads")


def _pictures(batch: int, side: int) -> Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


@torch.enable_grad()
def _step(model: nn.Module, x: Tensor) -> Tensor:
    """Forward and backward; what the optimiser adds is the same for both. -> logits."""
    model.zero_grad()
    out = model(x).float()
    out.square().mean().backward()
    return out.detach()
