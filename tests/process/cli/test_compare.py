"""lowtide compare, for real on a small file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lowtide._arrays.formats import inspect
from lowtide._compare import runs
from lowtide._compare.plot import plot
from lowtide._compare.runs import Run
from lowtide._compare.walks import METHODS, REMOTE_METHODS, Figures, Walk, walk
from lowtide._memory import proc
from lowtide.cli import compare
from tests.process.cli.test_commands import run
from tests.support.shared import shared

MIB = 2**20


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    def make(folder: Path) -> tuple[Path, str]:
        np.save(folder / "x.npy", np.random.default_rng(0).random((65_536, 128), dtype=np.float32))  # 32 MiB
        figures = ("--out", folder / "plots" / "x.png", "--save", folder / "x.json")
        return folder, run("compare", folder / "x.npy", "--rows", 1024, "--seconds", 2, *figures).stdout

    return shared(tmp_path_factory, "compare", make)


def test_table_has_row_per_reader_and_summary(compared: tuple[Path, str]) -> None:
    result = compared[1]
    for method in METHODS:
        assert method in result
    assert "times as fast as np.memmap" in result


def test_every_method_runs_in_both_orders_warm_and_cold(compared: tuple[Path, str]) -> None:
    result = json.loads((compared[0] / "x.json").read_text())
    walked = {(run["method"], run["shuffled"], run["cold"]) for run in result["runs"]}
    assert walked == {(m, s, c) for m in METHODS for s in (False, True) for c in (False, True)}


def test_memmap_peak_exceeds_pread_peak(compared: tuple[Path, str]) -> None:
    """np.memmap ends with the whole file resident, pread with a few chunks."""
    result = json.loads((compared[0] / "x.json").read_text())
    peaks = {(run["method"], run["shuffled"], run["cold"]): run["figures"]["peak"] for run in result["runs"]}
    for shuffled in (False, True):
        assert peaks["np.memmap", shuffled, False] > 30 * MIB
        assert peaks["pread", shuffled, False] < 6 * MIB
        assert peaks["pread, drop", shuffled, True] < 6 * MIB
    left = {
        run["method"]: run["page_cache_left"] for run in result["runs"] if run["cold"] and run["shuffled"]
    }
    assert left["pread, drop"] < 4 * MIB
    assert left["np.memmap"] > 30 * MIB


def test_plot_is_not_blank(compared: tuple[Path, str]) -> None:
    with Image.open(compared[0] / "plots" / "x.png") as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(2**24) or []) > 50


def test_plot_of_an_array_in_a_bucket(tmp_path: Path) -> None:
    figures = Figures(bytes_read=MIB, seconds=1.0, complete=True, peak=MIB, samples=[(0, 0), (MIB, MIB)])
    runs = [
        Run(method, shuffled, True, figures, None) for shuffled in (False, True) for method in REMOTE_METHODS
    ]
    plot(runs, MIB, str(tmp_path / "x.png"))
    with Image.open(tmp_path / "x.png") as image:
        assert len(image.convert("RGB").getcolors(2**24) or []) > 50


@pytest.mark.parametrize(("room", "cold"), [(5 * MIB, {True, False}), (3 * MIB, {True})])
def test_walks_are_warm_where_the_file_fits_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, cold: set[bool]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4096, 128), np.float32))  # 2 MiB
    monkeypatch.setattr(runs, "available", lambda: room)
    plan = runs.Passes.over(inspect(tmp_path / "x.npy"), None, 2**30, 1).plan()
    assert {is_cold for _, _, is_cold in plan} == cold


def test_file_without_rows_exits_with_a_message(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    ended = run("compare", tmp_path / "empty.npy", check=False)
    assert ended.returncode == 1
    assert "has no rows (shape " in ended.stderr


def test_walk_without_proc_has_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 10)))
    monkeypatch.setattr(proc, "ROOT", str(tmp_path / "no proc"))
    result = walk(Walk(inspect(tmp_path / "x.npy"), "np.memmap", True, 100, 1000, 60))
    assert result["peak"] is None
    assert result["complete"]
    assert result["samples"][-1][0] == 80_000


def test_table_shows_every_figure_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    size = 1023 * 2**20
    figures = Figures(bytes_read=10**9, seconds=0.01, complete=False, peak=size, samples=[])
    runs = [
        Run(method, shuffled, cold, figures, size)
        for method in METHODS
        for shuffled in (False, True)
        for cold in (False, True)
    ]
    compare._print_table(runs)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("1023.0 MiB") == 3 * len(METHODS)
    assert shown.count("100.00*") == 4 * len(METHODS)
