"""The picture of ``lowtide compare``: memory against bytes read, and speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from lowtide._compare.runs import Run

_COLOURS = {
    "np.memmap": "#c0392b",
    "memmap": "#e59866",
    "remap": "#b7950b",
    "advise": "#7d3c98",
    "pread": "#1f618d",
    "pread, drop": "#45b39d",
    "obstore": "#c0392b",
    "remote": "#1f618d",
}
_MIB = 2**20


def plot(runs: list[Run], used: int, path: str) -> None:
    """Draw every run to a PNG."""
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (in_order, shuffled, speed) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
        _memory(in_order, [run for run in runs if not run.shuffled], "Memory, in order", used)
        _memory(shuffled, [run for run in runs if run.shuffled], "Memory, shuffled", used)
        _speeds(speed, runs)
        in_order.legend(frameon=False, loc="upper left")
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _memory(axes: Any, runs: list[Run], title: str, used: int) -> None:
    """Draw a line per method: the warm walk, where every touched page can stay, or else the cold one."""
    warm = any(not run.cold for run in runs)
    for run in runs:
        if run.cold == warm:
            continue
        xs, ys = zip(*run.figures["samples"], strict=True)
        ours = run.method.startswith(("pread", "remote"))
        axes.plot(
            [x / _MIB for x in xs],
            [y / _MIB for y in ys],
            color=_COLOURS[run.method],
            linewidth=2.4 if ours else 1.4,
            linestyle="--" if run.method in ("memmap", "pread, drop") else "-",
            label=run.method,
        )
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("MiB read")
    axes.set_ylabel("MiB resident above the start")
    axes.set_xlim(0, used / _MIB)
    axes.set_ylim(bottom=0)


def _speeds(axes: Any, runs: list[Run]) -> None:
    groups = sorted({(run.shuffled, run.cold) for run in runs})
    methods = list(dict.fromkeys(run.method for run in runs))
    height = 0.8 / len(methods)
    for run in runs:
        at = groups.index((run.shuffled, run.cold)) + methods.index(run.method) * height
        axes.barh(at, run.speed / 1e9, height * 0.9, color=_COLOURS[run.method])
    names = [
        f"{'shuffled' if shuffled else 'in order'}\n{'cold' if cold else 'warm'}" for shuffled, cold in groups
    ]
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(groups))], names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("GB/s, logarithmic")
    axes.set_title("Speed", loc="left", fontweight="bold")
