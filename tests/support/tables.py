"""Tables as Parquet files and as Arrow streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
