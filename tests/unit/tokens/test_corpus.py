"""lowtide._tokens.corpus: tokens and documents, over any number of shards."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import ArgumentError, ClosedError, FormatError, IndexingError, NotFoundError
from tests.support.corpora import numbered
from tests.support.examples import examples


def npy_of(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@given(
    tokens=st.integers(10, 400),
    shards=st.integers(1, 6),
    start=st.integers(-450, 450) | st.none(),
    stop=st.integers(-450, 450) | st.none(),
    step=st.integers(-5, 5).filter(bool),
)
@examples(1.2)
def test_slices_match_one_long_array(
    tmp_path_factory: pytest.TempPathFactory,
    tokens: int,
    shards: int,
    start: int | None,
    stop: int | None,
    step: int,
) -> None:
    corpus = numbered(tmp_path_factory.mktemp("corpus"), tokens, shards)
    part = corpus[start:stop:step]
    assert part.dtype == corpus.dtype
    assert part.tolist() == list(range(tokens))[start:stop:step]
    assert len(corpus) == tokens


def test_single_tokens_are_numpy_scalars(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 100, 3)
    whole = np.arange(100, dtype="<u4")
    for index in (0, 57, -1, -100, np.int64(5), np.uint8(7)):
        assert corpus[index] == whole[index]
        assert type(corpus[index]) is type(whole[index])
        assert hash(corpus[index]) == hash(whole[index])


@pytest.mark.parametrize("index", [100, -101, 1.5, "a", None, True, (1,), [1, 2], ...], ids=repr)
def test_invalid_index_raises(tmp_path: Path, index: Any) -> None:
    corpus = numbered(tmp_path, 100, 3)
    with pytest.raises(IndexingError, match=r"100 is out|-101 is out|takes an integer or a slice"):
        corpus[index]


@pytest.mark.parametrize("step", [2, 7, 1023, 1500, 50_000, -3, -1500])
def test_strided_slice_is_read_in_parts(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide._tokens.corpus._PART", 10_000)
    corpus = numbered(tmp_path, 100_003, 3)
    index = slice(17, 100_000, step) if step > 0 else slice(100_000, 17, step)
    tokens, expected = corpus[index], np.arange(100_003, dtype="<u4")[index]
    assert tokens.dtype == expected.dtype
    assert tokens.tolist() == expected.tolist()
    assert tokens.base is None


def test_stream_yields_every_token_once(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 10_000, 4)
    assert np.concatenate(list(corpus.stream(1000))).tolist() == list(range(10_000))


def test_repr_and_pickle(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 10_000, 4)
    assert "10000 tokens of uint32 in 4 shards" in repr(corpus)
    packed = pickle.dumps(corpus)
    assert len(packed) < 2000
    assert (pickle.loads(packed)[5:9] == corpus[5:9]).all()
    corpus.close()
    corpus.close()
    with pytest.raises(ClosedError, match="was closed"):
        corpus[0]


def test_vanished_shard_raises_with_its_path(tmp_path: Path) -> None:
    corpus = numbered(tmp_path, 1000, 3)
    os.unlink(tmp_path / "part-001.bin")
    with pytest.raises(NotFoundError, match=r"part-001\.bin"):
        corpus[:]


def test_many_shards_need_few_descriptors(tmp_path: Path) -> None:
    paths = []
    for nth in range(2_000):
        path = tmp_path / f"s{nth:05}.bin"
        path.write_bytes(np.array([nth, nth], "<u2").tobytes())
        paths.append(path)
    corpus = lowtide.corpus(paths, dtype="<u2")
    x, _ = corpus.batches(256, 7, seed=1)[0]
    assert ((np.diff(x.astype(int), axis=1) >= 0) | (x[:, 1:] == 0)).all()
    assert len(os.listdir("/proc/self/fd")) < 700


# Documents


def text(
    folder: Path, documents: list[list[int]], eos: int, shards: int = 1
) -> tuple[list[Path], np.ndarray]:
    whole = np.array([token for document in documents for token in [*document, eos]], "<u2")
    paths = []
    for nth, part in enumerate(np.array_split(whole, shards)):
        paths.append(folder / f"p{nth}.bin")
        part.tofile(paths[-1])
    return paths, whole


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    shards=st.integers(1, 4),
    tail=st.integers(0, 3),
)
@examples(0.8)
def test_documents_are_located_by_end_token(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shards: int, tail: int
) -> None:
    folder = tmp_path_factory.mktemp("documents")
    documents = [list(range(1, length + 1)) for length in lengths]
    paths, whole = text(folder, documents, eos=0)
    if tail:  # a last document without its end
        whole = np.concatenate((whole, np.arange(1, tail + 1, dtype="<u2")))
        documents.append(list(range(1, tail + 1)))
    for nth, part in enumerate(np.array_split(whole, shards)):
        part.tofile(folder / f"q{nth}.bin")
    corpus = lowtide.corpus(
        [folder / f"q{n}.bin" for n in range(min(shards, len(whole)))], dtype="<u2", eos=0
    )
    assert corpus.documents.count == len(documents)
    for i, document in enumerate(documents):
        ended = [] if tail and i == len(documents) - 1 else [0]
        assert corpus.document(i).tolist() == [*document, *ended]
    del paths


def test_scan_is_cached_beside_corpus_and_repeated_after_change(tmp_path: Path) -> None:
    paths, _ = text(tmp_path, [[1, 2], [3]], eos=0)
    assert lowtide.corpus(paths, dtype="<u2", eos=0).documents.count == 2
    kept = [name for name in os.listdir(tmp_path) if name.startswith(".lowtide-documents-")]
    assert len(kept) == 1
    before = os.stat(tmp_path / kept[0]).st_mtime_ns
    assert lowtide.corpus(paths, dtype="<u2", eos=0).documents.count == 2
    assert os.stat(tmp_path / kept[0]).st_mtime_ns == before
    assert lowtide.corpus(paths, dtype="<u2", eos=3).documents.count == 2
    np.array([1, 0, 2, 0, 3, 0], "<u2").tofile(paths[0])
    assert lowtide.corpus(paths, dtype="<u2", eos=0).documents.count == 3


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"not an array",
        npy_of(np.zeros((2, 2), "<u8")),
        npy_of(np.zeros(2)),
        npy_of(np.array([2], "<u8")),
    ],
    ids=["empty", "text", "shape", "dtype", "end"],
)
def test_damaged_scan_index_is_rebuilt(tmp_path: Path, damaged: bytes) -> None:
    paths, _ = text(tmp_path, [[1, 2], [3]], eos=0)
    assert lowtide.corpus(paths, dtype="<u2", eos=0).documents.count == 2
    [index] = tmp_path.glob(".lowtide-documents-*")
    valid = index.read_bytes()
    index.write_bytes(damaged)
    assert lowtide.corpus(paths, dtype="<u2", eos=0).documents.count == 2
    assert index.read_bytes() == valid


def test_read_only_folder_uses_user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    paths, _ = text(data, [[1, 2], [3]], eos=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from lowtide._tokens import documents

    real = lowtide.create

    def refused(path: str, *arguments: object) -> object:
        if path.startswith(str(data)):
            raise PermissionError(13, "read-only")
        return real(path, *arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(documents, "create", refused)
    assert lowtide.corpus(paths, dtype="<u2", eos=0).documents.count == 2
    assert os.listdir(data) == ["p0.bin"]
    assert len(os.listdir(tmp_path / "cache" / "lowtide")) == 1


def test_documents_without_eos_raise(tmp_path: Path) -> None:
    paths, _ = text(tmp_path, [[1]], eos=0)
    with pytest.raises(ArgumentError, match="does not record where its documents end; open it with eos="):
        _ = lowtide.corpus(paths, dtype="<u2").documents
    corpus = lowtide.corpus(paths, dtype="<u2", eos=0)
    with pytest.raises(IndexingError, match="document 1 is out of bounds for 1 documents"):
        corpus.document(1)


def test_windows_start_at_documents(tmp_path: Path) -> None:
    documents = [[100 + i] * (i % 7 + 1) for i in range(50)]
    paths, whole = text(tmp_path, documents, eos=0, shards=3)
    corpus = lowtide.corpus(paths, dtype="<u2", eos=0)
    batches = corpus.batches(5, 8, order="documents", seed=2, prefetch=0)
    assert batches.epoch_samples == 50
    for epoch in range(2):
        x = np.concatenate([batches[epoch * 10 + step][0] for step in range(10)])
        assert sorted(x[:, 0].tolist()) == [100 + i for i in range(50)]
    starts = np.flatnonzero(np.concatenate(([True], whole[:-1] == 0)))
    x, y = batches[3]
    for row, targets in zip(x, y, strict=True):
        start = int(starts[row[0] - 100])
        ring = np.concatenate((whole, whole))
        assert (row == ring[start : start + 8]).all()
        assert (targets == ring[start + 1 : start + 9]).all()
    token = int(starts[20]) + 2
    windows = batches.read_samples(np.arange(50))
    firsts = {int(starts[window[0] - 100]): i for i, window in enumerate(windows)}
    expected = {i // 5 for start, i in firsts.items() if start <= token <= start + 8}
    assert batches.when(token) == sorted(expected)


# Ids


def test_id_beyond_vocabulary_raises(tmp_path: Path) -> None:
    tokens = np.zeros(600_000, "<u2")
    tokens[123_457] = 999
    tokens.tofile(tmp_path / "train.bin")
    corpus = lowtide.corpus(tmp_path)
    assert corpus.largest(scan=True) == 999
    assert corpus.largest() in (0, 999)
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 50, "stoi": {"a": 1}}))
    np.full(600_000, 70, "<u2").tofile(tmp_path / "train.bin")
    with pytest.raises(FormatError, match=r"token 70 is not in its vocabulary of 50 ids \(0 to 49\)"):
        lowtide.corpus(tmp_path).batches(4, 16)


def test_invalid_eos_raises_and_absent_eos_warns(tmp_path: Path) -> None:
    (np.arange(500) % 100).astype("<u2").tofile(tmp_path / "train.bin")
    for eos in (-1, 70_000):
        with pytest.raises(ArgumentError, match=f"eos must be an id that uint16 holds .*, got {eos}"):
            lowtide.corpus(tmp_path, eos=eos)
    for _ in range(2):  # from a scan, and from its index
        with pytest.warns(UserWarning, match="token 5000 does not occur"):
            assert lowtide.corpus(tmp_path, eos=5000).documents.count == 1
    assert lowtide.corpus(tmp_path / "train.bin", eos=99).documents.count == 5
    one = tmp_path / "one.bin"
    np.arange(100, dtype="<u2").tofile(one)
    with pytest.warns(UserWarning, match="has one document, so that every window"):
        lowtide.corpus(one, dtype="<u2", eos=99).batches(2, 8, order="documents")
