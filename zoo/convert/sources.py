"""The sources of `zoo convert`: which layouts each has, and how a file of one becomes a state dict and arguments of ours."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from torch import Tensor

from zoo.convert import bert, clap, files, fit, hf_swin, labels, swin, torchvision_swin
from zoo.convert.rules import Layout, Report, translate
from zoo.errors import UsageError, ZooError


@dataclass(frozen=True)
class Wanted:
    """What the caller asks for in place of the file's own: tokens per side of a window, channels, the source's own window."""

    window: int | None = None
    in_chans: int | None = None
    source_window: tuple[int, int] | None = None

    def given(self) -> list[str]:
        return [name for name, value in vars(self).items() if value is not None]


@dataclass
class Converted:
    """State dict and constructor arguments of ours, preprocessing and labels where known, and what became of the file."""

    file: Path
    source: str
    state: dict[str, Tensor]
    arguments: dict
    report: Report
    preprocess: dict = field(default_factory=dict)
    labels: list[str] | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """`zoo convert NAME`: its layouts, the modality, and what finishes a Converted: (converted, raw tensors, config, wanted)."""

    name: str
    modality: str
    about: str
    layouts: tuple[Layout, ...]
    finish: Callable[[Converted, dict[str, Tensor], dict, Wanted], None]
    options: tuple[str, ...] = ()


def _swin(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """Image: sizes from the shapes; tables and stem as wanted; labels and preprocessing from the config."""
    state, sizes = found.state, fit.sizes(found.state)
    of = fit.windows(state, raw, wanted.source_window)
    window = wanted.window or max(side for sides in of.values() for side in sides)
    found.report.changed += fit.fit_tables(state, of, window)
    channels = wanted.in_chans or sizes["in_chans"]
    if channels != sizes["in_chans"]:
        how = "summed" if channels == 1 else "repeated and scaled"
        found.report.changed.append(f"the stem's {sizes['in_chans']} channels -> {channels} ({how})")
        state["patch_embed.proj.weight"] = fit.fit_channels(state["patch_embed.proj.weight"], channels)
    classes = len(state["classifier.weight"]) if "classifier.weight" in state else 0
    found.arguments = {**sizes, "in_chans": channels, "num_classes": classes, "window": window, "stem": "patch", "local": False}
    found.labels, notes = labels.of(config, classes)
    found.notes += notes
    found.preprocess = labels.preprocess(config)
    if found.source == "torchvision-swin" and len(sizes["depths"]) > 2:
        resized = torchvision_swin.RESIZED.get((sizes["dims"][0], sizes["depths"][2]))
        found.preprocess |= {"crop_pct": 224 / resized} if resized else {}


def _clap(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """HTSAT without classifier: the config is checked where it lies beside the file, else the shapes say the sizes."""
    if config.get("model_type") in ("clap", "clap_audio_model"):
        found.arguments = clap.arguments(config)
        return
    sizes = fit.sizes(found.state, "image.")
    sides = {side for window in fit.windows(found.state, raw).values() for side in window}
    if len(sides) > 1 or sizes["in_chans"] != 1 or sizes["patch"] != 4:
        raise ZooError(f"{found.file}: windows {sorted(sides)}, patch {sizes['patch']}: not the sizes of HTSAT")
    found.arguments = {"num_classes": 0, "dims": sizes["dims"], "depths": sizes["depths"], "window": sides.pop(),
                       "head_dim": sizes["head_dim"]}


def _bert(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """Text without classifier. The number of heads is not to be read off the weights: config.json is needed."""
    if not config:
        raise ZooError(f"{found.file}: the number of heads is not in the weights; bring the model's config.json beside the file")
    found.arguments = {"num_classes": 0, **bert.arguments(config)}


_FITTED = ("window", "in_chans", "source_window")
SOURCES = {source.name: source for source in (
    Source("timm-swin", "image", "Swin v1 of timm, layout of any release", (swin.TIMM, swin.ORIGINAL), _swin, _FITTED),
    Source("swin", "image", "Swin v1, the authors' own files", (swin.ORIGINAL,), _swin, _FITTED),
    Source("torchvision-swin", "image", "Swin v1 of torchvision", (torchvision_swin.TORCHVISION,), _swin, _FITTED),
    Source("hf-swin", "image", "Swin v1 of Hugging Face", (hf_swin.HF, hf_swin.HF_IN_MEMORY), _swin, _FITTED),
    Source("clap", "audio", "audio tower of CLAP, not fused (Hugging Face or LAION)", (clap.HF, clap.LAION), _clap),
    Source("bert", "text", "BERT and MiniLM of Hugging Face", (bert.BERT,), _bert),
)}


def convert(source: str, path: Path, wanted: Wanted = Wanted()) -> Converted:
    """Reads the local file (or folder) `path`. UsageError: unknown source or option; ZooError: not such a file."""
    if source != "auto":
        find(source)
    file = files.locate(path)
    raw, beside = files.read(file)
    try:
        clap.check_unfused(raw)
        chosen, layout = _recognise(source, raw)
        if unfit := [option for option in wanted.given() if option not in chosen.options]:
            raise UsageError(f"{chosen.name}: takes no --{unfit[0].replace('_', '-')}; its sizes are fixed")
        state, report = translate(layout, raw)
        report.dropped |= beside
        found = Converted(file, chosen.name, state, {}, report)
        chosen.finish(found, raw, files.config(file), wanted)
    except ZooError as error:
        text = str(error)
        raise type(error)(text if text.startswith((str(file), str(file.parent))) else f"{file}: {text}") from error
    return found


def find(name: str) -> Source:
    """The source of that name. UsageError lists all."""
    if name not in SOURCES:
        near = get_close_matches(name, SOURCES, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else "see below"
        raise UsageError(f"unknown source {name!r}; {hint}\nsources: auto, {', '.join(SOURCES)}")
    return SOURCES[name]


def _recognise(name: str, keys: Iterable[str]) -> tuple[Source, Layout]:
    """The source and the layout that the marks of the file speak for. ZooError says what it looks like instead."""
    keys = list(keys)
    fitting = [(source, layout) for source in SOURCES.values() for layout in source.layouts if layout.fits(keys)]
    for source, layout in reversed(fitting) if name == "auto" else fitting:  # auto: the narrower name, swin before timm-swin
        if name in ("auto", source.name):
            return source, layout
    if fitting:
        raise ZooError(f"not {name} but {fitting[0][0].name}, by its keys; write that, or auto")
    if any("cpb_mlp" in key or key.endswith("attn.logit_scale") or "continuous_position_bias" in key for key in keys):
        raise ZooError("Swin v2, which no converter here reads yet; Swin v1 is: timm-swin, torchvision-swin, hf-swin, swin")
    wanted = "no source that is known" if name == "auto" else f"not {name}"
    raise ZooError(f"{wanted}, by its {len(keys)} keys, first: {', '.join(keys[:3])}; sources: {', '.join(SOURCES)}")
