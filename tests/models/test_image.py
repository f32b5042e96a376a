"""The image model: any size, one answer for an image wherever it stands, gradients, checkpointing, head, compile, export."""

import copy

import pytest
import torch

from zoo.models.image import Image

NATIVE = dict(patch=2, dims=(32, 64, 128), depths=(2, 2, 2), window=4, stem="conv", local=True)
SWIN = dict(patch=4, dims=(32, 64), depths=(2, 2), window=7)
PLAIN = dict(patch=2, dims=(32, 64), depths=(1, 2), window=3, local=True)
ALL = {"native": NATIVE, "swin": SWIN, "plain": PLAIN}
SIZES = [(1, 1), (1, 7), (31, 33), (32, 32), (57, 40)]


@pytest.fixture(params=ALL)
def arguments(request) -> dict:
    return ALL[request.param]


def make(arguments, **more) -> Image:
    torch.manual_seed(0)
    model = Image(num_classes=5, **arguments | more).eval()
    for name, p in model.named_parameters():  # away from the initialisation, where tables and biases do nothing
        if p.ndim < 2 or name.endswith("table"):
            torch.nn.init.normal_(p, 0.5, 0.2)
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model


def image(*shape, seed=1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_any_size_gives_finite_logits(arguments):
    model = make(arguments)
    for h, w in SIZES:
        x = image(2, 3, h, w)
        logits, features = model(x), model.forward_features(x)
        rows, cols = -(-h // model.patch), -(-w // model.patch)
        for _ in arguments["dims"][1:]:
            rows, cols = -(-rows // 2), -(-cols // 2)
        assert logits.shape == (2, 5) and logits.isfinite().all()
        assert features.shape == (2, rows, cols, model.num_features)
        same(model.forward_head(features), logits)


def test_alone_and_batched_are_equal(arguments):
    model = make(arguments)
    for h, w in SIZES:
        x = image(3, 3, h, w)
        with torch.no_grad():
            same(model(x), torch.cat([model(x[i : i + 1]) for i in range(3)]))
            assert model(x[:0]).shape == (0, 5)


def test_every_parameter_gets_a_gradient(arguments):
    model = make(arguments).train()
    model(image(2, 3, 57, 40)).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name
    model.zero_grad()
    model.eval()(image(2, 3, 1, 1)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_gradient_checkpointing_is_equal(arguments):
    results = []
    for enable in (False, True):
        model = make(arguments, drop_path=0.3).train()
        model.set_grad_checkpointing(enable)
        torch.manual_seed(7)
        logits = model(image(4, 3, 33, 31))
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in model.parameters()), *model.buffers()])
    for a, b in zip(*results):
        same(a, b)


def test_forward_changes_nothing_and_a_small_image_changes_no_later_answer(arguments):
    model = make(arguments)
    state = copy.deepcopy(model.state_dict())
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    x = image(2, 3, 57, 40)
    first = model(x)
    for h, w in SIZES:
        model(image(1, 3, h, w))
    assert torch.equal(model(x), first)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for name, module in model.named_modules():
        assert module.__dict__ == attributes[name], name


def test_bf16_autocast_is_close(arguments):
    model, x = make(arguments), image(4, 3, 57, 40)
    with torch.no_grad():
        exact = model.forward_head(model.forward_features(x), pre_logits=True)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model.forward_head(model.forward_features(x), pre_logits=True)
    assert (rough - exact).norm() < 0.05 * exact.norm()


def test_reset_classifier(arguments):
    model, x = make(arguments), image(2, 3, 32, 32)
    before = model.forward_head(model.forward_features(x), pre_logits=True)
    model.double().reset_classifier(3)
    assert model(x.double()).shape == (2, 3) and model.num_classes == 3
    assert model.classifier.weight.dtype == torch.double and not model.classifier.bias.any()
    model.float().reset_classifier(0)
    assert torch.equal(model(x), before)
    embedding = model.forward_embed(x)
    same(embedding.norm(dim=-1), torch.ones(2))
    same(embedding, torch.nn.functional.normalize(before, dim=-1))


def test_forward_intermediates(arguments):
    model, x = make(arguments), image(2, 3, 57, 40)
    last, maps = model.forward_intermediates(x)
    same(last, model.forward_features(x))
    assert [m.shape[1] for m in maps] == list(arguments["dims"])
    same(model.norm(maps[-1].permute(0, 2, 3, 1)), last)
    _, some = model.forward_intermediates(x, [0, -1])
    assert len(some) == 2 and torch.equal(some[0], maps[0]) and torch.equal(some[1], maps[-1])
    assert model.forward_intermediates(x, [])[1] == []
    with pytest.raises(ValueError, match=r"indices=\[7\]; allowed: -\d .. \d"):
        model.forward_intermediates(x, [7])


def test_no_weight_decay_names_the_tables(arguments):
    model = make(arguments)
    assert len(model.no_weight_decay()) == sum(arguments["depths"])
    assert all(name.endswith(".attn.position.table") for name in model.no_weight_decay())


def test_swin_tiny_small_and_base_have_swins_sizes():
    with torch.device("meta"):
        for dims, depths, millions in [
            ((96, 192, 384, 768), (2, 2, 6, 2), 28.29),
            ((96, 192, 384, 768), (2, 2, 18, 2), 49.61),
            ((128, 256, 512, 1024), (2, 2, 18, 2), 87.77),
        ]:
            count = sum(p.numel() for p in Image(dims=dims, depths=depths).parameters())
            assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize(
    "name, value, allowed",
    [
        ("num_classes", -1, ">= 0"),
        ("num_classes", "ten", ">= 0"),
        ("in_chans", 0, "an integer >= 1"),
        ("patch", 2.5, "an integer >= 1"),
        ("window", 0, "an integer >= 1"),
        ("head_dim", None, "an integer >= 1"),
        ("stem", "resnet", "'patch', 'conv'"),
        ("patch", 3, "a power of 2 with stem='conv'"),
        ("depths", (2, 2), "one entry per stage, dims=(32, 64, 128)"),
        ("depths", (2, 0, 2), "integers >= 1"),
        ("dims", (32, 48, 128), "multiples of head_dim=32"),
        ("dims", (32, 0, 128), "multiples of head_dim=32"),
        ("drop_path", 1.0, "0 <= drop_path < 1"),
    ],
)
def test_wrong_arguments_are_named(name, value, allowed):
    with pytest.raises(ValueError) as error:
        Image(**NATIVE | {name: value})
    assert str(error.value).startswith(f"Image: {name}={value!r}; allowed: ") and allowed in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_export_with_dynamic_batch_height_and_width_equals_eager(kind):
    model = make(ALL[kind])
    least = {"native": 9, "swin": 1, "plain": 5}[kind]  # torch wants two tokens a side before each convolution
    sizes = {0: torch.export.Dim("b", min=1)} | {i: torch.export.Dim("hw"[i - 2], min=least) for i in (2, 3)}
    options = dict(dynamic_shapes={"x": sizes}, prefer_deferred_runtime_asserts_over_guards=True)
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(model, (image(2, 3, 41, 53),), **options)
    exported = program.module()
    for b, h, w in [(1, least, least), (1, 9, 30), (3, 31, 33), (2, 32, 32), (5, 57, 40), (1, 64, 200), (2, 128, 96)]:
        x = image(b, 3, h, w)
        same(exported(x), model(x))
    same(model(image(2, 3, 41, 53)), exported(image(2, 3, 41, 53)))


@pytest.mark.slow
def test_compiled_equals_eager():
    model = make(NATIVE | {"dims": (32, 64), "depths": (2, 1)})
    torch.compiler.reset()
    x, results = image(2, 3, 41, 53), []
    for m in (model, torch.compile(model, dynamic=False)):
        model.zero_grad()
        logits = m(x)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()) + 1e-6)


def test_layer_wise_rates_fall_towards_the_input():
    from timm.optim import param_groups_layer_decay

    model = Image(num_classes=3, patch=2, window=4, dims=(16, 32), depths=(1, 2), head_dim=8, stem="conv", local=True)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    order = ["patch_embed.norm.weight", "stages.0.blocks.0.norm1.weight", "stages.1.blocks.0.norm1.weight",
             "stages.1.blocks.1.norm1.weight", "classifier.weight"]
    rates = [scale[name] for name in order]
    assert len(scale) == len(names) and rates == sorted(rates) and len(set(rates)) == 5 and rates[-1] == 1
    assert scale["stages.1.local.1.conv.weight"] == scale["stages.1.blocks.1.norm1.weight"]
