"""What the demo draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowtide._compare.runs import Run
from lowtide._sizes import format_size
from lowtide.demo.svg import Chart, Line, Point
from lowtide.demo.walks import name, peak

_POINTS = 240  # of a line: more than it has units to lie on


def two_curves(walks: Sequence[Run], size: int) -> Chart:
    """Memory against bytes read: np.memmap's diagonal, and lowtide's flat line."""
    unit, factor = ("GiB", 2**30) if size >= 2**30 else ("MiB", 2**20)
    found = {(name(walk), walk.shuffled): walk for walk in walks}

    def points(who: str, shuffled: bool) -> list[Point]:
        return [(x / factor, y / factor) for x, y in found[who, shuffled].figures["samples"]]

    ours = max(peak(found["lowtide", shuffled]) for shuffled in (False, True))
    return Chart(
        title=f"Memory of a pass over {format_size(size)}",
        x_label=f"{unit} read",
        y_label=f"{unit} resident above the start",
        lines=[
            Line("np.memmap, shuffled", points("np.memmap", True), "theirs", 0.12, "below", dashed=True),
            Line("np.memmap, in order", points("np.memmap", False), "theirs", 0.4, "right"),
            Line("", points("lowtide", True), "ours", dashed=True),
            Line(f"lowtide, both orders: {format_size(ours)}", points("lowtide", False), "ours"),
        ],
        x_to=size / factor,
    )


def loss(metrics: Sequence[Mapping[str, Any]]) -> Chart:
    """The loss of a run."""
    train = [(line["step"], line["train_loss"]) for line in metrics]
    val = [(line["step"], line["val_loss"]) for line in metrics if line["val_loss"] is not None]
    lines = [Line("training", thinned(train), "faint", 0.1)]
    if val:
        lines.append(Line(f"validation: {val[-1][1]:.2f}", val, "ours", side="below"))
    return Chart("Loss", "step", "nats a token", lines)


def memory(metrics: Sequence[Mapping[str, Any]]) -> Chart:
    """The memory of the process that trained."""
    points = [(line["step"], line["rss_mib"]) for line in metrics]
    last = f"{points[-1][1]:,.0f} MiB" if points else ""
    return Chart("Memory while training", "step", "MiB resident", [Line(last, thinned(points), "ours")])


def thinned(points: Sequence[Point]) -> list[Point]:
    """No more points than can be told apart, the last among them."""
    every = -(-len(points) // _POINTS) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
