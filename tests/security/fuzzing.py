"""What every fuzz test stands on: a budget of time and memory, broken bytes, and the two ways a call may end.

$ZOO_FUZZ multiplies the number of examples: ZOO_FUZZ=50 pytest tests/security -k fuzz
"""

import os
import re
import resource
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from zoo.errors import ZooError

MORE = float(os.environ.get("ZOO_FUZZ", 1))
ROOM = 2 * 2**30  # bytes that one call may take
SECONDS = 20
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def fuzz(examples: int):
    """Hypothesis with as many examples, the same at every run (another seed with $ZOO_FUZZ)."""
    return settings(max_examples=int(examples * MORE), derandomize=MORE == 1, deadline=None, database=None,
                    suppress_health_check=list(HealthCheck))


class Hung(BaseException):
    """Beyond the time; no `except Exception` of the code under test takes it for its own."""


@contextmanager
def bounded(room: int = ROOM, seconds: float = SECONDS):
    """Inside, this process may take `room` bytes and `seconds` more."""
    def late(*_):
        raise Hung(f"not done after {seconds} s")

    mapped = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + room, before[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def ends_well(call, *names: str):
    """The result of `call`, or its ZooError: few lines, which say one of `names` (where some are given), and no memory error."""
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow and others, about what they pass over
        try:
            return call()
        except ZooError as error:
            found = error
    said = str(found)
    assert said.strip() and len(said) < 20000 and said.count("\n") < 60, said[:2000]
    assert "MemoryError" not in said and "allocate" not in said, said
    assert not names or any(name in said for name in names), said
    return found


@st.composite
def broken(draw, data: bytes, head: int = 200):
    """`data` with one to four faults, most of them in the first `head` bytes: bits, lengths, cuts, repeats."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        most = draw(st.sampled_from([min(head, len(data)), len(data)]))
        at = draw(st.integers(0, most - 1))
        kind = draw(st.sampled_from(["byte", "number", "number", "cut", "remove", "insert", "repeat"]))
        if kind == "byte":
            data[at] = draw(st.integers(0, 255))
        elif kind == "number":
            size, order = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from(["little", "big"]))
            value = draw(st.sampled_from(EDGES)) % 256**size
            data[at : at + size] = value.to_bytes(size, order)
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=32))
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 512))]
    return bytes(data)


def scalars():
    odd = [None, True, False, 0, -1, 1, 2, 10**6, 10**12, -(10**12), 10**40, 0.5, -0.5, float("nan"), float("inf"), "", "a",
           "\0", "é", "\ud83d\ude00", "../../etc/passwd", "/dev/zero", "none", "auto", "1e999"]
    return st.one_of(st.sampled_from(odd), st.text(max_size=8), st.integers(), st.floats())


def trees():
    """Any JSON or YAML value, up to a few levels deep."""
    return st.recursive(scalars(), lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.text(max_size=6), st.sampled_from(["form", "size", "tower"])),
                                                     inner, max_size=4)), max_leaves=8)


def paths(value, here=()):
    """Every place in a tree of dicts and lists."""
    yield here
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from paths(part, (*here, key))


@st.composite
def wrong(draw, value):
    """A copy of the tree `value` with one to three places replaced, removed or added to."""
    value = {"": _copy(value)}
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([p for p in paths(value) if p]))
        parent = value
        for key in place[:-1]:
            parent = parent[key]
        if place == ("",):
            continue
        kind = draw(st.sampled_from(["put", "put", "put", "remove", "add"]))
        if kind == "remove":
            del parent[place[-1]]
        elif kind == "add" and isinstance(parent, dict):
            parent[draw(st.text(max_size=6))] = draw(trees())
        else:
            parent[place[-1]] = draw(trees())
    return value[""]


def _copy(value):
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return [_copy(part) for part in value] if isinstance(value, (list, tuple)) else value
