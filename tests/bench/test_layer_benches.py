"""One layer against its peers, of audio and of graphs: the same numbers from all, and no other rule passes."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from zoo.bench import Settings, audio_local, rounds
from zoo.core import Band

QUICK = Settings(rounds=1, quick=True)


def measured(*rows):
    with rounds.surroundings(QUICK):
        return [record for row in rows for record in rounds.measure(row, QUICK)]


def layer_rows():
    with rounds.surroundings(QUICK):
        return list(audio_local.layer_rows("audio_pico", True))


def right(records):
    return all("refused" not in record and record["ms"] > 0 and record.get("error", 0) <= 1e-5 for record in records)


@pytest.fixture
def without_flex(monkeypatch):
    monkeypatch.delitem(audio_local.WAYS, audio_local.FLEX)  # half a minute of compiling


def test_a_local_layer_equals_full_attention_under_its_mask_and_a_loop(without_flex):
    found = measured(*layer_rows())
    assert [record["case"] for record in found[:4]] == ["zoo", "full attention", audio_local.NO_MASK, "loop per position"]
    assert {record["size"] for record in found} == set(audio_local.QUICK_FRAMES) and right(found)
    assert [record["case"] for record in found if "error" not in record] == [audio_local.NO_MASK] * 2


@pytest.mark.parametrize("way", [audio_local._full, audio_local._loop])
def test_another_band_is_refused(without_flex, monkeypatch, way):
    def narrower(attn, *qkv):
        radius, table = attn.pattern.radius, attn.position.table
        position = SimpleNamespace(table=table[1:-1]) if way is audio_local._loop else attn.position
        return way(SimpleNamespace(pattern=Band(radius - 1), position=position), *qkv)

    monkeypatch.setattr(audio_local, "WAYS", {"narrower": narrower})
    assert all(record["refused"].startswith("wrong output") for record in measured(*layer_rows())[1::2])


def test_without_a_compiler_flex_attention_is_left_out(monkeypatch):
    monkeypatch.setattr(audio_local, "WAYS", {audio_local.FLEX: pytest.fail})
    monkeypatch.setattr(audio_local, "compiler", lambda: False)
    assert [len(row.cases) for row in layer_rows()] == [1, 1]


@pytest.mark.slow
def test_flex_attention_gives_the_same(monkeypatch):
    monkeypatch.setattr(audio_local, "WAYS", {audio_local.FLEX: audio_local._flex})
    found = measured(*layer_rows())
    assert len(found) == 4 and right(found) and all("error" in record for record in found)


def test_training_goes_through_the_fused_kernel_only_where_it_is_hard_coded():
    core = importlib.import_module("zoo.core.attention")
    before, q = core.kernel, torch.zeros(1, 1, 4, 8, requires_grad=True)
    assert core.kernel(q, q, None, None) == "plain"
    with pytest.raises(KeyError), audio_local.always_fused():
        assert core.kernel(q, q, None, None) == "fused"
        raise KeyError
    assert core.kernel is before
    with rounds.surroundings(QUICK):
        names = [case.name for row in audio_local.training_rows("audio_pico", True) for case in row.cases]
        found = measured(*audio_local.training_rows("audio_pico", True))
    assert names == [record["case"] for record in found] and len(found) == 4
    assert all("refused" not in record and record["error"] <= 3e-2 and record["ms"] > 0 for record in found)


def graph_layer():
    pytest.importorskip("torch_geometric")
    from zoo.bench import graph, graph_layer

    return graph_layer, graph.molecules(5)


def test_gps_attention_agrees():
    bench, graphs = graph_layer()
    with rounds.surroundings(QUICK):
        ours, peer = measured(bench.gps_row(graphs))
    assert right((ours, peer)) and peer["case"] == "GPSConv's attention" and ours["limit_linear_ms"] > 0


class Written(nn.Module):
    """Graphormer's layer as its authors write it down, by transformers' names: x (n b c), bias (b h n n), padding (b n)."""

    def __init__(self, bench):
        super().__init__()
        self.heads = bench.HEADS
        self.self_attn = Asked(bench.DIM, bench.HEADS)
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(bench.DIM), nn.LayerNorm(bench.DIM)
        self.fc1, self.fc2 = nn.Linear(bench.DIM, bench.HIDDEN), nn.Linear(bench.HIDDEN, bench.DIM)

    def forward(self, x, self_attn_bias, self_attn_padding_mask):
        x = self.self_attn_layer_norm(x + self.self_attn(x, x, x, self_attn_bias, self_attn_padding_mask, need_weights=False)[0])
        return self.final_layer_norm(x + self.fc2(nn.functional.gelu(self.fc1(x)))), None


class Asked(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query, key, value, bias, padding, need_weights) -> tuple[Tensor, None]:
        n, b, c = query.shape
        q, k, v = (part(query).view(n, b, self.heads, -1).permute(1, 2, 0, 3) for part in (self.q_proj, self.k_proj, self.v_proj))
        score = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
        weights = score.masked_fill(padding[:, None, None], float("-inf")).softmax(-1)
        return self.out_proj((weights @ v).permute(2, 0, 1, 3).reshape(n, b, c)), None


def test_graphormer_s_rows_agree_with_what_its_authors_write_down(monkeypatch):
    """With transformers 4.57 itself: tests/convert/test_graphormer.py, slow."""
    bench, graphs = graph_layer()
    monkeypatch.setattr(bench, "_graphormer", lambda: Written(bench).eval())
    with rounds.surroundings(QUICK):
        found = measured(*bench.graphormer_rows(graphs))
    assert len(found) == 4 and right(found) and not bench.missing()
    monkeypatch.setattr(bench, "_graphormer", lambda: None)
    assert not list(bench.graphormer_rows(graphs)) and "taken out in version 5" in bench.missing()[0]
