import json

import pytest

from zoo.bench import Settings, report

RESULTS = [
    {"row": "local", "size": 1000, "unit": "frames", "case": "zoo", "ms": 2.0, "ratio": 1.0, "peak_mib": 4.0, "error": 1e-7,
     "limit_linear_ms": 1.0, "limit_ms": 1.5},
    {"row": "local", "size": 1000, "unit": "frames", "case": "full", "ms": 4.0, "ratio": 2.0, "peak_mib": 10.0},
    {"row": "local", "size": 8000, "unit": "frames", "case": "zoo", "ms": 17.0, "ratio": 1.0, "peak_mib": 30.0, "error": 1e-7},
    {"row": "local", "size": 8000, "unit": "frames", "case": "full", "ms": 256.0, "ratio": 15.06, "peak_mib": None},
    {"row": "other", "size": 8000, "unit": "frames", "case": "zoo", "refused": "wrong output: error 1, allowed 1e-05",
     "peak_mib": 1.0},
]


@pytest.fixture
def result():
    return {"bench": "toy", "settings": report.facts(Settings()), "results": RESULTS, "growth": report.growth(RESULTS)}


def test_growth_from_given_times():
    zoo, full = report.growth(RESULTS)
    assert zoo == {"row": "local", "case": "zoo", "from": 1000, "to": 8000, "size": 8.0, "time": 8.5, "memory": 7.5}
    assert full["time"] == 64.0 and full["memory"] is None


def test_growth_needs_two_measured_sizes():
    assert report.growth(RESULTS[4:]) == []
    assert report.growth([RESULTS[0], {**RESULTS[2], "refused": "wrong"} | {"ms": None}][:1]) == []
    refused = {key: value for key, value in RESULTS[2].items() if key != "ms"}
    assert report.growth([RESULTS[0], refused]) == []


def test_facts_name_what_the_numbers_depend_on(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    facts = report.facts(Settings(threads=2, dtype="bf16"))
    assert facts["allocator"] == "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
    assert (facts["threads"], facts["clock"], facts["dtype"]) == (2, "wall", "bf16 (autocast)")
    monkeypatch.delenv("GLIBC_TUNABLES")
    facts = report.facts(Settings())
    assert facts["allocator"] == "the system's, default settings" and facts["clock"] == "CPU time of one thread"


def test_table(result):
    rows = report.table(RESULTS)
    assert rows[0] == {"row": "local", "size": "1000 frames", "case": "zoo", "error": "1e-07", "ms": "2", "a second": "500000",
                       "ratio": "1.00", "peak MiB": "4.0", "limit": "1 (50%)", "with attention": "1.5 (75%)"}
    assert rows[3]["ratio"] == "15.06" and rows[3]["peak MiB"] is None
    assert rows[4]["ratio"].startswith("wrong output") and rows[4]["ms"] is None
    text = report.text(result)
    assert "allocator" in text and "1000 -> 8000" in text and "64.0" in text


def test_files(result, tmp_path):
    files = report.write(result, tmp_path)
    assert [file.name for file in files] == ["results.md", "results.json", "results.png"]
    markdown = files[0].read_text()
    assert "| local | 8000 frames | full |" in markdown and "- threads: 1" in markdown
    assert json.loads(files[1].read_text()) == result
    assert files[2].read_bytes()[:4] == b"\x89PNG"
