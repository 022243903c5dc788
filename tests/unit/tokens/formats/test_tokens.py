"""Which corpus a path holds: folders, files, lists and globs, splits, and what is ambiguous."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._io.store import Neighbours, Peek
from lowtide._tokens import formats
from lowtide._tokens.formats import Segment, TokenFormat, Tokens, find, llmc, own
from lowtide._tokens.formats.index import agree
from lowtide._tokens.formats.tokens import Selection
from lowtide.errors import AccessError, ArgumentError, FormatError, NotFoundError, UnsupportedError
from tests.support.formats import refused, write
from tests.support.token_files import put, read_tokens


def raw(*ids: int, dtype: str = "<u2") -> bytes:
    return np.array(ids, dtype).tobytes()


def shard(*ids: int) -> bytes:
    return llmc.make_header("uint16", len(ids)) + raw(*ids)


def test_folder_list_and_glob_give_same_tokens(tmp_path: Path) -> None:
    put(tmp_path, {"w_train_1.bin": shard(1, 2), "w_train_2.bin": shard(3), "w_val_0.bin": shard(9)})
    paths = [tmp_path / "w_train_1.bin", tmp_path / "w_train_2.bin"]
    for path in (tmp_path, str(tmp_path), paths, tuple(map(str, paths)), tmp_path / "*_train_*.bin"):
        tokens = find(path)
        assert read_tokens(tokens).tolist() == [1, 2, 3]
        assert [segment.path for segment in tokens.segments] == [str(path) for path in paths]
    assert read_tokens(find(paths[1])).tolist() == [3]
    assert read_tokens(find(tmp_path, split="val")).tolist() == [9]
    assert read_tokens(find(tmp_path, split="validation")).tolist() == [9]
    assert read_tokens(find(iter(paths))).tolist() == [1, 2, 3]


def test_glob_over_several_splits_reads_requested_split(tmp_path: Path) -> None:
    put(tmp_path, {"w_train_1.bin": shard(1), "w_val_0.bin": shard(9)})
    assert read_tokens(find(tmp_path / "w_*.bin", split="val")).tolist() == [9]
    assert read_tokens(find(tmp_path / "w_*.bin")).tolist() == [1]
    assert read_tokens(find(tmp_path / "w_val*.bin")).tolist() == [9]  # named, so meant
    assert read_tokens(find([tmp_path / "w_train_1.bin", tmp_path / "w_val_0.bin"])).tolist() == [1, 9]


def test_shards_are_ordered_by_number(tmp_path: Path) -> None:
    put(tmp_path, {f"s_train_{i}.bin": shard(i) for i in (10, 9, 100, 1)})
    assert read_tokens(find(tmp_path)).tolist() == [1, 9, 10, 100]


def test_existing_name_with_glob_characters_is_not_expanded(tmp_path: Path) -> None:
    put(tmp_path, {"a[1].npy": b"", "a1.npy": b""})
    np.save(tmp_path / "a[1].npy", np.array([5], "u2"))
    np.save(tmp_path / "a1.npy", np.array([6], "u2"))
    assert read_tokens(find(tmp_path / "a[1].npy")).tolist() == [5]


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    put(tmp_path, {"train.bin": raw(1), ".train.bin.partial": b"xyz", "._train.bin": b"", "README.md": b"hi"})
    assert read_tokens(find(tmp_path)).tolist() == [1]


def test_split_can_be_folder(tmp_path: Path) -> None:
    put(tmp_path / "val", {"x.npy": b""})
    np.save(tmp_path / "val/x.npy", np.array([5], "u2"))
    assert read_tokens(find(tmp_path, split="val")).tolist() == [5]
    with refused(FormatError, tmp_path, "no token corpus", "found val", "corpus.json"):
        find(tmp_path)


def test_tokens_can_be_pickled(tmp_path: Path) -> None:
    put(tmp_path, {"train.bin": raw(1, 2)})
    tokens = find(tmp_path)
    assert pickle.loads(pickle.dumps(tokens)) == tokens


def test_two_kinds_in_one_folder_raise(tmp_path: Path) -> None:
    put(tmp_path, {"train.bin": raw(1), "x.ds": raw(1), "y.npy": raw(1)})
    with refused(ArgumentError, tmp_path, "1 .bin (train.bin)", "1 .ds (x.ds)", "1 .npy (y.npy)", "'*"[:1]):
        find(tmp_path)


def test_two_formats_of_the_same_suffix_raise(tmp_path: Path) -> None:
    put(tmp_path, {"a.bin": shard(1), "b.bin": raw(1)})
    with refused(ArgumentError, tmp_path / "b.bin", "like raw", tmp_path / "a.bin", "like llm.c"):
        find(tmp_path)


def test_mix_of_split_and_unsplit_files_raises(tmp_path: Path) -> None:
    put(tmp_path, {"a_train_1.bin": shard(1), "b.bin": shard(2)})
    with refused(ArgumentError, tmp_path, "a_train_1.bin", "b.bin", "as a list or a glob"):
        find(tmp_path)
    with refused(NotFoundError, tmp_path, "'val'", "train: a_train_1.bin", "no split: b.bin"):
        find(tmp_path, split="val")


def test_missing_split_raises(tmp_path: Path) -> None:
    put(tmp_path, {f"part{i}.bin": shard(i) for i in range(7)})
    assert find(tmp_path).count == 7
    with refused(NotFoundError, tmp_path, "'val'", "no split: part0.bin", "… 2 more"):
        find(tmp_path, split="val")


def test_index_among_files_raises(tmp_path: Path) -> None:
    put(tmp_path, {"index.json": b"{}", "a.bin": shard(1)})
    with refused(FormatError, tmp_path / "index.json", "'chunks'", "'shards'", "[]"):
        find(tmp_path)
    with refused(
        ArgumentError, tmp_path / "index.json", "an index, not a file of tokens", repr(str(tmp_path))
    ):
        find([tmp_path / "a.bin", tmp_path / "index.json"])


def test_missing_corpus_raises(tmp_path: Path) -> None:
    with refused(FormatError, tmp_path, "found nothing"):
        find(tmp_path)
    with refused(NotFoundError, tmp_path / "gone.bin", "no such file"):
        find(tmp_path / "gone.bin")
    with refused(NotFoundError, tmp_path / "*.bin", "no file matches"):
        find(tmp_path / "*.bin")
    with refused(NotFoundError, tmp_path / "gone.bin", "no such file"):
        find([tmp_path / "gone.bin"])
    put(tmp_path, {"train.bin": b""})
    with refused(FormatError, tmp_path / "train.bin", "no tokens"):
        find(tmp_path)
    (tmp_path / "train.bin").unlink()
    (tmp_path / "train.bin").symlink_to("gone")
    with refused(NotFoundError, tmp_path / "train.bin"):
        find(tmp_path)


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    put(tmp_path, {"train.bin": raw(1)})
    for split in ("", None, 3):
        with refused(ArgumentError, "split must be a name", repr(split)):
            find(tmp_path, split=split)  # type: ignore[arg-type]
    for path in (3, None, [3], [b"train.bin"]):
        with refused(ArgumentError, "must be a"):
            find(path)  # type: ignore[arg-type]
    with refused(ArgumentError, "empty"):
        find([])
    with refused(ArgumentError, "train.bin", "more than once"):
        find([tmp_path / "train.bin", tmp_path / "train.bin"])
    for dtype, says in [("float32", "integers"), ("nope", "not understood"), ("O", "integers")]:
        with refused(ArgumentError, tmp_path, says):
            find(tmp_path, dtype=dtype)
    with refused(UnsupportedError, tmp_path, ">u2", "byte order"):
        find(tmp_path, dtype=">u2")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
def test_named_pipe_raises_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.bin")
    with refused(UnsupportedError, "named pipe"):
        find(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_raises(tmp_path: Path) -> None:
    put(tmp_path, {"train.bin": raw(1)})
    (tmp_path / "train.bin").chmod(0)
    with refused(AccessError, tmp_path / "train.bin"):
        find(tmp_path)


@pytest.mark.parametrize("format", ["llm.c", "npy", "olmo", "lowtide"])
def test_each_shard_is_opened_or_statted_once(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 500
    if format == "llm.c":
        for i in range(count):
            (tmp_path / f"w_train_{i:06}.bin").write_bytes(shard(1, 2))
    elif format == "npy":
        np.save(tmp_path / "w_train_000000.npy", np.array([1, 2], "u2"))
        data = (tmp_path / "w_train_000000.npy").read_bytes()
        for i in range(count):
            (tmp_path / f"w_train_{i:06}.npy").write_bytes(data)
    elif format == "olmo":
        for i in range(count):
            (tmp_path / f"{i:06}.npy").write_bytes(raw(1, 2))
    else:
        for i in range(count):
            (tmp_path / f"train-{i:05}.bin").write_bytes(raw(1, 2))
            (tmp_path / f"train-{i:05}.ends").write_bytes(raw(2, dtype="<u8"))
        shards = [
            own.Shard(f"train-{i:05}.bin", 2, "0" * 64, 1, f"train-{i:05}.ends", "0" * 64)
            for i in range(count)
        ]
        own.write(tmp_path, own.Manifest("uint16", {"train": shards}))
    calls = Counter[str]()

    def counted(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*args, **options)

        return call

    for name in ("open", "stat", "lstat"):
        monkeypatch.setattr(os, name, counted(name))
    tokens = find(tmp_path, dtype="uint16")
    monkeypatch.undo()
    assert (tokens.format, tokens.count, len(tokens.segments)) == (format, 2 * count, count)
    # One look at each file, and few besides: what is left to pay for many shards is the system's own.
    files = count * (2 if format == "lowtide" else 1)
    assert calls["open"] <= (100 if format == "lowtide" else count + 100)
    assert calls["stat"] + calls["lstat"] <= files + 200


class Reel(TokenFormat):
    """What CONTRIBUTING shows: a format in one class."""

    name = "reel"
    suffixes = (".reel",)

    def recognises(self, file: Peek, beside: Neighbours) -> bool:
        return file.head.startswith(b"REEL")

    def find(self, selection: Selection) -> Tokens:
        dtype = agree(np.dtype("<u2"), selection.dtype, selection.path)
        segments = [Segment.of(file, 4, (file.size - 4) // 2) for file in selection.files]
        return Tokens(self.name, dtype, tuple(segments))


def test_registered_format_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        write(tmp_path / f"train-{number}.reel", b"REEL" + raw(number, 7))
    with refused(FormatError, tmp_path, "holds no token corpus", "train-0.reel"):
        find(tmp_path)
    monkeypatch.setattr(formats, "FORMATS", [Reel(), *formats.FORMATS])
    with lowtide.corpus(tmp_path) as corpus:
        assert (corpus.format, corpus[:].tolist()) == ("reel", [0, 7, 1, 7])
    assert find(tmp_path / "train-1.reel").count == 2
    (tmp_path / "empty").mkdir()
    with refused(FormatError, ".reel"):  # the error lists it
        find(tmp_path / "empty")
    write(tmp_path / "train-2.bin", raw(1, 2))
    with refused(ArgumentError, "looks like raw", "like reel"):
        find([tmp_path / "train-0.reel", tmp_path / "train-2.bin"], dtype="uint16")
