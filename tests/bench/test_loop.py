"""The bench of the whole training loop: both sides train alike, and another loss is refused."""

from zoo import bench
from zoo.bench import Settings, loop


def silent(_line):
    pass


def test_both_loops_train_alike(monkeypatch):
    monkeypatch.setattr(loop, "CLASSES", 2)
    result = bench.run("loop", Settings(rounds=1, quick=True, model="image_pico"), silent)
    ours, bare, average = result["results"]
    assert [ours["case"], bare["case"], average["case"]] == ["zoo train", "bare loop", "zoo train with a moving average"]
    assert bare["error"] < 1e-6 and average["error"] < 1e-6 and ours["ms"] > 0 and ours["save_ms"] > 0 == bare["save_ms"]
    assert result["said"][0].startswith(f"zoo train runs at {bare['ratio']:.2f} of the speed of the bare loop")


def test_another_loss_is_refused():
    ours = [loop.Epoch(1.0, 0.1, 2.0)]
    record = loop._record("bare loop", [loop.Epoch(0.5, 0.0, 2.1)], ours, 10)
    assert record["refused"] == "another loss: 2.1000, ours 2.0000" and "ms" not in record
    assert loop.said([{"case": "zoo train", "save_ms": 1}, record], Settings()) == []
    assert loop._record("bare loop", [loop.Epoch(0.5, 0.0, 2.0)], ours, 10)["ratio"] == 0.5
