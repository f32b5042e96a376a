import time

import pytest
import torch

from zoo.bench import Settings
from zoo.bench.rounds import Case, Row, clock, interleave, measure, ratio, surroundings
from zoo.errors import UsageError

X = torch.linspace(-1, 1, 64).view(8, 8)
QUICK = Settings(rounds=3)


def row(*cases, **more):
    return Row("toy", 8, "rows", (Case("zoo", lambda: X @ X), *cases), **more)


def by_case(records):
    return {record["case"]: record for record in records}


def test_taken_in_turns_with_the_order_reversed_every_other_round():
    now, calls = [0.0], []

    def work(name, seconds):
        calls.append(name)
        now[0] += seconds

    runs = {"a": lambda: work("a", 1.0), "b": lambda: work("b", 3.0)}
    times = interleave(runs, 3, lambda: now[0])
    assert "".join(calls) == "aabb" + "ab" + "ba" + "ab"  # two calls each to warm up and to see how long one takes
    assert times == {"a": [1.0] * 3, "b": [3.0] * 3}


def test_short_work_is_repeated_within_a_sample():
    now, calls = [0.0], []

    def work():
        calls.append(1)
        now[0] += 1e-3

    times = interleave({"a": work}, 2, lambda: now[0])
    assert len(calls) == 2 + 2 * 2
    assert times["a"] == pytest.approx([1e-3, 1e-3])


def test_ratio_is_the_median_of_pairwise_ratios_not_the_ratio_of_medians():
    ours, theirs = [1.0, 10.0, 2.0], [3.0, 10.0, 4.0]
    assert ratio(theirs, ours) == 2.0  # 3, 1, 2
    assert sorted(theirs)[1] / sorted(ours)[1] == 2.0
    assert ratio([5.0, 10.0, 2.0], ours) == 1.0  # medians: 5 / 2


@pytest.mark.parametrize("output, why", [
    (X @ X + 1e-3, "wrong output: error"),
    ((X @ X).fill_(float("nan")), "wrong output: error nan"),
    ((X @ X)[:1], "output [1, 8], right is [8, 8]"),
])
def test_a_faster_wrong_answer_is_refused(output, why):
    records = by_case(measure(row(Case("fast", lambda: output)), QUICK))
    assert records["fast"]["refused"].startswith(why)
    assert "ms" not in records["fast"] and "ratio" not in records["fast"]
    assert records["zoo"]["ratio"] == 1.0 and "refused" not in records["zoo"]


def test_ours_is_refused_where_it_is_wrong_itself():
    records = by_case(measure(row(Case("peer", lambda: X @ X + 1)), QUICK))
    assert "refused" in records["peer"]
    records = by_case(measure(row(Case("peer", lambda: X @ X + 1), truth=lambda: X @ X + 1), QUICK))
    assert "refused" in records["zoo"] and "refused" not in records["peer"]
    assert "ratio" not in records["peer"] and records["peer"]["ms"] > 0
    assert "limit_ms" not in records["zoo"]


def test_other_weights_are_not_compared():
    records = by_case(measure(row(Case("other model", lambda: X[:2], compared=False)), QUICK))
    assert records["other model"]["ms"] > 0 and "error" not in records["other model"]


def test_the_limit_stands_beside_ours_only():
    records = measure(row(Case("peer", lambda: X @ X)), QUICK)
    assert records[0]["limit_linear_ms"] > 0 and records[0]["limit_ms"] > 0
    assert "limit_ms" not in records[1]
    assert "limit_ms" not in measure(Row("sums", 8, "rows", (Case("zoo", lambda: X + X),)), QUICK)[0]


def test_a_case_that_needs_too_much_memory_is_left_out():
    records = by_case(measure(row(Case("huge", lambda: torch.empty(2**55))), QUICK))
    assert records["huge"] == {"row": "toy", "size": 8, "unit": "rows", "case": "huge", "refused": "out of memory"}
    assert records["zoo"]["ms"] > 0


def test_half_precision_is_compared_with_the_truth_in_full_precision():
    settings, seen = Settings(rounds=1, dtype="bf16"), []
    truth = lambda: seen.append(X @ X) or seen[0]  # noqa: E731
    with surroundings(settings):
        record = measure(row(truth=truth), settings)[0]
    assert seen[0].dtype == torch.float32
    assert 1e-5 < record["error"] < 3e-2 and "refused" not in record


def test_surroundings_are_left_as_they_were():
    before = torch.get_num_threads()
    with surroundings(Settings(threads=2)):
        assert torch.get_num_threads() == 2 and not torch.is_grad_enabled()
    assert torch.get_num_threads() == before and torch.is_grad_enabled()


def test_clock():
    assert clock(Settings()) is time.thread_time
    assert clock(Settings(wall=True)) is time.perf_counter
    assert clock(Settings(threads=2)) is time.perf_counter


@pytest.mark.parametrize("wrong, named", [
    ({"threads": 0}, "--threads 0"), ({"rounds": 0}, "--rounds 0"), ({"dtype": "fp8"}, "--dtype fp8"),
])
def test_wrong_settings(wrong, named):
    with pytest.raises(UsageError, match=named):
        Settings(**wrong)
