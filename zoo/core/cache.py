"""Tensors that depend on a geometry only (masks, table rows) are built once and shared by every forward."""

from functools import lru_cache, wraps

import torch


def cached(build):
    """lru_cache for a function that builds a tensor.

    A tensor made inside a trace (torch.compile, torch.export) belongs to that trace, and one made in inference mode
    can never be trained with: neither may be kept for later callers.
    """
    kept = lru_cache(maxsize=64)(build)

    @wraps(build)
    def get(*args):
        if torch.compiler.is_compiling():
            return build(*args)
        if not torch.is_inference_mode_enabled():  # the switch below takes longer than the look-up
            return kept(*args)
        with torch.inference_mode(False):
            return kept(*args)

    get.cache_clear = kept.cache_clear
    return get
