"""The command line as a user meets it: outputs, exit codes, and errors of one or two lines that name the way out."""

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

import zoo
from zoo.cli import main


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A saved, untrained three-class model and a text-image one, with a folder of pictures."""
    folder = tmp_path_factory.mktemp("cli")
    small = dict(dims=(16, 32), depths=(1, 1), head_dim=8, window=4)
    image = zoo.create_model("image_pico", num_classes=3, **small)
    image.card.labels, image.card.name = ["a", "b", "c"], "image_pico.tiny"
    zoo.save(image, folder / "image.safetensors")
    pairs = zoo.create_model("text_image_pico", image={**small, "patch": 4}, fusion_dim=32)
    pairs.card.name = "text_image_pico.tiny"
    zoo.save(pairs, folder / "pairs.safetensors")
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/ü 1.png", "c/1.jpg"):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(folder / "photos" / name)
    return folder


def run(capsys, *words):
    """(exit code, stdout, stderr) of one command, in this process."""
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_help_is_quick_and_leaves_torch_alone():
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "zoo", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "recipes" in done.stdout and time.perf_counter() - start < 5
    assert not re.search(r"\| +torch\b", done.stderr)


def test_list_info_recipes(capsys, tiny):
    code, out, _ = run(capsys, "list", "image*")
    assert code == 0 and out.splitlines()[0].split() == ["MODEL", "PARAMS", "TRAINED", "ON", "SCORE", "SIZE", "LICENCE"]
    assert "image_tiny" in out and "text_image" not in out
    code, out, _ = run(capsys, "list", "--json")
    assert code == 0 and {row["model"] for row in json.loads(out)} >= {"image_nano", "text_image_nano"}
    code, out, _ = run(capsys, "info", tiny / "image.safetensors", "--json")
    facts = json.loads(out)
    assert facts["name"] == "image_pico.tiny" and facts["labels"] == ["a", "b", "c"] and len(facts["sha256"]) == 64
    assert run(capsys, "info", "image_tiny")[0] == 0
    code, out, _ = run(capsys, "recipes", "image_finetune")
    assert code == 0 and "start: image_nano.cifar10" in out
    assert "batch_size" in run(capsys, "recipes", "--keys")[1]
    assert run(capsys, "check")[0] == 0


def test_predict_reports_bad_files_and_goes_on(capsys, tiny, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8 no")
    code, out, err = run(capsys, "predict", tiny / "image.safetensors", tiny / "photos", broken)
    assert code == 1 and len(out.splitlines()) == 4 and "ü 1.png" in out
    assert err.startswith(f"bad     {broken}: ")
    code, out, _ = run(capsys, "predict", tiny / "image.safetensors", tiny / "photos" / "a", "--json")
    rows = json.loads(out)["results"]
    assert code == 0 and len(rows) == 2 and sum(p for _, p in rows[0]["top"]) == pytest.approx(1, abs=1e-4)


def test_predict_needs_labels(capsys, tiny):
    code, out, err = run(capsys, "predict", tiny / "pairs.safetensors", tiny / "photos")
    assert code == 2 and "has no labels to predict; index pictures with it: zoo index build" in err


def test_eval(capsys, tiny):
    code, out, _ = run(capsys, "eval", tiny / "image.safetensors", tiny / "photos", "--json")
    assert code == 0 and 0 <= json.loads(out)["accuracy"] <= 1 and json.loads(out)["items"] == 4
    code, _, err = run(capsys, "eval", tiny / "image.safetensors", tiny / "photos" / "a")
    assert code == 1


def test_eval_refuses_other_labels(capsys, tiny, tmp_path):
    for name in ("a", "b", "wren"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    code, _, err = run(capsys, "eval", tiny / "image.safetensors", tmp_path)
    assert (code, err) == (1, "error: labels differ.  only in data: wren   only in checkpoint: c\n")


def test_index_and_search(capsys, tiny, tmp_path):
    index, model = tmp_path / "p.index", tiny / "pairs.safetensors"
    code, out, _ = run(capsys, "index", "build", index, tiny / "photos", "--model", model)
    assert code == 0 and re.search(r"added +4", out)
    assert re.search(r"unchanged +4", run(capsys, "index", "build", index, tiny / "photos", "--model", model)[1])
    code, out, _ = run(capsys, "search", index, "a red boat", "-k", 2, "--rerank", 4)
    assert code == 0 and out.splitlines()[0].split() == ["RANK", "SCORE", "MATCH", "KEY"] and len(out.splitlines()) == 3
    code, out, _ = run(capsys, "search", index, "--image", tiny / "photos" / "a" / "1.png", "--json", "-k", 1)
    assert code == 0 and json.loads(out)[0]["key"] == "a/1.png"
    assert json.loads(out)[0].keys() == {"rank", "rank_before", "score", "match", "key", "path", "caption", "meta"}
    code, out, _ = run(capsys, "search", index, "日本語", "--where", "folder = 'a'", "--json")
    assert code == 0 and len(json.loads(out)) == 2
    assert run(capsys, "index", "info", index)[0] == 0


@pytest.mark.parametrize("words, code, says", [
    (["nonsense"], 2, "nonsense"),
    (["list", "q*"], 1, "no model matches 'q\\*'"),
    (["info", "image_nanno"], 2, "no such checkpoint"),
    (["train"], 2, "give a recipe"),
    (["train", "image_scrach"], 2, "did you mean image_scratch"),
    (["train", "image_scratch", "--epoch", "3"], 2, "unknown key --epoch; did you mean --epochs"),
    (["train", "image_scratch"], 2, "--data PATH"),
    (["train", "image_scratch", "--data", "/no/such"], 1, "/no/such: no such file or folder"),
    (["train", "--resume", "/no/such"], 2, "no recipe.yaml"),
    (["predict", "nothing", "x.jpg"], 2, "nothing: no such checkpoint"),
    (["search", "/no/such.index", "cat"], 1, "no index here; make one with: zoo index build"),
    (["search", "/no/such.index", "cat", "--where", " "], 2, "--where is empty"),
    (["predict", "graph_nano.esol", "", "CCO"], 2, "an empty name among the items"),
    (["embed", "text_image_nano.openmoji", "--text", "", "--out", "t.parquet"], 2, "an empty name among the items"),
    (["search", "/no/such.index"], 2, "give a text or --image"),
    (["search", "/no/such.index", "cat", "--kk", "3"], 2, "--kk"),
    (["demo", "/no/such/folder"], 1, "/no/such/folder"),
])  # fmt: skip
def test_wrong_use_is_answered_in_a_line(capsys, words, code, says):
    got, out, err = run(capsys, *words)
    assert got == code and re.search(says, err) and out == ""


def test_an_index_is_not_emptied_by_another_folder(capsys, tiny, tmp_path):
    index = tmp_path / "p.index"
    assert run(capsys, "index", "build", index, tiny / "photos", "--model", tiny / "pairs.safetensors")[0] == 0
    code, _, err = run(capsys, "index", "build", index, tiny / "photos" / "a")
    assert code == 2 and "holds the pictures of" in err and "--rebuild" in err
    assert zoo.retrieval.open(index).info()["rows"] == 4


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_output_is_an_error(capsys, tiny):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "zoo", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_a_stopped_index_build_says_how_to_go_on(capsys, tiny, tmp_path, monkeypatch):
    from zoo.retrieval.sync import Sync

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Sync, "_store", stop)
    code, _, err = run(capsys, "index", "build", tmp_path / "p.index", tiny / "photos", "--model", tiny / "pairs.safetensors")
    assert code == 130 and "finished batches are kept: go on with zoo index build" in err
    assert "--model" in err  # else a build that starts anew would take the default one


def test_a_long_query_is_noted_in_one_line(tiny, tmp_path):
    build = ["index", "build", str(tmp_path / "p.index"), str(tiny / "photos"), "--model", str(tiny / "pairs.safetensors")]
    assert main(build) == 0
    words = [sys.executable, "-m", "zoo", "search", str(tmp_path / "p.index"), "cat " * 100]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and re.fullmatch(r"note: a text was cut to 64 tokens: \d+ tokens lost\n", done.stderr)


def test_what_a_newcomer_typed_wrong_is_said(tmp_path, capsys, tiny):
    """One line, exit code 2, nothing written: an empty query, both kinds of query, words missing for re-ranking, a wrong ending."""
    index = tmp_path / "p.index"
    assert run(capsys, "index", "build", index, tiny / "photos", "--model", tiny / "pairs.safetensors")[0] == 0
    photo = next((tiny / "photos").rglob("*.png"))
    wrong = {
        ("search", index, " "): "one of them",
        ("search", index, "dog", "--image", photo): "one of them",
        ("search", index, "--image", photo, "--rerank", 4): "leave it out with --image",
        ("embed", tiny / "pairs.safetensors", photo, "--out", tmp_path / "v.csv"): "ends in .parquet",
        ("explain", tiny / "pairs.safetensors", ""): "ITEM is empty",
    }
    for command, said in wrong.items():
        code, _, err = run(capsys, *command)
        assert code == 2 and said in err, (command, err)
    assert not (tmp_path / "v.csv").exists()


def test_verify_says_once_that_the_source_is_gone(tmp_path, capsys, tiny):
    import shutil

    photos, index = tmp_path / "photos", tmp_path / "p.index"
    shutil.copytree(tiny / "photos", photos)
    assert run(capsys, "index", "build", index, photos, "--model", tiny / "pairs.safetensors")[0] == 0
    shutil.rmtree(photos)
    code, out, _ = run(capsys, "index", "verify", index, "--json")
    problems = json.loads(out)["problems"]
    assert code == 1 and [problem["what"] for problem in problems] == ["a source is gone"], problems


def test_flags_may_stand_before_the_items(capsys, tiny):
    photos = sorted((tiny / "photos").rglob("*.png"))[:2]
    code, out, _ = run(capsys, "predict", tiny / "image.safetensors", "--json", *photos)
    assert code == 0 and len(json.loads(out)["results"]) == 2
    assert run(capsys, "predict", tiny / "image.safetensors")[0] == 2
