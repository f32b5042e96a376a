"""What `zoo bench` runs. A bench is a module here with `rows(settings)`, or `results(settings, progress)` where it
measures in its own way, and perhaps `said(results, settings)`. Listing them imports nothing heavy."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from shutil import which

from zoo.errors import UsageError

BENCHES = {
    "attention": "every form of attention of the core against all pairs under a mask: error, time, memory",
    "image": "the image model against the Swin of timm with equal weights: inference by batch, training step",
    "audio": "local attention against a full-attention twin, FlexAttention and a loop; training with and without dispatch",
    "graph": "the graph model and one layer against GPSConv and Graphormer, attention along edges against TransformerConv",
    "htsat": "the audio tower of CLAP against ClapAudioModel of transformers with equal weights: inference by batch",
    "rerank": "a query against 64 candidates by cross-attention, against a loop and a batch of nn.MultiheadAttention",
    "text": "the text tower on padded batches of captions against BertModel of transformers",
    "search": "100,000 vectors in the stores of an index, against a plain matrix product: time, recall, filters",
    "loop": "an epoch of zoo train, log, callbacks and saves included, against a bare PyTorch loop",
    "rnn": "self-attention against RNN, GRU and LSTM of equal width: batch, precision, forward, training step",
    "memory": "the longest sequence in a fixed budget: softmax written out against ours, relative position included",
}
FILES = {"memory": "longest"}  # memory.py measures for all of them


@dataclass(frozen=True)
class Settings:
    """How to measure: `threads` of torch; `wall` clock instead of CPU time of the calling thread; `rounds`; `quick`: small sizes.

    `dtype` "fp32" or "bf16" (autocast); `model` a registry name, None: the bench's own; `budget` in GiB, of the bench
    memory; `compile`: both sides through torch.compile, of benches that have it (COMPILES). UsageError names a wrong one.
    """

    threads: int = 1
    wall: bool = False
    rounds: int = 9
    quick: bool = False
    dtype: str = "fp32"
    model: str | None = None
    budget: float = 2.0
    compile: bool = False

    def __post_init__(self):
        for name, value in {"--threads": self.threads, "--rounds": self.rounds}.items():
            if value < 1:
                raise UsageError(f"bench: {name} {value}; allowed: >= 1")
        if not 0.1 <= self.budget <= 1024:
            raise UsageError(f"bench: --budget {self.budget:g}; allowed: 0.1 to 1024 GiB")
        if self.dtype not in ("fp32", "bf16"):
            raise UsageError(f"bench: --dtype {self.dtype}; allowed: fp32, bf16")


def run(name: str, settings: Settings, progress: Callable[[str], None]) -> dict:
    """Measures the bench `name`: {"bench", "settings", "results", "growth", "said"}, plain values; said: lines in plain words.

    UsageError for an unknown name, or a precision that the bench chooses by itself (DTYPES).
    """
    if name not in BENCHES:
        raise UsageError(f"unknown bench {name!r}; there are: {', '.join(BENCHES)}, and of training runs: baselines RECIPE")
    bench = importlib.import_module(f"zoo.bench.{FILES.get(name, name)}")
    from zoo.bench import report, rounds

    dtypes = getattr(bench, "DTYPES", None)
    if dtypes and settings.dtype != "fp32":
        raise UsageError(f"bench {name}: --dtype {settings.dtype}; it always measures {dtypes}: leave --dtype out")
    if settings.compile and not hasattr(bench, "COMPILES"):
        raise UsageError(f"bench {name}: it compiles nothing; --compile is for bench image")
    if settings.compile and not compiler():
        raise UsageError("bench: --compile needs a C++ compiler (g++), and there is none; install one, or leave it out")
    with rounds.surroundings(settings):
        facts = report.facts(settings) | ({"dtype": dtypes} if dtypes else {})
        facts |= {"clock": bench.CLOCK} if hasattr(bench, "CLOCK") else {}
        results = bench.results(settings, progress) if hasattr(bench, "results") else _rows(name, bench, settings, progress)
    said = bench.said(results, settings) if hasattr(bench, "said") else []
    return {"bench": name, "settings": facts, "results": results, "growth": report.growth(results), "said": said}


def compiler() -> bool:
    """Whether torch.compile finds a C++ compiler here."""
    return bool(which(os.environ.get("CXX", "g++")) or which("clang++"))


def _rows(name: str, bench, settings: Settings, progress: Callable[[str], None]) -> list[dict]:
    from zoo.bench import rounds

    results = []
    for row in bench.rows(settings):
        progress(f"{name}: {row.name}, {row.size}")
        results += rounds.measure(row, settings)
    return results
