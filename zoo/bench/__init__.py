"""What `zoo bench` runs. A bench is a module here with `rows(settings)`; listing them imports nothing heavy."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from zoo.errors import UsageError

BENCHES = {
    "attention": "every form of attention of the core against all pairs under a mask: error, time, memory",
    "audio": "local stages and the whole audio model against a full-attention twin, up to 2 minutes of sound",
    "graph": "the graph model against GPSConv on molecules, attention along edges against TransformerConv",
}


@dataclass(frozen=True)
class Settings:
    """How to measure: `threads` of torch; `wall` clock instead of CPU time of the calling thread; `rounds`; `quick`: small sizes.

    `dtype` "fp32" or "bf16" (autocast); `model` a registry name, None: the bench's own. UsageError names a wrong one.
    """

    threads: int = 1
    wall: bool = False
    rounds: int = 9
    quick: bool = False
    dtype: str = "fp32"
    model: str | None = None

    def __post_init__(self):
        for name, value in {"--threads": self.threads, "--rounds": self.rounds}.items():
            if value < 1:
                raise UsageError(f"bench: {name} {value}; allowed: >= 1")
        if self.dtype not in ("fp32", "bf16"):
            raise UsageError(f"bench: --dtype {self.dtype}; allowed: fp32, bf16")


def run(name: str, settings: Settings, progress: Callable[[str], None]) -> dict:
    """Measures the bench `name`: {"bench", "settings", "results", "growth"}, plain values. UsageError for an unknown name."""
    if name not in BENCHES:
        raise UsageError(f"unknown bench {name!r}; there are: {', '.join(BENCHES)}")
    bench = importlib.import_module(f"zoo.bench.{name}")
    from zoo.bench import report, rounds

    results = []
    with rounds.surroundings(settings):
        facts = report.facts(settings)
        for row in bench.rows(settings):
            progress(f"{name}: {row.name}, {row.size}")
            results += rounds.measure(row, settings)
    return {"bench": name, "settings": facts, "results": results, "growth": report.growth(results)}
