"""A thousand damaged files of each kind; ``python -m tests.fuzz --cases 100000`` runs more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.harness import Target, run, run_case
from tests.fuzz.targets import TARGETS

CASES = 1000


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_file_gives_data_or_lowtide_error(name: str) -> None:
    findings = run(TARGETS[name], CASES)
    assert not findings, "\n" + "\n".join(map(str, findings))


def _write(folder: Path) -> None:
    (folder / "x").write_bytes(b"0" * 100)


def _crash(folder: Path) -> None:
    raise IndexError("list index out of range")


_LEFT_OPEN: list[int] = []


def _leave_open(folder: Path) -> None:
    _LEFT_OPEN.append(os.open(folder, os.O_RDONLY))


def _eat(folder: Path) -> None:
    bytearray(b"x") * (64 * 2**20)


def _spin(folder: Path) -> None:
    for _ in range(10**6):
        pass


@pytest.mark.parametrize(
    ("read", "problem"),
    [(_crash, "IndexError"), (_leave_open, "descriptors"), (_eat, "MiB"), (_spin, "took")],
)
def test_harness_detects_each_kind_of_problem(
    read: Callable[[Path], None], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "valid").mkdir()
    _write(tmp_path / "valid")
    target = Target("x", _write, read, seconds=0.001 if read is _spin else 5, memory=16 * 2**20)
    try:
        assert problem in str(run_case(target, tmp_path / "valid", tmp_path / "case", 0))
    finally:
        while _LEFT_OPEN:
            os.close(_LEFT_OPEN.pop())
