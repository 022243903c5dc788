"""A picture of a run: loss and memory over its steps."""

from __future__ import annotations

import io
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from lowtide._gpt import metrics
from lowtide._io.publish import write_file
from lowtide._sizes import format_size

_MOST = 1e15  # a loss or size beyond it, or one that is not a number, cannot be drawn beside the others
_POINTS = 2000  # more than a screen has; a run of millions of steps is drawn in as much memory as a short one


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(log: str, path: str, budget: int | None = None) -> None:
    """Draw ``metrics.jsonl`` to a PNG."""
    import matplotlib
    from matplotlib.figure import Figure

    train, val, memory = _courses(metrics.read(log))
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 4), layout="constrained")
        loss, resident = figure.subplots(1, 2)
        loss.plot(*train, color="#9fb8cc", linewidth=1, label="training batch")
        if val[0]:
            best = min(val[1])
            loss.plot(*val, "o-", color="#1f618d", markersize=3.5, label=f"validation, best {best:.4f}")
        loss.set(xlabel="step", ylabel="loss, nats a token")
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
        resident.set(xlabel="step", ylabel="MiB resident")
        resident.set_title("Memory", loc="left", fontweight="bold")
        resident.set_ylim(0, 1.15 * resident.get_ylim()[1])
        picture = io.BytesIO()
        figure.savefig(picture, dpi=130, format="png")
    write_file(path, picture.getvalue())


Course = tuple[list[float], list[float]]


def _courses(lines: Iterable[dict[str, Any]]) -> tuple[Course, Course, Course]:
    """Training loss, validation loss and memory by step, thinned out as they grow."""
    train, val, memory = _Thin(), _Thin(), _Thin()
    for line in lines:
        train.add(line["step"], line["train_loss"])
        memory.add(line["step"], line["rss_mib"])
        if line["val_loss"] is not None:
            val.add(line["step"], line["val_loss"])
    return train.course, val.course, memory.course


class _Thin:
    """A course of at most ``_POINTS``: when it is full every other one goes."""

    def __init__(self) -> None:
        self.course: Course = ([], [])
        self._every, self._seen = 1, 0

    def add(self, step: float, value: float) -> None:
        if not abs(value) < _MOST:
            return
        if self._seen % self._every == 0:
            if len(self.course[0]) == _POINTS:
                for column in self.course:
                    del column[1::2]
                self._every *= 2
            if self._seen % self._every == 0:
                self.course[0].append(step)
                self.course[1].append(value)
        self._seen += 1
