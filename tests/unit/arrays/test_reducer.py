"""Reducing an array: threads, failures, progress."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import lowtide
from lowtide._arrays import reducer
from lowtide._io import threads
from lowtide.errors import FileChangedError

NAMES = ["sum", "mean", "var", "std", "min", "max"]


def test_results_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.random.default_rng(0).random((4096, 256), dtype="f4")
    np.save(tmp_path / "x.npy", array)
    monkeypatch.setattr(reducer, "_CHUNK", 2**14)
    results = []
    for cores in (1, 2, 4):
        with lowtide.open(tmp_path / "x.npy") as a, mock.patch.object(threads, "CORES", cores):
            results.append([*(getattr(a, name)(axis=0) for name in NAMES), a.histogram(9, (0, 1))[0]])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_failure_ends_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4096, 256), "f4"))
    monkeypatch.setattr(reducer, "_CHUNK", 2**14)
    monkeypatch.setattr(threads, "CORES", 3)
    calls: list[int] = []

    def progress(nbytes: int) -> None:
        calls.append(nbytes)
        if len(calls) == 3:
            raise InterruptedError

    with lowtide.open(tmp_path / "x.npy") as a, pytest.raises(InterruptedError):
        a.sum(progress=progress)
    assert len(calls) <= 5  # of 256: the others were at their last chunk


def test_progress_true_shows_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5000, 100)))
    with lowtide.open(tmp_path / "x.npy") as a:
        a.mean(progress=False)
        assert capsys.readouterr().err == ""
        a.mean(progress=True)
        shown = capsys.readouterr()
        assert "mean" in shown.err
        assert "4.0/4.0 MB" in shown.err or "3.8/3.8 MiB" in shown.err
        assert shown.out == ""


def test_progress_adds_up_to_array_size(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5000, 100)))
    with lowtide.open(tmp_path / "x.npy") as a, mock.patch.object(reducer, "_CHUNK", 2**17):
        calls: list[int] = []
        a.mean(axis=0, progress=calls.append)
        assert sum(calls) == a.nbytes
        assert len(calls) > 5


@pytest.mark.parametrize("order", ["C", "F"])
def test_results_are_folded_in_row_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any) -> None:
    np.save(tmp_path / "x.npy", np.asarray(np.arange(2**19).reshape(-1, 8), order=order))
    monkeypatch.setattr(reducer, "_CHUNK", 2**15)
    monkeypatch.setattr(reducer, "_PIECE", 2**11)
    monkeypatch.setattr(threads, "CORES", 3)
    firsts: list[int] = []

    def reduce(piece: Any) -> int:
        time.sleep(0.004 if int(piece[0, 0]) // 2**12 % 3 == 0 else 0)  # others overtake it
        return int(piece[0, 0])

    with lowtide.open(tmp_path / "x.npy") as a:
        reducer.Reducer(a, "sum", None, None, False, None).run(reduce, firsts.append)
    assert len(firsts) > 100
    assert firsts == sorted(firsts)
    assert len(set(firsts)) == len(firsts)


def test_file_replaced_during_reduction_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("x.npy", "other.npy"):
        np.save(tmp_path / name, np.zeros((4096, 256), "f4"))
    monkeypatch.setattr(reducer, "_CHUNK", 2**16)

    def replace(nbytes: int) -> None:
        if (tmp_path / "other.npy").exists():
            os.replace(tmp_path / "other.npy", tmp_path / "x.npy")

    with lowtide.open(tmp_path / "x.npy") as a, pytest.raises(FileChangedError, match="replaced"):
        a.sum(progress=replace)
