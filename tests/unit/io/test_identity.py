"""A file that was replaced or written to is an exception, and never other data."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._arrays.stored import StoredArray
from lowtide.errors import FileChangedError, TruncatedFileError

ROWS = np.arange(4000, dtype="<f8").reshape(1000, 4)
any_reader = pytest.mark.parametrize("reader", ["pread", "remap", "advise", "memmap"])

Rewrite = Callable[[Path], None]


def _same_shape(path: Path) -> None:
    np.save(path, ROWS + 1)


def _other_dtype(path: Path) -> None:
    np.save(path, ROWS.astype("<i8"))


def _more_rows(path: Path) -> None:
    np.save(path, np.concatenate([ROWS, ROWS]) + 1)


def _in_place(path: Path) -> None:
    mapped = np.load(path, mmap_mode="r+")
    mapped[500] = -1
    mapped.flush()


def _by_pwrite(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"x" * 64, 5000)
    os.close(fd)


rewritten = pytest.mark.parametrize(
    "rewrite", [_same_shape, _other_dtype, _more_rows, _in_place, _by_pwrite], ids=lambda f: f.__name__[1:]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", ROWS)
    return tmp_path / "x.npy"


@any_reader
@rewritten
def test_indexing_rewritten_file_raises(path: Path, reader: Any, rewrite: Rewrite) -> None:
    with lowtide.open(path, reader=reader) as array:
        array[0]
        rewrite(path)
        with pytest.raises(FileChangedError, match=r"x\.npy: was written to.*open it again") as caught:
            array[0]
        assert caught.value.filename == str(path)
        with pytest.raises(FileChangedError):
            array.take([5, 3])
        with pytest.raises(FileChangedError):
            next(array.chunks(10))
    with lowtide.open(path) as fresh:
        assert len(fresh[:]) >= 1000


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
@pytest.mark.parametrize("prefetch", [0, 2])
@rewritten
def test_file_rewritten_during_pass_raises(path: Path, rewrite: Rewrite, shuffle: Any, prefetch: int) -> None:
    with lowtide.open(path) as array:
        chunks = array.chunks(100, shuffle=shuffle, prefetch=prefetch)
        next(chunks)
        rewrite(path)
        with pytest.raises(FileChangedError):
            for _ in chunks:
                pass


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_file_replaced_by_rename_raises_at_start_or_end_of_pass(path: Path, shuffle: Any) -> None:
    with lowtide.open(path) as array:
        running = array.chunks(600, shuffle=shuffle)
        next(running)
        np.save(path.with_name("new.npy"), ROWS + 1)
        os.replace(path.with_name("new.npy"), path)
        with pytest.raises(FileChangedError, match="replaced by another file"):
            list(running)
        with pytest.raises(FileChangedError, match="replaced by another file"):
            next(array.chunks(600, shuffle=shuffle))


def _by_rename(path: Path) -> None:
    np.save(path.with_name("new.npy"), ROWS + 1)
    os.replace(path.with_name("new.npy"), path)


@pytest.mark.parametrize("rewrite", [_same_shape, _by_rename])
def test_unpickled_array_of_changed_file_raises(path: Path, rewrite: Rewrite) -> None:
    with lowtide.open(path) as array:
        data = pickle.dumps(array)
    assert (pickle.loads(data)[:] == ROWS).all()
    rewrite(path)
    with pytest.raises(FileChangedError, match="open it again"):
        pickle.loads(data)[0]


def test_other_device_number_with_same_size_and_time_is_accepted(path: Path) -> None:
    """A shared file system has another device number on every machine, and perhaps another inode."""
    with lowtide.open(path) as array:
        identity = array._layout.identity
        assert identity is not None
        there = identity._replace(device=identity.device + 1, inode=7)
        assert (StoredArray(replace(array._layout, identity=there))[:] == ROWS).all()
        changed = identity._replace(device=identity.device + 1, mtime_ns=identity.mtime_ns + 1)
        with pytest.raises(FileChangedError):
            StoredArray(replace(array._layout, identity=changed))


# What may happen to a file


@any_reader
@pytest.mark.parametrize("suffix", [".npy", ".bin"])
def test_append_does_not_change_open_array(tmp_path: Path, reader: Any, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    with lowtide.create(path, "<f8", 4) as out:
        out.append(ROWS)
    raw = {} if suffix == ".npy" else {"dtype": "<f8", "shape": (-1, 4)}
    with lowtide.open(path, reader=reader, **raw) as array:  # type: ignore[call-overload]
        data = pickle.dumps(array)
        pass_before = array.chunks(300)
        next(pass_before)
        with lowtide.create(path, "<f8", 4, append=True) as out:
            assert (array[:] == ROWS).all()
            out.append(ROWS + 1)
            assert (array[:] == ROWS).all()
        assert (array[:] == ROWS).all()
        assert sum(map(len, pass_before)) == 700
        assert (pickle.loads(data)[:] == ROWS).all()
        with lowtide.open(path, **raw) as longer:  # type: ignore[call-overload]
            assert len(longer) == 2000


@pytest.mark.parametrize("at", [0, -1])
def test_longer_file_with_changed_rows_raises(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.bin"
    ROWS.tofile(path)
    with lowtide.open(path, dtype="<f8", shape=(-1, 4)) as array:
        longer = np.concatenate([ROWS, ROWS])
        longer[:1000][at] = -1
        longer.tofile(path)
        with pytest.raises(FileChangedError):
            array[500]


@pytest.mark.parametrize("format", ["npz", "safetensors", "h5"])
def test_growth_of_fixed_size_format_raises(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"x.{format}"

    def write(rows: np.ndarray) -> None:
        if format == "npz":
            np.savez(path, x=rows)
        elif format == "safetensors":
            from safetensors.numpy import save

            path.write_bytes(save({"x": rows}))
        else:
            import h5py

            with h5py.File(path, "w") as file:
                file["x"] = rows

    write(ROWS)
    with lowtide.open(path) as array:
        assert (array[:] == ROWS).all()
        write(np.concatenate([ROWS, ROWS]))
        with pytest.raises(FileChangedError):
            array[0]


def test_deleted_file_stays_readable_while_open(path: Path) -> None:
    with lowtide.open(path) as array:
        array[0]
        path.unlink()
        assert np.concatenate(list(array.chunks(300))).tobytes() == ROWS.tobytes()


def test_changed_access_time_is_ignored(path: Path) -> None:
    with lowtide.open(path) as array:
        path.read_bytes()
        os.utime(path, ns=(1, os.stat(path).st_mtime_ns))
        assert (array[:] == ROWS).all()


def test_rewrite_with_restored_mtime_is_not_detected(path: Path) -> None:
    """The guide says so; if this ever fails, it may promise more."""
    with lowtide.open(path) as array:
        status = os.stat(path)
        _same_shape(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (array[:] == ROWS + 1).all()


# Tokens


def _corpus(folder: Path, shards: int, tokens: int = 5000) -> list[Path]:
    paths = []
    for i in range(shards):
        paths.append(folder / f"part-{i}.bin")
        np.full(tokens, i, "<u2").tofile(paths[-1])
    return paths


@pytest.mark.parametrize("order", ["shuffle", "random", "sequential", "blocks"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_of_rewritten_corpus_raise(tmp_path: Path, order: Any, shards: int, prefetch: int) -> None:
    paths = _corpus(tmp_path, shards)
    with lowtide.corpus(paths, dtype="<u2") as corpus:
        batches = corpus.batches(8, 16, order=order, prefetch=prefetch)
        next(batches)
        for path in paths:
            np.full(5000, 7, "<u2").tofile(path)
        with pytest.raises(FileChangedError):
            for _ in range(200_000):
                next(batches)
        batches.close()


def test_first_batch_after_shards_are_rewritten_raises(tmp_path: Path) -> None:
    paths = _corpus(tmp_path, 3)
    with lowtide.corpus(paths, dtype="<u2") as corpus:
        batches = corpus.batches(64, 16, prefetch=0)
        batches[0]
        for path in paths:
            np.full(5000, 7, "<u2").tofile(path)
        with pytest.raises(FileChangedError):
            batches[1]


def test_unpickled_batches_of_changed_corpus_raise(tmp_path: Path) -> None:
    paths = _corpus(tmp_path, 3)
    with lowtide.corpus(paths, dtype="<u2") as corpus:
        data = pickle.dumps(corpus.batches(8, 16))
    assert pickle.loads(data)[0][0].shape == (8, 16)
    np.full(5000, 9, "<u2").tofile(tmp_path / "new")
    os.replace(tmp_path / "new", paths[1])
    with pytest.raises(FileChangedError, match=r"part-1\.bin: was replaced"):
        for step in range(20):
            pickle.loads(data)[step]


def test_growth_of_prepared_shard_raises(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text " * 1000)
    lowtide.prepare(tmp_path / "text.txt", tmp_path / "corpus", val_fraction=0)
    with lowtide.corpus(tmp_path / "corpus") as corpus:
        corpus[0]
        [shard] = (tmp_path / "corpus").glob("train*.bin")
        with open(shard, "ab") as file:
            file.write(b"\0\0")
        with pytest.raises(FileChangedError):
            corpus[0]


def test_truncated_shard_raises_truncated_file_error(tmp_path: Path) -> None:
    [path] = _corpus(tmp_path, 1)
    with lowtide.corpus(path, dtype="<u2") as corpus:
        corpus[0]
        os.truncate(path, 100)
        with pytest.raises(TruncatedFileError):
            corpus[4000]


def test_file_changed_error_survives_pickling(path: Path) -> None:
    with lowtide.open(path) as array:
        _same_shape(path)
        with pytest.raises(FileChangedError) as caught:
            array[0]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, FileChangedError)
    assert str(copy) == str(caught.value)
    assert (copy.errno, copy.filename) == (caught.value.errno, str(path))


def test_pickled_identity_is_small(path: Path) -> None:
    with lowtide.open(path) as array:
        assert len(pickle.dumps(array)) < 400
