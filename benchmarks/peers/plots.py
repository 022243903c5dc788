"""Two pictures: speed against memory, and memory over what has been read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from benchmarks.harness import MIB

_OURS, _THEIRS, _GREY = "#0b7285", "#868e96", "#ced4da"
_TITLES = {"tokens": "token batches", "rows": "shuffled rows of 1 KiB"}
_CURVES = {
    "tokens": (
        "memmap",
        "memmap-recreated",
        "nanogpt",
        "grain",
        "litdata",
        "mosaicml",
        "huggingface",
        "lowtide",
    ),
    "rows": ("memmap", "memmap-recreated", "h5py", "tensorstore", "dask", "blosc2-mapped", "lowtide"),
}


def draw(message: Mapping[str, Any], folder: str) -> None:
    """Write ``peers-speed.png`` and ``peers-memory.png``."""
    import matplotlib

    matplotlib.use("Agg")
    os.makedirs(folder, exist_ok=True)
    _save(_speed(message), os.path.join(folder, "peers-speed.png"))
    _save(_memory(message), os.path.join(folder, "peers-memory.png"))


def _save(figure: Any, path: str) -> None:
    figure.savefig(path, dpi=110)


def _panels(message: Mapping[str, Any], height: float) -> tuple[Any, list[tuple[Any, str, list[Any]]]]:
    """A figure with one panel for each kind of work that was done."""
    from matplotlib.figure import Figure

    measured = {
        work: [row for row in message["peers"] if row["name"].startswith(f"{work}/") and not row["missing"]]
        for work in _TITLES
    }
    works = [work for work, rows in measured.items() if rows]
    figure = Figure(figsize=(5.6 * len(works), height), layout="constrained")
    panels = []
    for nth, work in enumerate(works):
        axes = figure.add_subplot(1, len(works), nth + 1)
        axes.set_title(_TITLES[work], loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=_GREY, linewidth=0.4)
        panels.append((axes, work, measured[work]))
    return figure, panels


def _colour(row: Mapping[str, Any]) -> str:
    return _OURS if row["title"].startswith("lowtide") else _THEIRS


def _speed(message: Mapping[str, Any]) -> Any:
    """Warm speed over peak memory; a cross marks who was killed in the memory limit."""
    figure, panels = _panels(message, 4.8)
    limit = message["setting"]["limit"] / MIB
    for axes, _, rows in panels:
        places = []
        for row in rows:
            x, y = max(row["peak"] / MIB, 1), row["warm"]
            killed = row["limited_how"] == "killed"
            axes.plot(x, y, "X" if killed else "o", color=_colour(row), markersize=7)
            places.append((x, y, row))
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter("")
        axes.margins(x=0.32, y=0.12)
        axes.axvline(limit, color=_GREY, linewidth=1, linestyle="--")
        axes.set_xlabel("peak memory above the start, MiB")
        axes.set_ylabel("speed, warm, MiB/s")
        _label(axes, places)
    return figure


def _label(axes: Any, places: list[tuple[float, float, Any]], *, sides: tuple[int, ...] = (1, -1)) -> None:
    """Names beside their points, each at the nearest height where it lies on nothing else."""
    axes.figure.canvas.draw()
    scale = axes.figure.dpi / 72
    (left, bottom), (right, _) = axes.transAxes.transform([(0, 0), (1, 1)])
    points = [axes.transData.transform((x, y)) for x, y, _ in places]
    taken = [(x - 5 * scale, x + 5 * scale, y) for x, y in points]
    for (at_x, at_y), (x, y, row) in sorted(zip(points, places, strict=True), key=lambda one: one[0][1]):
        width = 4.5 * scale * len(row["title"])
        for move, side in ((way * step, side) for step in range(90) for way in (1, -1) for side in sides):
            begin = at_x + 6 * scale if side > 0 else at_x - 6 * scale - width
            text_y = at_y + move * scale
            inside = left < begin and begin + width < right and text_y > bottom + 5 * scale
            apart = (
                abs(text_y - y) > 8.5 * scale or begin > end or begin + width < first
                for first, end, y in taken
            )
            if inside and all(apart):
                break
        taken.append((begin, begin + width, text_y))
        axes.annotate(
            row["title"],
            (x, y),
            xytext=(7 * side, move),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=8,
            color=_colour(row),
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.5},
        )


def _memory(message: Mapping[str, Any]) -> Any:
    """The highest memory of the process in each part of the cold run."""
    figure, panels = _panels(message, 3.8)
    for axes, work, rows in panels:
        shown = [row for row in rows if row["name"].split("/")[1] in _CURVES[work] and row["curve"]]
        ends = []
        for row in shown:
            read = [0, *(nbytes / MIB for nbytes, _ in row["curve"])]
            memory = [0, *(max(nbytes, 0) / MIB for _, nbytes in row["curve"])]
            ours = _colour(row) == _OURS
            axes.plot(
                read, memory, color=_colour(row), linewidth=2.2 if ours else 1.1, zorder=5 if ours else 2
            )
            axes.plot(read[-1], memory[-1], "o", color=_colour(row), markersize=3)
            ends.append((read[-1], memory[-1], row))
        axes.set_xlabel("read from a cold file, MiB")
        axes.set_ylabel("peak memory above the start, MiB")
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, 1.6 * max(read for read, _, _ in ends))  # room for the names
        _label(axes, ends, sides=(1,))
    return figure
