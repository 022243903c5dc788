"""Memory of token batches, measured on real processes, real files and real limits.

Peaks are VmHWM, which the kernel keeps itself, so that nothing falls between two samples.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import lowtide
from lowtide._io import pagecache
from lowtide._tokens.blocks import BUFFER
from lowtide.memory import drop_page_cache
from tests.support.process import output
from tests.support.variants import Variant

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs") and not os.environ.get("CI"),
    reason="only Linux keeps a peak that can be reset",
)

MIB = 2**20
SLACK = 8 * MIB
BATCH, LENGTH = 64, 1024
TOKENS = 192 * MIB  # 384 MiB as uint16: more than the limit below
# Two batches prefetched, one being read and one at the consumer's: tokens as read, and two int64 tensors.
IN_FLIGHT = 4 * BATCH * (2 * (LENGTH + 1) + 2 * 8 * LENGTH)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as nanoGPT makes it."""
    folder = tmp_path_factory.mktemp("corpus")
    block = np.random.default_rng(0).integers(0, 50257, 2**22, dtype=np.uint16)
    with open(folder / "train.bin", "wb") as file:
        for _ in range(TOKENS // len(block)):
            block.tofile(file)
            block += 1
        file.flush()
        os.fsync(file.fileno())
    return folder


def cached(path: Path) -> int:
    pages = pagecache.resident(path)
    assert pages is not None, "the kernel must report how much of a file is cached"
    return pages[0]


WORKER = """
import json, os, sys
import numpy as np, torch, lowtide, lowtide.nanogpt
from lowtide._memory import proc; from lowtide.memory import peak, reset_peak

torch.set_num_threads(1)
o = json.loads(sys.argv[1])
extra = {}
{setup}
assert reset_peak()
before, files = proc.status().rss, len(os.listdir("/proc/self/fd"))
{work}
extra["files"] = len(os.listdir("/proc/self/fd")) - files
print(json.dumps({"peak": peak() - before, "grown": proc.status().rss - before, **extra}))
"""

BATCHES = """
made = lowtide.corpus(o["path"], **o.get("corpus", {})).batches(64, 1024, **o.get("batches", {}))
made = made.torch() if o.get("torch", True) else made
"""
READ = """
for _ in range(o["steps"]):
    x, y = next(made)
    assert x.shape == y.shape == (64, 1024) and x[0, 1] == y[0, 0]
"""


def code(setup: str, work: str) -> str:
    return WORKER.replace("{setup}", textwrap.dedent(setup)).replace("{work}", textwrap.dedent(work))


def measure(setup: str, work: str, **options: Any) -> dict[str, int]:
    """Memory above the start of ``work``, in a separate process; ``o`` holds the options there."""
    return cast("dict[str, int]", json.loads(output(code(setup, work), json.dumps(options, default=str))))


@pytest.mark.parametrize("state", ["warm", "cold"])
@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_peak_of_2000_batches_is_buffers_in_flight(corpus: Path, cache: str, state: str) -> None:
    if state == "cold":
        drop_page_cache(corpus / "train.bin")
    else:
        (corpus / "train.bin").read_bytes()
    result = measure(BATCHES, READ, path=corpus, corpus={"cache": cache}, steps=2000)
    assert result["peak"] <= IN_FLIGHT + SLACK


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_peak_is_buffers_in_flight_in_every_order(corpus: Path, order: str) -> None:
    result = measure(BATCHES, READ, path=corpus, batches={"order": order}, steps=2000)
    assert result["peak"] <= IN_FLIGHT + SLACK


def test_blocks_order_adds_only_its_shuffle_buffer(corpus: Path) -> None:
    result = measure(BATCHES, READ, path=corpus, batches={"order": "blocks"}, steps=2000)
    assert result["peak"] <= IN_FLIGHT + BUFFER + MIB + SLACK


def test_peak_of_numpy_batches_is_buffers_in_flight(corpus: Path) -> None:
    result = measure(BATCHES, READ, path=corpus, torch=False, steps=2000)
    assert result["peak"] <= IN_FLIGHT + SLACK


@pytest.mark.parametrize("order", ["random", "shuffle"])
def test_peak_of_nanogpt_get_batch_is_buffers_in_flight(corpus: Path, order: str) -> None:
    setup = "get_batch = lowtide.nanogpt.get_batch_for(o['path'], 1024, 64, order=o['order'])"
    work = "for _ in range(2000): get_batch('train')"
    result = measure(setup, work, path=corpus, order=order)
    assert result["peak"] <= IN_FLIGHT + SLACK


def test_open_np_memmap_grows_beyond_buffers_in_flight(corpus: Path) -> None:
    """The contrast that shows that the tests above could fail."""
    (corpus / "train.bin").read_bytes()
    setup = """
    data = np.memmap(o["path"] + "/train.bin", np.uint16, "r")
    windows = np.lib.stride_tricks.sliding_window_view(data, 1025)
    """
    work = "for _ in range(2000): windows[torch.randint(len(data) - 1024, (64,)).numpy()].astype(np.int64)"
    assert measure(setup, work, path=str(corpus))["grown"] > 10 * (IN_FLIGHT + SLACK)


def test_cache_drop_leaves_nearly_no_page_cache(corpus: Path) -> None:
    drop_page_cache(corpus / "train.bin")
    measure(BATCHES, READ, path=corpus, corpus={"cache": "drop"}, steps=2000)
    # A page may stay where two reads that were under way at once share it.
    assert cached(corpus / "train.bin") <= 4 * MIB
    measure(BATCHES, READ, path=corpus, corpus={"cache": "keep"}, steps=200)
    assert cached(corpus / "train.bin") > 16 * MIB, (
        "with cache=keep the page cache is the kernel's, or the test is blind"
    )


@pytest.mark.parametrize("lacks", [(), ("dontcache",)], ids=["dontcache", "fadvise"])
def test_cache_drop_of_several_shards_leaves_no_page_cache(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    paths = [tmp_path / f"shard_{number}.bin" for number in range(4)]
    for path in paths:
        np.arange(4 * MIB, dtype=np.uint32).astype(np.uint16).tofile(path)
        drop_page_cache(path)
    with Variant("pread", "drop", lacks).platform():
        corpus = lowtide.corpus(paths, dtype="uint16", cache="drop")
        for step, (x, _) in enumerate(corpus.batches(BATCH, LENGTH, prefetch=0)):
            assert x.shape == (BATCH, LENGTH)
            if step == 50:
                break
    assert sum(cached(path) for path in paths) <= MIB


@pytest.mark.parametrize("cache", ["keep", "drop"])
@pytest.mark.parametrize("order", ["shuffle", "blocks"])
def test_batches_fit_in_container_smaller_than_corpus(
    corpus: Path, limited: Any, order: str, cache: str
) -> None:
    drop_page_cache(corpus / "train.bin")
    options = {"path": str(corpus), "corpus": {"cache": cache}, "batches": {"order": order}, "steps": 2000}
    with limited("256 MiB") as group:
        done = group.run([sys.executable, "-W", "error", "-c", code(BATCHES, READ), json.dumps(options)])
        assert done.returncode == 0, done.stderr
        assert group.oom_kills() == 0
    buffers = IN_FLIGHT + (BUFFER + MIB if order == "blocks" else 0)
    assert json.loads(done.stdout)["peak"] <= buffers + SLACK


def test_first_batch_of_terabyte_corpus_peaks_at_buffers_in_flight(tmp_path: Path) -> None:
    with open(tmp_path / "train.bin", "wb") as file:
        file.truncate(10**12)
    result = measure("", BATCHES + READ, path=tmp_path, steps=1)
    assert result["peak"] <= IN_FLIGHT + SLACK
    assert result["files"] <= 2


def test_batches_of_10000_shards_bound_memory_and_open_files(tmp_path: Path) -> None:
    for number in range(10_000):
        with open(tmp_path / f"shard_{number:05}.bin", "wb") as file:
            file.truncate(200_000)
    options = {"path": f"{tmp_path}/*.bin", "corpus": {"dtype": "uint16"}}
    few = measure("", BATCHES + READ, **options, steps=1)
    assert few["peak"] <= IN_FLIGHT + 2 * SLACK  # a kilobyte for each shard: its path, its place
    many = measure("", BATCHES + READ, **options, steps=300)
    # 20,000 windows lie in nearly every shard; only so many of those are open at once.
    assert many["files"] <= 512 + 8
    assert many["peak"] <= IN_FLIGHT + 3 * SLACK
