"""Every key of a recipe works for all four kinds of data, or is refused with the reason."""

from dataclasses import replace

import pytest
import torch

import zoo
from tests.train import tiny
from zoo import checkpoint
from zoo.errors import UsageError
from zoo.train import adapt, compiling, recipe, run, sets
from zoo.train.recipe import Recipe

KEYS = {
    "ema": {"ema": 0.9}, "patience": {"patience": 1, "lr": 1e-12, "epochs": 3}, "accumulate": {"accumulate": 2},
    "checkpoint_blocks": {"checkpoint_blocks": True}, "precision": {"precision": "bf16"}, "layer_decay": {"layer_decay": 0.5},
    "optimizer": {"optimizer": "nmuon", "layer_decay": 0.5}, "weights": {"balance": "weights"}, "sampler": {"balance": "sampler"},
    "workers": {"workers": 1}, "compile": {"compile": True}, "mixup": {"mixup": 0.3}, "label_smoothing": {"label_smoothing": 0.1},
}  # fmt: skip
REFUSED = {("graph", "sampler"), ("graph", "mixup"), ("text_image", "sampler"), ("text_image", "weights"),
           ("text_image", "mixup"), ("text_image", "label_smoothing")}


def stem(kind, task):
    """A prefix of weights near the input."""
    names = [name for name, _ in task.model.named_parameters()]
    return next(name.rsplit(".", 1)[0] for name in names if kind != "text_image" or name.startswith("image."))


@pytest.fixture(params=tiny.KINDS)
def kind(request):
    return request.param


@pytest.fixture
def given(kind, tmp_path):
    return tiny.recipe(kind, tmp_path / "tiny", epochs=1)


def start(given, folder):
    """The recipe, going on from an untrained checkpoint that was stored."""
    task, _ = adapt.build(given, sets.prepare(given, False))
    return replace(given, start=str(checkpoint.save(task.model, folder / "start.safetensors")), arguments={})


def test_everything_at_once(kind, given, tmp_path, capsys):
    """Moving average, accumulation, gradient checkpointing, bf16, frozen weights, layer-wise rates, early stop, class weights."""
    if kind != "text_image":
        given = start(given, tmp_path)
    task, _ = adapt.build(given, sets.prepare(given, False))
    frozen = stem(kind, task)
    labels = {} if kind == "text_image" else {"balance": "weights", "label_smoothing": 0.1}
    everything = replace(given, ema=0.9, accumulate=2, checkpoint_blocks=True, precision="bf16", freeze=[frozen], layer_decay=0.7,
                         patience=1, epochs=2, **labels)
    result = run.train(everything, tmp_path / "runs")
    assert 0 <= result.score <= 1 and "tensors frozen" in capsys.readouterr().err
    written = {file.name for file in result.folder.iterdir()}
    assert written >= {"best.safetensors", "last.ckpt", "log.csv", "curves.png", "recipe.yaml"}
    state = torch.load(result.folder / "last.ckpt", weights_only=True)
    averaged, current = state["state_dict"], state["current_model_state"]
    assert any(not torch.equal(averaged[name], current[name]) for name in current)
    assert state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"] % 3 == 0
    model = zoo.load(result.folder)
    if kind != "text_image":
        before = checkpoint.tensors(tmp_path / "start.safetensors")
        same = {name: torch.equal(before[name], tensor) for name, tensor in model.state_dict().items() if name in before}
        assert all(equal for name, equal in same.items() if name.startswith(frozen)) and not all(same.values())


def test_a_graph_model_goes_on_from_its_own_labels_and_gets_a_new_head_for_others(tmp_path):
    given = tiny.recipe("graph", tmp_path / "tiny")
    first = start(given, tmp_path)
    _, lines = adapt.build(first, sets.prepare(first, False))
    assert not any("new" in line for line in lines)
    table = tmp_path / "tiny" / "chains.csv"
    table.write_text(table.read_text().replace("acid", "alcohol"))
    _, lines = adapt.build(first, sets.prepare(first, False))
    assert any("classifier.weight  new" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_each_key_alone(kind, key, given, tmp_path):
    changed = replace(given, **KEYS[key])
    if (kind, key) in REFUSED:
        with pytest.raises(UsageError, match=f"^{'balance' if key in ('weights', 'sampler') else key}: "):
            run.train(changed, tmp_path / "runs")
        assert not (tmp_path / "runs").exists()
        return
    result = run.train(changed, tmp_path / "runs")
    assert 0 <= result.score <= 1 and zoo.load(result.folder).card.scores


def test_lora_learns_beside_weights_that_stay(kind, given, tmp_path):
    if kind != "text_image":
        given = start(given, tmp_path)
    task, lines = adapt.build(replace(given, lora=2), sets.prepare(given, False))
    assert any(line.startswith("lora    rank 2") for line in lines)
    assert all(not p.requires_grad for name, p in task.model.named_parameters() if name.endswith("weight.original"))


def test_layer_wise_rates_fall_towards_the_input(kind, given):
    task, _ = adapt.build(replace(given, layer_decay=0.5), sets.prepare(given, False))
    optimizer = task.configure_optimizers()["optimizer"]
    names = {id(p): name for name, p in task.model.named_parameters()}
    rates = {names[id(p)]: group["initial_lr"] for group in optimizer.param_groups for p in group["params"] if id(p) in names}
    assert rates.keys() == {name for name, p in task.model.named_parameters() if p.requires_grad}
    assert max(rates.values()) == given.lr
    assert all(rate < given.lr / 3 for name, rate in rates.items() if name.startswith(f"{stem(kind, task)}."))
    if kind == "text_image":
        deep, high = (rates[f"image.stages.{i}.blocks.0.norm1.weight"] for i in (0, 1))
        assert deep < high < rates["logit_scale"]


def test_both_towers_have_rates_of_their_own(tmp_path):
    given = tiny.recipe("text_image", tmp_path / "tiny", layer_decay=0.5, unfreeze_from=1)
    task, _ = adapt.build(given, sets.prepare(given, False))
    optimizer = task.configure_optimizers()["optimizer"]
    names = {id(p): name for name, p in task.model.named_parameters()}
    rates = {names[id(p)]: group["initial_lr"] / given.lr for group in optimizer.param_groups for p in group["params"]}
    assert rates["text.blocks.2.norm1.weight"] == 0.5 and rates["text.blocks.1.norm1.weight"] == 0.25
    assert rates["image.norm.weight"] == 0.5 and rates["text_proj.norm.weight"] == 1


def test_compiling_changes_neither_names_nor_loss(kind, given, monkeypatch):
    """With the backend that runs the traced graph as it is: what torch.compile traces is what the model does."""
    import torch._dynamo

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, **_: compiled(part, backend="eager"))
    data = sets.prepare(given, False)
    tasks = [adapt.build(given, data)[0] for _ in range(2)]
    tasks[1].load_state_dict(tasks[0].state_dict())
    assert compiling.start(tasks[1].model, given) == []
    assert "compile" in compiling.start(tasks[1].model, replace(given, compile=True))[0]
    assert tasks[0].state_dict().keys() == tasks[1].state_dict().keys()
    loader, _ = data.loaders(given)
    losses = []
    for task in tasks:
        torch.manual_seed(0)
        task.eval()
        losses.append(task.training_step(next(iter(loader)), 0))
        losses[-1].backward()
    assert torch.allclose(*losses, rtol=1e-4)
    for (name, here), there in zip(tasks[0].named_parameters(), tasks[1].parameters()):
        assert here.grad is None and there.grad is None or torch.allclose(here.grad, there.grad, atol=1e-4), name
    torch._dynamo.reset()


def test_what_cannot_be_compiled_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="compile: attention maps .* leave it out with a teacher"):
        compiling.start(None, Recipe(compile=True, teacher="image_nano.cifar10"))
    monkeypatch.setattr(compiling, "which", lambda _: None)
    with pytest.raises(UsageError, match=r"compile: .* a C\+\+ compiler .g\+\+., and there is none"):
        compiling.start(None, Recipe(compile=True))


@pytest.mark.parametrize("task, key, value, says", [
    ("graph_classification", "balance", "sampler", "graphs come in batches of like size"),
    ("node_classification", "balance", "sampler", "one big graph comes whole: take weights"),
    ("graph_regression", "balance", "weights", "graph_regression has no classes that could come equally often"),
    ("text_image_contrastive", "balance", "weights", "has no classes"),
    ("link_prediction", "mixup", 0.2, "pictures and sounds with labels can be blended"),
    ("text_image_contrastive", "label_smoothing", 0.1, "has no labels to smooth"),
])  # fmt: skip
def test_what_a_task_has_no_use_for_is_refused(task, key, value, says):
    given = Recipe(task=task, model="graph_pico", data="nowhere", **{key: value})
    assert says in recipe.out_of_range(given)[key]
    with pytest.raises(UsageError, match=f"^{key}: {value}; .*{says}"):
        sets.prepare(given, False)


def test_weights_of_classes_and_tags():
    from zoo.data.items import Items, balanced_weights
    from zoo.train import balance

    asked = Recipe(balance="weights")
    assert balance.class_weights(Recipe(), [0, 1], 2) is None
    assert balance.class_weights(asked, [0, 0, 0, 1], 2).tolist() == pytest.approx([4 / 6, 2])
    tags = torch.tensor([[1, 0.0], [0, 0], [0, 1], [float("nan"), 0]])
    assert balance.tag_weights(asked, tags).tolist() == [2.0, 3.0]
    items = Items(list("abcd"), list("abcd"), tags=[[0], [0, 1], [0], []])
    assert balanced_weights(items) == [0.5, 1, 0.5, 1]


def test_the_first_line_names_device_precision_and_why(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.device_line(Recipe(precision="fp32")).endswith("(no CUDA device found); fp32 (the recipe says so)")
    monkeypatch.setattr(run.Path, "read_text", lambda *_: "flags : avx512_bf16")
    assert run.device_line(Recipe()).endswith("bf16 (auto: this processor multiplies in it)")
    monkeypatch.setattr(run.Path, "read_text", lambda *_: "flags : sse2")
    assert run.device_line(Recipe()).endswith("fp32 (auto: this processor has no bf16 products)")
