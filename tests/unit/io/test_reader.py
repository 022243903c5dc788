"""Readers: every byte asked for or an exception that says why, and no page left behind where so promised."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import lowtide
from lowtide import errors
from lowtide._io import aio, pagecache, pread, threads
from lowtide._io.extents import Bytes, Extents, of_records
from lowtide._io.identity import Identity
from lowtide._io.mapped import RemapReader
from lowtide._io.pending import Outcome, Pending, combined
from lowtide._io.pread import PreadReader
from lowtide._io.reader import READERS as KINDS
from lowtide._io.reader import Cache, ReaderName, open_reader
from tests.support.variants import Variant, every_variant, tight

READERS: tuple[ReaderName, ...] = ("pread", "remap", "advise", "memmap")


def written(path: Path, nbytes: int) -> np.ndarray:
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    path.write_bytes(data.tobytes())
    return data


def scattered(count: int, width: int, size: int) -> Extents:
    return of_records(np.random.default_rng(1).integers(0, size - width, count), width)


@every_variant
@pytest.mark.parametrize("count", [1, 5, 700])
@pytest.mark.parametrize("small", [False, True], ids=["", "tight"])
def test_extents_fill_the_buffer(tmp_path: Path, variant: Variant, count: int, small: bool) -> None:
    data = written(tmp_path / "x", 300_000)
    count = min(count, 100) if small else count  # each takes five reads then, of nine at a time
    extents = scattered(count, 70, len(data))
    out = np.zeros(count * 70, np.uint8)
    expected = np.zeros_like(out)
    expected[extents.targets[:, None] + np.arange(70)] = data[extents.offsets[:, None] + np.arange(70)]
    with variant.platform(), tight(small):
        reader = open_reader(str(tmp_path / "x"), len(data), variant.reader, variant.cache)
        for ahead in (0, 1000, 10**6):
            out[:] = 0
            reader.submit(extents, out, ahead=ahead).wait()
            assert (out == expected).all()
        reader.submit(extents[:0], out).wait()
        streamed = np.zeros(10_000 if small else 100_000, np.uint8)
        reader.submit(Extents.of_range(70, len(streamed)), streamed, sequential=True).wait()
        assert (streamed == data[70 : 70 + len(streamed)]).all()
        reader.close()
        reader.close()


@pytest.mark.parametrize("lacks", [(), ("aio",), ("nowait",)], ids=str)
def test_only_uncached_data_is_waited_for(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    data = written(tmp_path / "x", 4 * 2**20)
    out = np.zeros(100 * 500, np.uint8)
    with Variant("pread", "keep", lacks).platform():
        reader = PreadReader(str(tmp_path / "x"), len(data), False)
        extents = scattered(100, 500, len(data))
        pagecache.drop(tmp_path / "x")
        with mock.patch.object(reader, "_read_rest", wraps=reader._read_rest) as waiting:
            reader.submit(extents, out).wait()
            assert sum(len(call.args[1]) for call in waiting.call_args_list)
            waiting.reset_mock()
            reader.submit(extents, out).wait()
            assert "nowait" in lacks or not sum(len(call.args[1]) for call in waiting.call_args_list)
        assert (out[extents.targets] == data[extents.offsets]).all()
        reader.close()


@pytest.mark.parametrize("half", [None, 0, 1])
def test_stream_is_done_at_submit_only_if_fully_cached(tmp_path: Path, half: int | None) -> None:
    data = written(tmp_path / "x", 32 * 2**20)
    length, start = 2**20, 16 * 2**20
    out = np.zeros(length, np.uint8)
    reader = PreadReader(str(tmp_path / "x"), len(data), False)

    def stream() -> Pending[Outcome]:
        return reader.submit(Extents.of_range(start, length), out, sequential=True)

    def cold() -> bool:
        pagecache.drop(tmp_path / "x")
        if half is not None:
            with open(tmp_path / "x", "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more than what is named
                os.pread(file.fileno(), length // 2 - 8192, start + half * (length // 2 + 4096))
        return not stream().done

    # The kernel starts to read what it reports as missing. If this process loses the processor in the
    # middle of the call, all of it may have arrived by then: so one cold answer out of several is asked for.
    assert any(cold() for _ in range(8))
    stream().wait()
    out[:] = 0
    assert stream().done
    assert (out == data[start : start + length]).all()
    reader.close()


def test_mapping_does_not_report_cached_data(tmp_path: Path) -> None:
    written(tmp_path / "x", 2**20)
    mapped = open_reader(str(tmp_path / "x"), 2**20, "remap", "keep")
    pending = mapped.submit(Extents.of_range(0, 100), np.zeros(100, np.uint8), sequential=True)
    assert not pending.done
    assert not pending.wait().cached
    mapped.close()


@pytest.mark.parametrize("variant", [Variant("pread", "drop"), Variant("remap", "drop")], ids=str)
def test_stream_with_cache_drop_leaves_no_pages_cached(tmp_path: Path, variant: Variant) -> None:
    size = 32 * 2**20
    written(tmp_path / "x", size)
    pagecache.drop(tmp_path / "x")
    reader = open_reader(str(tmp_path / "x"), size, variant.reader, "drop")
    out = np.zeros(100_000, np.uint8)
    for offset in range(0, size - 100_000, 100_000):
        reader.submit(Extents.of_range(offset, len(out)), out, sequential=True).wait()
    reader.close()
    assert cached(tmp_path / "x") <= 2 * 2**20


def test_random_reads_do_not_trigger_read_ahead(tmp_path: Path) -> None:
    """The kernel's own read-ahead would pull megabytes for each row."""
    written(tmp_path / "x", 64 * 2**20)
    pagecache.drop(tmp_path / "x")
    reader = PreadReader(str(tmp_path / "x"), 64 * 2**20, False)
    # Reads in order may have read-ahead, but only they.
    reader.submit(Extents.of_range(0, 2**20), np.zeros(2**20, np.uint8), sequential=True).wait()
    pagecache.drop(tmp_path / "x")
    reader.submit(scattered(100, 500, 64 * 2**20), np.zeros(50_000, np.uint8)).wait()
    for place in range(0, 64 * 2**20, 8 * 2**20):
        for offset in (place, place + 4096, place + 8192):  # three in a row look like reading in order
            reader.submit(of_records(np.array([offset]), 500), np.zeros(500, np.uint8)).wait()
    reader.close()
    resident = pagecache.resident(tmp_path / "x")
    assert resident is not None
    assert resident[0] <= (100 * 2 + 8 * 3) * 4096  # a row may lie across two pages


def cached(path: Path) -> int:
    resident = pagecache.resident(path)
    assert resident is not None
    return resident[0]


DROPPING = [
    Variant("pread", "drop"),
    Variant("pread", "drop", ("aio",)),
    Variant("pread", "drop", ("nowait",)),
    Variant("pread", "drop", ("dontcache",)),
    Variant("pread", "drop", ("dontcache", "nowait")),
    Variant("remap", "drop"),
    Variant("advise", "drop"),
]


@pytest.mark.parametrize("variant", DROPPING, ids=str)
@pytest.mark.parametrize("width", [100, 5000, 100_000])
def test_cache_drop_leaves_no_pages_for_any_read_size(tmp_path: Path, variant: Variant, width: int) -> None:
    """Reads smaller than a page too: of a page that is named in part the kernel keeps all."""
    size = 8 * 2**20
    written(tmp_path / "x", size)
    pagecache.drop(tmp_path / "x")
    with variant.platform():
        reader = open_reader(str(tmp_path / "x"), size, variant.reader, "drop")
        out = np.zeros(width * 4, np.uint8)
        for offset in range(0, size - 4 * width, 200_000):
            reader.submit(of_records(offset + np.arange(4) * width, width), out).wait()
        reader.close()
    assert cached(tmp_path / "x") <= 128 * 1024


def test_cache_keep_leaves_pages_cached(tmp_path: Path) -> None:
    written(tmp_path / "x", 8 * 2**20)
    pagecache.drop(tmp_path / "x")
    for reader in READERS:
        one = open_reader(str(tmp_path / "x"), 8 * 2**20, reader, "keep")
        one.submit(of_records(np.array([0]), 8 * 2**20), np.zeros(8 * 2**20, np.uint8)).wait()
        one.close()
        assert cached(tmp_path / "x") == 8 * 2**20


# What may go wrong while reading


@pytest.mark.parametrize("count", [1, 30, 1000])
def test_io_error_of_kernel_raises_read_error(count: int) -> None:
    """The kernel itself says EIO when a process reads its own memory where there is none."""
    reader = PreadReader("/proc/self/mem", 0, False)
    with pytest.raises(errors.ReadError, match="I/O error; check the disk") as caught:
        reader.submit(of_records(np.arange(count) * 10, 8), np.zeros(count * 8, np.uint8)).wait()
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == "/proc/self/mem"
    reader.close()


@pytest.mark.parametrize("lacks", [(), ("aio",), ("nowait",), ("aio", "nowait")], ids=str)
@pytest.mark.parametrize("count", [3, 20, 2000])
def test_error_among_many_reads_raises_and_reader_recovers(
    tmp_path: Path, lacks: tuple[str, ...], count: int
) -> None:
    data = written(tmp_path / "x", 100_000)
    extents = of_records(np.arange(count) * 40, 8)
    bad = int(extents.offsets[count // 2])
    preadv, read = os.preadv, aio.Aio.read

    def broken_preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if offset == bad:
            raise OSError(errno.EIO, "broken")
        return preadv(fd, buffers, offset, flags)

    def broken_read(self: aio.Aio, fd: int, extents: Extents, base: int, flags: int) -> Any:
        results = read(self, fd, extents, base, flags).copy()
        results[extents.offsets == bad] = -errno.EIO
        return results

    with Variant("pread", "keep", lacks).platform():
        reader = PreadReader(str(tmp_path / "x"), len(data), False)
        with (
            mock.patch.object(os, "preadv", broken_preadv),
            mock.patch.object(aio.Aio, "read", broken_read),
            pytest.raises(errors.ReadError) as caught,
        ):
            reader.submit(extents, np.zeros(count * 8, np.uint8)).wait()
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(tmp_path / "x")
        out = np.zeros(count * 8, np.uint8)
        reader.submit(extents, out).wait()  # the next read is well again
        assert (out[extents.targets] == data[extents.offsets]).all()
        reader.close()


@pytest.mark.parametrize("lacks", [(), ("aio",), ("nowait",)], ids=str)
def test_short_reads_are_completed(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    data = written(tmp_path / "x", 100_000)
    extents = of_records(np.arange(50) * 1999, 900)
    preadv, read = os.preadv, aio.Aio.read

    def short_preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return preadv(fd, [buffers[0][: len(buffers[0]) // 2 + 1]], offset, flags)

    def short_read(self: aio.Aio, fd: int, extents: Extents, base: int, flags: int) -> Any:
        return read(self, fd, Extents(extents.offsets, extents.targets, extents.lengths // 3), base, flags)

    out = np.zeros(50 * 900, np.uint8)
    with (
        Variant("pread", "keep", lacks).platform(),
        mock.patch.object(os, "preadv", short_preadv),
        mock.patch.object(aio.Aio, "read", short_read),
    ):
        reader = PreadReader(str(tmp_path / "x"), len(data), False)
        reader.submit(extents, out).wait()
        reader.close()
    assert out.tobytes() == b"".join(data[i * 1999 : i * 1999 + 900].tobytes() for i in range(50))


@every_variant
@pytest.mark.parametrize("count", [1, 50])
def test_file_truncated_between_reads_raises(tmp_path: Path, variant: Variant, count: int) -> None:
    written(tmp_path / "x", 100_000)
    extents = of_records(np.arange(count) * 100 + 60_000, 90)
    out = np.zeros(count * 90, np.uint8)
    with variant.platform():
        reader = open_reader(str(tmp_path / "x"), 100_000, variant.reader, variant.cache)
        reader.submit(extents, out).wait()
        os.truncate(tmp_path / "x", 60_010)
        with pytest.raises(errors.TruncatedFileError, match="truncated") as caught:
            reader.submit(extents, out).wait()
        reader.close()
    assert str(tmp_path / "x") in str(caught.value)
    assert "100000" in str(caught.value)
    assert isinstance(caught.value, (EOFError, ValueError))


def test_buffer_is_not_written_after_error(tmp_path: Path) -> None:
    """When one share fails the others are waited for."""
    written(tmp_path / "x", 8 * 2**20)
    reader = PreadReader(str(tmp_path / "x"), 8 * 2**20, False)
    read, running, ended = reader.fill, [], []

    def slow(extents: Extents, out: Any, ahead: int) -> Outcome:
        import threading
        import time

        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        running.append(1)
        time.sleep(0.2)
        outcome = read(extents, out, ahead)
        ended.append(1)
        return outcome

    with (
        mock.patch.object(reader, "fill", slow),
        mock.patch.object(threads, "CORES", 2),
        pytest.raises(KeyboardInterrupt),
    ):
        reader.submit(of_records(np.array([0]), 8 * 2**20), np.zeros(8 * 2**20, np.uint8)).wait()
    assert len(running) == len(ended) == 1
    reader.close()


# Which reader, and what it says of itself


def how(path: Path, reader: ReaderName = "auto", cache: Cache = "keep", **lacks: Any) -> str:
    with mock.patch.multiple(pread, **lacks) if lacks else mock.MagicMock():
        one = open_reader(str(path), 1, reader, cache)
        one.close()
    return f"{one.name}: {one.how}"


def test_how_describes_platform_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    assert how(path) == how(path, "pread") == "pread: aio, nowait"
    assert how(path, cache="drop") == "pread: aio, nowait, dontcache"
    assert how(path, cache="drop", _DONTCACHE=0) == "pread: aio, nowait, drop behind"
    assert how(path, _NOWAIT=0) == "pread: aio, willneed"
    assert how(path, "remap") == "remap: map per piece"
    assert how(path, "advise", "drop") == "advise: madvise per piece, drop behind"
    assert how(path, "memmap") == "memmap: kept map, memory grows"
    assert how(path, "memmap", "drop") == "memmap: kept map, memory grows, cannot drop"
    monkeypatch.setattr(aio, "_new", lambda: None)
    monkeypatch.setattr(aio, "_IDLE", deque())
    assert how(path) == "pread: preadv, nowait"
    for name in [name for name in dir(os) if name.startswith("POSIX_FADV") or name == "posix_fadvise"]:
        monkeypatch.delattr(os, name)
    assert how(path, cache="drop", _NOWAIT=0, _DONTCACHE=0) == "pread: preadv, no hints, cannot drop"
    assert how(path, "remap", "drop") == "remap: map per piece, cannot drop"
    monkeypatch.delattr(os, "preadv")
    assert how(path) == "remap: map per piece, as this platform lacks preadv"
    with pytest.raises(errors.UnsupportedError, match=r"needs os\.preadv; use reader='remap'"):
        how(path, "pread")
    monkeypatch.delattr("mmap.MADV_DONTNEED")
    with pytest.raises(errors.UnsupportedError, match="needs madvise"):
        how(path, "advise")


def test_platform_without_hints_reads_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: preadv, no posix_fadvise, no flags."""
    expected = np.arange(100_000).reshape(1000, 100)
    np.save(tmp_path / "a.npy", expected)
    monkeypatch.setattr(aio, "_new", lambda: None)
    monkeypatch.setattr(aio, "_IDLE", deque())
    for name in [name for name in dir(os) if name.startswith("POSIX_FADV") or name == "posix_fadvise"]:
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(pread, "_NOWAIT", 0)
    monkeypatch.setattr(pread, "_DONTCACHE", 0)
    for reader in READERS:
        with lowtide.open(tmp_path / "a.npy", reader=reader, cache="drop") as array:
            assert (np.concatenate(list(array.chunks(7))) == expected).all()
            assert (array[::-3] == expected[::-3]).all()


@pytest.mark.parametrize("flag", ["_NOWAIT", "_DONTCACHE"])
def test_flag_support_is_checked_per_file(tmp_path: Path, flag: str) -> None:
    (tmp_path / "x").write_bytes(b"x")
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    asked: Callable[[BaseException | None], Any] = lambda error: mock.patch.object(  # noqa: E731
        os, "preadv", side_effect=error, return_value=1
    )
    with asked(OSError(errno.EOPNOTSUPP, "no")):
        assert not pread._supports(fd, getattr(pread, flag))
    with asked(BlockingIOError(errno.EAGAIN, "later")):
        assert pread._supports(fd, getattr(pread, flag))
    with asked(None):
        assert pread._supports(fd, getattr(pread, flag))
        assert not pread._supports(fd, 0)
    os.close(fd)


def test_unknown_reader_or_cache_raises(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(errors.ArgumentError, match="got 'mmap'"):
        open_reader(str(tmp_path / "x"), 1, "mmap")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="got 'some'"):
        open_reader(str(tmp_path / "x"), 1, "pread", "some")  # type: ignore[arg-type]


@pytest.mark.parametrize("reader", READERS)
def test_missing_file_raises(tmp_path: Path, reader: ReaderName) -> None:
    with pytest.raises(errors.NotFoundError, match="nothing"):
        open_reader(str(tmp_path / "nothing"), 1, reader)


def test_second_read_is_reported_as_cached(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(2**20))
    reader = PreadReader(str(path), 2**20, False)
    extents = of_records(np.arange(0, 2**20, 8192), 1024)
    out = np.empty(extents.nbytes, np.uint8)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert [reader.submit(extents, out).wait().cached for _ in range(2)] == [False, True]
    reader.close()


def test_parts_are_read_by_several_threads(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    rows = np.random.default_rng(0).integers(0, 256, (1000, 100), np.uint8)
    rows.tofile(path)
    reader = PreadReader(str(path), rows.nbytes, False)
    out = np.zeros(rows.nbytes, np.uint8)
    idents = set()

    def part(nth: int) -> Outcome:
        idents.add(threading.get_ident())
        extents = of_records(np.arange(nth * 250, (nth + 1) * 250) * 100, 100)
        return reader.submit(extents, out[nth * 25_000 :]).wait()

    outcomes = threads.in_threads([partial(part, nth) for nth in range(4)])
    assert combined(outcomes).total == 4  # neighbours are joined
    assert (out == rows.ravel()).all()
    assert threading.get_ident() in idents
    assert len(idents) > 1 or os.cpu_count() == 1

    def broken() -> Outcome:
        raise ValueError("no such part")

    with pytest.raises(ValueError, match="no such part"):
        threads.in_threads([lambda: part(0), broken])
    reader.close()


class WholeReader(RemapReader):
    """Reads the file into memory when it is opened."""

    name = "whole"

    def __init__(self, path: str, size: int, drop: bool, identity: Identity | None = None) -> None:
        super().__init__(path, size, drop, identity)
        self.how = "a copy in memory"
        self._content = np.frombuffer(Path(path).read_bytes(), np.uint8)

    def submit(self, extents: Extents, out: Bytes, **hints: Any) -> Pending[Outcome]:
        for offset, target, length in extents.rows():
            out[target : target + length] = self._content[offset : offset + length]
        return Pending.of(Outcome(0, len(extents)))

    def read(self, offset: int, out: Bytes, *, sequential: bool = False) -> None:
        out[:] = self._content[offset : offset + len(out)]


def test_registered_reader_reads_arrays_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide._io.reader.READERS", [*KINDS, WholeReader])
    name: Any = "whole"
    expected = np.arange(3000, dtype="u2").reshape(1000, 3)
    np.save(tmp_path / "a.npy", expected)
    expected.tofile(tmp_path / "train.bin")
    with lowtide.open(tmp_path / "a.npy", reader=name) as array:
        assert "a copy in memory" in repr(array)
        np.testing.assert_array_equal(array[:], expected)
        np.testing.assert_array_equal(array[[900, 3, 4]], expected[[900, 3, 4]])
        rows = np.concatenate(list(array.chunks(100, shuffle=True)))
        np.testing.assert_array_equal(np.sort(rows[:, 0]), expected[:, 0])
    with lowtide.corpus(tmp_path / "train.bin", dtype="u2", reader=name) as corpus:
        x, y = corpus.batches(4, 10, order="sequential")[2]
        assert x[0, 0] == 80
        assert (y == x + 1).all()
    with pytest.raises(errors.ArgumentError, match="memmap, whole, got 'none'"):
        lowtide.open(tmp_path / "a.npy", reader="none")  # type: ignore[call-overload]
