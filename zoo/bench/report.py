"""Results of a bench: what they were measured with, growth over sizes, table, Markdown, JSON and a plot."""

import datetime
import json
import os
import platform
from itertools import cycle
from pathlib import Path

from zoo import show
from zoo.bench import Settings

ALLOCATOR = ("GLIBC_TUNABLES", "LD_PRELOAD")


def facts(settings: Settings) -> dict:
    """What the numbers depend on: the machine and how it was measured."""
    import torch

    own = [f"{name}={os.environ[name]}" for name in ALLOCATOR if os.environ.get(name)]
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "torch": torch.__version__,
        "dtype": "bf16 (autocast)" if settings.dtype == "bf16" else "fp32",
        **({"compiled": "both, torch.compile with inductor's freezing"} if settings.compile else {}),
        "threads": settings.threads,
        "clock": "wall" if settings.wall or settings.threads > 1 else "CPU time of one thread",
        "rounds": settings.rounds,
        "allocator": " ".join(own) or "the system's, default settings",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def growth(results: list[dict]) -> list[dict]:
    """How often time and memory of a case grow from its smallest to its largest size, where it was measured at two or more."""
    rows = []
    for name, case in dict.fromkeys((record["row"], record["case"]) for record in results):
        own = [r for r in results if (r["row"], r["case"]) == (name, case) and "ms" in r]
        first, last = min(own, key=_size, default=None), max(own, key=_size, default=None)
        if own and first["size"] < last["size"]:
            memory = _times(last.get("peak_mib"), first.get("peak_mib"))
            rows.append({"row": name, "case": case, "from": first["size"], "to": last["size"],
                         "size": last["size"] / first["size"], "time": last["ms"] / first["ms"], "memory": memory})
    return rows


def _size(record: dict) -> int:
    return record["size"]


def _times(last: float | None, first: float | None) -> float | None:
    return last / first if last is not None and first else None


def text(result: dict) -> str:
    """For the terminal: settings, the table of results, the table of growth."""
    parts = [show.lines(result["settings"]), show.table(table(result["results"])), LEGEND]
    if result["growth"]:
        parts.append(show.table(growth_table(result["growth"])))
    parts += result.get("said", [])
    return "\n\n".join(parts)


LEGEND = """ratio: its time / ours, median over rounds; over 1: ours is faster. peak: memory of a call beyond weights and inputs.
limit: ms of only the matrix products of ours, linear layers, then with those of attention; in brackets its share of our time."""


def table(results: list[dict]) -> list[dict]:
    """The results as rows of short strings; None where there is nothing to say."""
    rare = {key: shown for key, shown in RARE.items() if any(key in record for record in results)}
    rows = []
    for record in results:
        ms = record.get("ms")
        rows.append({
            "row": record["row"], "size": f"{record['size']} {record['unit']}", "case": record["case"],
            "error": _short(record.get("error"), ".0e"), "ms": _short(ms, ".3g"),
            "a second": ms and _short(1e3 * record["size"] / ms, ".3g"),
            "ratio": record.get("refused") or _short(record.get("ratio"), ".2f"),
            "peak MiB": _short(record.get("peak_mib"), ".1f"),
            "limit": _limit(record.get("limit_linear_ms"), ms), "with attention": _limit(record.get("limit_ms"), ms),
        } | {title: _short(record.get(key), form) for key, (title, form) in rare.items()})
    return rows


# Only where a record has the key: what the GPU did, how many times more tokens.
RARE = {"recall": ("recall@10", ".3f"), "longer": ("times longer", ".1f"), "gpu_ms": ("GPU ms", ".3g"),
        "gpu_ratio": ("GPU ratio", ".2f"),
        "gpu_busy": ("GPU busy", ".0%")}


def growth_table(rows: list[dict]) -> list[dict]:
    return [{"row": row["row"], "case": row["case"], "sizes": f"{row['from']} -> {row['to']}",
             "size x": _short(row["size"], ".3g"), "time x": _short(row["time"], ".1f"), "memory x": _short(row["memory"], ".1f")}
            for row in rows]


def _short(value: float | None, form: str) -> str | None:
    if value is None:
        return None
    return f"{value:.0f}" if form == ".3g" and value >= 1000 else f"{value:{form}}"


def _limit(limit: float | None, ms: float | None) -> str | None:
    return None if limit is None else f"{_short(limit, '.3g')} ({limit / ms:.0%})"


def write(result: dict, folder: Path) -> list[Path]:
    """results.md, results.json and results.png in `folder`; returns the files."""
    files = [folder / f"results.{kind}" for kind in ("md", "json", "png")]
    files[0].write_text(markdown(result), encoding="utf-8")
    files[1].write_text(json.dumps(result, indent=2), encoding="utf-8")
    _plot(result, files[2])
    return files


def markdown(result: dict) -> str:
    parts = [f"# zoo bench {result['bench']}", "\n".join(f"- {key}: {value}" for key, value in result["settings"].items())]
    parts += [_markdown_table(table(result["results"])), LEGEND]
    if result["growth"]:
        parts.append(_markdown_table(growth_table(result["growth"])))
    parts += result.get("said", [])
    return "\n\n".join(parts) + "\n"


def _markdown_table(rows: list[dict]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0])] + [["" if v is None else str(v) for v in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _plot(result: dict, file: Path, columns: int = 4) -> None:
    """For each row name time, and memory below it: over the size, axes logarithmic, or bars; `columns` names side by side."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(record["row"] for record in result["results"]))
    columns = min(columns, len(names))
    blocks = [names[i : i + columns] for i in range(0, len(names), columns)]
    figure = Figure(figsize=(1 + 3.6 * columns, 1 + 5.4 * len(blocks)), layout="constrained")
    axes = figure.subplots(2 * len(blocks), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for i, name in enumerate(names):
        own = [r for r in result["results"] if r["row"] == name and "refused" not in r]
        searched = not any(record.get("ms") for record in own)  # the size is what was found
        curves = len({record["size"] for record in own}) > 1 and not searched
        for lower, (key, label) in enumerate((("size", None) if searched else ("ms", "ms"), ("peak_mib", "peak MiB"))):
            axis = axes[2 * (i // columns) + lower, i % columns]
            axis.set_axis_on()
            (_curves if curves else _bars)(axis, [record for record in own if record.get(key)], key, label)
            axis.set_title("" if lower else name, fontsize=10)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
    figure.suptitle(f"zoo bench {result['bench']}: {result['settings']['dtype']}, {result['settings']['cpu']}", fontsize=10)
    figure.savefig(file, dpi=110)


def _bars(axis, records: list[dict], key: str, label: str | None) -> None:
    bars = axis.barh([record["case"] for record in records], [record[key] for record in records], color="C0", height=0.5)
    axis.bar_label(bars, fmt=lambda x: _short(x, ".3g"), fontsize=8, padding=2)
    axis.margins(x=0.25)
    axis.locator_params(axis="x", nbins=4)
    units = {f"{record['size']} {record['unit']}" for record in records}
    if label is None:
        axis.set_xlabel(", ".join({record["unit"] for record in records}))
    else:
        axis.set_xlabel(f"{label}, {units.pop()}" if len(units) == 1 else label)
    axis.invert_yaxis()


def _curves(axis, records: list[dict], key: str, label: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set(xscale="log", yscale="log", xlabel=records[0]["unit"], ylabel=label)
    for case, marker in zip(dict.fromkeys(record["case"] for record in records), cycle("osD^vPX*")):  # not by colour alone
        own = sorted((r for r in records if r["case"] == case), key=_size)
        axis.plot([r["size"] for r in own], [r[key] for r in own], marker=marker, label=case)
    ticks = sorted({record["size"] for record in records})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.legend(fontsize=7)
