"""Rows of `zoo bench graph`: one layer on molecules with equal weights, against GPSConv's attention and Graphormer's layer."""

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.bench.rounds import Case, Row
from zoo.core.adjacency import NodeAttention, biases
from zoo.models.graph_batch import Collate, GraphBatch
from zoo.models.graphormer import PostNormGraphBlock

DIM, HEADS, HIDDEN = 128, 8, 128  # Graphormer's feed-forward is as wide as its tokens
BARE = "molecules, attention of a layer"
MISSING = """Graphormer is not measured: transformers {} has none (it was taken out in version 5). In an environment of its own:
python -m venv v && v/bin/pip install "transformers==4.57.*" and what zoo needs, then v/bin/python -m zoo bench graph"""


def gps_row(graphs: list) -> Row:
    """Packed nodes to packed nodes, no bias; GPSConv's part is nn.MultiheadAttention on to_dense_batch. Size: graphs."""
    from torch_geometric.nn import GPSConv
    from torch_geometric.utils import to_dense_batch

    batch, x, log_degree = _nodes(graphs)
    layer = NodeAttention(DIM, HEADS, None).eval()
    states = batch.pairs.spread(torch.zeros(len(batch.pairs.query), HEADS))
    bias = biases(states, [layer], batch.pairs)[0]  # the padding; made once a batch for all layers
    peer = GPSConv(DIM, None, heads=HEADS, attn_type="multihead").attn.eval()
    peer.load_state_dict({"in_proj_weight": layer.qkv.weight, "in_proj_bias": layer.qkv.bias,
                          "out_proj.weight": layer.proj.weight, "out_proj.bias": layer.proj.bias})

    def dense() -> Tensor:
        h, real = to_dense_batch(x, batch.graph)
        return peer(h, h, h, key_padding_mask=~real, need_weights=False)[0][real]

    return Row(BARE, len(graphs), "graphs", (
        Case("zoo", lambda: layer(x, batch.pairs, bias, states, log_degree)), Case("GPSConv's attention", dense)))


def graphormer_rows(graphs: list) -> Iterator[Row]:
    """Attention, then the whole layer (LayerNorm behind both branches), with a bias for each pair and head. Size: graphs.

    Ours keeps nodes packed; theirs keeps them in squares (n b dim) from layer to layer: neither is converted in the time taken.
    Nothing where transformers has no Graphormer.
    """
    if (peer := _graphormer()) is None:
        return
    batch, x, log_degree = _nodes(graphs)
    layer = NodeAttention(DIM, HEADS, None)
    block = PostNormGraphBlock(layer, DIM, (HIDDEN + 0.5) / DIM, None, 0.0).eval()  # the block rounds down
    _fill(peer, block)
    scores = torch.randn(len(batch.pairs.query), HEADS)
    states = batch.pairs.spread(scores)
    bias = biases(states, [layer], batch.pairs)[0]
    real = torch.arange(int(batch.sizes.max())) < batch.sizes[:, None]
    theirs = _all_pairs(scores, batch, real)
    squares = torch.zeros(*real.shape, DIM)
    squares[real] = x
    squares = rearrange(squares, "b n c -> n b c").contiguous()

    def packed(output: Tensor) -> Tensor:
        return rearrange(output, "n b c -> b n c")[real]

    yield Row(f"{BARE}, with bias", len(graphs), "graphs", (
        Case("zoo", lambda: layer(x, batch.pairs, bias, states, log_degree)),
        Case("GraphormerMultiheadAttention",
             lambda: peer.self_attn(squares, squares, squares, theirs, ~real, need_weights=False)[0], read=packed)))
    yield Row("molecules, Graphormer's layer", len(graphs), "graphs", (
        Case("zoo", lambda: block(x, batch, bias, states, None, log_degree)),
        Case("GraphormerGraphEncoderLayer",
             lambda: peer(squares, self_attn_bias=theirs, self_attn_padding_mask=~real)[0], read=packed)))


def missing() -> list[str]:
    """How to see Graphormer's rows where transformers has none."""
    if _graphormer() is not None:
        return []
    try:
        from transformers import __version__ as version
    except ImportError:
        version = "is not installed and"
    return [MISSING.format(version)]


def _nodes(graphs: list) -> tuple[GraphBatch, Tensor, Tensor]:
    """The batch, random states (nodes DIM), and log(1 + neighbours) (nodes 1), which a new layer does not use yet."""
    torch.manual_seed(0)
    batch = Collate()(graphs)
    return batch, torch.randn(len(batch.graph), DIM), batch.degree[:, :1].float().log1p()


def _all_pairs(scores: Tensor, batch: GraphBatch, real: Tensor) -> Tensor:
    """Scores of the pairs (P h) in squares of the largest graph (b h n n), 0 in the padding."""
    out = torch.zeros(len(real), scores.shape[1], *(2 * real.shape[1:]))
    first = batch.sizes.cumsum(0) - batch.sizes
    graph = batch.graph[batch.pairs.query]
    out[graph, :, batch.pairs.query - first[graph], batch.pairs.key - first[graph]] = scores
    return out


def _graphormer() -> nn.Module | None:
    try:
        from transformers import GraphormerConfig
        from transformers.models.deprecated.graphormer.modeling_graphormer import GraphormerGraphEncoderLayer
    except ImportError:
        return None
    config = GraphormerConfig(embedding_dim=DIM, num_attention_heads=HEADS, ffn_embedding_dim=HIDDEN, dropout=0.0,
                              attention_dropout=0.0, activation_dropout=0.0)
    return GraphormerGraphEncoderLayer(config).eval()


def _fill(peer: nn.Module, block: PostNormGraphBlock) -> None:
    """Our weights for theirs."""
    attn = block.attn
    three = zip("qkv", attn.qkv.weight.chunk(3), attn.qkv.bias.chunk(3))
    state = {f"self_attn.{name}_proj.{kind}": value for name, *both in three for kind, value in zip(("weight", "bias"), both)}
    parts = {"self_attn.out_proj": attn.proj, "self_attn_layer_norm": block.norm1, "fc1": block.mlp.fc1, "fc2": block.mlp.fc2,
             "final_layer_norm": block.norm2}
    for name, part in parts.items():
        state |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
    peer.load_state_dict(state)
