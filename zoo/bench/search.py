"""`zoo bench search`: 100,000 vectors of 256 numbers in the stores of an index, against a plain matrix product.

Pictures and texts of one model lie in two clouds with a gap between (Liang et al. 2022, arXiv:2203.02053), and the gap is
what makes a text's nearest pictures hard to find by partitions of the pictures. The clouds here are drawn with what was
measured on text_image_nano.openmoji over the pictures and captions of Flickr8k (see CLOUDS).
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa

from zoo.bench import Settings
from zoo.bench.rounds import ratio
from zoo.errors import ZooError
from zoo.retrieval.store import Store, open_store
from zoo.retrieval.where import parse

CLOCK = "CPU time of all threads of the process; --wall: what a clock on the wall says"
DTYPES = "fp32"
ROWS, QUICK_ROWS, DIM, QUERIES, K = 100_000, 1_000, 256, 50, 10
FILTERS = {"all rows": None, "a third of the rows": "part < 33", "one in a hundred": "part = 7", "7 rows": "rare = true"}
WITHIN, RECALL = 2.0, 0.98  # what is to be reached


@dataclass(frozen=True)
class Clouds:
    """Two clouds of unit vectors; where there are two numbers, of the pictures and of the texts.

    common: length of the cloud's mean. gap: cosine of the two means. decay: the spread of direction i falls as
    (i + 1) ** -decay, in directions that are drawn for each cloud. clusters of pictures, and the share of their
    variance within one. tie: share of a text's variance that is its picture's.
    """

    common: tuple[float, float] = (0.88, 0.31)
    gap: float = -0.02
    decay: tuple[float, float] = (0.75, 0.45)
    clusters: int = 300
    within: float = 0.5
    tie: float = 0.0


CLOUDS = Clouds()


def results(settings: Settings, progress: Callable[[str], None]) -> list[dict]:
    """One record a filter and case: ms (p50 over the queries), ratio, recall@10, how many were found."""
    count = QUICK_ROWS if settings.quick else ROWS
    progress(f"search: drawing {count} vectors")
    pictures, texts = drawn(CLOUDS, count, QUERIES, np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        stores = dict(_stores(folder, pictures, progress))
        records = []
        for name, where in FILTERS.items():
            progress(f"search: {name}")
            records += _measured(name, where, stores, pictures, texts, settings)
        return records


def said(records: list[dict], settings: Settings) -> list[str]:
    """Whether what is to be reached was."""
    lines = []
    first = [record for record in records if record["row"] == "all rows"]
    product = next(record for record in first if record["case"] == "a plain matrix product")
    for record in first[:-1]:
        lines.append(f"{record['case']}: p50 {record['ms'] / product['ms']:.2f} times that of a plain matrix product "
                     f"(to reach: {WITHIN:g}), recall@{K} {record['recall']:.3f} (to reach: {RECALL})")
    short = [record for record in records if not record["complete"]]
    lines.append("every search gave min(k, matches)" if not short else
                 f"fewer than min(k, matches): {', '.join(r['case'] + ', ' + r['row'] for r in short)}")
    return ["\n".join(lines)]


def drawn(clouds: Clouds, count: int, queries: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of pictures (count, DIM) and of texts (queries, DIM), float32."""
    spread, loose_spread = (random.permutation((np.arange(DIM) + 1.0) ** -decay) for decay in clouds.decay)
    means = random.normal(size=(2, DIM))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    means[1] = clouds.gap * means[0] + np.sqrt(1 - clouds.gap**2) * means[1]
    centres = random.normal(size=(clouds.clusters, DIM)) * spread
    own = np.sqrt(1 - clouds.within) * centres[random.integers(clouds.clusters, size=count)]
    own += np.sqrt(clouds.within) * random.normal(size=(count, DIM)) * spread
    loose = random.normal(size=(queries, DIM)) * loose_spread
    said = np.sqrt(clouds.tie) * _unit(own[random.choice(count, queries, replace=False)]) + np.sqrt(1 - clouds.tie) * _unit(loose)
    return tuple(_unit(common * mean + np.sqrt(1 - common**2) * _unit(apart))
                 for common, mean, apart in zip(clouds.common, means, (own, said)))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def _stores(folder: str, pictures: np.ndarray, progress: Callable[[str], None]) -> Iterator[tuple[str, Store]]:
    for kind in ("lance", "numpy"):
        try:
            store = open_store(kind, f"{folder}/{kind}", DIM)
        except ZooError as error:
            progress(f"search: without {kind}: {error}".splitlines()[0])
            continue
        progress(f"search: filling {kind}")
        for start in range(0, len(pictures), 10_000):
            store.append(_table(pictures[start : start + 10_000], start))
        store.optimize()
        yield f"zoo, {kind} ({store.info()['search'].partition(';')[0]})", store


def _table(vectors: np.ndarray, start: int) -> pa.Table:
    keys = [f"{i}.jpg" for i in range(start, start + len(vectors))]
    part, rare = [i % 100 for i in range(start, start + len(vectors))], [i < 7 for i in range(start, start + len(vectors))]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    return pa.table({"key": keys, "part": part, "rare": rare, "vector": column})


def _measured(name: str, where: str | None, stores: dict[str, Store], pictures, texts, settings: Settings) -> list[dict]:
    """The queries in turn, each by every case in turn, in reversed order every other time."""
    condition, chosen = where and parse(where), _chosen(name, len(pictures))
    cases = {case: lambda q, s=store: [int(row["key"][:-4]) for _, row in s.search(q, K, condition)]
             for case, store in stores.items()}
    held = np.ascontiguousarray(pictures[chosen])
    cases["a plain matrix product"] = lambda q: pictures @ q
    now = time.perf_counter if settings.wall else time.process_time
    times, hits, found = ({case: [] for case in cases} for _ in range(3))
    for query in texts[:3]:
        for run in cases.values():
            run(query)
    for i, query in enumerate(texts):
        best = chosen[np.argsort(-(held @ query), kind="stable")[:K]]
        for case in reversed(cases) if i % 2 else cases:
            start = now()
            answer = cases[case](query)
            times[case].append(now() - start)
            if case in stores:
                found[case].append(len(answer) == len(set(answer)) == min(K, len(chosen)) and set(answer) <= set(chosen.tolist()))
                hits[case].append(len(set(answer) & set(best.tolist())) / len(best))
    ours = next(iter(cases))
    return [{"row": name, "size": len(pictures), "unit": "vectors", "case": case, "ms": 1e3 * median(times[case]),
             "ratio": ratio(times[case], times[ours]), "complete": all(found[case]),
             **({"recall": float(np.mean(hits[case]))} if hits[case] else {})} for case in cases]


def _chosen(name: str, count: int) -> np.ndarray:
    """The rows that a filter of FILTERS leaves."""
    rows = np.arange(count)
    masks = {"a third of the rows": rows % 100 < 33, "one in a hundred": rows % 100 == 7, "7 rows": rows < 7}
    return np.flatnonzero(masks.get(name, np.ones(count, bool)))
