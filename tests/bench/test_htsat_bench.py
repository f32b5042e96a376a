"""`zoo bench htsat` at small sizes: equal weights give equal vectors, other weights are refused."""

import pytest

from zoo import bench
from zoo.bench import Settings, htsat

QUICK = Settings(rounds=1, quick=True)


def records():
    return bench.run("htsat", QUICK, lambda _: None)["results"]


def test_the_rows_agree():
    pytest.importorskip("transformers")
    ours, peer = records()
    assert [r["case"] for r in (ours, peer)] == ["audio_htsat", "transformers ClapAudioModel"] and ours["size"] == 1
    assert all("refused" not in r and r["error"] <= 1e-5 and r["ms"] > 0 for r in (ours, peer))
    assert ours["ratio"] == 1 and 0 < ours["limit_linear_ms"] < ours["limit_ms"]


def test_weights_that_differ_are_refused(monkeypatch):
    pytest.importorskip("transformers")
    pair = htsat.pair

    def other(sizes):
        ours, peer = pair(sizes)
        ours.image.stages[1].blocks[1].attn.qkv.bias.data += 1  # of the shifted block
        return ours, peer

    monkeypatch.setattr(htsat, "pair", other)
    ours, peer = records()
    assert peer["refused"].startswith("wrong output") and "refused" not in ours
