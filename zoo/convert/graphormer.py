"""Graphormer as Hugging Face names it (transformers 4.57; gone from version 5) -> zoo.models.graphormer.Graphormer.

Their collator moves every number up, to leave 0 to padding; ours has 0 for "unknown" in each column. What is which:

    theirs                                             ours
    node value v of column f: row 512 f + v + 3        row v + 1 of column f
    edge value v of column f: row 512 f + v + 3, of    row v + 1 of column f, divided by the number of columns: ours is
        which the mean over the columns is taken           their sum (attn_edge_type has + 2, and no part in multi_hop)
    h hops: row h + 1 of spatial_pos                   the row of zoo.core.shortest.bucket(h); 511: unreachable
    n neighbours: row n + 1                            row n
    spatial_pos >= spatial_pos_max is masked           sees = spatial_pos_max - 2 (of the config: their collator, unless it is
                                                           told otherwise, takes 20, what the weights saw is the config's)
    embedding times embed_scale                        in the tables
"""

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor

from zoo.convert.rules import Layout
from zoo.core.shortest import FAR, bucket
from zoo.core.walks import BUCKETS, FROM_VIRTUAL, HOPS, IN_VIRTUAL, TO_VIRTUAL, UNREACHABLE
from zoo.errors import ZooError

SHIFT, COLUMN = 3, 512  # of the ids; rows that each column has
_FEATURE, _BIAS = r"graph_encoder\.graph_node_feature\.", r"graph_encoder\.graph_attn_bias\."
_LAYER = r"graph_encoder\.layers\.(\d+)\."
_PART = {"q": "query", "k": "key", "v": "value"}

HF = Layout(
    "Graphormer",
    marks=(_FEATURE + r"atom_encoder\.weight", _BIAS + r"spatial_pos_encoder\.weight", r"graph_encoder\.layers\.0\.fc1\.weight"),
    rules=(
        (_FEATURE + r"atom_encoder\.", "node_embed.table."),
        (_FEATURE + r"(in|out)_degree_encoder\.", r"centrality.tables.\1."),
        (_FEATURE + r"graph_token\.", "virtual."),
        (_BIAS + r"edge_encoder\.", "edge_embed.table."),
        (_BIAS + r"edge_dis_encoder\.", "position.route."),
        (_BIAS + r"spatial_pos_encoder\.", "position.table.hops."),
        (_BIAS + r"graph_token_virtual_distance\.", "position.table.virtual."),
        (r"graph_encoder\.emb_layer_norm\.", "node_embed_norm."),
        (_LAYER + r"self_attn\.([qkv])_proj\.", lambda m: f"blocks.{m[1]}.attn.{_PART[m[2]]}."),
        (_LAYER + r"self_attn\.out_proj\.", r"blocks.\1.attn.proj."),
        (_LAYER + r"self_attn_layer_norm\.", r"blocks.\1.norm1."),
        (_LAYER + r"final_layer_norm\.", r"blocks.\1.norm2."),
        (_LAYER + r"(fc1|fc2)\.", r"blocks.\1.mlp.\2."),
        (r"lm_head_transform_weight\.", "readout."),
        (r"layer_norm\.", "norm."),
        (r"classifier\.classifier\.", "classifier."),
        (r"classifier\.lm_output_learned_", "classifier."),
    ),
    dropped=((r"graph_encoder\.final_layer_norm\.(weight|bias)", "made but never applied"),),
    prefix=r"encoder\.(?=graph_encoder|lm_head|layer_norm)",
)
_FIXED = {"activation_fn": "gelu", "edge_type": "multi_hop", "bias": True, "self_attention": True, "kdim": None, "vdim": None,
          "share_input_output_embed": False, "q_noise": 0.0}


def settings(config: dict) -> dict:
    """What config.json says and the weights do not: route (0: all), sees, scale. ZooError names what Graphormer is not."""
    for key, allowed in _FIXED.items():
        if config.get(key, allowed) != allowed:
            raise ZooError(f"config.json: {key} is {config[key]!r}; allowed: {allowed!r}")
    sees = config.get("spatial_pos_max", 1024) - 2
    return {"route": max(config.get("multi_hop_max_dist", 5), 0), "sees": sees if sees < FAR else None,
            "scale": config.get("embed_scale") or 1.0}


def fit(state: dict[str, Tensor], given: dict, pre_norm: bool) -> tuple[dict, list[str]]:
    """Brings the tables to our form, in place; `given` as of `settings`. Returns arguments of ours and lines on what changed."""
    heads = state["edge_embed.table.weight"].shape[1]
    if "position.route.weight" not in state:
        raise ZooError("incomplete Graphormer state dict: nothing becomes position.route (edge_type multi_hop)")
    notes = ["rows of padding (0) and of ids that never occur (1, 2) left out, a row of zeros for unknown values put in"]
    weights = rearrange(state.pop("position.route.weight"), "(n c h) 1 -> n c h", c=heads, h=heads)
    route = min(given["route"] or len(weights), len(weights))
    padding = state["edge_embed.table.weight"][0]
    state["position.route"], hops = weights[:route].clone(), state.pop("position.table.hops.weight")
    state["position.table"], far = _distances(hops, state.pop("position.table.virtual.weight"))
    if len(weights) > route:
        notes.append(f"of {len(weights)} matrices for edges along a path the {route} that are read")
    if padding.any():
        state["position.table"] += _padded(padding, state["position.route"], far)
        notes.append(f"their row for no edge is not 0: added to the hops, exact for batches with paths of {route} edges or more")
    state["node_embed.table"], nodes = _columns(state.pop("node_embed.table.weight") * given["scale"])
    edges = state.pop("edge_embed.table.weight")
    state["edge_embed.table"], edges = _columns(edges / _count(edges))
    degrees = [state.pop(f"centrality.tables.{way}.weight")[1:] * given["scale"] for way in ("in", "out")]
    state["centrality.tables"] = torch.stack([table[: min(map(len, degrees))] for table in degrees])
    state["virtual"] = state.pop("virtual.weight")[0] * given["scale"]
    dim, depth = len(state["virtual"]), len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    state |= {"node_embed.start": torch.zeros(dim), "edge_embed.start": torch.zeros(heads)}
    one = torch.stack([torch.ones(dim), torch.zeros(dim)])  # our scaling by the degree does nothing
    state |= {f"blocks.{i}.attn.scale": one.clone() for i in range(depth)}
    if (weight := state.get("classifier.weight")) is not None:
        state["classifier.bias"] = repeat(state["classifier.bias"], "1 -> classes", classes=len(weight)).clone()
    return {
        "num_classes": 0 if weight is None else len(weight), "node_categories": nodes, "edge_categories": edges, "dim": dim,
        "depth": depth, "heads": heads, "hidden": len(state["blocks.0.mlp.fc1.weight"]),
        "norm": "pre" if pre_norm else "post", "embed_norm": "node_embed_norm.weight" in state,
        "degrees": state["centrality.tables"].shape[1] - 1, "far": far, "route": route, "sees": given["sees"],
    }, notes


def preprocess(arguments: dict) -> dict:
    """Settings of GraphPreprocess: torch_geometric Data with x and edge_attr, integers as their collator takes them."""
    def columns(name: str, sizes: list[int]) -> list[dict]:
        return [{"name": name, "values": list(range(size - 1)), "column": i} for i, size in enumerate(sizes)]

    return {"source": "data", "node_categories": columns("x", arguments["node_categories"]), "node_floats": [],
            "edge_categories": columns("edge_attr", arguments["edge_categories"]), "edge_floats": [], "directed": False}


def _count(table: Tensor) -> int:
    """Columns whose ids a table has room for."""
    return -(-(len(table) - SHIFT) // COLUMN)


def _columns(table: Tensor) -> tuple[Tensor, list[int]]:
    """Their table of all columns -> ours, and the rows of each column: a row of zeros for unknown, then the values."""
    parts = [torch.cat([torch.zeros_like(part[:1]), part]) for part in table[SHIFT:].split(COLUMN)]
    return torch.cat(parts), [len(part) for part in parts]


def _distances(hops: Tensor, virtual: Tensor) -> tuple[Tensor, int]:
    """Their rows for hops and for the virtual node -> table of zoo.core.adjacency.Distance, and its `far`."""
    far = min(max(len(hops) - 2, HOPS), FAR)
    table = hops.new_zeros(BUCKETS + far - HOPS, hops.shape[1])
    known = np.arange(min(len(hops) - 1, far + 1))
    table[bucket(known, far)] = hops[1 : len(known) + 1]
    if len(hops) > FAR + 2:
        table[UNREACHABLE] = hops[FAR + 2]
    table[[TO_VIRTUAL, FROM_VIRTUAL, IN_VIRTUAL]] = virtual
    return table, far


def _padded(padding: Tensor, route: Tensor, far: int) -> Tensor:
    """What a row for "no edge" that is not 0 adds to a pair h hops apart: it fills the path up to len(route) edges."""
    table = padding.new_zeros(BUCKETS + far - HOPS, route.shape[2])
    terms = [padding @ weight for weight in route]
    for h in range(len(route)):
        table[bucket(np.array(h), far)] = sum(terms[h:]) / max(h, 1)
    table[UNREACHABLE] = sum(terms) / len(route)
    return table
