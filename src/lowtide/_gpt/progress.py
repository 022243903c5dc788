"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from lowtide._gpt.metrics import Metrics
from lowtide._printable import printable
from lowtide._sizes import format_size

_WIDE = 110  # columns in which everything fits beside a long bar
_LONG, _SHORT = 24, 8


class Progress:
    """Shows each step; ``silent`` on all ranks but the first."""

    def __init__(
        self, steps: int, done: int, every: int, budget: int | None = None, *, silent: bool = False
    ) -> None:
        self._steps, self._every, self._budget, self._silent = steps, every, budget, silent
        self._bar: Bar | None = None
        self._width: int | None = None
        console = Console(stderr=False)
        if console.is_terminal and not silent:
            counts = 2 * len(str(steps)) + 1
            bar = _LONG if console.width >= _WIDE else _SHORT
            columns = (
                MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=counts)),
                BarColumn(bar),
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
            )
            self._width, self._beside = console.width, console.width - counts - bar - 2
            self._bar = Bar(*columns, console=console, refresh_per_second=4)
            self._task = self._bar.add_task("", total=steps, completed=done, text="")

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        text = printable(text, keep="\n")
        if self._bar is not None:
            self._bar.console.print(escape(text), highlight=False, soft_wrap=True)
        elif not self._silent:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def step(self, metrics: Metrics, left: float) -> None:
        """Show a finished step; about ``left`` seconds remain."""
        if self._bar is not None:
            text = self.line(metrics, left, self._beside)
            self._bar.update(self._task, completed=metrics.step, text=text)
        due = metrics.step % self._every == 0 or metrics.step in (1, self._steps)
        if metrics.val_loss is not None or (self._bar is None and due):
            start = f"step {metrics.step}: "
            width = None if self._width is None else self._width - len(start)
            self.print(start + self.line(metrics, left, width))

    def line(self, metrics: Metrics, left: float, width: int | None = None) -> str:
        """Format the metrics of a step, the most important ones if not all of them fit into ``width``.

        >>> metrics = Metrics(7, 2.5, 2.4, 1e-3, 5376, 10_000.0, 0.2, 76.8, 300.0, val_bpb=3.4625)
        >>> progress = Progress(10, 0, 1, 2**30, silent=True)
        >>> progress.line(metrics, 75)
        'loss 2.5000, val 2.4000 (3.462 bpb), 10,000 tokens/s, loader 0.3 %, 300.0 MiB of 1.0 GiB, 1:15 left'
        >>> progress.line(metrics, 75, 60)
        'loss 2.5000, val 2.4000 (3.462 bpb), 300.0 MiB, 1:15 left'
        """
        bits = "" if metrics.val_bpb is None else f" ({metrics.val_bpb:.3f} bpb)"
        memory = format_size(metrics.rss_mib * 2**20)
        parts = {
            "loss": f"loss {metrics.train_loss:.4f}",
            "val": "" if metrics.val_loss is None else f"val {metrics.val_loss:.4f}{bits}",
            "speed": f"{metrics.tokens_per_s:,.0f} tokens/s",
            "loader": f"loader {100 * metrics.loader_ms / metrics.step_ms:.1f} %",
            "memory": memory + ("" if self._budget is None else f" of {format_size(self._budget)}"),
            "left": f"{_clock(left)} left",
        }
        # Parts to drop in a narrow terminal, the first one first, and shorter ones in their place.
        shorter = iter([("loader", ""), ("memory", memory), ("speed", ""), ("memory", ""), ("left", "")])
        while True:
            text = ", ".join(part for part in parts.values() if part)
            if width is None or len(text) <= width or (change := next(shorter, None)) is None:
                return text
            parts[change[0]] = change[1]

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
