"""The line of a step: it fits the terminal, and the number of the step is always there."""

from __future__ import annotations

import io
from functools import partial

import pytest
from rich.console import Console

from lowtide._gpt import progress
from lowtide._gpt.metrics import Metrics
from lowtide._gpt.progress import Progress, _clock

STEP = Metrics(426, 5.0196, None, 1e-3, 10**6, 25_025.0, 0.2, 76.8, 334.7)


def shown(monkeypatch: pytest.MonkeyPatch, width: int, metrics: Metrics, budget: int | None) -> list[str]:
    """The lines that a terminal shows at the end."""
    file = io.StringIO()
    console = partial(
        Console, file=file, force_terminal=True, width=width, color_system=None, legacy_windows=False
    )
    monkeypatch.setattr(progress, "Console", lambda **_: console())
    with Progress(2000, 0, 10, budget) as bar:
        bar.step(metrics, 2948.0)
    return [line.strip("\r") for line in file.getvalue().split("\x1b[2K")[-1].splitlines()]


@pytest.mark.parametrize("budget", [None, 2 * 2**30])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_progress_bar_fits_width_and_shows_step(
    monkeypatch: pytest.MonkeyPatch, width: int, budget: int | None
) -> None:
    (line, *_) = shown(monkeypatch, width, STEP, budget)
    assert line.startswith(" 426/2000 ")
    assert "loss 5.0196" in line
    assert "…" not in line
    assert len(line.rstrip()) <= width
    if width >= 80:
        assert line.rstrip().endswith("left")
        assert "MiB" in line
    if width == 200:
        assert "loader 0.3 %" in line


@pytest.mark.parametrize("width", [50, 80, 200])
def test_evaluation_line_fits_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    metrics = Metrics(2000, 1.5, 1.6, 1e-3, 10**6, 25_025.0, 0.2, 76.8, 334.7, val_bpb=2.308)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    Progress(2000, 0, 10, 2**31).step(metrics, 75.0)  # without starting the bar
    (line,) = file.getvalue().splitlines()
    assert line.startswith("step 2000: loss 1.5000, val 1.6000 (2.308 bpb)")
    assert len(line) <= width


@pytest.mark.parametrize("seconds", [(3725.0, "1:02:05"), (59.4, "0:59")])
def test_remaining_time_format(seconds: tuple[float, str]) -> None:
    assert _clock(seconds[0]) == seconds[1]
