"""Distillation: losses by hand, maps on a common grid, gradients, a teacher that stays as it is, exact resume, wrong teachers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from einops import rearrange

import zoo
from tests.train.conftest import SMALL
from tests.train.test_run import resumes_exactly
from zoo import checkpoint
from zoo.card import Card
from zoo.core import Attention, Band, Whole, Windows
from zoo.errors import UsageError, ZooError
from zoo.models.mel import SpecAugment
from zoo.train import distill, run
from zoo.train.attention_maps import attentions, difference, divergence, look, matched, pool
from zoo.train.recipe import Recipe, out_of_range
from zoo.train.task import Classify

LABELS = ["blue", "green", "red"]


def image_model(**arguments):
    torch.manual_seed(len(str(arguments)))
    model = zoo.create_model("image_pico", num_classes=3, **{**SMALL, **arguments})
    model.card.labels = list(LABELS)
    return model


def sound_model(**arguments):
    torch.manual_seed(len(str(arguments)))
    sizes = {"dims": [16, 32], "depths": [1, 1], "windows": [8, None], "head_dim": 8, "mels": 32}
    model = zoo.create_model("audio_pico", num_classes=3, **{**sizes, "rate": 8000, "win": 200, "hop": 80, **arguments})
    model.card.labels = list(LABELS)
    return model


def task_of(student, teacher, **keys):
    recipe = Recipe(task=f"{student.card.modality}_classification", model=student.card.model, **keys)
    return distill.Distill(student, recipe, None, distill.Teacher(teacher, student))


PICTURES = torch.randn(4, 3, 32, 24, generator=torch.Generator().manual_seed(0))
ANSWERS = torch.tensor([0, 2, 1, 0])


def test_answers_by_hand():
    student, teacher = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, 0.0]])
    # T = 1: t = (1/2, 1/2), s = (3/4, 1/4)
    by_hand = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert distill.answers(student, teacher, 1.0).item() == pytest.approx(by_hand, abs=1e-6)
    # T = 2: s = (sqrt 3, 1) / (sqrt 3 + 1)
    s = math.sqrt(3) / (math.sqrt(3) + 1)
    by_hand = 4 * (0.5 * math.log(0.5 / s) + 0.5 * math.log(0.5 / (1 - s)))
    assert distill.answers(student, teacher, 2.0).item() == pytest.approx(by_hand, abs=1e-6)
    assert distill.answers(teacher, teacher, 3.0).item() == 0


def test_divergence_by_hand():
    """Three tokens, the last one padding; the student's second query sees one key more than the teacher's."""
    student = torch.tensor([[[[0.25, 0.75, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]]])
    teacher = torch.tensor([[[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]]])
    first = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    second = 0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6)
    real = torch.tensor([[True, True, False]])
    assert divergence(student, teacher, real).item() == pytest.approx((first + second) / 2, abs=1e-6)
    assert divergence(student, teacher, torch.zeros(1, 3, dtype=torch.bool)) == 0
    assert divergence(teacher, teacher, torch.ones(1, 3, dtype=torch.bool)).item() == pytest.approx(0, abs=1e-7)
    student.requires_grad_()
    divergence(student, teacher, torch.ones(1, 3, dtype=torch.bool)).backward()  # a last row without a common key
    assert student.grad.isfinite().all() and student.grad[0, 0, 2].abs().sum() == 0


def test_the_loss_is_the_sum_of_its_parts():
    student, teacher = image_model(), image_model(dims=[32, 64], head_dim=16)
    student.eval()
    task = task_of(student, teacher, teacher_share=0.6, temperature=3.0, map_weight=2.0, label_smoothing=0.1)
    loss = task.training_step([PICTURES, ANSWERS], 0)
    (mine, seen), (theirs, shown) = look(student, [PICTURES], [2]), look(teacher, [PICTURES], [2])
    assert attentions(student)[2] is student.stages[1].blocks[1].attn
    s, t = (mine / 3).softmax(1), (theirs / 3).softmax(1)
    answers = 9 * (t * (t / s).log()).sum(1).mean()
    labels = torch.nn.functional.cross_entropy(mine, ANSWERS, label_smoothing=0.1)
    # the last stage is 8 x 6 tokens in windows of 4, shifted by 2: both have 4 heads
    s, t = seen[0].on((8, 6), 4)[0], shown[0].on((8, 6), 4)[0]
    assert s.shape == (4, 4, 48, 48)
    torch.testing.assert_close(s.sum(-1), torch.ones(4, 4, 48))
    maps = torch.where(t > 0, t * (t / s.clamp(min=1e-30)).log(), 0.0).sum(-1).mean()
    torch.testing.assert_close(loss, 0.4 * labels + 0.6 * answers + 2.0 * maps)
    torch.testing.assert_close(task_of(student, teacher, teacher_share=0.0, map_weight=0.0).training_step([PICTURES, ANSWERS], 0),
                               torch.nn.functional.cross_entropy(mine, ANSWERS))


def test_gradients_reach_the_student_through_the_maps_alone():
    student, teacher = image_model(), image_model(head_dim=16)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    task = task_of(student, teacher, teacher_share=1.0, map_layers="all").train()
    logits, maps = look(student, [PICTURES], [i for i, _ in task.pairs])
    _, examples = task.teacher.look([PICTURES], [j for _, j in task.pairs])
    sum(map(difference, maps, examples)).backward()
    for attn in attentions(student):
        queries_and_keys = attn.qkv.weight.grad[: 2 * attn.qkv.in_features]
        assert queries_and_keys.isfinite().all() and queries_and_keys.abs().sum() > 0
    assert student.classifier.weight.grad is None
    task.training_step([PICTURES, ANSWERS], 0).backward()
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())  # batch norms too
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters()) and not teacher.training
    assert not any("teacher" in name for name in task.state_dict())


@pytest.mark.parametrize("steps", [1, 60])
def test_maps_become_those_of_the_teacher(steps):
    """The map term alone, of all layers, other widths and heads."""
    student, teacher = sound_model(), sound_model(dims=[32, 48], depths=[2, 2], windows=[16, None], head_dim=16)
    with torch.no_grad():  # an untrained teacher looks everywhere alike
        for attn in attentions(teacher):
            attn.qkv.weight[: 2 * attn.qkv.in_features] *= 25
    inputs = [torch.randn(6, 3000), torch.tensor([3000, 1500, 2000, 2500, 3000, 900])]
    task, optimizer = task_of(student, teacher, map_layers="all"), torch.optim.AdamW(student.parameters(), 5e-3)
    values = []
    for _ in range(steps):
        mine, theirs = ([pair[side] for pair in task.pairs] for side in (0, 1))
        loss = sum(map(difference, look(student, inputs, mine)[1], task.teacher.look(inputs, theirs)[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[0] > 0.01
    if steps > 1:
        assert values[-1] < 0.5 * values[0]


def test_padding_changes_nothing():
    student, teacher = sound_model().eval(), sound_model(depths=[1, 2], head_dim=16).eval()
    layers = range(len(attentions(student)))
    short, long = torch.randn(1, 1600), torch.full((2, 4000), float("nan"))
    long[0, :1600], long[1] = short, torch.randn(4000)

    def value(wave, lengths, first):
        maps = [look(m, [wave, lengths], list(layers))[1] for m in (student, teacher)]
        maps = [[replace(m, weights=m.weights[:first], real=m.real[:first]) for m in each] for each in maps]
        return torch.stack([difference(*pair) for pair in zip(*maps)])

    alone = value(short, torch.tensor([1600]), 1)
    torch.testing.assert_close(value(long, torch.tensor([1600, 4000]), 1), alone, rtol=1e-4, atol=1e-6)
    assert (alone > 0).all()


@pytest.mark.parametrize("axes, grid", [((7,), (4,)), ((6, 5), (3, 5)), ((9,), (9,)), ((10,), (4,))])
def test_pooling_is_the_loop_written_out(axes, grid):
    torch.manual_seed(0)
    n, g = math.prod(axes), math.prod(grid)
    weights, real = torch.randn(2, 3, n, n).softmax(-1), torch.rand(2, n) > 0.3
    got, here = pool(weights, real, axes, grid)
    places = [np.unravel_index(t, axes) for t in range(n)]
    cells = [int(np.ravel_multi_index([i * c // a for i, c, a in zip(place, grid, axes)], grid)) for place in places]
    for b in range(2):
        for q in range(g):
            rows = [t for t in range(n) if cells[t] == q and real[b, t]]
            assert here[b, q] == bool(rows)
            for k in range(g):
                keys = [t for t in range(n) if cells[t] == k]
                if rows:
                    want = weights[b][:, rows][:, :, keys].sum(-1).mean(-1)
                    torch.testing.assert_close(got[b, :, q, k], want)


@pytest.mark.parametrize("pattern", [Windows((4,), (2,)), Band(3), Whole()])
def test_maps_of_any_pattern_and_number_of_heads_compare(pattern):
    """A student of 2 heads that sees everybody, 6 tokens; a teacher of 4 heads, 11 tokens, another pattern."""
    torch.manual_seed(0)
    student, teacher = Attention(16, 2, pattern=Whole()), Attention(32, 4, pattern=pattern)
    mine = look(student, [torch.randn(2, 6, 16)], [0])[1][0]
    theirs = look(teacher, [torch.randn(2, 11, 32)], [0])[1][0]
    assert mine.on((6,), 1)[0].shape == theirs.on((6,), 1)[0].shape == (2, 1, 6, 6)
    torch.testing.assert_close(theirs.on((6,), 1)[0].sum(-1), torch.ones(2, 1, 6))
    value = difference(mine, theirs)
    value.backward()
    assert value > 0 and student.qkv.weight.grad.abs().sum() > 0
    dense = rearrange(teacher.pattern.layout((11,)).dense(theirs.weights), "b h n m -> b n m h").mean(-1)
    torch.testing.assert_close(theirs.on((11,), 1)[0][:, 0], dense)


def test_layers_are_spread_evenly():
    assert matched(3, 6, "all") == [(0, 1), (1, 3), (2, 5)]
    assert matched(4, 4, "all") == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert matched(3, 2, "all") == [(0, 0), (1, 1), (2, 1)]
    assert matched(3, 8, "last") == [(2, 7)]


def test_both_see_the_same_masks_and_the_teacher_draws_none_of_them():
    """Masks, drop path and weights go the same way with a teacher and without."""
    student, teacher = sound_model(drop_path=0.2), sound_model(drop_path=0.3, dims=[32, 48])
    seen = []

    class Seen(SpecAugment):
        def forward(self, mel, mask=None):
            seen.append(super().forward(torch.ones_like(mel), mask))
            return super().forward(mel, mask)

    student.augment = Seen(8, 6, 1)
    inputs = [torch.randn(3, 3000), torch.tensor([3000, 2000, 2500])]
    task = task_of(student, teacher).train()
    torch.manual_seed(5)
    task.training_step([*inputs, torch.tensor([0, 1, 2])], 0)
    after = torch.get_rng_state()
    assert len(seen) == 2 and torch.equal(*seen) and (seen[0] == 0).any()
    torch.manual_seed(5)
    Classify(student, task.recipe).train().training_step([*inputs, torch.tensor([0, 1, 2])], 0)
    assert torch.equal(torch.get_rng_state(), after) and torch.equal(seen[0], seen[2])
    assert [m for m in teacher.modules() if m.training] == [teacher, student.augment]  # drop path is off


@pytest.fixture
def taught(recipe, tmp_path):
    """A recipe of a smaller model with a teacher of 3 epochs."""
    teacher = run.train(replace(recipe, epochs=3, ema=0.0, augment="light"), tmp_path / "teacher")
    return replace(recipe, teacher=str(teacher.folder), arguments={**SMALL, "depths": [1, 1], "head_dim": 16, "drop_path": 0.1},
                   map_layers="all", epochs=3)


def test_a_run_with_a_teacher_resumes_exactly(taught, tmp_path, monkeypatch, capsys):
    straight, resumed = resumes_exactly(replace(taught, mixup=0.4), tmp_path, monkeypatch, 7)
    model, file = zoo.load(resumed.folder), checkpoint.locate(taught.teacher)
    assert model.card.parents == {"image_pico-1": checkpoint.sha256(file)}
    assert model.card.recipe["teacher"] == "image_pico-1"  # not where it lay
    assert f"teacher {taught.teacher}, image_pico of 0.04 M parameters: maps of 2 layers and answers" in capsys.readouterr().err
    state = torch.load(straight.folder / "last.ckpt", weights_only=True)
    assert len(state["current_model_state"]) == len(model.state_dict())  # no teacher in it
    other = zoo.load(taught.teacher)
    other.card.notes = "another one"
    zoo.save(other, file)
    with pytest.raises(ZooError, match="is another file than when this run began"):
        run.train(run.load_recipe(resumed.folder), resume_from=resumed.folder)


def test_a_student_learns_more_with_a_teacher():
    """A teacher that knows the colours; labels of which half are drawn at random."""
    torch.manual_seed(0)
    teacher = image_model(dims=[16], depths=[1], drop_path=0.0)
    colours = torch.eye(3)[:, :, None, None]

    def batch(size):
        truth = torch.randint(3, (size,))
        return colours[truth] + torch.randn(size, 3, 8, 8), truth

    def taught_by(student, make, steps):
        optimizer = torch.optim.AdamW(student.parameters(), 3e-3)
        task = make(student).train()
        for step in range(steps):
            torch.manual_seed(step)
            x, truth = batch(24)
            noisy = torch.where(torch.rand(24) < 0.6, torch.randint(3, (24,)), truth)
            optimizer.zero_grad()
            task.training_step([x, truth if student is teacher else noisy], 0).backward()
            optimizer.step()
        torch.manual_seed(1000)
        x, truth = batch(600)
        with torch.no_grad():
            return (student.eval()(x).argmax(1) == truth).float().mean()

    alone = Recipe(task="image_classification", model="image_pico")
    assert taught_by(teacher, lambda model: Classify(model, alone), 60) > 0.9
    small = {"dims": [8], "depths": [1], "drop_path": 0.0}
    without = taught_by(image_model(**small), lambda model: Classify(model, alone), 30)
    helped = taught_by(image_model(**small), lambda model: task_of(model, teacher, teacher_share=0.9), 30)
    assert 1 - helped < 0.85 * (1 - without)


def card(**given):
    return Card(**{"model": "audio_pico", "modality": "audio", "labels": ["a", "b"], "preprocess": {"rate": 8000}, **given})


@pytest.mark.parametrize("teacher, says", [
    (card(modality="image"), "is of modality image, the recipe's model audio_pico of audio"),
    (card(head="tags"), "is no classifier of one label each"),
    (card(labels=["a", "c"]), "knows other labels.  only in data: b  only in the teacher: c"),
    (card(labels=["b", "a"]), "knows other labels.  the same in another order"),
    (card(preprocess={"rate": 16000}), "wants another input: rate 16000 (here 8000); make them equal with --arguments"),
    (card(), ""),
])
def test_a_teacher_that_does_not_fit_is_told_why(teacher, says):
    assert distill.misfit(teacher, card()).startswith(says) and bool(says) == bool(distill.misfit(teacher, card()))


def test_wrong_recipes(recipe, tmp_path):
    with pytest.raises(UsageError, match="teacher: image_nano.cifar10 knows other labels"):
        run.train(replace(recipe, teacher="image_nano.cifar10"), tmp_path)
    with pytest.raises(ZooError, match="nowhere: no such checkpoint, file or run folder"):
        run.train(replace(recipe, teacher="nowhere"), tmp_path)
    wrong = replace(recipe, task="graph_regression", model="graph_pico", teacher="x", teacher_share=2.0, temperature=0.0,
                    map_weight=-1.0, map_layers="first")
    assert {"teacher", "teacher_share", "temperature", "map_weight", "map_layers"} <= out_of_range(wrong).keys()
    folded = zoo.create_model("audio_htsat", num_classes=3, dims=[24, 48], depths=[1, 1])
    waves = torch.randn(1, 4000)
    with pytest.raises(ZooError, match="the student's map has 1 axes, the teacher's 2.*\n?.*--map-weight 0"):
        difference(look(sound_model(), [waves], [1])[1][0], look(folded, [waves], [1])[1][0])
