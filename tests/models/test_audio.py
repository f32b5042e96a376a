"""The audio model: one answer for a clip wherever it stands, any length, frames, gradients, head, compile, export."""

import copy
import math

import pytest
import torch

pytest.importorskip("torchaudio")

from zoo.core import Attention, Recorder  # noqa: E402
from zoo.models.audio import Audio  # noqa: E402
from zoo.models.mel import SpecAugment  # noqa: E402

SMALL = dict(dims=(32, 32, 64), depths=(2, 2, 2), windows=(4, 6, None), head_dim=16)
ALL = {
    "windows": SMALL | dict(local="windows", stem="patch", kernel=0),
    "band": SMALL | dict(local="band", stem="conv", kernel=3),
    "mixed": SMALL | dict(windows=(None, 5, 3), stem="conv", kernel=5, mels=30, rate=8000, n_fft=256, win=200, hop=80),
    "wide": SMALL | dict(windows=(4, 6, 9), local="band", stem="patch", kernel=3),  # linear in the length throughout
}
LENGTHS = [1, 160, 161, 900, 2561, 16000]


@pytest.fixture(params=ALL)
def arguments(request) -> dict:
    return ALL[request.param]


def make(arguments, **more) -> Audio:
    torch.manual_seed(0)
    model = Audio(num_classes=5, **arguments | more).eval()
    for name, p in model.named_parameters():  # away from the initialisation, where tables and biases do nothing
        if p.ndim < 2 or name.endswith("table"):
            torch.nn.init.normal_(p, 0.5, 0.2)
        elif "attn" in name:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
    return model


def clip(samples: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.3


def batch(lengths, value=torch.nan, more=0):
    wave = torch.full((len(lengths), max(lengths) + more), value)
    for i, length in enumerate(lengths):
        wave[i, :length] = clip(length, i)
    return wave, torch.tensor(lengths)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("value", [0.0, torch.nan, 1e30])
def test_every_output_of_a_clip_is_the_same_alone_and_in_a_batch(arguments, value):
    model = make(arguments)
    wave, lengths = batch(LENGTHS, value, more=777)
    logits, (frames, real), units = model(wave, lengths), model.forward_frames(wave, lengths), model.forward_embed(wave, lengths)
    (last, mask), stages = model.forward_intermediates(wave, lengths)
    hop = model.frontend.hop
    for i, length in enumerate(LENGTHS):
        alone = clip(length, i)[None]
        same(logits[i : i + 1], model(alone))
        same(units[i : i + 1], model.forward_embed(alone))
        alone_frames, none = model.forward_frames(alone)
        tokens = math.ceil(math.ceil(math.ceil(math.ceil(length / hop) / 2) / 2) / 2)
        assert none is None and real[i].sum() == tokens == alone_frames.shape[1] and torch.equal(mask[i], real[i])
        same(frames[i, real[i]], alone_frames[0])
        (alone_last, _), alone_stages = model.forward_intermediates(alone)
        same(last[i, mask[i]], alone_last[0])
        for (x, m), (y, none) in zip(stages, alone_stages):
            assert none is None
            same(x[i, m[i]], y[0])


def test_gradients_do_not_feel_the_padding(arguments):
    model, results = make(arguments).train(), []
    for length, value, more in [(900, 0.0, 0), (900, torch.nan, 9000), (900, 1e30, 333)]:
        wave = torch.cat([clip(length), torch.full((more,), value)])[None].requires_grad_()
        lengths = torch.tensor([length, length + more])[: 1 + bool(more)]
        both = torch.cat([wave, clip(length + more, 1)[None]]) if more else wave  # beside a longer one
        loss = model(both, lengths)[0].square().sum()
        gradients = torch.autograd.grad(loss, [wave, *model.parameters()])
        assert not gradients[0][:, length:].any()
        results.append([loss.detach(), gradients[0][:, :length], *gradients[1:]])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()) + 1e-8)


def test_every_parameter_gets_a_gradient(arguments):
    model = make(arguments).train()
    model(*batch([16000, 9000])).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name


def test_silence_and_loud_waves_give_finite_logits_and_gradients(arguments):
    model = make(arguments)
    for wave in (torch.zeros(1, 4000), torch.full((1, 4000), 1e30), clip(4000)[None] * 32768):
        model.zero_grad()
        logits = model(wave.requires_grad_())
        logits.square().sum().backward()
        assert logits.isfinite().all() and wave.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_gradient_checkpointing_is_equal(arguments):
    results = []
    for enable in (False, True):
        model = make(arguments, drop_path=0.3).train()
        model.set_grad_checkpointing(enable)
        model.augment = SpecAugment()
        torch.manual_seed(7)
        logits = model(*batch([8000, 3000, 1000]))
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    for a, b in zip(*results):
        same(a, b)


def test_forward_changes_nothing(arguments):
    model = make(arguments)
    state = copy.deepcopy(model.state_dict())
    wave, lengths = batch([4000, 900])
    first = model(wave, lengths)
    for length in LENGTHS:
        model(clip(length)[None])
    assert torch.equal(model(wave, lengths), first)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_augment_runs_at_training_only_between_front_end_and_stem():
    model, seen = make(ALL["band"]), []

    class Record(torch.nn.Module):
        def forward(self, mel, mask):
            seen.append((mel, mask))
            return mel * 0

    wave, lengths = batch([4000, 900])
    before = model(wave, lengths)
    model.augment = Record()
    assert torch.equal(model(wave, lengths), before) and not seen
    model.train()
    assert not torch.equal(model(wave, lengths), before)
    mel, mask = model.frontend(wave, lengths)
    assert torch.equal(seen[0][0], mel) and torch.equal(seen[0][1], mask)
    assert not any("augment" in name for name in model.state_dict())


@torch.no_grad()
def test_no_mask_is_built_where_nothing_is_masked(arguments, monkeypatch):
    model, masks = make(arguments), []
    for block in (block for stage in model.stages for block in stage.blocks):
        block.register_forward_hook(lambda _, given, __: masks.append(given[1]))
    wave = torch.stack([clip(4000, i) for i in range(2)])
    model(wave), model(wave, torch.tensor([4000, 4000])), model(wave, torch.tensor([3000, 3000]))
    assert masks and all(mask is None for mask in masks)


@torch.no_grad()
def test_recorded_maps_say_for_every_frame_where_it_looked(arguments):
    model = make(arguments)
    wave, lengths = batch([16000, 5000])
    with Recorder(model) as record:
        recorded = model(wave, lengths)
    same(recorded, model(wave, lengths))
    _, stages = model.forward_intermediates(wave, lengths)
    attns = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    assert set(record.maps) == set(attns)
    for name, weights in record.maps.items():
        real = stages[int(name.split(".")[1])][1]
        full = attns[name].pattern.layout(real.shape[1:]).dense(weights)
        assert full.shape == (2, attns[name].heads, real.shape[1], real.shape[1])
        for i in range(2):
            rows = full[i][:, real[i]]
            same(rows.sum(-1), torch.ones(rows.shape[:2]))
            assert (rows[..., ~real[i]] == 0).all()


@torch.no_grad()
def test_what_a_local_stage_sees_ends_where_its_windows_end():
    model = make(ALL["wide"])
    wave = clip(160 * 8 * 200)[None]
    other = wave.clone()
    other[:, -800:] = clip(800, 5)
    moved = (model.forward_features(wave)[0] - model.forward_features(other)[0]).abs().amax(-1)[0] > 1e-6
    assert moved[-1] and not moved[:150].any()
    model = make(ALL["band"])  # its last stage sees everything
    assert (model.forward_features(wave)[0] != model.forward_features(other)[0]).any(-1).all()


@torch.no_grad()
def test_bf16_autocast_is_close_and_other_dtypes_work(arguments):
    model, (wave, lengths) = make(arguments), batch([8000, 3000])
    exact = model.forward_head(*model.forward_features(wave, lengths), pre_logits=True)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.forward_head(*model.forward_features(wave, lengths), pre_logits=True)
    assert (rough - exact).norm() < 0.05 * exact.norm()
    assert model.double()(wave, lengths).dtype == torch.double
    assert model.bfloat16()(wave, lengths).isfinite().all()


def test_reset_classifier(arguments):
    model, (wave, lengths) = make(arguments), batch([4000, 900])
    before = model.forward_head(*model.forward_features(wave, lengths), pre_logits=True)
    model.reset_classifier(3)
    assert model(wave, lengths).shape == (2, 3) and model.num_classes == 3
    assert model.forward_frames(wave, lengths)[0].shape == (2, math.ceil(4000 / model.frontend.hop / 8), 3)
    model.reset_classifier(0)
    assert torch.equal(model(wave, lengths), before)
    embedding = model.forward_embed(wave, lengths)
    same(embedding.norm(dim=-1), torch.ones(2))
    same(embedding, torch.nn.functional.normalize(before, dim=-1))


def test_forward_intermediates(arguments):
    model, (wave, lengths) = make(arguments), batch([4000, 900])
    (last, mask), stages = model.forward_intermediates(wave, lengths)
    features, real = model.forward_features(wave, lengths)
    assert torch.equal(last, features) and torch.equal(mask, real)
    assert [x.shape[-1] for x, _ in stages] == list(arguments["dims"]) and torch.equal(model.norm(stages[-1][0]), last)
    _, some = model.forward_intermediates(wave, lengths, [0, -1])
    assert len(some) == 2 and torch.equal(some[0][0], stages[0][0]) and torch.equal(some[1][0], stages[-1][0])
    assert model.forward_intermediates(wave, lengths, [])[1] == []
    with pytest.raises(ValueError, match=r"Audio: indices=\[7\]; allowed: -3 .. 2"):
        model.forward_intermediates(wave, lengths, [7])


def test_frame_seconds_and_tables():
    assert make(ALL["band"]).frame_seconds == pytest.approx(0.08)
    assert make(ALL["mixed"]).frame_seconds == pytest.approx(0.08)
    model = make(ALL["band"])
    assert model.no_weight_decay() == {f"stages.{i}.blocks.{j}.attn.position.table" for i in range(3) for j in range(2)}


@pytest.mark.parametrize("name, value, allowed", [
    ("num_classes", -1, ">= 0"),
    ("head_dim", 0, "an integer >= 1"),
    ("dims", (32, 40, 64), "multiples of head_dim=16"),
    ("dims", (), "multiples of head_dim=16"),
    ("depths", (2, 2), "integers >= 1, one a stage, dims=(32, 32, 64)"),
    ("depths", (2, 0, 2), "integers >= 1, one a stage"),
    ("windows", (4, 6), "integers >= 1 or None, one a stage"),
    ("windows", (4, 0, None), "integers >= 1 or None, one a stage"),
    ("local", "dilated", "'windows', 'band'"),
    ("stem", "resnet", "'patch', 'conv'"),
    ("kernel", 4, "0 (none) or an odd integer"),
    ("drop_path", 1.0, "0 <= drop_path < 1"),
])
def test_wrong_arguments_are_named(name, value, allowed):
    with pytest.raises(ValueError) as error:
        Audio(**SMALL | {name: value})
    assert str(error.value).startswith(f"Audio: {name}={value!r}; allowed: ") and allowed in str(error.value)


def test_an_item_without_samples_is_refused():
    with pytest.raises(ValueError, match=r"lengths\[1\]=0; allowed: 1 .. 800 samples"):
        make(ALL["band"])(torch.zeros(2, 800), torch.tensor([800, 0]))


def test_layer_wise_rates_fall_towards_the_input():
    from timm.optim import param_groups_layer_decay

    model = make(ALL["band"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    order = ["stem.conv1.weight", "stages.0.blocks.0.norm1.weight", "stages.1.blocks.0.norm1.weight",
             "stages.1.blocks.1.norm1.weight", "classifier.weight"]
    rates = [scale[name] for name in order]
    assert len(scale) == len(names) and rates == sorted(rates) and len(set(rates)) == 5 and rates[-1] == 1
    assert scale["stages.1.local.1.conv.weight"] == scale["stages.1.blocks.1.norm1.weight"]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("kind", ALL)
def test_export_with_dynamic_batch_and_samples_equals_eager(kind):
    model, (wave, lengths) = make(ALL[kind]), batch([8000, 3000])
    batch_axis, least = torch.export.Dim("b", min=1), 8 * model.frontend.hop + 1  # torch wants two tokens in the last stage
    shapes = {"wave": {0: batch_axis, 1: torch.export.Dim("samples", min=least)}, "lengths": {0: batch_axis}}
    options = dict(dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True)
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(model, (wave, lengths), **options)
    exported = program.module()
    for ends in [(least,), (least, 1), (2561,), (8000, 3000), (2700, 16000, 1), (40000, 100)]:
        wave, lengths = batch(ends)
        same(exported(wave, lengths), model(wave, lengths))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")  # the transform
@pytest.mark.parametrize("kind", ["windows", "band"])
def test_compiled_equals_eager(kind):
    model = make(ALL[kind] | dict(depths=(2, 1, 1)))
    torch.compiler.reset()
    (wave, lengths), results = batch([8000, 3000]), []
    for m in (model, torch.compile(model, dynamic=False)):
        model.zero_grad()
        logits = m(wave, lengths)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()) + 1e-6)
