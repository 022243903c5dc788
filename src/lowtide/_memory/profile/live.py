"""Memory of a process in the terminal: bars, a sparkline, the slope and the verdict so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lowtide._memory.profile.profiler import Profiler
from lowtide._memory.profile.recording import Recording
from lowtide._memory.profile.series import Series
from lowtide._memory.profile.verdict import Verdict, judge
from lowtide._memory.samples import thin
from lowtide._printable import printable
from lowtide._sizes import format_size

_COLORS = {"grows": "red", "bounded": "green", "unclear": "yellow"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def lines(watched: Profiler, every: float, stop_at: float, each: Callable[[], object] = bool) -> None:
    """Print one plain line per interval, for pipes and logs; ``each`` is called before it."""
    names = ["seconds", "heap", "mapped", "page cache", *_container(watched), "read", "slope"]
    sys.stdout.write("\t".join(names) + "\n")
    while follow(watched, every, stop_at):
        each()
        series, verdict = watched.recording.series(), judge(watched.recording)
        columns = (series.heap[-1], series.mapped[-1], series.cache[-1], *_container(watched).values())
        sizes = [format_size(size) for size in (*columns, series.read[-1])]
        sys.stdout.write("\t".join([f"{series.time[-1]:.1f}", *sizes, _slope(verdict)]) + "\n")
        sys.stdout.flush()


def show(watched: Profiler, every: float, stop_at: float, each: Callable[[], object] = bool) -> None:
    """Draw a picture again and again in place; ``each`` is called before it."""
    console = Console()
    with Live(Text("looking…"), console=console, auto_refresh=False, transient=False) as screen:
        while follow(watched, every, stop_at):
            each()
            screen.update(picture(watched, console.width), refresh=True)


def picture(watched: Profiler, width: int) -> Panel:
    """Bars for heap, mapped files and page cache against the limit; the curve; the verdict."""
    recording = watched.recording
    series, verdict = recording.series(), judge(recording)
    limit, of = _scale(watched)
    room = max(10, min(60, width - 32))
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim")
    table.add_column()
    table.add_column(justify="right")
    for name, size, style in (
        ("heap", series.heap[-1], "cyan"),
        ("mapped files", series.mapped[-1], "dark_orange"),
        ("shared memory", series.shared[-1], "magenta"),
        *_beside(recording, series),
    ):
        table.add_row(name, Text(bar(size / limit, room), style=style), format_size(size))
    table.add_row("", Text(f"of {format_size(limit)}, {of}", style="dim"), "")
    table.add_row(
        "curve", Text(sparkline(series.total.tolist(), room), style="green"), format_size(series.total[-1])
    )
    table.add_row("read", format_size(series.read[-1]), "")
    table.add_row("slope", _slope(verdict), "")
    line = Text(verdict.line, style=f"bold {_COLORS[verdict.state]}")
    words = printable(" ".join(recording.command))
    title = (f"{recording.pid}  {words}" if recording.pid else words)[: max(10, width - 12)]
    events = [Text(event.text, style="bold red") for event in recording.events[-3:]]
    return Panel(
        Group(table, Text(), *events, line),
        title=Text(title),
        title_align="left",
        width=min(width, room + 32),
    )


def _beside(recording: Recording, series: Series) -> list[tuple[str, float, str]]:
    """What no process has: page cache; inside a limit what the container is charged for."""
    if not recording.charges:
        return [("page cache", series.cache[-1], "grey62")]
    last = recording.charges[-1]
    return [
        ("kernel memory", last.kernel, "grey62"),
        ("working set", last.working_set, "grey62"),
        ("usage", last.usage, "grey62"),
    ]


def bar(part: float, room: int) -> str:
    """A bar of ``room`` characters, fine to the eighth of one.

    >>> bar(0.5, 4), bar(2.0, 3), bar(0.0, 2)
    ('██  ', '███', '  ')
    """
    eighths = round(min(1.0, max(0.0, part)) * room * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(room)


def sparkline(values: Sequence[float], room: int) -> str:
    """The curve of ``values`` in at most ``room`` characters.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
    '▁▂▃▄▅▆▇█'
    """
    tops = thin(values, room, float)
    lowest, highest = min(tops), max(tops)
    if highest <= lowest:
        return _BLOCKS[0] * len(tops)
    return "".join(_BLOCKS[round((top - lowest) / (highest - lowest) * 7)] for top in tops)


def follow(watched: Profiler, seconds: float, stop_at: float) -> bool:
    """Look for a while; ``False`` when the process has ended or time is up."""
    until = min(time.monotonic() + seconds, stop_at)
    while True:
        if not watched.look():
            return False
        now = time.monotonic()
        if now >= stop_at:
            return False
        if now >= until:
            return True
        watched.rest(longest=until - now)


def _container(watched: Profiler) -> dict[str, int]:
    """For a whole container, what it is charged for: parts of it belong to no process."""
    group = watched.observer.group
    if watched.recording.pid or group is None:
        return {}
    charged = group.charged()
    return {"shared, tmpfs": charged.shared, "kernel": charged.kernel, "usage": group.usage() or 0}


def _scale(watched: Profiler) -> tuple[float, str]:
    """What the bars are a part of: the budget, the container's limit or the machine's memory."""
    import psutil

    if watched.recording.budget:
        return watched.recording.budget, "the budget"
    total = psutil.virtual_memory().total
    limit = watched.recording.limit
    if limit is not None and limit < total:
        return limit, "the container's limit"
    return total, "the machine's memory"


def _slope(verdict: Verdict) -> str:
    if verdict.per_read is None:
        return "hardly any read calls seen"
    return f"{verdict.per_read * 1024:.1f} MiB per GiB read"
