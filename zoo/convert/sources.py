"""The sources of `zoo convert`: which layouts each has, and how a file of one becomes a state dict and arguments of ours."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from torch import Tensor

from zoo.convert import bert, blip, clap, files, fit, graphormer, hf_swin, labels, swin, swin_v2, torchvision_swin
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
    base: str  # the registered model of its kind
    options: tuple[str, ...] = ()


def _swin(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """Image: sizes from the shapes; tables and stem as wanted; labels and preprocessing from the config."""
    state, sizes = found.state, fit.sizes(found.state)
    of = fit.windows(state, raw, wanted.source_window)
    window = wanted.window or max(side for sides in of.values() for side in sides)
    found.report.changed += fit.fit_tables(state, of, window)
    found.arguments = {**sizes, "window": window, "stem": "patch", "local": False}
    _picture(found, config, wanted)
    if found.source == "torchvision-swin" and len(sizes["depths"]) > 2:
        resized = torchvision_swin.RESIZED.get((sizes["dims"][0], sizes["depths"][2]))
        found.preprocess |= {"crop_pct": 224 / resized} if resized else {}


def _swin_v2(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """ImageV2: sizes from the shapes, windows from buffers, config or caller; another window needs no other weights."""
    swin_v2.settle(found.state)
    found.report.renamed = {theirs: swin_v2.renamed(ours) for theirs, ours in found.report.renamed.items()}
    sizes = swin_v2.sizes(found.state)
    windows = swin_v2.geometry(raw, config, wanted.source_window, sizes["patch"], len(sizes["dims"]))
    found.arguments = {**sizes, "window": wanted.window or windows.window, "trained": windows.trained}
    if found.arguments["window"] != windows.window:
        found.report.changed.append(f"windows {windows.window} -> {wanted.window}: the position is a function of the offset")
    _picture(found, config, wanted)
    if found.source == "torchvision-swin-v2":
        found.preprocess |= {"size": [256, 256], "crop_pct": swin_v2.crop_pct(sizes)}


def _picture(found: Converted, config: dict, wanted: Wanted) -> None:
    """Channels of the stem as wanted; classes from the shapes; labels and preprocessing from the config."""
    state, known = found.state, found.arguments["in_chans"]
    channels = wanted.in_chans or known
    if channels != known:
        how = "summed" if channels == 1 else "repeated and scaled"
        found.report.changed.append(f"the stem's {known} channels -> {channels} ({how})")
        state["patch_embed.proj.weight"] = fit.fit_channels(state["patch_embed.proj.weight"], channels)
    classes = len(state["classifier.weight"]) if "classifier.weight" in state else 0
    found.arguments |= {"in_chans": channels, "num_classes": classes}
    found.labels, notes = labels.of(config, classes)
    found.notes += notes
    found.preprocess = labels.preprocess(config)


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
                       "head_dim": sizes["head_dim"], "front": clap.front(found.state)}


def _bert(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """Text without classifier. The number of heads is not to be read off the weights: config.json is needed."""
    if not config:
        raise ZooError(f"{found.file}: the number of heads is not in the weights; bring the model's config.json beside the file")
    found.arguments = {"num_classes": 0, **bert.arguments(config)}


def _graphormer(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """Graphormer. How far paths and eyes reach is not to be read off the weights: config.json is needed."""
    if config.get("model_type") != "graphormer":
        raise ZooError(f"{found.file}: how far it looks is not in the weights; bring the model's config.json beside the file")
    pre_norm = any("graph_encoder.final_layer_norm" in key for key in raw)
    found.arguments, changed = graphormer.fit(found.state, graphormer.settings(config), pre_norm)
    found.report.changed += changed
    found.report.renamed = {theirs: _without(ours, found.state) for theirs, ours in found.report.renamed.items()}
    found.preprocess = graphormer.preprocess(found.arguments)


def _without(key: str, state: dict[str, Tensor]) -> str:
    """The tensor of ours that a renamed key became a part of."""
    while key not in state and "." in key and not any(part in key for part in (".query.", ".key.", ".value.")):
        key = key.rpartition(".")[0]
    return key


def _blip(found: Converted, raw: dict[str, Tensor], config: dict, wanted: Wanted) -> None:
    """Blip. The numbers of heads are not to be read off the weights: config.json is needed."""
    if not config:
        raise ZooError(f"{found.file}: the number of heads is not in the weights; bring the model's config.json beside the file")
    blip.settle(found.state)
    found.report.renamed = {theirs: blip.renamed(ours) for theirs, ours in found.report.renamed.items()}
    found.report.changed += ["two match logits -> their difference", "no temperature in the file: 0.07"]
    found.arguments = blip.arguments(config, found.state)
    found.preprocess = {"size": [found.arguments["image"]["size"]] * 2, **labels.preprocess(config)}


_FITTED = ("window", "in_chans", "source_window")
SOURCES = {source.name: source for source in (
    Source("timm-swin", "image", "Swin v1 of timm, layout of any release", (swin.TIMM, swin.ORIGINAL), _swin, "image_tiny",
           _FITTED),
    Source("swin", "image", "Swin v1, the authors' own files", (swin.ORIGINAL,), _swin, "image_tiny", _FITTED),
    Source("torchvision-swin", "image", "Swin v1 of torchvision", (torchvision_swin.TORCHVISION,), _swin, "image_tiny",
           _FITTED),
    Source("hf-swin", "image", "Swin v1 of Hugging Face", (hf_swin.HF, hf_swin.HF_IN_MEMORY), _swin, "image_tiny", _FITTED),
    Source("timm-swin-v2", "image", "Swin v2 of timm, and the authors' own files", (swin_v2.TIMM, swin_v2.ORIGINAL), _swin_v2,
           "image_tiny_v2", _FITTED),
    Source("torchvision-swin-v2", "image", "Swin v2 of torchvision", (swin_v2.TORCHVISION,), _swin_v2, "image_tiny_v2", _FITTED),
    Source("hf-swin-v2", "image", "Swin v2 of Hugging Face", (swin_v2.HF,), _swin_v2, "image_tiny_v2", _FITTED),
    Source("clap", "audio", "audio tower of CLAP, fused or not (Hugging Face or LAION)", (clap.HF, clap.LAION), _clap,
           "audio_htsat"),
    Source("graphormer", "graph", "Graphormer of Hugging Face (transformers 4.57)", (graphormer.HF,), _graphormer,
           "graph_graphormer"),
    Source("blip", "text_image", "BLIP image-text matching of Hugging Face", (blip.HF,), _blip, "text_image_blip"),
    Source("bert", "text", "BERT and MiniLM of Hugging Face", (bert.BERT,), _bert, "text_bert"),
)}


def convert(source: str, path: Path, wanted: Wanted = Wanted()) -> Converted:
    """Reads the local file (or folder) `path`. UsageError: unknown source or option; ZooError: not such a file."""
    if source != "auto":
        find(source)
    file = files.locate(path)
    raw, beside = files.read(file)
    try:
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
    wanted = "no source that is known" if name == "auto" else f"not {name}"
    raise ZooError(f"{wanted}, by its {len(keys)} keys, first: {', '.join(keys[:3])}; sources: {', '.join(SOURCES)}")
