"""A crash of pyarrow ends another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lowtide
from lowtide.errors import FormatError, TaskError
from tests.support.formats import refused

KINDS = ["parquet", "arrow"]
both = pytest.mark.parametrize("kind", KINDS)


def write(path: Path, column: Any, rows: int = 4, name: str = "text") -> Path:
    """A table with a nested column before the text, in groups of ``rows``."""
    first = pa.array([{"a": i, "text": "no"} for i in range(len(column))])
    table = pa.table({"first": first, name: column})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, rows)
    return path


def dies(*arguments: Any, **named: Any) -> Any:
    os.abort()


@both
@pytest.mark.parametrize("step", ["inputs._ranges", "run.encode"])
def test_a_crash_of_the_library_is_an_error_with_a_single_worker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    path = write(tmp_path / f"x.{kind}", pa.array(["low tide"]))
    monkeypatch.setattr(f"lowtide._prepare.{step}", dies)
    with refused((FormatError, TaskError), path, "was killed"):  # type: ignore[arg-type]
        lowtide.prepare(path, tmp_path / "out", workers=1)
