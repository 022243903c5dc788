"""Memory that does not depend on the length of a document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PEAK = """
import sys
import pyarrow.parquet
from lowtide._prepare.inputs import find, plan
from lowtide._prepare.inputs.kind import ReadOptions

def high():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

options = ReadOptions(split_on=sys.argv[2] or None)
units = plan(find([sys.argv[1]]), options)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = high()
count = sum(len(piece.text) for unit in units for piece in unit.read(options))
print(count, high() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from Linux's /proc")
@pytest.mark.parametrize("kind", ["text", "split", "jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_memory_does_not_grow_with_the_source(tmp_path: Path, kind: str) -> None:
    """The texts are one document of 128 MiB; of the other kinds, documents are short and many."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    size = 128 * 2**20
    text = b"the tide is low and the moon is full. " * 1000
    path = tmp_path / f"x.{'txt' if kind in ('text', 'split') else kind}"
    if kind == "parquet":
        rows = pa.array([text.decode()] * 100)
        with pq.ParquetWriter(path, pa.schema({"text": pa.string()}), use_dictionary=False) as writer:
            for _ in range(size // len(text) // 100):
                writer.write_table(pa.table({"text": rows}))
    else:
        line = text if path.suffix == ".txt" else b'{"text": "' + text + b'"}\n'
        opened = {"gz": gzip.open, "zst": zstandard.open}.get(path.suffix[1:], open)
        with opened(path, "wb") as file:  # type: ignore[operator]
            for _ in range(size // len(line)):
                file.write(line)
    separator = "<|endoftext|>" if kind == "split" else ""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), separator], capture_output=True, text=True, check=True
    )
    count, grown = map(int, done.stdout.split())
    assert count > 0.9 * size
    assert grown < 40 * 1024, f"{grown} KiB"
