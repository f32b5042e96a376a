"""Text-image recipes on shards of pairs: as on the same table, exact resume, two ranks as one, what cannot be is said, eval."""

import json
from dataclasses import replace

import pytest
import torch

from tests.data.test_stream_pairs import write_parquet, write_tar
from tests.train.pair_data import draw, small_tower
from tests.train.test_ranks import PLAIN, as_one
from tests.train.test_run import resumes_exactly
from zoo.cli import main
from zoo.data.images import open_pairs
from zoo.errors import UsageError
from zoo.train import adapt, run, sets, streams
from zoo.train import recipe as recipes


@pytest.fixture
def pairs(tmp_path):
    """64 pairs as three training shards and one of validation, of tar and of Parquet files; and as one table."""
    rows = draw(tmp_path / "plain")
    rows = [rows[16 * (i % 4) + i // 4] for i in range(64)]
    (tmp_path / "plain" / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    items = open_pairs(tmp_path / "plain" / "pairs.jsonl")
    items.sources = [source.read_bytes() for source in items.sources]
    for number, name in enumerate(("train-0", "train-1", "train-2", "val-0")):
        write_tar(tmp_path / "tar" / f"{name}.tar", items, 16 * number, 16 * number + 16, ("txt", "json")[number % 2])
        write_parquet(tmp_path / "table" / f"{name}.parquet", items, 16 * number, 16 * number + 16, group=8)
    return items


@pytest.fixture
def recipe(pairs, tmp_path):
    return recipes.Recipe(task="text_image_contrastive", model="text_image_pico", arguments=small_tower(tmp_path / "tower"),
                          data=str(tmp_path / "tar"), val="val", preprocess={"size": [32, 32]}, augment="light", epochs=2,
                          batch_size=14, lr=5e-3, precision="fp32", seed=1, match_weight=0.5, first_caption=0.3, buffer=20)


@pytest.mark.parametrize("kind, batches, options", [
    ("tar", 6, {"workers": 1, "ema": 0.9, "bank": 20, "soft_targets": 0.2}),
    ("table", 2, {"captions": ["title", "more"], "stream": "always", "unfreeze_from": 1, "loss": "sigmoid"}),
])
def test_resume_is_bit_exact(recipe, tmp_path, monkeypatch, capsys, kind, batches, options):
    resumes_exactly(replace(recipe, data=str(tmp_path / kind), **options), tmp_path, monkeypatch, batches)
    err = capsys.readouterr().err
    assert "data    48 training and 16 validation pictures, 96 captions" in err
    assert "96 captions, each through the text tower when its turn comes" in err


def test_two_ranks_train_as_one(recipe, tmp_path, capfd):
    as_one(replace(recipe, bank=20, soft_targets=0.2, **{**PLAIN, "lr": 0.02}), tmp_path, capfd)


@pytest.mark.parametrize("options", [{}, {"bank": 20, "soft_targets": 0.3}, {"loss": "sigmoid", "unfreeze_from": 2}])
def test_a_batch_of_shards_is_learnt_as_one_of_a_table(recipe, pairs, tmp_path, options):
    """The loss, and the gradient of every weight, of the same pairs in the same order; with a bank of the batch before."""
    given = replace(recipe, match_weight=0.0, augment="none", **options)

    def learnt(made):
        torch.manual_seed(0)
        task, _ = adapt.build(given, made)
        losses = []
        for batch in (list(range(14)), list(range(30, 44)), list(range(7, 21))):
            pixels = [torch.from_numpy(made.preprocess.image(made.train.sources[i], "picture")) for i in batch]
            said = [made.train.captions[i][i % 2] for i in batch]
            loss = task.training_step((made.preprocess.normalise(torch.stack(pixels)), said, torch.tensor(batch)), 0)
            loss.backward()
            losses.append(loss.item())
        return losses, {name: p.grad for name, p in task.named_parameters() if p.grad is not None}

    streamed = sets.prepare(given, False)
    table = sets.Pairs(pairs.subset(range(48)), pairs.subset(range(48, 64)), streamed.preprocess)
    (here, grads), (there, others) = learnt(streamed), learnt(table)
    assert here == pytest.approx(there, abs=1e-5) and grads.keys() == others.keys()
    assert all(torch.allclose(grads[name], others[name], atol=1e-5) for name in grads)


@pytest.mark.parametrize("name", ["text_image_contrastive", "text_image_match", "text_image_finetune"])
def test_the_shipped_recipes_train_on_shards_and_eval_reads_them(name, recipe, tmp_path, capsys):
    import zoo

    start = zoo.save(zoo.create_model("text_image_pico", **recipe.arguments), tmp_path / "start.safetensors")
    arguments = ["--start", str(start)] if name.endswith("finetune") else ["--arguments", json.dumps(recipe.arguments)]
    given = ["--data", str(tmp_path / "tar"), "--val", "val", "--model", "text_image_pico", "--preprocess", "{size: [32, 32]}",
             "--epochs", "1", "--batch-size", "16", *arguments, "--runs", str(tmp_path / "runs")]
    assert main(["train", name, *given]) == 0
    out, err = capsys.readouterr()
    assert "48 training and 16 validation pictures, 96 captions" in err
    score = float(err.split("val R@10 ")[-1].split()[0])
    assert main(["eval", out.strip(), str(tmp_path / "tar"), "--split", "val", "--rerank", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["items"] == 16 and found["all captions"]["text_to_image"]["R@10"] == pytest.approx(100 * score, abs=0.1)


def test_what_cannot_be_streamed_is_said(recipe, tmp_path, capsys):
    with pytest.raises(UsageError, match="soft_targets: 0.1; the text tower learns, and captions of shards are not at hand"):
        run.train(replace(recipe, soft_targets=0.1, unfreeze_from=1), tmp_path / "runs")
    with pytest.raises(UsageError, match="hold_out, split_column: shards are split by their names"):
        run.train(replace(recipe, hold_out=["a"]), tmp_path / "runs")
    with pytest.raises(ValueError, match="no column 'caption' or 'captions' or 'text'"):
        run.train(replace(recipe, data=str(tmp_path / "table"), stream="always"), tmp_path / "runs")
    with pytest.raises(ValueError, match="no shards for 'dev2'"):
        run.train(replace(recipe, val="dev2"), tmp_path / "runs")
    assert streams.shards(replace(recipe, data=str(tmp_path / "plain")), None) is None
    assert not (tmp_path / "runs").exists()
