"""A crash of pyarrow ends another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lowtide
from lowtide.errors import FormatError, TaskError
from tests.support.formats import refused
from tests.support.tables import both, write


def dies(*arguments: Any, **named: Any) -> Any:
    os.abort()


@both
@pytest.mark.parametrize("step", ["inputs._ranges", "run.encode"])
def test_library_crash_raises_with_single_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array(["low tide"]))
    monkeypatch.setattr(f"lowtide._prepare.{step}", dies)
    with refused((FormatError, TaskError), path, "was killed"):  # type: ignore[arg-type]
        lowtide.prepare(path, tmp_path / "out", workers=1)
