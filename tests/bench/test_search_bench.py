"""`zoo bench search` at a small size: complete, right; how fast it is is no matter for a test."""

import dataclasses

import numpy as np
import pytest

from zoo import bench
from zoo.bench import Settings, search

pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")


def test_every_filter_and_every_store(monkeypatch):
    monkeypatch.setattr(search, "QUERIES", 4)
    monkeypatch.setattr(search, "QUICK_ROWS", 400)
    result = bench.run("search", Settings(rounds=1, quick=True), lambda line: None)
    assert [r["row"] for r in result["results"]] == [name for name in search.FILTERS for _ in range(3)]
    assert all(r["complete"] and r["ms"] > 0 and r["ratio"] > 0 for r in result["results"])
    assert all(r["recall"] == 1 for r in result["results"] if "recall" in r)  # below 20,000 rows all is exact
    assert "every search gave min(k, matches)" in result["said"][0] and "all threads" in result["settings"]["clock"]


def test_the_clouds_are_as_they_are_said_to_be():
    clouds = dataclasses.replace(search.CLOUDS, tie=0.5)
    pictures, texts = search.drawn(clouds, 4000, 1000, np.random.default_rng(0))
    assert pictures.dtype == np.float32 and np.allclose(np.linalg.norm(pictures, axis=1), 1, atol=1e-5)
    means = pictures.mean(0), texts.mean(0)
    lengths = [np.linalg.norm(mean) for mean in means]
    assert np.allclose(lengths, clouds.common, atol=0.05)
    assert abs(means[0] @ means[1] / (lengths[0] * lengths[1]) - clouds.gap) < 0.15
    plain = search.drawn(search.CLOUDS, 4000, 1000, np.random.default_rng(0))
    nearest = [(t @ p.T).max(1).mean() for p, t in ((pictures, texts), plain)]
    assert nearest[0] > nearest[1]  # with a tie a text has its picture
