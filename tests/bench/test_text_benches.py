"""The benches of text and re-ranking at small sizes: every peer has our weights and gives our answers."""

import pytest
import torch

from zoo import bench
from zoo.bench import Settings
from zoo.bench.rerank import multihead
from zoo.core import Attention

QUICK = Settings(rounds=1, quick=True)


def test_rerank_rows_agree():
    found = bench.run("rerank", QUICK, lambda line: None)["results"]
    assert {row["row"] for row in found} == {f"{query} query, {asks}" for query in ("text", "picture")
                                             for asks in ("text asks", "both ask")}
    assert len(found) == 16 and all(row["error"] <= 1e-5 and row["ms"] > 0 and "refused" not in row for row in found)


@pytest.mark.slow
def test_text_rows_agree():
    pytest.importorskip("transformers", reason="transformers is not installed")
    found = bench.run("text", QUICK, lambda line: None)["results"]
    assert [row["case"] for row in found] == ["zoo", "zoo, padding computed", "transformers BertModel"]
    assert all(row["error"] <= 1e-5 and "refused" not in row for row in found)


@torch.no_grad()
def test_the_peer_has_the_same_weights():
    torch.manual_seed(0)
    attn, x, context = Attention(12, 3, context_dim=12), torch.randn(2, 4, 12), torch.randn(2, 5, 12)
    assert torch.allclose(multihead(attn)(x, context, context)[0], attn(x, context), atol=1e-6)
