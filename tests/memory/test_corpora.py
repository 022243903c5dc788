"""Memory of writing a corpus, of reading a data set of Arrow, and of batches whose size changes.

Peaks are VmHWM above the start, in new processes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.process import output

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs") and not os.environ.get("CI"),
    reason="only Linux keeps a peak that can be reset",
)

MIB = 2**20
MEASURE = """
import sys
import numpy as np, lowtide
from lowtide._memory import proc
from lowtide.memory import peak, reset_peak
"""


def test_corpus_writer_peaks_below_8_mib(tmp_path: Path) -> None:
    """96 MiB of tokens in 50,000 documents."""
    code = (
        MEASURE
        + """
document = np.arange(1000, dtype=np.uint16)
with lowtide.create_corpus(sys.argv[1] + "/warm") as out:
    out.append(document)
assert reset_peak()
start = proc.status().rss
with lowtide.create_corpus(sys.argv[1] + "/corpus", eos=0, shard_tokens="20M") as out:
    for _ in range(50_000):
        out.append(document)
print(peak() - start)
"""
    )
    assert int(output(code, tmp_path)) < 8 * MIB


def test_reading_arrow_peaks_below_12_mib(tmp_path: Path) -> None:
    """128 MiB of int64 in 2,000 record batches, with a batch size and a length that change."""
    pytest.importorskip("pyarrow")
    write = """
import sys, numpy as np, pyarrow as pa
ids = pa.ListArray.from_arrays(np.arange(9, dtype=np.int32) * 1024, np.arange(8192, dtype=np.int64))
table = pa.table({"input_ids": ids})
with pa.OSFile(sys.argv[1], "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
    for _ in range(2000):
        writer.write_table(table)
"""
    output(write, tmp_path / "train.arrow")
    code = (
        MEASURE
        + """
np.arange(10_000, dtype=np.int64).tofile(sys.argv[1] + "/warm.bin")
next(lowtide.corpus(sys.argv[1] + "/warm.bin", dtype="int64").batches(4, 64))
assert reset_peak()
start = proc.status().rss
batches = lowtide.corpus(sys.argv[1] + "/train.arrow").batches({0: 16, 100: 32, 200: 16}, {0: 256, 300: 512})
for _ in range(400):
    next(batches)
print(peak() - start)
"""
    )
    assert int(output(code, tmp_path)) < 12 * MIB
