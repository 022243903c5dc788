"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from lowtide._gpt.metrics import Metrics
from lowtide._printable import printable
from lowtide._sizes import format_size


class Progress:
    """Shows each step; ``silent`` on all ranks but the first."""

    def __init__(
        self, steps: int, done: int, every: int, budget: int | None = None, *, silent: bool = False
    ) -> None:
        self._steps, self._every, self._budget, self._silent = steps, every, budget, silent
        self._bar: Bar | None = None
        console = Console(stderr=False)
        if console.is_terminal and not silent:
            columns = (MofNCompleteColumn(), BarColumn(24), TextColumn("{task.fields[text]}"))
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
            self._bar.update(self._task, completed=metrics.step, text=self.line(metrics, left))
        due = metrics.step % self._every == 0 or metrics.step in (1, self._steps)
        if metrics.val_loss is not None or (self._bar is None and due):
            self.print(f"step {metrics.step}: {self.line(metrics, left)}")

    def line(self, metrics: Metrics, left: float) -> str:
        """Format the metrics of a step.

        >>> metrics = Metrics(7, 2.5, 2.4, 1e-3, 5376, 10_000.0, 0.2, 76.8, 300.0)
        >>> Progress(10, 0, 1, 2**30, silent=True).line(metrics, 75)
        'loss 2.5000, val 2.4000, 10,000 tokens/s, loader 0.3 %, 300.0 MiB of 1.0 GiB, 1:15 left'
        """
        val = "" if metrics.val_loss is None else f", val {metrics.val_loss:.4f}"
        budget = f" of {format_size(self._budget)}" if self._budget is not None else ""
        return (
            f"loss {metrics.train_loss:.4f}{val}, {metrics.tokens_per_s:,.0f} tokens/s, "
            f"loader {100 * metrics.loader_ms / metrics.step_ms:.1f} %, "
            f"{format_size(metrics.rss_mib * 2**20)}{budget}, {_clock(left)} left"
        )

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
