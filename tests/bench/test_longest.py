"""`zoo bench memory`: the search finds what fits, ours is exact, and asking some queries takes the memory of asking all."""

import json

import pytest
import torch

from zoo import cli
from zoo.bench import Settings, gpu, longest
from zoo.bench.memory import RESET, capped, peak
from zoo.core import ClippedPosition

pytestmark = pytest.mark.skipif(not RESET.exists(), reason="peak memory is read from /proc")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "there", lambda: False)


def test_search():
    line = lambda tokens: lambda: torch.ones(tokens, 2**12)  # noqa: E731  16 KiB a token
    tokens, most = longest.longest(line, 40)
    assert tokens == pytest.approx(40 * 64, rel=0.03) and most <= 40
    assert longest.longest(lambda tokens: lambda: torch.ones(2**24), 40) == (0, 0.0)  # nothing fits


def test_a_child_may_grow_by_so_much():
    with pytest.raises(MemoryError):
        peak(capped(lambda: torch.ones(2**26), 200))  # 256 MiB
    assert peak(capped(lambda: torch.ones(2**24), 200)) == pytest.approx(64, abs=2)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("at", [slice(None), slice(5), slice(-7, None)])
@torch.no_grad()
def test_ours_is_exact(biased, at):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 50, 8, 64) for _ in range(3))
    position = ClippedPosition(longest.REACH, 8) if biased else None
    own = longest.Inputs(q, k, v, position)
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / 8
    if biased:
        place = torch.arange(50)
        scores = scores + position.table.T[:, (place[:, None] - place).clamp(-128, 128) + 128]
    expected = torch.einsum("bhnm,bmhd->bhnd", scores.exp() / scores.exp().sum(-1, keepdim=True), v)[:, :, at]
    torch.testing.assert_close(own.ask(at), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(own.write_out(at), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("biased", [False, True])
@torch.no_grad()
def test_asking_some_takes_the_memory_of_asking_all(biased):
    def whole(inputs):
        return inputs.ask(slice(None))

    some, every = (peak(longest._at(ask, biased, "cpu", 4096)) for ask in (longest._some, whole))
    assert some == pytest.approx(every, rel=0.05)
    assert some == pytest.approx(48 if biased else 32, abs=4)  # 8 MiB each: q, k, v, output, and reversed keys and values


def test_command(tmp_path, capsys):
    assert cli.main(["bench", "memory", "--quick", "--rounds", "1", "--json", "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    found = {record["case"]: record for record in result["results"] if record["row"] == "longest sequence in 64 MiB"}
    assert list(found) == ["written out", "zoo", "written out, relative position", "zoo, relative position"]
    for record in found.values():
        assert 45 < record["peak_mib"] <= 64  # small tensors come from what the allocator kept, or not
    for case in ("zoo", "zoo, relative position"):
        assert found[case]["longer"] == found[case]["size"] / found[case.replace("zoo", "written out")]["size"] > 4
    one = [record for record in result["results"] if record["row"] == "one sequence"]
    assert [record["error"] < 1e-5 and record["ms"] > 0 for record in one] == [True, True] and one[0]["ratio"] == 1
    assert any("times longer" in line for line in result["said"]) and len(list(tmp_path.iterdir())) == 3


def test_said():
    records = [
        {"row": "longest sequence in 2048 MiB", "case": "zoo", "size": 262000, "longer": 45.97},
        {"row": "one sequence", "case": "zoo", "size": 32768, "peak_mib": 70.2, "ratio": 1.0},
        {"row": "one sequence", "case": "zoo, relative position", "size": 32768, "peak_mib": 301.0, "ratio": 1.31},
    ]
    lines = longest.said(records, Settings())
    assert lines[1] == "zoo, longest sequence in 2048 MiB: 262,000 tokens, 46 times longer."
    assert lines[2].endswith("70 MiB beyond queries, keys and values, within 300.")
    assert lines[3].endswith("NOT within 300; 1.31 of the time without (allowed 1.3).")


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "2000"])
def test_wrong_budget(budget, capsys):
    assert cli.main(["bench", "memory", "--budget", budget]) == 2
    assert f"--budget {budget}; allowed: 0.1 to 1024 GiB" in capsys.readouterr().err


def test_unknown_bench_names_all(capsys):
    from zoo import bench

    assert cli.main(["bench", "nope"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in [*bench.BENCHES, "baselines"])
