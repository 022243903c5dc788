"""Two pictures: speed against memory, and memory over what has been read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from benchmarks.harness import MIB

_OURS, _THEIRS, _GREY = "#0b7285", "#868e96", "#ced4da"
_TITLES = {"tokens": "token batches", "rows": "shuffled rows of 1 KiB"}
_CURVES = {
    "tokens": ("memmap", "memmap-recreated", "nanogpt", "grain", "litdata", "mosaicml", "huggingface", "lowtide"),
    "rows": ("memmap", "memmap-recreated", "h5py", "tensorstore", "dask", "blosc2-mapped", "lowtide"),
}


def draw(told: Mapping[str, Any], folder: str) -> None:
    """Write ``peers-speed.png`` and ``peers-memory.png``."""
    import matplotlib

    matplotlib.use("Agg")
    os.makedirs(folder, exist_ok=True)
    _save(_speed(told), os.path.join(folder, "peers-speed.png"))
    _save(_memory(told), os.path.join(folder, "peers-memory.png"))


def _save(figure: Any, path: str) -> None:
    figure.savefig(path, dpi=110)


def _panels(told: Mapping[str, Any], height: float) -> tuple[Any, list[tuple[Any, str, list[Any]]]]:
    """A figure with one panel for each kind of work that was done."""
    from matplotlib.figure import Figure

    measured = {
        work: [row for row in told["peers"] if row["name"].startswith(f"{work}/") and not row["missing"]]
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


def _speed(told: Mapping[str, Any]) -> Any:
    """Warm speed over peak memory; a cross marks who was killed in the memory limit."""
    figure, panels = _panels(told, 4.8)
    limit = told["setting"]["limit"] / MIB
    for axes, _, rows in panels:
        places = []
        for row in rows:
            x, y = max(row["peak"] / MIB, 1), row["warm"]
            killed = row["limited_how"] == "killed"
            axes.plot(x, y, "X" if killed else "o", color=_colour(row), markersize=7)
            places.append((x, y, row))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(x=0.32, y=0.12)
        axes.axvline(limit, color=_GREY, linewidth=1, linestyle="--")
        axes.set_xlabel("peak memory above the start, MiB")
        axes.set_ylabel("speed, warm, MiB/s")
        _label(axes, places)
    return figure


def _label(axes: Any, places: list[tuple[float, float, Any]]) -> None:
    """Names beside their points, moved apart where they would lie on each other."""
    axes.figure.canvas.draw()
    scale = axes.figure.dpi / 72
    left, right = axes.transAxes.transform([(0, 0), (1, 1)])[:, 0]
    taken: list[tuple[float, float, float]] = []
    for x, y, row in sorted(places, key=lambda place: -place[1]):
        at_x, at_y = axes.transData.transform((x, y))
        width = 4.6 * scale * len(row["title"])
        to_left = at_x + width > right and at_x - width > left
        begin = at_x - width if to_left else at_x
        text_y = at_y
        while any(abs(text_y - other) < 10 * scale and begin < end and first < begin + width
                  for first, end, other in taken):  # fmt: skip
            text_y -= 2 * scale
        taken.append((begin, begin + width, text_y))
        axes.annotate(
            row["title"],
            (x, y),
            xytext=(-7 if to_left else 7, (text_y - at_y) / scale),
            textcoords="offset points",
            ha="right" if to_left else "left",
            va="center",
            fontsize=8,
            color=_colour(row),
            arrowprops={"arrowstyle": "-", "color": _GREY, "linewidth": 0.6} if at_y - text_y > 6 * scale else None,
        )


def _memory(told: Mapping[str, Any]) -> Any:
    """Memory of the process after each part of the cold run."""
    figure, panels = _panels(told, 3.8)
    for axes, work, rows in panels:
        shown = [row for row in rows if row["name"].split("/")[1] in _CURVES[work] and row["curve"]]
        ends = []
        for row in shown:
            read, memory = zip(*row["curve"], strict=True)
            read, memory = [0, *(x / MIB for x in read)], [0, *(max(y, 0) / MIB for y in memory)]
            ours = _colour(row) == _OURS
            axes.plot(read, memory, color=_colour(row), linewidth=2.2 if ours else 1.1, zorder=3 if ours else 2)
            axes.plot(read[-1], memory[-1], "o", color=_colour(row), markersize=3)
            ends.append((read[-1], memory[-1], row))
        axes.set_xlabel("read from a cold file, MiB")
        axes.set_ylabel("memory above the start, MiB")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.34)
        axes.set_xlim(left=0)
        _label(axes, ends)
    return figure
