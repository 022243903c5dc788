"""Memory of arrays and chunks, measured on real processes, real files and real limits.

Peaks are VmHWM, which the kernel keeps itself, so that nothing falls between two samples.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

from lowtide._io import pagecache
from lowtide._io.extents import AHEAD
from lowtide._io.reader import ReaderName
from lowtide.memory import drop_page_cache
from tests.support.process import output
from tests.support.variants import Variant

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs") and not os.environ.get("CI"),
    reason="only Linux keeps a peak that can be reset",
)

MIB = 2**20
SLACK = 8 * MIB
ROWS, WIDTH = 400_000, 162  # 247 MiB of rows of 648 bytes
Shuffle = bool | Literal["blocks"]
any_shuffle = pytest.mark.parametrize(
    "shuffle", [False, True, "blocks"], ids=["in_order", "shuffled", "blocks"]
)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that start with their own number, several times larger than any limit below."""
    path = tmp_path_factory.mktemp("matrix") / "matrix.npy"
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (ROWS, WIDTH)}
        np.lib.format.write_array_header_1_0(file, header)
        rows = np.random.default_rng(0).random((20_000, WIDTH), np.float32)
        for first in range(0, ROWS, len(rows)):
            rows[:, 0] = np.arange(first, first + len(rows))
            file.write(rows.tobytes())
        file.flush()
        os.fsync(file.fileno())
    return path


def cached(path: Path) -> int:
    result = pagecache.resident(path)
    assert result is not None, "the kernel must tell how much of a file is cached"
    return result[0]


def make(path: Path, state: str) -> None:
    """``warm``: all of the file in the page cache; ``cold``: none of it."""
    if state == "cold":
        for _ in range(100):
            drop_page_cache(path)
            if cached(path) < MIB:
                return
            time.sleep(0.05)  # pages that are still being read for an earlier test cannot be dropped
        pytest.fail("the file does not leave the page cache")
    else:
        with open(path, "rb") as file:
            while file.read(MIB):
                pass
        assert cached(path) >= 0.9 * path.stat().st_size


WORKER = """
import json, sys
import numpy as np, lowtide
from lowtide._io.extents import AHEAD
from lowtide.memory import peak, reset_peak
from lowtide._permutation import Shuffled
o = json.loads(sys.argv[1])
report = {}
{setup}
assert reset_peak()
start = peak()
{work}
print(json.dumps({"peak": peak() - start, **report}))
"""


def measure(setup: str, work: str, **options: Any) -> dict[str, int]:
    """The peak above the start of ``work`` in another process; ``o`` holds the options there."""
    code = WORKER.replace("{setup}", textwrap.dedent(setup)).replace("{work}", textwrap.dedent(work))
    return cast("dict[str, int]", json.loads(output(code, json.dumps(options, default=str))))


OPEN = "a = lowtide.open(o['path'], **o.get('open', {})); chunks = a.chunks(**o['chunks'])"
PASS = """
seen = total = 0
for chunk in chunks:
    seen += len(chunk)
    total += int(chunk[:, 0].sum(dtype="f8"))
report = {"seen": seen, "total": total, "in_flight": chunks.nbytes_in_flight}
"""


def assert_all_rows(result: dict[str, int]) -> None:
    assert (result["seen"], result["total"]) == (ROWS, ROWS * (ROWS - 1) // 2)


# Promise 1: peak = buffers in flight


@any_shuffle
@pytest.mark.parametrize("rows", [200, 4096, 20_000])
@pytest.mark.parametrize("state", ["warm", "cold"])
def test_peak_of_pass_is_buffers_in_flight(matrix: Path, state: str, rows: int, shuffle: Shuffle) -> None:
    make(matrix, state)
    result = measure(OPEN, PASS, path=matrix, chunks={"rows": rows, "shuffle": shuffle})
    assert_all_rows(result)
    # Hints are page cache and no part of the process. Where a pass looks ahead, rows take most of their room.
    assert result["peak"] <= result["in_flight"] - (0 if shuffle is True else AHEAD) + SLACK


@pytest.mark.parametrize("budget", [24 * 2**20, 96 * 2**20])
def test_readahead_stays_within_budget(matrix: Path, budget: int) -> None:
    make(matrix, "cold")
    result = measure(OPEN, PASS, path=matrix, chunks={"rows": 1000, "shuffle": True, "budget": budget})
    assert_all_rows(result)
    assert result["in_flight"] > budget - 2**20, "the rest of the budget is used"
    assert result["peak"] <= budget + SLACK


@any_shuffle
@pytest.mark.parametrize("reader", ["remap", "advise"])
def test_peak_of_mapped_reader_is_buffers_in_flight(matrix: Path, reader: str, shuffle: Shuffle) -> None:
    make(matrix, "warm")
    settings = {"rows": 20_000, "shuffle": shuffle}
    result = measure(OPEN, PASS, path=matrix, open={"reader": reader}, chunks=settings)
    assert_all_rows(result)
    assert result["peak"] <= result["in_flight"] - (0 if shuffle is True else AHEAD) + SLACK


def test_np_memmap_exceeds_limit_even_when_reopened(matrix: Path) -> None:
    """The contrast that shows that the tests above could fail."""
    make(matrix, "warm")
    kept = measure(
        "a = np.load(o['path'], mmap_mode='r'); order = Shuffled(len(a))",
        "for i in range(0, len(a), 20_000): a[order(i, i + 20_000)]",
        path=matrix,
    )
    recreated = measure(
        "order = Shuffled(o['rows'])",
        """
        for i in range(0, o["rows"], 20_000):
            a = np.load(o["path"], mmap_mode="r")
            a[order(i, i + 20_000)]
            del a
        """,
        path=matrix,
        rows=ROWS,
    )
    own = measure(
        OPEN, PASS, path=matrix, open={"reader": "memmap"}, chunks={"rows": 20_000, "shuffle": True}
    )
    limit = 3 * 20_000 * WIDTH * 4 + SLACK
    for result in (kept, recreated, own):
        assert result["peak"] > 3 * limit


@any_shuffle
@pytest.mark.parametrize("budget", ["4 MiB", "40 MiB"])
@pytest.mark.parametrize(("prefetch", "reuse"), [(3, False), (0, True)], ids=["ahead", "reuse"])
def test_peak_stays_within_budget(
    matrix: Path, shuffle: Shuffle, budget: str, prefetch: int, reuse: bool
) -> None:
    settings = {"budget": budget, "shuffle": shuffle, "prefetch": prefetch, "reuse": reuse}
    result = measure(OPEN, PASS, path=matrix, chunks=settings)
    assert_all_rows(result)
    assert result["peak"] <= result["in_flight"] + SLACK <= int(budget.split()[0]) * MIB + SLACK


@any_shuffle
def test_tiny_rows_stay_within_budget(tmp_path: Path, shuffle: Shuffle) -> None:
    """Ten million tokens as rows of two bytes: what is kept beside each row must not add up."""
    np.arange(10**7, dtype="u4").astype("u2").tofile(tmp_path / "tokens.bin")
    result = measure(
        "a = lowtide.open(o['path'], dtype='u2'); chunks = a.chunks(budget='8 MiB', shuffle=o['shuffle'])",
        """
        for number, chunk in enumerate(chunks):
            if o["shuffle"] is True and number == 1:
                break
        report = {"rows": chunks.rows}
        """,
        path=tmp_path / "tokens.bin",
        shuffle=shuffle,
    )
    assert result["rows"] > 300_000
    assert result["peak"] <= 8 * MIB + SLACK


@pytest.mark.parametrize("shuffle", [False, "blocks"])
def test_fortran_order_needs_no_second_copy(tmp_path: Path, shuffle: Shuffle) -> None:
    shape = (400_000, 100)
    array = np.lib.format.open_memmap(tmp_path / "f.npy", "w+", dtype="f4", shape=shape, fortran_order=True)
    array[:, 0] = 1
    array.flush()
    del array
    settings = {"rows": 100_000, "shuffle": shuffle, "prefetch": 0, "reuse": True}
    result = measure(OPEN, PASS, path=tmp_path / "f.npy", chunks=settings)
    assert result["seen"] == 400_000
    # One buffer of 38 MiB: a copy of it would not fit into the slack.
    assert result["peak"] <= result["in_flight"] - AHEAD + SLACK


def test_repeated_passes_do_not_accumulate_memory(matrix: Path) -> None:
    result = measure(
        "a = lowtide.open(o['path'])\nfor _ in a.chunks(4096, shuffle=True): break",
        """
        for i in range(60):
            with a.chunks(4096, shuffle=[False, True, "blocks"][i % 3], seed=i) as chunks:
                for _ in range(5):
                    next(chunks)
        """,
        path=matrix,
    )
    # The largest of them is a shuffle, within the default budget. Hints are no part of the process.
    assert result["peak"] <= 64 * MIB - AHEAD + SLACK


@pytest.mark.parametrize(
    ("index", "results"),
    [
        ("order", 1),
        ("slice(0, 50_000)", 1),
        ("slice(None, None, 8)", 1),
        ("(slice(None), 5)", 1),
        ("slice(50_000, 0, -1)", 2),
    ],
)
def test_peak_of_indexing_is_size_of_result(matrix: Path, index: str, results: int) -> None:
    """A result that must be turned round is held twice, never more."""
    result = measure(
        "a = lowtide.open(o['path']); order = Shuffled(len(a))(0, 50_000); a[:10]",
        f"result = a[{index}]\nreport = {{'nbytes': result.nbytes}}",
        path=matrix,
    )
    assert result["peak"] <= results * result["nbytes"] + SLACK + MIB


def test_first_shuffled_chunk_of_terabyte_file_peaks_below_1_mib(tmp_path: Path) -> None:
    """The first shuffled chunk of 4 billion rows."""
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(2**40)
    result = measure(
        """
        # What is loaded once does not count.
        with lowtide.open(o["path"], dtype="u1", shape=(-1, 256)) as a:
            next(a.chunks(64, shuffle=True))
        """,
        """
        a = lowtide.open(o["path"], dtype="u1", shape=(-1, 256))
        report = {"rows": len(a), "got": len(next(a.chunks(64, shuffle=True, seed=1)))}
        """,
        path=tmp_path / "huge.bin",
    )
    assert (result["rows"], result["got"]) == (2**32, 64)
    assert result["peak"] < MIB


# A limit that kills

IN_A_GROUP = """
import sys, lowtide
path, cache, shuffle = sys.argv[1:]
a = lowtide.open(path, dtype="u4", shape=(-1, 1024), cache=cache)
seen = 0
for chunk in a.chunks(1024, shuffle={"True": True, "False": False}.get(shuffle, shuffle), budget="48 MiB"):
    seen += len(chunk)
print(seen)
"""


@pytest.mark.parametrize(("cache", "shuffle"), [("keep", True), ("drop", True), ("keep", False)], ids=str)
def test_pass_over_4_gib_fits_in_128_mib_cgroup(
    tmp_path: Path, limited: Any, cache: str, shuffle: Shuffle
) -> None:
    with open(tmp_path / "sparse.bin", "wb") as file:
        file.truncate(4 * 2**30)  # its pages are charged to the group just as those of a full file
    with limited("128 MiB") as group:
        command = [sys.executable, "-c", IN_A_GROUP, str(tmp_path / "sparse.bin"), cache, str(shuffle)]
        done = group.run(command)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == 2**20
        assert group.oom_kills() == 0
        assert group.peak() <= 128 * MIB
        if cache == "drop":
            assert group.peak() <= 96 * MIB  # page cache included; the other two reach the limit


# Page cache

DROPPING = [
    Variant("pread", "drop"),
    Variant("pread", "drop", ("dontcache",)),
    Variant("pread", "drop", ("dontcache", "nowait")),
    Variant("remap", "drop"),
    Variant("advise", "drop"),
]


@any_shuffle
@pytest.mark.parametrize("variant", DROPPING, ids=str)
def test_cache_drop_leaves_no_page_cache(matrix: Path, variant: Variant, shuffle: Shuffle) -> None:
    make(matrix, "cold")
    highest = 0
    with variant.open(matrix) as array, array.chunks(4096, shuffle=shuffle) as chunks:
        for number, chunk in enumerate(chunks):
            assert len(chunk)
            if number % 10 == 0:
                highest = max(highest, cached(matrix))
            if shuffle is True and number == 40:
                break  # by now nearly every page of the file has been read
    assert cached(matrix) <= 16 * MIB
    # On the way there are the hints of two chunks as well.
    assert highest <= 2 * AHEAD + 16 * MIB


@pytest.mark.parametrize("variant", DROPPING, ids=str)
def test_cache_drop_leaves_no_page_cache_after_single_rows(matrix: Path, variant: Variant) -> None:
    make(matrix, "cold")
    with variant.open(matrix) as array:
        for row in range(0, ROWS, 97):
            assert array[row, 0] == row
    assert cached(matrix) <= 16 * MIB


@any_shuffle
def test_abandoned_pass_leaves_little_page_cache(matrix: Path, shuffle: Shuffle) -> None:
    make(matrix, "cold")
    with Variant("pread", "drop").open(matrix) as array, array.chunks(4096, shuffle=shuffle) as chunks:
        for _ in range(8):
            next(chunks)
    assert cached(matrix) <= 16 * MIB


@pytest.mark.parametrize("reader", ["pread", "remap", "advise"])
def test_cache_keep_leaves_file_in_page_cache(matrix: Path, reader: ReaderName) -> None:
    """The contrast: without ``drop`` the page cache holds the file."""
    make(matrix, "cold")
    with Variant(reader, "keep").open(matrix) as array:
        for chunk in array.chunks(4096):
            assert len(chunk)
    assert cached(matrix) >= 0.99 * matrix.stat().st_size
