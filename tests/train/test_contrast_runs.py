"""Text-image runs: one that learns, exact resume with everything on, where towers start, what of the text tower learns."""

from dataclasses import replace

import pytest
import torch

import zoo
from tests.train.pair_data import COLOURS, IMAGE, recipe_of, small_tower
from tests.train.test_run import resumes_exactly
from zoo import checkpoint
from zoo.errors import UsageError, ZooError
from zoo.train import adapt, contrast, lora, run, sets


@pytest.fixture
def recipe(tmp_path):
    return recipe_of(tmp_path / "pairs")


@pytest.fixture
def small(recipe, tmp_path):
    """The recipe on a random text tower of 3 layers, 16 wide: quick, and every block of it can learn."""
    return replace(recipe, arguments=small_tower(tmp_path / "tower"), epochs=1)


def test_a_run_learns_and_tells_right_from_wrong(recipe, tmp_path):
    result = run.train(replace(recipe, epochs=16), tmp_path / "runs")
    model = zoo.load(result.folder)
    pictures = [tmp_path / "pairs" / f"{name}-0.png" for name in COLOURS]
    texts = [f"a {name} picture" for name in COLOURS]
    similarity = model.embed_text(texts) @ model.embed_image(pictures).T
    assert similarity.argmax(1).tolist() == [0, 1, 2, 3]
    match = model.match(texts, pictures)
    assert match.shape == (4, 4) and match.diag().mean() > (match.sum() - match.diag().sum()) / 12
    stored = checkpoint.read_header(result.folder / "best.safetensors")
    assert not any(name.startswith("text.") for name in stored), "a frozen tower is not stored again"
    assert model.card.towers["text."]["sha256"]["model.safetensors"].startswith("53aa5117")


@pytest.mark.parametrize("options, batches", [
    ({}, 2),
    ({"bank": 20, "soft_targets": 0.2, "lora": 2, "lora_on": ["image", "text"]}, 6),
    ({"bank": 20, "loss": "sigmoid", "unfreeze_from": 1}, 6),
])
def test_resume_is_bit_exact(small, tmp_path, monkeypatch, options, batches):
    """With the moving average on; the bank and the bias of the sigmoid loss are in the state, and equal."""
    runs = resumes_exactly(replace(small, epochs=2, **options), tmp_path, monkeypatch, batches)
    here, there = (torch.load(r.folder / "last.ckpt", weights_only=True)["current_model_state"] for r in runs)
    assert [name for name in here if not torch.equal(here[name], there[name])] == []
    assert "bank" not in options or here["objective.bank.item"].min() >= 0
    assert ("objective.bias" in here) == ("loss" in options)


def test_the_bias_of_the_sigmoid_loss_learns(small, tmp_path):
    data = sets.prepare(replace(small, loss="sigmoid"), False)
    task, _ = adapt.build(replace(small, loss="sigmoid"), data)
    optimizer = task.configure_optimizers()["optimizer"]
    before = task.objective.bias.item()
    task.training_step(next(iter(data.loaders(small)[0])), 0).backward()
    optimizer.step()
    assert task.objective.bias.item() != before


def test_the_image_tower_starts_from_an_image_checkpoint(small, tmp_path, capsys):
    image = zoo.create_model("image_pico", num_classes=3, **{**IMAGE, "patch": 2})
    image.card.name = "image_pico.mine"
    image.card.preprocess["mean"] = [0.1, 0.2, 0.3]
    file = zoo.save(image, tmp_path / "image.safetensors")
    given = replace(small, image_start=str(file), arguments={**small.arguments, "image": {"patch": 4, "drop_path": 0.1}})
    data = sets.prepare(given, False)
    task, lines = adapt.build(given, data)
    model = task.model
    assert f"tensors from {file}" in lines[1] and model.card.arguments["image"]["dims"] == [16, 32]
    assert model.image.patch == 4 and model.card.arguments["image"]["drop_path"] == 0.1  # given on top, where shapes fit
    assert data.preprocess.mean == (0.1, 0.2, 0.3) and data.preprocess.size == (32, 32)
    assert model.card.parents == {"image_pico.mine": checkpoint.sha256(file)}
    trained = {name: tensor for name, tensor in image.state_dict().items() if not name.startswith("classifier")}
    assert trained.keys() == model.image.state_dict().keys()
    assert all(torch.equal(model.image.state_dict()[name], tensor) for name, tensor in trained.items())
    zoo.save(model, tmp_path / "pair.safetensors")
    again, _ = adapt.build(replace(given, image_start=str(tmp_path / "pair.safetensors")), data)  # the tower of a pair model
    assert torch.equal(again.model.image.norm.weight, model.image.norm.weight)


def test_an_image_checkpoint_that_does_not_fit_is_told(small, tmp_path):
    file = zoo.save(zoo.create_model("image_pico", **IMAGE), tmp_path / "image.safetensors")
    wider = replace(small, image_start=str(file), arguments={**small.arguments, "image": {"dims": [16, 40]}})
    with pytest.raises(ZooError, match=r"image_start: .*tensors do not match(.|\n)*image\.norm\.weight"):
        adapt.build(wider, sets.prepare(wider, False))
    with pytest.raises(UsageError, match="image_start: .*; start: .* give one of them"):
        adapt.build(replace(small, image_start=str(file), start=str(file)), None)
    sound = replace(small, image_start="audio_pico.fsdd")
    with pytest.raises(UsageError, match="audio_pico.fsdd is a audio model; a checkpoint of pictures is needed"):
        sets.prepare(sound, False)


def test_a_run_goes_on_from_a_text_image_checkpoint(small, tmp_path):
    first = run.train(replace(small, match_weight=0.0), tmp_path / "runs")
    more = replace(small, start=str(first.folder), lr=1e-9, ema=0.0, arguments={})
    model = zoo.load(run.train(more, tmp_path / "runs").folder)
    before = zoo.load(first.folder).state_dict()
    moved = {name for name, tensor in model.state_dict().items()
             if not torch.allclose(before[name].float(), tensor.float(), atol=1e-6)}
    assert all(name.endswith(("running_mean", "running_var", "num_batches_tracked")) for name in moved)  # lr is next to nothing
    assert list(model.card.parents.values()) == [checkpoint.sha256(first.folder / "best.safetensors")]


def test_blocks_of_the_text_tower_learn_and_are_stored(small, tmp_path):
    result = run.train(replace(small, unfreeze_from=2, bank=8, soft_targets=0.1), tmp_path / "runs")
    stored = checkpoint.read_header(result.folder / "best.safetensors")
    own = {name for name in stored if name.startswith("text.")}
    assert own and all(name.startswith("text.blocks.2.") for name in own)
    model, untrained = zoo.load(result.folder), zoo.create_model("text_image_pico", **small.arguments)
    name, below = "blocks.2.attn.qkv.weight", "blocks.1.attn.qkv.weight"
    assert not torch.equal(model.text.get_parameter(name), untrained.text.get_parameter(name))
    assert torch.equal(model.text.get_parameter(below), untrained.text.get_parameter(below))
    # a further run that freezes the tower keeps what was trained, in training and on saving
    more = run.train(replace(small, start=str(result.folder), arguments={}), tmp_path / "runs")
    assert torch.equal(zoo.load(more.folder).text.get_parameter(name), model.text.get_parameter(name))


def test_what_the_run_validates_is_what_is_loaded(small, tmp_path):
    """The states that training keeps in half precision give the vectors that the loaded model computes."""
    given = replace(small, unfreeze_from=1, ema=0.0)
    data = sets.prepare(given, False)
    task, _ = adapt.build(given, data)
    file = zoo.save(task.model, tmp_path / "model.safetensors")
    texts = ["a red picture", "something blue"]
    with torch.no_grad():
        here = task.model.eval().project_text(*task.texts(texts))
    assert torch.allclose(here, zoo.load(file).embed_text(texts), atol=3e-3)


def test_wrong_options_are_told(small):
    data = sets.prepare(small, False)
    with pytest.raises(UsageError, match=r"unfreeze_from: 3; the text tower has blocks 0 to 2"):
        adapt.build(replace(small, unfreeze_from=3), data)
    with pytest.raises(UsageError, match="balance: sampler; .* has no classes"):
        sets.prepare(replace(small, balance="sampler"), False)


def test_the_match_loss_is_that_of_each_pair_alone(small, monkeypatch):
    """Pictures are prepared for the fusion once; against one forward_match a pair, with the wrong pairs given."""
    data = sets.prepare(small, False)
    task, _ = adapt.build(small, data)
    task.eval()
    words, mask = task.texts(["a red picture", "something blue", "a green picture"])
    tokens, image = task.model.encode_image(torch.randn(3, 3, 32, 32))
    monkeypatch.setattr(contrast, "hard_negatives", lambda logits, positive: (torch.tensor([0, 2]), torch.tensor([1, 0])))
    found = task.match_loss(words, mask, tokens, torch.zeros(3, 3), torch.eye(3) > 0)
    pairs = [(0, 0), (1, 1), (2, 2), (0, 1), (2, 0), (1, 0), (0, 2)]  # the true ones, wrong pictures, wrong texts
    scores = [task.model.forward_match(words[t : t + 1], mask[t : t + 1], tokens[i : i + 1]) for t, i in pairs]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(torch.cat(scores), torch.tensor([1.0] * 3 + [0.0] * 4))
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_lora_on_layers_that_both_directions_share(small, tmp_path):
    shared = replace(small, arguments={**small.arguments, "fusion": {"share_cross": True}}, lora=2, lora_on=["fusion"])
    task, _ = adapt.build(shared, sets.prepare(shared, False))
    asks = task.model.fusion.text_asks[0].attn
    assert len(asks.q.parametrizations.weight) == 1 and asks.q is task.model.fusion.image_asks[0].attn.q
    with torch.no_grad():
        asks.q.parametrizations.weight[0].b.normal_()
    for merge in (True, False):
        loaded = zoo.load(lora.save(task.model, tmp_path / f"{merge}.safetensors", replace(shared, lora_merge=merge)))
        assert torch.equal(loaded.fusion.image_asks[0].attn.q.weight, asks.q.weight)


def test_a_batch_of_one_trains(small):
    data = sets.prepare(small, False)
    for loss in ("softmax", "sigmoid"):
        given = replace(small, batch_size=1, match_weight=1.0, loss=loss)
        task, _ = adapt.build(given, data)
        value = task.training_step(next(iter(data.loaders(given)[0])), 0)
        value.backward()
        assert value.isfinite() and all(p.grad.isfinite().all() for p in task.model.parameters() if p.grad is not None)
