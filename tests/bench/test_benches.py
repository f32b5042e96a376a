"""The benches at small sizes: what they measure is complete and right. How fast it is is no matter for a test."""

import json

import pytest
import torch

from zoo import bench, cli
from zoo.bench import Settings, attention, audio, audio_local, graph
from zoo.core import Band, ClippedPosition

QUICK = Settings(rounds=1, quick=True)


def silent(_line):
    pass


def sizes(result, row):
    return sorted({record["size"] for record in result["results"] if record["row"] == row})


def complete(result):
    assert not [record for record in result["results"] if "refused" in record or not record["ms"] > 0]
    assert {"date", "cpu", "torch", "dtype", "threads", "clock", "allocator"} <= result["settings"].keys()
    first = {(record["row"], record["size"]): record for record in reversed(result["results"])}
    assert all(record["ratio"] == 1.0 for record in first.values())
    return first


def test_attention(monkeypatch):
    monkeypatch.setattr(attention, "QUICK", (65,))
    result = bench.run("attention", QUICK, silent)
    assert {record["row"] for record in result["results"]} == attention.FORMS.keys()
    for record in complete(result).values():
        assert record["error"] <= attention.LOOSE.get(record["row"], 1e-5) and 0 < record["limit_linear_ms"]
    assert len(result["results"]) == 3 * len(attention.FORMS)


def test_a_form_that_breaks_its_rule_is_refused(monkeypatch, capsys):
    wrong = {"band": lambda n: attention._tokens((n,), Band(16), ClippedPosition(16, attention.HEADS), attention._near(15))}
    monkeypatch.setattr(attention, "FORMS", wrong)
    assert cli.main(["bench", "attention", "--quick", "--rounds", "1", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert [record["size"] for record in result["results"][::3]] == list(attention.QUICK)
    ours, peer = result["results"][:2]
    assert ours["refused"].startswith("wrong output") and "refused" not in peer


def test_audio(monkeypatch):
    monkeypatch.setattr(audio, "QUICK", (1,))
    monkeypatch.delitem(audio_local.WAYS, audio_local.FLEX)  # compiles: tests/bench/test_layer_benches.py
    result = bench.run("audio", Settings(rounds=1, quick=True, model="audio_pico"), silent)
    first = complete(result)
    trained = {f"training step, bf16, 1 s{kind}" for kind in ("", ", no position")}
    assert {row for row, _ in first} == {"local stages", "whole model", "local layer, attention", *trained}
    assert sizes(result, "whole model") == [100]  # frames of 10 ms
    assert all(record["error"] <= 1e-5 for record in first.values())
    cases = [record["case"] for record in result["results"][:3]]
    assert [case.split(" (")[0] for case in cases] == ["audio_pico", "audio_pico, windows", "full-attention twin"]


def test_the_twin_sees_everything_and_has_the_same_size():
    model, other, twin = audio._family("audio_pico")
    patterns = {type(block.attn.pattern).__name__ for stage in twin.stages for block in stage.blocks}
    positions = {type(block.attn.position).__name__ for stage in twin.stages for block in stage.blocks}
    assert (patterns, positions) == ({"Whole"}, {"ClippedPosition"})
    size, *others = [sum(p.numel() for p in m.parameters()) for m in (model, other, twin)]
    assert all(abs(n / size - 1) < 0.02 for n in others)
    assert len(audio._local_stages(model)) == len(audio._local_stages(other)) == 2 and not audio._local_stages(twin)


def test_graph():
    pytest.importorskip("torch_geometric")
    result = bench.run("graph", Settings(rounds=1, quick=True, model="graph_pico"), silent)
    first = complete(result)
    assert sizes(result, "along edges, inference") == list(graph.QUICK_NODES)
    assert sizes(result, "molecules, training step") == sizes(result, "molecules, attention of a layer") == [graph.QUICK_BATCH]
    assert all(record["error"] <= 1e-5 for (row, _), record in first.items() if row.startswith("along"))
    assert not result["said"] or "transformers" in result["said"][0]


def test_molecules_are_like_real_ones():
    pytest.importorskip("torch_geometric")
    graphs = graph.molecules(200)
    sizes = torch.tensor([float(g.num_nodes) for g in graphs])
    assert sizes.min() >= 9 and sizes.max() <= 38 and abs(sizes.mean() - 23) < 1
    for g in graphs[:20]:
        source, target = g.edge_index
        assert int(g.edge_index.max()) < g.num_nodes and len(g.edge_cat) == len(source)
        assert {*zip(source.tolist(), target.tolist())} == {*zip(target.tolist(), source.tolist())}


@pytest.mark.parametrize("command, code, said", [
    (["bench", "speed"], 2, "attention, image, audio, graph"),
    (["bench", "audio", "--threads", "0"], 2, "--threads 0"),
    (["bench", "audio", "--model", "image_nano"], 2, "image_nano has no local stages; one of: audio_pico"),
    (["bench", "audio", "--model", "audio_nan"], 2, "did you mean audio_nano"),
    (["bench", "graph", "--model", "audio_nano"], 2, "audio_nano is no graph model; one of: graph_pico"),
])
def test_wrong_usage(command, code, said, capsys):
    assert cli.main(command) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") <= 2


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(bench, "run", lambda *_: pytest.fail("measured"))
    assert cli.main(["bench", "attention", "--quick", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_without_a_name_it_lists_them(capsys):
    assert cli.main(["bench", "--json"]) == 0
    assert [row["bench"] for row in json.loads(capsys.readouterr().out)] == list(bench.BENCHES)


def test_files_and_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attention, "FORMS", {"everybody": attention.FORMS["everybody"]})
    assert cli.main(["bench", "attention", "--quick", "--rounds", "1", "--out", str(tmp_path / "deep" / "out")]) == 0
    captured = capsys.readouterr()
    assert "ROW" in captured.out and "everybody" in captured.out and "wrote" in captured.err
    assert len(list((tmp_path / "deep" / "out").iterdir())) == 3
