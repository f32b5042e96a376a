"""`zoo bench text`: the text tower on padded batches of captions against transformers' BertModel of equal weights."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.bench import Settings
from zoo.bench.rounds import Case, Row
from zoo.errors import ZooError
from zoo.models.text import Text

FLICKR = Path("../shared/data/flickr8k/flickr8k_test.parquet")
WORDS = [6, 7, 7, 8, 8, 8, 9, 9, 10, 10, 10, 11, 11, 12, 12, 13, 14, 15, 17, 21]  # of 20 captions, twentieths of Flickr8k's
BATCHES, QUICK = (8, 64, 256), (8,)


def rows(settings: Settings) -> Iterator[Row]:
    """Batches of captions as the tokenizer pads them, sizes of MiniLM (6 layers of 384, 12 heads), random weights.

    Captions of Flickr8k where its files lie in ../shared/data, else made-up ones with as many words. ZooError where transformers
    is not installed.
    """
    torch.manual_seed(0)
    model = Text().eval()
    peer = _bert(model)
    for size in QUICK if settings.quick else BATCHES:
        ids, mask, source = _batch(size)
        padding = 100 * (1 - float(mask.float().mean()))
        yield Row(f"{source}, {padding:.0f} % padding", size, "captions", (
            Case("zoo", lambda i=ids, m=mask: _real(model.forward_features(i, m), m)),
            Case("zoo, padding computed", lambda i=ids, m=mask: _real(model._encode(model.embed_tokens(i, m), m), m)),
            Case("transformers BertModel", lambda i=ids, m=mask: _real(peer(i, m.long()).last_hidden_state, m))))


def _real(states: Tensor, mask: Tensor) -> Tensor:
    """The token states that mean something."""
    return states[mask]


def _batch(size: int) -> tuple[Tensor, Tensor, str]:
    if FLICKR.is_file():
        import pyarrow.parquet as pq

        from zoo.tokens import TextPreprocess

        captions = pq.read_table(FLICKR, columns=["captions"]).column(0).to_pylist()
        texts = [row[i % len(row)] for i, row in enumerate(captions)]
        return *TextPreprocess().batch(texts[:size]), "Flickr8k captions"
    lengths = torch.tensor([WORDS[7 * i % len(WORDS)] + 3 for i in range(size)])  # [CLS], the full stop, [SEP]
    ids = torch.randint(1000, 30000, (size, int(lengths.max())), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(ids.shape[1]) < lengths[:, None], "made-up captions"


def _bert(model: Text) -> nn.Module:
    """transformers' model with the weights of ours."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise ZooError("bench text: transformers is not installed; pip install transformers") from error
    attn, dim = model.blocks[0].attn, model.num_features
    config = BertConfig(hidden_size=dim, num_hidden_layers=len(model.blocks), num_attention_heads=attn.heads,
                        intermediate_size=model.blocks[0].mlp.fc1.out_features)
    peer = BertModel(config, add_pooling_layer=False).eval()
    below = peer.embeddings
    pairs = [(below.word_embeddings, model.token), (below.position_embeddings, model.position),
             (below.token_type_embeddings, model.segment), (below.LayerNorm, model.norm)]
    for theirs, ours in zip(peer.encoder.layer, model.blocks):
        three = zip((theirs.attention.self.query, theirs.attention.self.key, theirs.attention.self.value),
                    ours.attn.qkv.weight.chunk(3), ours.attn.qkv.bias.chunk(3))
        for linear, weight, bias in three:
            linear.load_state_dict({"weight": weight, "bias": bias})
        pairs += [(theirs.attention.output.dense, ours.attn.proj), (theirs.attention.output.LayerNorm, ours.norm1),
                  (theirs.intermediate.dense, ours.mlp.fc1), (theirs.output.dense, ours.mlp.fc2),
                  (theirs.output.LayerNorm, ours.norm2)]
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    return peer
