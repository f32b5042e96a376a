"""Programs of torch.export and ONNX: the model's answers on inputs of other sizes, and nothing written where they differ."""

import json

import numpy as np
import pytest
import torch

import zoo
from zoo.errors import ZooError
from zoo.export import export, files, measure, onnx
from zoo.export.programs import programs

pytest.importorskip("onnxruntime")

IMAGE = dict(dims=(16, 32), depths=(1, 2), head_dim=8, window=4)
TEXT = dict(dim=32, depth=1, heads=4, hidden=64)
SOUND = dict(num_classes=3, dims=(16, 32), depths=(2, 1), head_dim=8, windows=(4, None))
GRAPH = dict(num_classes=3, dim=16, depth=2, heads=2, pair_dim=4, walks=4)
MODELS = {
    "image": ("image_pico", IMAGE | {"num_classes": 3}),
    "swin": ("image_tiny", IMAGE | {"num_classes": 3}),
    "vectors": ("image_pico", IMAGE | {"num_classes": 0, "depths": (1, 1)}),
    "audio": ("audio_pico", SOUND),
    "windows": ("audio_pico", SOUND | {"local": "windows"}),
    "htsat": ("audio_htsat", dict(num_classes=3, dims=(24, 48), depths=(1, 1))),
    "graph": ("graph_pico", GRAPH),
    "nodes": ("graph_pico", GRAPH | {"level": "node", "directed": True, "smooth": 2, "node_floats": 3, "bias": "adjacency"}),
    "pairs": ("text_image_pico", {"image": IMAGE | {"patch": 4, "stem": "conv", "local": True}, "fusion_dim": 32, "tower": None,
                                  "text": TEXT}),
    "text": ("text_bert", TEXT | {"vocab_size": 100, "num_classes": 2}),
}


def make(kind: str):
    name, arguments = MODELS[kind]
    torch.manual_seed(0)
    model = zoo.create_model(name, **arguments).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    return model


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The smallest model as ONNX, and with 8 bits."""
    model, folder = make("text"), tmp_path_factory.mktemp("text")
    model.card.labels = ["yes", "no"]
    return model, folder, export(model, "onnx", folder / "t.onnx", int8=True)


def test_onnx_answers_as_the_model_and_says_what_goes_in(text):
    model, folder, (whole, small) = text
    assert whole.difference < 1e-5 < small.difference < 0.1 and small.bytes < whole.bytes
    assert {file.name for file in folder.iterdir()} == {"t.onnx", "t.int8.onnx", "t.onnx.json", "t.int8.onnx.json"}
    facts = json.loads((folder / "t.onnx.json").read_text())
    assert facts["inputs"] == [{"name": "ids", "dtype": "int64", "axes": ["batch", "tokens"]},
                               {"name": "mask", "dtype": "bool", "axes": ["batch", "tokens"]}]
    assert facts["outputs"] == ["logits", "vector"] and facts["labels"] == ["yes", "no"] and "softmax" in facts["answer"]
    assert facts["bounds"] == {"tokens": [2, 512]} and facts["preprocess"] == model.card.preprocess
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "t.onnx", providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["zoo"]) == facts
    assert [(value.name, value.shape) for value in session.get_inputs()] == [
        ("ids", ["batch", "tokens"]), ("mask", ["batch", "tokens"])]
    ids = np.random.default_rng(0).integers(0, 100, (4, 31))
    logits, vector = session.run(None, {"ids": ids, "mask": np.ones((4, 31), bool)})
    with torch.no_grad():
        assert np.allclose(logits, model(torch.from_numpy(ids)).numpy(), atol=1e-5)
    assert np.allclose(np.linalg.norm(vector, axis=1), 1, atol=1e-5)


def test_8_bits_are_stored_as_such(text):
    import onnx as onnx_format

    proto = onnx_format.load(text[1] / "t.int8.onnx")
    stored = {tensor.data_type for tensor in proto.graph.initializer if tensor.data_type == onnx_format.TensorProto.INT8}
    assert stored and any(node.op_type == "MatMulInteger" for node in proto.graph.node)


def test_a_program_that_differs_is_not_kept(text, tmp_path, monkeypatch):
    model, real = text[0], onnx.runner
    (tmp_path / "t.onnx").write_bytes(b"before")
    monkeypatch.setattr(onnx, "write", lambda program, traced, file, facts: file.write_bytes(b"x"))
    monkeypatch.setattr(files, "trace", lambda program: None)
    good = real(text[1] / "t.onnx")
    monkeypatch.setattr(onnx, "runner", lambda file: lambda inputs: [out + 0.01 for out in good(inputs)])
    with pytest.raises(ZooError, match=r"ONNX program differs from the model by 1.0e-02 \(allowed: 1e-04\); nothing was written"):
        export(model, "onnx", tmp_path / "t.onnx")
    monkeypatch.setattr(onnx, "runner", lambda file: lambda inputs: [out * float("nan") for out in good(inputs)])
    with pytest.raises(ZooError, match="differs from the model by inf"):
        export(model, "onnx", tmp_path / "t.onnx")
    monkeypatch.setattr(onnx, "runner", real)
    with pytest.raises(ZooError, match="does not run: .*nothing was kept"):
        export(model, "onnx", tmp_path / "t.onnx")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("t.onnx", b"before")]


def test_what_torch_cannot_follow_is_said(monkeypatch, tmp_path):
    def stuck(*_, **__):
        raise RuntimeError("data-dependent\nmore lines")

    monkeypatch.setattr(torch.export, "export", stuck)
    with pytest.raises(ZooError, match="torch.export cannot follow this model: RuntimeError: data-dependent") as error:
        export(make("text"), "torch", tmp_path / "t.pt2")
    assert len(str(error.value).splitlines()) == 2 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", MODELS)
def test_every_program_has_inputs_that_fit_its_bounds(kind):
    for program in programs(make(kind)):
        shapes = set()
        for batch, seed in ((2, 3), (2, 0), (1, 1), (3, 2)):
            inputs = program.example(batch, seed)
            lengths = {}
            for tensor, axes in zip(inputs, program.axes.values(), strict=True):
                for axis, name in axes.items():
                    assert lengths.setdefault(name, tensor.shape[axis]) == tensor.shape[axis] or kind == "nodes"
            shapes.add(tuple(lengths.values()))
            assert lengths["batch"] == batch
            for name, (least, most) in program.bounds.items():
                assert least <= lengths[name] <= (most or lengths[name])
        assert len(shapes) == 4


def test_each_program_of_a_pair_holds_its_own_weights_only():
    model = make("pairs")
    held = {program.name: {name.split(".")[1] for name, _ in program.module.named_parameters()} for program in programs(model)}
    assert held == {"text": {"text", "text_proj", "logit_scale"}, "image": {"image", "image_proj", "logit_scale"},
                    "match": {"fusion", "logit_scale"}}
    assert hasattr(model, "fusion") and hasattr(model, "text")  # the model itself is whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_small_models_of_all_kinds(kind, to, tmp_path):
    model = make(kind)
    out = tmp_path / "out" if kind == "pairs" else tmp_path / f"m{files.SUFFIX[to]}"
    written = export(model, to, out)
    assert len(written) == (3 if kind == "pairs" else 1) and all(part.difference < 1e-5 for part in written)
    if to == "torch" and kind == "image":
        extra = {"zoo.json": ""}
        program = torch.export.load(out, extra_files=extra).module()
        assert json.loads(extra["zoo.json"])["outputs"] == ["logits", "vector"]
        x = torch.randn(7, 3, 50, 21)
        with torch.no_grad():
            assert torch.allclose(program(x)[0], model(x), atol=1e-5)


@pytest.mark.slow
def test_8_bits_leave_the_spectrogram_alone(tmp_path):
    import onnx as onnx_format

    model = make("audio")
    _, small = export(model, "onnx", tmp_path / "a.onnx", int8=True)
    steps = {node.name: node.op_type for node in onnx_format.load(small.file).graph.node}
    front = {kind for name, kind in steps.items() if name.startswith("frontend/")}
    assert "STFT" in front and not any("Integer" in kind for kind in front) and "MatMulInteger" in steps.values()
    loud = torch.zeros(1, 8000)
    loud[0, 4000:] = torch.sin(torch.arange(4000) / 3)  # silence beside a loud tone
    with torch.no_grad():
        expected = model(loud, torch.tensor([8000]))
    assert torch.allclose(onnx.runner(small.file)((loud, torch.tensor([8000])))[0], expected, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image_nano.cifar10", "audio_pico.fsdd", "audio_nano.esc10", "graph_nano.esol",
                                  "text_image_nano.openmoji"])
@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_checkpoints(name, to, tmp_path):
    out = tmp_path / ("out" if name.startswith("text_image") else f"m{files.SUFFIX[to]}")
    assert all(part.difference < 1e-5 for part in export(zoo.load(name), to, out))


def test_scores_size_and_time_of_a_program(tmp_path, monkeypatch):
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(tmp_path / label / f"{i}.png")
    model = zoo.create_model("image_pico", **IMAGE, num_classes=2).eval()
    model.card.labels = ["a", "b"]
    (tmp_path / "m.onnx").write_bytes(b"x" * 12345)
    asked = []

    def swapped(inputs):  # a program that says the other label
        asked.append(inputs[0].shape)
        return [model(*inputs).flip(-1)]

    monkeypatch.setattr(onnx, "runner", lambda file: swapped)
    plain, program = measure.compare(model, [files.Written(tmp_path / "m.onnx", 0.0)], tmp_path, zoo.evaluate.Options(limit=8))
    first, second = (float(row["accuracy"].split()[0]) for row in (plain, program))
    assert first + second == pytest.approx(100, abs=0.2) and plain["items"] == program["items"] == 8
    assert program["program"] == "m.onnx" and program["MB"] == "0.01" and plain["split"] == "all"
    assert asked[0] == (8, 3, 32, 32) and (1, 3, 32, 32) in asked and float(program["ms/item at 1"]) > 0
