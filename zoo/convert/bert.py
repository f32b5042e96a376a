"""BERT and MiniLM (Hugging Face layout) -> zoo.models.text.Text."""

import re

import torch
from torch import Tensor

from zoo.errors import ZooError

# theirs, without a leading "bert." -> ours
_RULES = [
    (r"embeddings\.word_embeddings\.", "token."),
    (r"embeddings\.position_embeddings\.", "position."),
    (r"embeddings\.token_type_embeddings\.", "segment."),
    (r"embeddings\.LayerNorm\.", "norm."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.", r"blocks.\1.attn.\2."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blocks.\1.attn.proj."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"blocks.\1.norm1."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blocks.\1.mlp.fc1."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"blocks.\1.mlp.fc2."),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"blocks.\1.norm2."),
]
_DROPPED = re.compile(r"(embeddings\.position_ids$|pooler\.|cls\.)")  # a buffer; heads of pre-training


def rename(keys) -> dict[str, str | None]:
    """Their key -> ours, None where dropped; query, key, value still apart. ZooError on a foreign key."""
    table, foreign = {}, []
    for key in keys:
        short = key.removeprefix("bert.")
        short = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", short)  # names of the first release
        short = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", short)
        rule = next((rule for rule in _RULES if re.match(rule[0] + r"(weight|bias)$", short)), None)
        if rule is None and not _DROPPED.match(short):
            foreign.append(key)
        table[key] = re.sub(*rule, short, count=1) if rule else None
    if foreign:
        count = f"{len(foreign)} of {len(table)} keys unknown"
        raise ZooError(f"not a BERT state dict: {count}, first: {foreign[0]}")
    return table


def from_bert(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A BertModel's state dict, with or without "bert." -> one that Text loads strictly (no classifier).

    query, key and value become one qkv; the pooler and the heads of pre-training are dropped. ZooError names
    what is not BERT's.
    """
    state = {ours: state_dict[theirs] for theirs, ours in rename(state_dict).items() if ours}
    for key in [key for key in state if ".query." in key]:
        parts = [key.replace("query", part) for part in ("query", "key", "value")]
        if missing := [part for part in parts if part not in state]:
            raise ZooError(f"incomplete BERT state dict: nothing becomes {missing[0]}")
        state[key.replace("query", "qkv")] = torch.cat([state.pop(part) for part in parts])
    return state


def arguments(config: dict) -> dict:
    """A BERT config.json -> arguments of Text. ZooError names a missing key or a BERT that Text is not."""
    fixed = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, allowed in fixed.items():
        if config.get(key, allowed) != allowed:
            raise ZooError(f"config.json: {key} is {config[key]!r}; allowed: {allowed!r}")
    names = {"vocab_size": "vocab_size", "max_length": "max_position_embeddings", "dim": "hidden_size",
             "depth": "num_hidden_layers", "heads": "num_attention_heads", "hidden": "intermediate_size",
             "eps": "layer_norm_eps", "type_vocab": "type_vocab_size"}
    if missing := [theirs for theirs in names.values() if theirs not in config]:
        raise ZooError(f"config.json: {missing[0]} is missing; it cannot be read off the weights")
    return {ours: config[theirs] for ours, theirs in names.items()}
