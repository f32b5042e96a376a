"""N epochs in one go = a stop in the middle and going on: every tensor is equal, for each kind of data."""

import pytest

from tests.train import tiny
from tests.train.test_graph_runs import network  # noqa: F401  (a fixture)
from tests.train.test_run import resumes_exactly
from zoo.train.recipe import Recipe


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_with_a_worker_inside_summed_batches(kind, tmp_path, monkeypatch):
    """Three batches of an epoch, two to a step: the stop asked for after the first of two waits for the second."""
    recipe = tiny.recipe(kind, tmp_path / "tiny", ema=0.9, workers=1, accumulate=2)
    resumes_exactly(recipe, tmp_path, monkeypatch, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size, stops", [(1, (5,)), (5, (2, 6)), (100, (1,))])
def test_any_batch_size_workers_and_moment(kind, workers, batch_size, stops, tmp_path, monkeypatch):
    recipe = tiny.recipe(kind, tmp_path / "tiny", ema=0.9, workers=workers, batch_size=batch_size)
    for stop in stops:
        resumes_exactly(recipe, tmp_path / str(stop), monkeypatch, stop)


@pytest.mark.parametrize("how", [
    {"neighbours": ["3", "3"], "batch_size": 4}, {"parts": 3, "batch_size": 1}, {"task": "link_prediction"},
])  # fmt: skip
def test_one_big_graph(network, how, tmp_path, monkeypatch):  # noqa: F811
    """Two or three batches an epoch of sampled neighbours and of parts; one, of links asked for anew in each epoch."""
    given = {"task": "node_classification", "val": "val", **how}
    recipe = Recipe(model="graph_pico", arguments=tiny.SIZES["graph"], data=str(network), epochs=3, lr=1e-2, ema=0.9,
                    precision="fp32", **given)
    resumes_exactly(recipe, tmp_path, monkeypatch, 2)
