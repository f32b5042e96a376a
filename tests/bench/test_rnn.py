"""`zoo bench rnn`: complete at small sizes, and what it says in words is what was measured."""

import pytest
import torch

from zoo import bench, cli
from zoo.bench import Settings, gpu, rnn


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(rnn, "QUICK", {"length": 8, "width": 16, "batches": (1, 2)})
    monkeypatch.setattr(gpu, "there", lambda: False)


def test_all_named():
    result = bench.run("rnn", Settings(rounds=1, quick=True), lambda _: None)
    assert result["settings"]["dtype"] == rnn.DTYPES
    found = {(record["row"], record["size"], record["case"]) for record in result["results"]}
    rows = [f"{work}, {dtype}" for work in ("forward", "training step") for dtype in ("fp32", "bf16")]
    assert found == {(row, batch, case) for row in rows for batch in (1, 2) for case in ("self-attention", "RNN", "GRU", "LSTM")}
    for record in result["results"]:
        assert record["ms"] > 0 and record["ratio"] > 0 and record["unit"] == "x 8 tokens"
        assert ("error" in record) == (record["case"] == "self-attention") and "gpu_ms" not in record
    assert len(result["said"]) == 3 and "42.7 ms / 8.2 ms = 5.2x" in result["said"][0]


def test_layers_are_of_the_precision_that_the_row_names():
    for row in rnn.rows(Settings(quick=True)):
        with torch.no_grad():
            for case in row.cases:
                out = case.run()
                assert out.shape == (row.size, 8, 16) and out.dtype == rnn.PRECISIONS[row.name.rpartition(", ")[2]]


def test_a_training_step_gives_the_gradient():
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 3, 4)
    expected = 2 * layer(x) @ layer.weight  # of the mean square, times the number of outputs
    with torch.no_grad():
        torch.testing.assert_close(rnn._step(layer, x), expected.detach())
    assert layer.weight.grad is not None


def record(row, batch, case, ratio, **more):
    return {"row": row, "size": batch, "case": case, "ratio": ratio, **more}


def test_where_the_claim_holds():
    records = [
        record("forward, fp32", 1, "self-attention", 1.0), record("forward, fp32", 1, "RNN", 1.5),
        record("forward, fp32", 1, "GRU", 7.94), record("forward, fp32", 1, "LSTM", 8.8), record("forward, fp32", 8, "RNN", 0.55),
        record("forward, bf16", 1, "GRU", 25.0), record("training step, fp32", 8, "GRU", 2.9, gpu_ratio=5.2),
    ]
    published, forward, step, gpu_step = rnn.said(records, Settings(threads=2))
    assert forward == ("On this CPU, 2 threads, forward, the claim holds for: fp32 batch 1 GRU 7.9x, LSTM 8.8x; "
                       "bf16 batch 1 GRU 25.0x. Attention is faster, by less: fp32 batch 1 RNN 1.50x. "
                       "It is not faster: fp32 batch 8 RNN 0.55x.")
    assert step.startswith("On this CPU, 2 threads, training step, the claim holds for: none. Attention is faster, by less: fp32")
    assert gpu_step.startswith("On the GPU, training step, the claim holds for: fp32 batch 8 GRU 5.2x.")


def test_precision_is_not_a_setting(capsys):
    assert cli.main(["bench", "rnn", "--dtype", "bf16"]) == 2
    assert "bench rnn: --dtype bf16; it always measures fp32 and bf16" in capsys.readouterr().err


def test_gpu_columns(monkeypatch, tmp_path):
    """Stands for a GPU whose clock runs 1 s a call of ours and 4 s of the other."""
    from zoo.bench import report

    clock = [0.0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(gpu, "busy", lambda: 0.5)

    def call(seconds):
        clock[0] += seconds

    records = [record("forward, fp32", 1, name, 1.0, unit="x", ms=1.0) for name in ("ours", "other")]
    gpu.measure({"ours": lambda: call(1.0), "other": lambda: call(4.0)}, records, 3)
    assert [(r["gpu_ms"], r["gpu_ratio"], r["gpu_busy"]) for r in records] == [(1000, 1, 0.5), (4000, 4, 0.5)]
    rows = report.table(records)
    assert (rows[1]["GPU ms"], rows[1]["GPU ratio"], rows[1]["GPU busy"]) == ("4000", "4.00", "50%")
    assert "times longer" not in rows[0]


def test_how_busy_a_gpu_is(monkeypatch):
    def no_package():
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", no_package)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    answers = {"ok": type("Done", (), {"stdout": "37\n"}), "odd": type("Done", (), {"stdout": "[N/A]\n"})}
    for said, expected in (("ok", 0.37), ("odd", None)):
        monkeypatch.setattr(gpu.subprocess, "run", lambda *_, said=said, **__: answers[said])
        assert gpu.busy() == expected
    monkeypatch.setattr(torch.cuda, "utilization", lambda: 81)
    assert gpu.busy() == 0.81
