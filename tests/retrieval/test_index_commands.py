"""`zoo index ...` and `zoo search` as a person types them; the model of colour_model.py behind them."""

import json
import re

import pytest

import zoo
from zoo import cli

pytest.importorskip("pyarrow")


@pytest.fixture
def run(capsys, monkeypatch, make_model):
    monkeypatch.setattr(zoo, "load", lambda name: make_model())

    def run(*words):
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def index(run, tmp_path, photos):
    assert run("index", "build", tmp_path / "p.index", photos, "--model", "m")[0] == 0
    return tmp_path / "p.index"


def test_the_life_of_an_index(run, index, photos, tmp_path, painted):
    painted(tmp_path / "holiday" / "1.png", "white")
    code, out, _ = run("index", "add", index, tmp_path / "holiday", photos / "red.jpg", "--json")
    assert code == 0 and {key: json.loads(out)[key] for key in ("added", "unchanged")} == {"added": 1, "unchanged": 1}
    (photos / "bad.png").write_text("no picture")
    (photos / "green.png").unlink()
    code, out, err = run("index", "update", index)
    assert code == 1 and re.search(r"removed +1", out) and re.search(r"bad +1", out) and "bad     bad.png: not a picture" in err
    code, out, _ = run("index", "remove", index, "beach/1.png", "--where", "folder = 'sky'")
    assert code == 0 and out == "removed beach/1.png\nremoved sky/blue.png\n2 removed\n"
    facts = json.loads(run("index", "info", index, "--json")[1])
    assert facts["rows"] == 4 and facts["excluded"] == 2 and facts["state"] == "complete"
    assert facts["store"] == {"kind": "numpy", "search": "exact"} and facts["added"] == [str(tmp_path / "holiday")]
    code, out, _ = run("index", "verify", index)
    assert code == 1 and "its model is not here" in out and out.startswith("WHAT")


@pytest.mark.parametrize(("words", "code", "text"), [
    (["add", "INDEX"], 2, "name a picture, folder or table"),
    (["add", "INDEX", "/no/such"], 1, "/no/such"),
    (["remove", "INDEX"], 2, "name keys or give --where"),
    (["remove", "INDEX", "cat.png"], 1, "no picture, folder or added source 'cat.png' in this index; nothing was removed"),
    (["remove", "INDEX", "--where", "yaer = 3"], 2, "no column 'yaer'; there are: captions"),
    (["build", "INDEX", "PHOTOS", "--store", "faiss"], 2, "--store faiss; allowed: auto, numpy, lance"),
    (["build", "INDEX", "PHOTOS/beach"], 2, "beside them: zoo index add"),
    (["update", "/no/such.index"], 1, "no index here; make one with: zoo index build"),
    (["verify", "/no/such.index"], 1, "no index here"),
])  # fmt: skip
def test_wrong_use_is_said_in_two_lines(run, index, photos, words, code, text):
    words = [word.replace("INDEX", str(index)).replace("PHOTOS", str(photos)) for word in words]
    found, out, err = run("index", *words)
    assert (found, out) == (code, "") and text in err and err.count("\n") <= 2


def test_search_shows_every_part_of_the_score(run, index):
    code, out, _ = run("search", index, "red", "-k", 3, "--rerank", 3, "--json")
    rows = json.loads(out)
    assert code == 0 and [row["key"] for row in rows] == ["beach/2.png", "beach/10.png", "red.jpg"]
    assert [(row["rank_before"], row["rank"]) for row in rows] == [(3, 1), (2, 2), (1, 3)]
    assert all(0 <= row["match"] <= 1 and -1 <= row["score"] <= 1 for row in rows)


def test_an_interrupted_index_says_so_and_answers(run, index):
    file = index / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"doing": "build"}))
    code, out, err = run("search", index, "red", "--json")
    assert code == 0 and len(json.loads(out)) == 6
    assert err == f"note: {index}: its build was interrupted, pictures may be missing; go on with: zoo index update {index}\n"
    assert run("index", "update", index)[0] == 0 and run("search", index, "red")[2] == ""


def test_text_in_any_script_and_form(run, index):
    composed, decomposed = "каfé красный й", "каfe\u0301 красныи\u0306 и\u0306"
    found = [json.loads(run("search", index, query, "--json")[1]) for query in (composed, decomposed)]
    assert found[0] == found[1]
    assert run("search", index, "caf\udce9 red", "--json")[0] == 0  # bytes that are no UTF-8, as a shell hands them on
    code, _, err = run("search", index, "red", "--where", "folder = 'caf\udce9'")
    assert code == 2 and "is no text in UTF-8" in err


def test_a_filter_that_nothing_matches_is_an_answer(run, index):
    code, out, err = run("search", index, "red", "--where", "folder = 'nowhere'")
    assert (code, out) == (0, "") and "no picture matches --where \"folder = 'nowhere'\"" in err
    assert json.loads(run("search", index, "red", "--where", "folder = 'nowhere'", "--json")[1]) == []


def test_a_folder_of_pictures_is_no_index_and_the_command_is_told(run, index, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"")
    code, _, err = run("search", folder, "red")
    assert code == 1 and f"zoo index build {folder}.index {folder}" in err
