"""BERT and MiniLM (Hugging Face layout) -> zoo.models.text.Text."""

from torch import Tensor

from zoo.convert.rules import GEOMETRY, Layout, translate
from zoo.errors import ZooError

_LAYER = r"encoder\.layer\.(\d+)\."
BERT = Layout(
    "BERT",
    marks=(r"embeddings\.word_embeddings\.weight", r"encoder\.layer\.0\.attention\.self\.query\.weight"),
    rules=(
        (r"embeddings\.word_embeddings\.", "token."),
        (r"embeddings\.position_embeddings\.", "position."),
        (r"embeddings\.token_type_embeddings\.", "segment."),
        (r"embeddings\.LayerNorm\.", "norm."),
        (_LAYER + r"attention\.self\.(query|key|value)\.", r"blocks.\1.attn.\2."),
        (_LAYER + r"attention\.output\.dense\.", r"blocks.\1.attn.proj."),
        (_LAYER + r"attention\.output\.LayerNorm\.", r"blocks.\1.norm1."),
        (_LAYER + r"intermediate\.dense\.", r"blocks.\1.mlp.fc1."),
        (_LAYER + r"output\.dense\.", r"blocks.\1.mlp.fc2."),
        (_LAYER + r"output\.LayerNorm\.", r"blocks.\1.norm2."),
    ),
    dropped=((r"embeddings\.position_ids", GEOMETRY), (r"(pooler|cls)\..*", "a head of pre-training")),
    prefix=r"bert\.",
    old_ends=((r"LayerNorm\.gamma", "LayerNorm.weight"), (r"LayerNorm\.beta", "LayerNorm.bias")),  # of the first release
)


def from_bert(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A BertModel's state dict, with or without "bert." -> one that Text loads strictly (no classifier).

    query, key and value become one qkv; the pooler and the heads of pre-training are dropped. ZooError names
    what is not BERT's.
    """
    return translate(BERT, state_dict)[0]


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
