"""Persistent indexes of pictures: build, open, search, measure. Importing this imports nothing heavy."""

from importlib import import_module

_PLACES = {
    "build": "ingest", "update": "ingest", "add": "ingest", "remove": "ingest", "Report": "sync",
    "verify": "check",
    "open": "index", "open_index": "index", "Index": "index",
    "Hit": "search",
    "Store": "store", "NumpyStore": "numpy_store", "LanceStore": "lance_store",
    "recall": "metrics", "ranks": "metrics", "positives": "metrics",
}  # fmt: skip
__all__ = list(_PLACES)


def __getattr__(name: str):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_PLACES[name]}")
    return getattr(module, "open_index" if name == "open" else name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
