import os
import signal

import pytest
import torch

from zoo.bench.memory import RESET, peak

pytestmark = pytest.mark.skipif(not RESET.exists(), reason="peak memory is read from /proc")
MIB = 2**18  # float32 numbers


def test_peak_counts_what_is_alive_at_once():
    def one_after_another():
        for _ in range(3):
            torch.ones(40 * MIB)

    def together():
        return torch.ones(40 * MIB) + torch.ones(40 * MIB)

    assert peak(one_after_another) == pytest.approx(40, abs=4)
    assert peak(together) == pytest.approx(120, abs=4)


def test_neither_the_past_nor_what_is_there_already_counts():
    held = torch.ones(40 * MIB)
    small = [torch.ones(1000) for _ in range(20000)]  # 76 MiB in small pieces, which the allocator keeps once they are free
    del small
    assert peak(lambda: held.sum()) < 4
    assert peak(lambda: [torch.ones(1000) for _ in range(20000)]) == pytest.approx(78, abs=12)


def test_tables_kept_between_calls_do_not_count():
    kept = []

    def work():
        if not kept:
            kept.append(torch.ones(40 * MIB))

    assert peak(work) < 4
    assert not kept  # it ran in a child


def test_out_of_memory_and_other_failures():
    with pytest.raises(MemoryError):
        peak(lambda: torch.empty(2**55))
    with pytest.raises(MemoryError):
        peak(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        peak(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="3"):
        peak(lambda: os._exit(3))


def test_backward_in_the_child():
    weight = torch.ones(256, 256, requires_grad=True)
    (weight @ weight).sum().backward()
    assert peak(lambda: (weight @ weight).sum().backward()) < 8
