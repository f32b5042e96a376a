"""Makes graphormer_golden.safetensors with transformers 4.57 (Graphormer is gone from version 5), Cython and a C compiler.

    python3 -m venv v && v/bin/pip install torch numpy safetensors setuptools 'cython<3' 'transformers==4.57.*'
    v/bin/python tests/convert/graphormer_reference.py OUT.safetensors

Two tiny models with random weights (those of the file are exact in half precision), graphs, what comes out, and gradients.
"""

import json
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

MODELS = {  # as released, and everything else that the class can do
    "post": dict(num_classes=3, num_atoms=600, num_edges=520, encoder_normalize_before=True, spatial_pos_max=20),
    "pre": dict(num_classes=1, num_atoms=40, num_edges=9, pre_layernorm=True, embed_scale=1.5, multi_hop_max_dist=3,
                spatial_pos_max=1024),
}
SIZES = dict(num_in_degree=12, num_out_degree=12, num_edge_dis=8, num_hidden_layers=2, embedding_dim=16, ffn_embedding_dim=20,
             num_attention_heads=4, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)


def edges_of(pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Both directions, side by side."""
    return torch.tensor([end for a, b in pairs for end in ((a, b), (b, a))]).view(-1, 2).T.contiguous()


def graphs() -> list[tuple[int, torch.Tensor]]:
    """Nodes and edges: rings with two shortest paths and a tail, a long chain, two parts, one node."""
    ring = [(i, (i + 1) % 6) for i in range(6)] + [(6 + i, 6 + (i + 1) % 5) for i in range(5)] + [(2, 7), (9, 11), (11, 12)]
    grid = [(3 * r + c, 3 * r + c + 1) for r in range(4) for c in range(2)] + [(i, i + 3) for i in range(9)]
    return [(13, edges_of(ring)), (24, edges_of([(i, i + 1) for i in range(23)])), (12, edges_of(grid)),
            (7, edges_of([(0, 1), (1, 2), (3, 4), (4, 5), (5, 6)])), (1, torch.zeros(2, 0, dtype=torch.long))]


def columns(rows: int, table: int, generator: torch.Generator) -> torch.Tensor:
    """Random ids for every column that a table of `table` ids has, each below 512."""
    sizes = [min(512, table - 2 - first) for first in range(0, table - 2, 512)]
    return torch.stack([torch.randint(0, size, (rows,), generator=generator) for size in sizes], 1)


def collated(parts: list[dict], spatial_pos_max: int) -> dict:
    from transformers.models.deprecated.graphormer.collating_graphormer import GraphormerDataCollator, preprocess_item

    items = [preprocess_item({
        "num_nodes": len(part["x"]), "node_feat": part["x"].numpy(), "edge_index": part["edge_index"].numpy(),
        "edge_attr": part["edge_attr"].numpy(), "y": [0.0],
    }) for part in parts]
    for item in items:
        if item["input_edges"].shape[2] == 0:  # one node: their collator trips over a path of no length
            item["input_edges"] = np.zeros((*item["input_edges"].shape[:2], 1, item["input_edges"].shape[3]), np.int64)
    return GraphormerDataCollator(spatial_pos_max=spatial_pos_max)(items)


def main(out: str) -> None:
    from transformers import GraphormerConfig, GraphormerForGraphClassification

    found: dict[str, torch.Tensor] = {}
    configs = {}
    for name, settings in MODELS.items():
        generator = torch.Generator().manual_seed(len(name))
        config = GraphormerConfig(**SIZES, **settings)
        theirs = GraphormerForGraphClassification(config).eval()
        for key, p in theirs.named_parameters():
            p.data = torch.empty_like(p).normal_(0.3 if p.ndim == 1 else 0, 0.3, generator=generator).half().float()
        for module in theirs.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx == 0 and name == "post":
                module.weight.data[0] = 0  # "pre" keeps what fairseq left there: the row for no edge is not 0
        parts = []
        for i, (n, edge_index) in enumerate(graphs()):
            bonds = columns(edge_index.shape[1], config.num_edges, generator)
            parts.append({"x": columns(n, config.num_atoms, generator), "edge_index": edge_index, "edge_attr": bonds})
            found |= {f"{name}.graph.{i}.{key}": value.clone().to(torch.int32) for key, value in parts[-1].items()}
        batch = collated(parts, config.spatial_pos_max)
        batch.pop("labels")
        output = theirs(**batch)
        weights = torch.randn(output.logits.shape, generator=generator)
        (output.logits * weights).sum().backward()
        found |= {f"{name}.weight.{key}": value.half() for key, value in theirs.state_dict().items()}
        grads = {f"{name}.grad.{key}": p.grad for key, p in theirs.named_parameters() if p.grad is not None}
        found |= {key: value for key, value in grads.items() if value.numel() < 4096}  # not the table of 600 atoms
        found |= {f"{name}.logits": output.logits.detach(), f"{name}.loss": weights,
                  f"{name}.features": output.hidden_states[-1].detach().transpose(0, 1).contiguous()}
        configs[name] = json.dumps(config.to_dict())
    save_file(found, out, metadata=configs)


if __name__ == "__main__":
    main(sys.argv[1])
