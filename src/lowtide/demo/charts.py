"""The charts of the demo, drawn by matplotlib as SVG whose colours come from the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowtide._compare.runs import Run
from lowtide._sizes import format_size
from lowtide.demo.walks import name, peak

Draw = Callable[[Any], None]
"""Draws on the axes of a figure."""

# Placeholders in the output of matplotlib, replaced by CSS variables, which have other values on a dark page.
_COLOURS = {
    "#000001": "var(--ours)",
    "#000002": "var(--theirs)",
    "#000003": "var(--faint)",
    "#000004": "var(--text)",
    "#000005": "var(--soft)",
    "#000006": "var(--line)",
}
_OURS, _THEIRS, _FAINT, _TEXT, _SOFT, _LINE = _COLOURS
_STYLE = """<style>
:root {
background: #fff; --ours: #1f6f8b; --theirs: #b9541a; --text: #17212b; --soft: #5b6b7a; --line: #dfe5ea }
@media (prefers-color-scheme: dark) { :root {
background: #18212a; --ours: #4fb3d1; --theirs: #f2a162; --text: #e6edf3; --soft: #9fb0bf; --line: #2a3641 } }
</style>"""
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lowtide",  # the same names each time
    "font.family": "sans-serif",
    "font.size": 13,  # about as many pixels on the page
    "legend.frameon": False,
    "legend.fontsize": 13,
    "text.color": _SOFT,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": _LINE,
    "axes.titlecolor": _TEXT,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _SOFT,
    "ytick.labelcolor": _SOFT,
    "lines.linewidth": 2.2,
}


def available() -> bool:
    """Whether matplotlib, which draws the charts, can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def svg(draw: Draw, width: int, height: int, *, standalone: bool = False) -> str:
    """Return a chart as SVG, as a part of a page that sets the colours or as a file with both themes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        file = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _COLOURS.items():
        text = text.replace(colour, variable)
    label = f'<svg role="img" aria-label="{axes.get_title(loc="left")}" class="chart" '
    text = text.replace("<svg ", label, 1)
    head, _, body = text.partition(">")
    return f"{head}>{_STYLE}{body}" if standalone else text


def two_curves(walks: Sequence[Run], size: int) -> Draw:
    """Memory over bytes read: the diagonal of np.memmap and the flat line of lowtide."""
    unit, factor = ("GiB", 2**30) if size >= 2**30 else ("MiB", 2**20)

    def draw(axes: Any) -> None:
        for walk in walks:
            xs, ys = zip(*walk.figures["samples"], strict=True)
            order = "shuffled" if walk.shuffled else "in order"
            axes.plot(
                [x / factor for x in xs],
                [y / factor for y in ys],
                color=_OURS if name(walk) == "lowtide" else _THEIRS,
                linestyle=":" if walk.shuffled else "-",
                label=f"{name(walk)}, {order}: {format_size(peak(walk))}",
            )
        _finish(axes, f"Memory of a pass over {format_size(size)}", f"{unit} read", f"{unit} resident")
        axes.set_xlim(0, size / factor)
        # Below the axes: there is no corner that no curve crosses.
        axes.figure.legend(loc="outside lower left", ncols=1 if axes.figure.get_figwidth() < 6 else 2)

    return draw


def loss(metrics: Sequence[Mapping[str, Any]]) -> Draw:
    """The loss of a run."""
    val = [(line["step"], line["val_loss"]) for line in metrics if line["val_loss"] is not None]

    def draw(axes: Any) -> None:
        steps, losses = _column(metrics, "train_loss")
        axes.plot(steps, losses, color=_FAINT, linewidth=1, label="training")
        if val:
            axes.plot(*zip(*val, strict=True), color=_OURS, label=f"validation: {val[-1][1]:.2f}")
        _finish(axes, "Loss", "step", "nats per token", bottom=None)
        axes.legend(loc="upper right")

    return draw


def memory(metrics: Sequence[Mapping[str, Any]]) -> Draw:
    """The memory of the process that trained."""

    def draw(axes: Any) -> None:
        steps, sizes = _column(metrics, "rss_mib")
        axes.plot(steps, sizes, color=_OURS, label=f"{sizes[-1]:,.0f} MiB at the end")
        _finish(axes, "Memory while training", "step", "MiB resident")
        axes.legend(loc="lower right")

    return draw


def _column(metrics: Sequence[Mapping[str, Any]], name: str, limit: int = 240) -> tuple[list[Any], list[Any]]:
    """At most ``limit`` points and the last one, since more would only make the file larger."""
    chosen = list(metrics[:: -(-len(metrics) // limit) or 1])
    if metrics and chosen[-1] is not metrics[-1]:
        chosen.append(metrics[-1])
    return [line["step"] for line in chosen], [line[name] for line in chosen]


def _finish(axes: Any, title: str, x_label: str, y_label: str, bottom: float | None = 0) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=bottom)
