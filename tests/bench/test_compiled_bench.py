"""`zoo bench image --compile`: both sides compiled at one size, timm with its fused attention; other benches refuse the flag."""

import shutil
from functools import partial

import pytest
import torch

from zoo import bench, cli
from zoo.bench import Settings, image

SMALL = dict(patch_size=4, window_size=2, embed_dim=8, depths=(2,), num_heads=(2,))


@pytest.mark.slow
def test_rows_are_complete_and_the_outputs_equal(monkeypatch):
    pytest.importorskip("timm")
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    monkeypatch.setitem(image.SHAPES, "image_pico", 32)
    result = bench.run("image", Settings(rounds=1, quick=True, model="image_pico", compile=True), lambda _: None)
    ours, peer = result["results"]
    assert ours["row"] == "image_pico 32, compiled" and "compiled" in result["settings"]
    assert (ours["case"], peer["case"]) == ("image_pico", "timm Swin, fused attention")
    for record in ours, peer:
        assert "refused" not in record and record["error"] <= 1e-5 and record["ms"] > 0
    assert 0 < ours["limit_linear_ms"] < ours["limit_ms"]


@torch.no_grad()
def test_both_are_compiled_and_frozen_and_timm_takes_its_fused_attention(monkeypatch):
    timm = pytest.importorskip("timm.models.swin_transformer")
    from torch._inductor import config

    seen = []

    def compiler(model, dynamic):
        assert dynamic is False
        return lambda x: seen.append((model, config.freezing)) or model(x)

    monkeypatch.setattr(torch, "compile", compiler)
    peer = timm.SwinTransformer(img_size=16, num_classes=3, **SMALL).eval()
    ours, x = torch.nn.Linear(16, 3), image._pictures(2, 16)
    before = partial(peer, x)()
    row = image._inference("toy", ours, peer, x, True)
    assert seen == [(ours, True), (peer, True)] and not config.freezing
    assert all(module.fused_attn for module in peer.modules() if isinstance(module, timm.WindowAttention))
    assert torch.allclose(row.cases[1].run(), before, atol=1e-5)
    assert row.cases[0].counted.func is ours


def test_a_bench_that_compiles_nothing_refuses(capsys):
    assert cli.main(["bench", "text", "--compile"]) == 2
    assert "bench text: it compiles nothing; --compile is for bench image" in capsys.readouterr().err


def test_without_a_compiler_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(bench, "which", lambda name: None)
    assert cli.main(["bench", "image", "--compile"]) == 2
    assert "--compile needs a C++ compiler (g++), and there is none" in capsys.readouterr().err
