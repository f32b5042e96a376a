"""`zoo bench image` at small sizes: equal weights give equal outputs, every row has a time and a limit."""

import pytest
import torch

from zoo import bench, cli
from zoo.bench import Settings, image


def test_rows_are_complete_and_the_outputs_equal(monkeypatch):
    pytest.importorskip("timm")
    monkeypatch.setitem(image.SHAPES, "image_pico", 32)
    result = bench.run("image", Settings(rounds=1, quick=True, model="image_pico"), lambda _: None)
    assert [record["row"] for record in result["results"][::2]] == ["image_pico 32, inference", "image_pico 32, training step"]
    for record in result["results"]:
        assert "refused" not in record and record["error"] <= 1e-5 and record["ms"] > 0
    for record in result["results"][::2]:
        assert record["ratio"] == 1 and 0 < record["limit_linear_ms"] < record["limit_ms"]


def test_a_table_of_a_small_map_is_the_middle_of_ours():
    small, own = torch.arange(1.0, 10).view(9, 1), torch.zeros(25, 1)
    expected = torch.zeros(5, 5)
    expected[1:4, 1:4] = small.view(3, 3)
    assert torch.equal(image._fit(small, own).view(5, 5), expected) and image._fit(own, own) is own


def test_weights_that_differ_are_refused(monkeypatch):
    pytest.importorskip("timm")

    def other(name, side):
        ours, peer = image_pair(name, side)
        ours.stages[0].blocks[1].attn.qkv.weight.data += 0.1
        ours.stages[1].blocks[0].mlp.fc1.weight.data.neg_()
        return ours, peer

    image_pair = image.pair
    monkeypatch.setitem(image.SHAPES, "image_pico", 32)
    monkeypatch.setattr(image, "pair", other)
    result = bench.run("image", Settings(rounds=1, quick=True, model="image_pico"), lambda _: None)
    assert all(record["refused"].startswith("wrong output") for record in result["results"][1::2])


def test_a_model_without_windows_is_refused(capsys):
    assert cli.main(["bench", "image", "--model", "audio_nano"]) == 2
    assert "audio_nano has no windows of Swin; one of: image_tiny" in capsys.readouterr().err
