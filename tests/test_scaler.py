"""Target scaling: fitted on what is known, undone exactly, stored in the card."""

import json

import pytest
import torch

from zoo.errors import ZooError
from zoo.scaler import TargetScaler

NAN = float("nan")


def test_missing_values_do_not_count_and_stay_missing():
    scaler = TargetScaler.fit([[1.0, NAN], [3.0, 7.0], [NAN, 9.0]], ["a", "b"], ["g", ""])
    assert (scaler.mean, scaler.std) == ((2.0, 8.0), (1.0, 1.0))
    scaled = scaler.scale(torch.tensor([[3.0, NAN]]))
    assert scaled[0, 0] == 1 and scaled[0, 1].isnan()


def test_what_comes_back_is_in_the_units_of_the_data():
    y = torch.randn(50, 3) * torch.tensor([1e-3, 1.0, 1e4]) + torch.tensor([5.0, 0.0, -1e5])
    scaler = TargetScaler.fit(y, list("abc"))
    scaled = scaler.scale(y.double())
    assert scaled.mean(0).abs().max() < 1e-6 and (scaled.std(0, correction=0) - 1).abs().max() < 1e-6
    assert torch.allclose(scaler.unscale(scaled), y.double(), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3e8])
def test_a_constant_target_has_deviation_1(value):
    scaler = TargetScaler.fit([[value]] * 7, ["a"])
    assert scaler.std == (1.0,) and scaler.scale(torch.tensor([[value]])).abs() < 1e-3
    assert scaler.unscale(torch.zeros(1, 1)).item() == pytest.approx(value)


def test_small_but_real_deviations_are_kept():
    assert TargetScaler.fit([[1e-12], [3e-12]], ["a"]).std == pytest.approx((1e-12,))


def test_the_card_gives_it_back():
    scaler = TargetScaler.fit([[1.0, 2.0], [2.0, 5.0]], ["logS", "G"], ["mol/l", "kcal/mol"])
    targets = json.loads(json.dumps(scaler.to_targets()))
    assert targets[1] == {"name": "G", "unit": "kcal/mol", "mean": 3.5, "std": 1.5}
    assert TargetScaler.from_targets(targets) == scaler
    with pytest.raises(ZooError, match="no 'std'"):
        TargetScaler.from_targets([{"name": "a", "unit": "", "mean": 0}])


def test_classes_and_multi_label_targets_pass_through():
    classes, tags = torch.tensor([2, 0]), torch.tensor([[1.0, 0.0], [NAN, 1.0]])
    scaler = TargetScaler.identity(["a", "b"])
    assert torch.equal(scaler.scale(classes), classes) and torch.equal(scaler.unscale(classes), classes)
    assert torch.equal(scaler.scale(tags).nan_to_num(9), tags.nan_to_num(9))


@pytest.mark.parametrize(("y", "names", "words"), [
    ([[NAN], [NAN]], ["a"], "'a' has no value in the training split"), ([[1.0]], ["a", "b"], r"shape \(1, 1\) for 2 names"),
    ([1.0, 2.0], ["a"], r"shape \(2,\)")])
def test_errors(y, names, words):
    with pytest.raises(ZooError, match=words):
        TargetScaler.fit(y, names)
    with pytest.raises(ZooError, match=r"shape \(2, 3\) for 1 targets \(a\)"):
        TargetScaler.identity(["a"]).scale(torch.zeros(2, 3))
