"""`zoo bench audio`: what local attention saves. Local stages alone and the whole model, against a twin that sees every frame."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.bench import Settings
from zoo.bench.audio_local import layer_rows, training_rows
from zoo.bench.rounds import Case, Row
from zoo.core import Recorder, Whole
from zoo.errors import UsageError

SECONDS, QUICK = (15, 30, 60, 120), (1, 2)


def rows(settings: Settings) -> Iterator[Row]:
    """Rows by length in frames: one clip of random samples, inference. The twin's weights differ, so only ours is checked.

    Then one local layer against other ways to its numbers, and a training step with and without the core's dispatch.
    What is right of the first two is the model itself with its attention written out. UsageError for a model without local
    stages.
    """
    name = settings.model or "audio_nano"
    model, other, twin = _family(name)
    labels = name, f"{name}, {_other(name)}", "full-attention twin"
    cases = {_label(label, m): m for label, m in zip(labels, (model, other, twin))}
    for seconds in QUICK if settings.quick else SECONDS:
        samples = seconds * model.frontend.rate
        wave = torch.randn(1, samples, generator=torch.Generator().manual_seed(0)) * 0.1
        frames = samples // model.frontend.hop
        whole = [Case(label, lambda m=m: m(wave), m is model) for label, m in cases.items()]
        tokens = model.stem(*model.frontend(wave, None))[0].float()
        count = len(_local_stages(model))
        local = [Case(label, lambda m=m: _run(m.stages[:count], tokens), m is model) for label, m in cases.items()]
        right = lambda: _written_out(model, lambda: _run(model.stages[:count], tokens))  # noqa: E731
        yield Row("local stages", frames, "frames", tuple(local), right)
        yield Row("whole model", frames, "frames", tuple(whole), lambda: _written_out(model, lambda: model(wave)))
    yield from layer_rows(name, settings.quick)
    yield from training_rows(name, settings.quick)


def _family(name: str) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The model, the same with the other form of local attention, and its twin with global stages only."""
    if registry.find(name).entry != "zoo.models.audio:Audio":
        raise UsageError(f"bench audio: --model {name} has no local stages; one of: {', '.join(_names())}")
    torch.manual_seed(0)
    stages = len(registry.build(name).stages)
    arguments = {}, {"local": _other(name)}, {"windows": (None,) * stages}
    return tuple(registry.build(name, **own).eval() for own in arguments)


def _names() -> list[str]:
    return [name for name in registry.names() if registry.find(name).entry == "zoo.models.audio:Audio"]


def _other(name: str) -> str:
    return "windows" if registry.find(name).arguments.get("local", "windows") == "band" else "band"


def _label(name: str, model: nn.Module) -> str:
    return f"{name} ({sum(p.numel() for p in model.parameters()) / 1e6:.2f} M)"


def _local_stages(model: nn.Module) -> list[nn.Module]:
    return [stage for stage in model.stages if not isinstance(stage.blocks[0].attn.pattern, Whole)]


def _run(stages: nn.ModuleList, x: Tensor) -> Tensor:
    mask = None
    for stage in stages:
        x, mask = stage(x, mask)
    return x


def _written_out(model: nn.Module, run) -> Tensor:
    with Recorder(model):
        return run()
