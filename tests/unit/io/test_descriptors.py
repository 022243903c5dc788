"""Descriptors: few of them, always of the file that was opened."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import lowtide
from lowtide import errors
from lowtide._io import descriptors
from lowtide._io.descriptors import DescriptorPool, File
from tests.support.descriptors import first_byte, open_files, pool, some

__all__ = ["pool"]


def test_least_recently_used_is_closed_first(tmp_path: Path, pool: DescriptorPool) -> None:
    files = some(tmp_path, 5)
    assert open_files(tmp_path) == []
    for i in (0, 1, 2, 0, 3):
        assert first_byte(files[i]) == i
    assert open_files(tmp_path) == ["0.bin", "2.bin", "3.bin"]
    assert [first_byte(file) for file in files] == [0, 1, 2, 3, 4]
    assert open_files(tmp_path) == ["2.bin", "3.bin", "4.bin"]
    assert len(pool) == 3


def test_descriptor_in_use_is_never_closed(tmp_path: Path, pool: DescriptorPool) -> None:
    files = some(tmp_path, 6)
    with files[0].opened() as a, files[1].opened() as b, files[2].opened() as c, files[3].opened() as d:
        assert first_byte(files[4]) == 4
        assert [os.pread(entry.fd, 1, 0)[0] for entry in (a, b, c, d)] == [0, 1, 2, 3]
        with files[0].opened() as again:
            assert again is a
    first_byte(files[5])
    assert len(pool) == 3
    assert len(open_files(tmp_path)) == 3


def test_readers_of_one_file_share_one_descriptor(tmp_path: Path, pool: DescriptorPool) -> None:
    files = [some(tmp_path, 1)[0] for _ in range(5)]
    with files[0].opened() as a, files[1].opened() as b:
        assert a is b
    assert open_files(tmp_path) == ["0.bin"]


def test_close_is_deferred_until_running_read_ends(tmp_path: Path, pool: DescriptorPool) -> None:
    [file] = some(tmp_path, 1)
    with file.opened() as entry:
        file.close()
        assert os.pread(entry.fd, 1, 0) == b"\0"
        with file.opened() as another:
            assert another is not entry
    assert open_files(tmp_path) == ["0.bin"]
    file.close()
    file.close()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("interrupted", ["reopen", "close"])
def test_reads_do_not_wait_for_thread_opening_or_closing(
    tmp_path: Path, pool: DescriptorPool, interrupted: str
) -> None:
    """A signal handler in that thread may wait for others that read."""
    files = some(tmp_path, 2)
    first_byte(files[1])
    owner: Any = File if interrupted == "reopen" else descriptors.Entry
    original = getattr(owner, interrupted)
    results: list[int] = []

    def handler(self: Any) -> Any:
        monkey.undo()
        files[1].close()
        thread = threading.Thread(target=lambda: results.append(first_byte(files[1])), daemon=True)
        thread.start()
        thread.join(10)
        results.append(thread.is_alive())
        return original(self)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(owner, interrupted, handler)
        first_byte(files[0])
        files[0].close()
    assert results == [1, False]


def test_two_threads_can_open_one_file_at_once(tmp_path: Path, pool: DescriptorPool) -> None:
    [file] = some(tmp_path, 1)
    reopen, both = File.reopen, threading.Barrier(2)

    def slow(self: File) -> int:
        fd = reopen(self)
        both.wait(10)
        return fd

    results: list[int] = []
    with mock.patch.object(File, "reopen", slow):
        threads = [threading.Thread(target=lambda: results.append(first_byte(file))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [0, 0]
    assert open_files(tmp_path) == ["0.bin"]


def test_arrays_in_cycles_can_be_collected_during_reads(tmp_path: Path, pool: DescriptorPool) -> None:
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.full(50, i))
    for i in range(300):
        array = lowtide.open(tmp_path / f"{i % 8}.npy")
        cycle: list[Any] = [array]
        cycle.append(cycle)
        assert array[3] == i % 8
    del array, cycle
    gc.collect()
    assert open_files(tmp_path) == []


def test_file_closed_by_one_array_stays_usable_by_another(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    one, two = lowtide.open(tmp_path / "a.npy"), lowtide.open(tmp_path / "a.npy")
    one.close()
    assert two[5] == 5
    two.close()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("evicted", [False, True])
def test_replaced_file_raises_after_eviction(tmp_path: Path, pool: DescriptorPool, evicted: bool) -> None:
    [file] = some(tmp_path, 1)
    first_byte(file)
    if evicted:
        pool._evict(0)
    (tmp_path / "new").write_bytes(b"x" * 100)
    os.replace(tmp_path / "new", tmp_path / "0.bin")
    if not evicted:
        assert first_byte(file) == 0  # the descriptor still holds the old file
    else:
        with pytest.raises(errors.FileChangedError, match=r"0\.bin: was replaced by another file"):
            first_byte(file)
    assert first_byte(File(str(tmp_path / "0.bin"), 100)) == ord("x")


def test_new_file_with_reused_inode_number_raises(tmp_path: Path, pool: DescriptorPool) -> None:
    """ext4 gives the number of a deleted file to the next one."""
    [file] = some(tmp_path, 1)
    path = tmp_path / "0.bin"
    number = os.stat(path).st_ino
    for _ in range(50):
        path.unlink()
        path.write_bytes(b"x" * 100)
        if os.stat(path).st_ino == number:
            break
    else:
        # No such file system here; then the number is enough, and that is what is shown.
        assert os.stat(path).st_ino != number
    with pytest.raises(errors.FileChangedError):
        first_byte(file)


def test_file_system_without_generations_works(tmp_path: Path) -> None:
    with mock.patch("fcntl.ioctl", side_effect=OSError(errno.ENOTTY, "no")):
        [file] = some(tmp_path, 1)
        assert file.key[-1] == 0
        assert first_byte(file) == 0
        file.close()


def test_deleted_file_raises(tmp_path: Path, pool: DescriptorPool) -> None:
    [file] = some(tmp_path, 1)
    (tmp_path / "0.bin").unlink()
    with pytest.raises(errors.NotFoundError, match=r"0\.bin"):
        first_byte(file)


def test_truncated_file_raises(tmp_path: Path, pool: DescriptorPool) -> None:
    [file] = some(tmp_path, 1)
    os.truncate(tmp_path / "0.bin", 99)
    with pytest.raises(errors.TruncatedFileError, match=r"was truncated .*99 bytes, expected 100"):
        first_byte(file)
    os.truncate(tmp_path / "0.bin", 101)
    assert first_byte(file) == 0


def test_pipe_in_place_of_file_raises_without_blocking(tmp_path: Path, pool: DescriptorPool) -> None:
    [file] = some(tmp_path, 1)
    (tmp_path / "0.bin").unlink()
    os.mkfifo(tmp_path / "0.bin")
    with pytest.raises(errors.UnsupportedError, match="not a regular file"):
        first_byte(file)
    with pytest.raises(errors.UnsupportedError, match="not a regular file"):
        File(str(tmp_path / "0.bin"), 0)
    assert open_files(tmp_path) == []


def test_failed_check_leaves_no_descriptor(tmp_path: Path, pool: DescriptorPool) -> None:
    [file] = some(tmp_path, 1)
    os.truncate(tmp_path / "0.bin", 1)
    for _ in range(5):
        with pytest.raises(errors.TruncatedFileError):
            first_byte(file)
    assert open_files(tmp_path) == []


def test_mapping_grows_with_file(tmp_path: Path, pool: DescriptorPool) -> None:
    path = tmp_path / "0.bin"
    some(tmp_path, 1)
    with File(str(path), 100).opened() as entry:
        short = entry.mapping(100)
        with open(path, "ab") as file:
            file.write(b"z" * 5000)
        with File(str(path), 5100).opened() as same:
            assert same is entry
            assert same.mapping(5100)[5099:] == b"z"
            assert same.mapping(100)[:1] == b"\0"
        assert short[:1] == b"\0"


def test_discard_with_held_mapping_does_not_raise(tmp_path: Path) -> None:
    own = DescriptorPool(1)
    [file] = some(tmp_path, 1)
    entry = own.acquire(file)
    held = memoryview(entry.mapping(100))
    entry.release()
    own.discard(file.key)  # must not raise BufferError
    assert held[0] == 0
    held.release()


def test_mappings_stay_out_of_core_dumps(tmp_path: Path) -> None:
    [file] = some(tmp_path, 1)
    with file.opened() as entry:
        mapped = descriptors.map_file(entry.fd, 0, 100)
        text = Path("/proc/self/smaps").read_text()
        flags = next(line for line in text.split("0.bin", 1)[1].splitlines() if line.startswith("VmFlags"))
        assert " dd" in flags
        assert isinstance(mapped, mmap.mmap)
        mapped.close()
    file.close()


def test_idle_descriptor_is_closed_when_limit_is_reached(tmp_path: Path, pool: DescriptorPool) -> None:
    files = some(tmp_path, 3)
    first_byte(files[0])
    first_byte(files[1])
    opening, refused = os.open, []

    def full(path: str, flags: int) -> int:
        if open_files(tmp_path):
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opening(path, flags)

    with mock.patch.object(os, "open", full):
        assert first_byte(files[2]) == 2
        assert len(refused) == 1
        with files[2].opened(), pytest.raises(errors.ReadError, match="ulimit -n"):
            first_byte(files[0])


def test_pool_limit_follows_rlimit() -> None:
    import resource

    for soft, limit in [(256, 64), (16, 8), (100_000, 512), (resource.RLIM_INFINITY, 512)]:
        with mock.patch.object(resource, "getrlimit", return_value=(soft, soft)):
            assert descriptors._limit() == limit
