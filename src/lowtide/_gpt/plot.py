"""Plot of a run: loss and memory over its steps."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from lowtide._gpt import metrics
from lowtide._io.atomic import write_file
from lowtide._sizes import format_size

_NAMES = ("train_loss", "val_loss", "rss_mib")
_MOST = 1e15  # larger values, and NaN, cannot be drawn beside the others
_POINTS = 2000  # more than a screen has pixels: a plot of millions of steps takes no more memory


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(log: str, path: str, budget: int | None = None) -> None:
    """Draw a ``metrics.jsonl`` as a PNG file."""
    import matplotlib
    from matplotlib.figure import Figure

    train, val, memory = _curves(log)
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 4), layout="constrained")
        loss, resident = figure.subplots(1, 2)
        loss.plot(*train, color="#9fb8cc", linewidth=1, label="training batch")
        if val[0]:
            best = min(val[1])
            loss.plot(*val, "o-", color="#1f618d", markersize=3.5, label=f"validation, best {best:.4f}")
        loss.set(xlabel="step", ylabel="loss, nats per token")
        loss.set_title("Loss", loc="left", fontweight="bold")
        if train[0]:
            loss.legend(frameon=False)
        resident.plot(*memory, color="#1f618d", linewidth=1.6)
        if budget is not None:
            resident.axhline(budget / 2**20, color="#c0392b", linestyle="--", linewidth=1)
            resident.annotate(
                f"budget {format_size(budget)}", (0, budget / 2**20), xytext=(3, 3), color="#c0392b",
                xycoords=("axes fraction", "data"), textcoords="offset points",
            )  # fmt: skip
        resident.set(xlabel="step", ylabel="resident MiB")
        resident.set_title("Memory", loc="left", fontweight="bold")
        resident.set_ylim(0, 1.15 * resident.get_ylim()[1])
        picture = io.BytesIO()
        figure.savefig(picture, dpi=130, format="png")
    write_file(path, picture.getvalue())


def _curves(log: str) -> list[tuple[list[float], list[float]]]:
    """Training loss, validation loss and memory by step, each as at most ``_POINTS`` evenly spaced points."""
    counts = Counter(name for name, _, _ in _points(log))
    curves: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in _NAMES}
    numbers = Counter[str]()
    for name, step, value in _points(log):
        if numbers[name] % (1 + counts[name] // _POINTS) == 0:
            curves[name][0].append(step)
            curves[name][1].append(value)
        numbers[name] += 1
    return list(curves.values())


def _points(log: str) -> Iterator[tuple[str, int, float]]:
    for line in metrics.read(log):
        for name in _NAMES:
            if line[name] is not None and abs(line[name]) < _MOST:
                yield name, line["step"], line[name]
