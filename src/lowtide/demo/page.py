"""``report.html``: the results of the demo, on one page that fetches nothing and runs no script."""

from __future__ import annotations

import html
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import psutil

from lowtide import __version__
from lowtide._compare.runs import Run
from lowtide._io.atomic import write_file
from lowtide._memory import cgroup
from lowtide._pages import escape, fill
from lowtide._prepare.summary import Summary
from lowtide._sizes import format_size
from lowtide.demo import charts
from lowtide.demo.sources import Texts
from lowtide.demo.terminal import area
from lowtide.demo.training import Training
from lowtide.demo.walks import name, peak

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The results of the demo."""

    started: float
    texts: Texts
    corpus: Summary
    corpus_seconds: float
    array_size: int
    walks: Sequence[Run]
    training: Training | None = None
    sample: str | None = None
    commands: Sequence[tuple[str, str]]
    """What each command does, and the command."""

    def to_json(self) -> dict[str, Any]:
        """The figures, for programs."""
        return {
            "machine": dict(machine()),
            "array_bytes": self.array_size,
            "walks": [
                {"reader": name(walk), "shuffled": walk.shuffled, "peak": peak(walk), **walk.figures}
                for walk in self.walks
            ],
            "documents": self.corpus.documents,
            "tokens": self.corpus.tokens,
            "prepare_seconds": self.corpus_seconds,
            "training": self.training.metrics if self.training else None,
            "sample": self.sample,
            "commands": [command for _, command in self.commands],
        }


def save(path: str, story: Story) -> None:
    """Write the page."""
    parts = {
        "when": time.strftime("%Y-%m-%d %H:%M", time.localtime(story.started)),
        "curves": _curves(story.walks, story.array_size),
        "size": format_size(story.array_size),
        "walks": "".join(map(_walk_row, story.walks)),
        "memory": escape(memory_summary(story.walks)),
        "speed": escape(speed_summary(story.walks)),
        "corpus": _tiles(_corpus_figures(story)),
        "training": _training(story.training),
        "sample": _sample(story.sample),
        "commands": "".join(
            f"<dt>{escape(what)}</dt><dd><code>{escape(command)}</code></dd>"
            for what, command in story.commands
        ),
        "machine": "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in machine()),
    }
    write_file(path, fill(_TEMPLATE, parts).encode(errors="replace"))


def memory_summary(walks: Sequence[Run]) -> str:
    """The two curves in one sentence."""
    highest = {who: max(peak(walk) for walk in walks if name(walk) == who) for who in map(name, walks)}
    theirs, ours = format_size(highest["np.memmap"]), format_size(highest["lowtide"])
    return f"np.memmap used up to {theirs}, lowtide up to {ours}."


def speed_summary(walks: Sequence[Run]) -> str:
    """The speeds in one sentence."""
    speeds = {(name(walk), walk.shuffled): walk.speed for walk in walks}
    in_order, shuffled = (speeds["lowtide", order] / speeds["np.memmap", order] for order in (False, True))
    return (
        f"With the file in the page cache lowtide's speed was {in_order:.1f} times np.memmap's in order, and "
        f"{shuffled:.1f} times shuffled."
    )


def machine() -> list[tuple[str, str]]:
    """The machine that the figures come from."""
    group = cgroup.find(os.getpid())
    limit = group.limit() if group is not None else None
    container = "" if limit is None else f", {format_size(limit)} for this container"
    rows = [
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("cores", str(os.cpu_count())),
        ("memory", f"{format_size(psutil.virtual_memory().total)}{container}"),
        ("Python", platform.python_version()),
        ("lowtide", __version__),
    ]
    for package in ("numpy", "torch"):
        try:
            rows.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            rows.append((package, "not installed"))
    return rows


def _figure(draw: charts.Draw) -> str:
    """A chart for wide screens and one for phones; the page's style shows one of them."""
    if not charts.available():
        return "<p>For a chart here: <code>pip install 'lowtide[plot]'</code></p>"
    return (
        f'<div class="wide">{charts.svg(draw, 860, 400)}</div>'
        f'<div class="narrow">{charts.svg(draw, 320, 340)}</div>'
    )


def _curves(walks: Sequence[Run], size: int) -> str:
    """The two curves; without matplotlib, those of the terminal."""
    if charts.available():
        return _figure(charts.two_curves(walks, size))
    return "".join(
        f"<pre>{name(walk)}, in order\n{chr(10).join(area(walk.figures['samples'], size, size, 34, 8))}</pre>"
        for walk in walks
        if not walk.shuffled
    )


def _walk_row(walk: Run) -> str:
    kind = "ours" if name(walk) == "lowtide" else "theirs"
    stopped = "" if walk.figures["complete"] else " (stopped)"
    return (
        f'<tr class="{kind}"><td>{name(walk)}</td><td>{"shuffled" if walk.shuffled else "in order"}</td>'
        f"<td>{format_size(peak(walk))}</td><td>{walk.speed / 1e9:.2f}{stopped}</td></tr>"
    )


def _corpus_figures(story: Story) -> list[tuple[str, str]]:
    tokenizer = story.corpus.manifest.tokenizer
    return [
        ("text", format_size(story.texts.size)),
        ("documents", f"{story.corpus.documents:,}"),
        ("tokens", f"{story.corpus.tokens:,}"),
        ("tokenizer", tokenizer.name if tokenizer else "-"),
        ("seconds", f"{story.corpus_seconds:.1f}"),
    ]


def _tiles(figures: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in figures)


def _training(training: Training | None) -> str:
    if training is None or not training.metrics:
        return (
            "<p>Left out by <code>--quick</code>. <code>pip install 'lowtide[gpt]'</code>, then "
            "<code>lowtide demo</code> trains a small GPT on this corpus in a minute.</p>"
        )
    last = training.metrics[-1]
    waited = sum(line["loader_ms"] for line in training.metrics)
    share = 100 * waited / sum(line["step_ms"] for line in training.metrics)
    figures = [
        ("steps", f"{last['step']:,}"),
        ("tokens", f"{last['tokens']:,}"),
        ("seconds", f"{training.seconds:.0f}"),
        ("loss", f"{last['train_loss']:.2f}"),
        ("waiting for data", f"{share:.1f} %"),
    ]
    return (
        f'<dl class="tiles">{_tiles(figures)}</dl>'
        f"{_figure(charts.loss(training.metrics))}{_figure(charts.memory(training.metrics))}"
    )


def _sample(sample: str | None) -> str:
    if sample is None:
        return ""
    return (
        '<section class="card"><h2>What it writes</h2><p>The same model: a minute earlier its weights were '
        f"random.</p><pre>{html.escape(sample)}</pre></section>"
    )
