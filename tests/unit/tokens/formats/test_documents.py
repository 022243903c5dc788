"""Documents: bounds and search over index files, against the same done in memory."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._arrays.formats.layout import Layout
from lowtide._tokens.formats import documents as module
from lowtide._tokens.formats.documents import Column, Documents, Even, Listed, Part
from lowtide.errors import FileChangedError, FormatError, IndexingError, LowtideError
from tests.support.examples import examples
from tests.support.formats import refused


def column(path: Path, ends: np.ndarray) -> Column:
    ends.astype("<u8").tofile(path)
    layout = Layout(str(path), "test", 0, np.dtype("<u8"), (len(ends),), file_size=8 * len(ends))
    return Column(layout, "document ends")


@examples(4, deadline=2000)
@given(
    lengths=st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=5),
    tails=st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_documents_match_in_memory_reference(lengths: list[list[int]], tails: list[int]) -> None:
    """Shards whose last tokens belong to a document that ends in a later one, and empty documents too."""
    parts: list[Part] = []
    sizes, ends, start = [], [], 0
    for i, some in enumerate(lengths):
        local = np.cumsum(some, dtype=np.int64)
        size = (int(local[-1]) if len(local) else 0) + (tails[i] if i < len(lengths) - 1 else 0)
        parts.append(Listed(f"part {i}", local))
        ends.extend((local + start).tolist())
        sizes.append(size)
        start += size
    documents = Documents(parts, sizes)
    starts = [0, *ends[:-1]]
    expected = [list(pair) for pair in zip(starts, ends, strict=True)] if ends else []
    assert documents.count == len(ends)
    for i in range(len(ends) + 1):
        for j in range(i, len(ends) + 1):
            assert documents.bounds(i, j).tolist() == expected[i:j]
    for token in range(start):
        holders = [i for i, (begin, end) in enumerate(expected) if begin <= token < end]
        if holders:
            assert documents.at(token) == holders[0]
            first, bounds = documents.covering(token, start if ends[-1] == start else token + 1)
            assert first == holders[0]
            assert bounds.tolist() == expected[first : first + len(bounds)]
        else:
            with pytest.raises(FormatError):
                documents.at(token)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Documents, np.ndarray]:
    """A million documents in three files; ends in memory to compare with."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    parts, sizes, ends, start = [], [], [], 0
    for i, count in enumerate([400_000, 1, 600_000]):
        local = np.cumsum(rng.integers(0, 50, count))
        parts.append(column(folder / f"{i}.ends", local))
        sizes.append(int(local[-1]))
        ends.append(local + start)
        start += sizes[-1]
    return Documents(parts, sizes, whole=True), np.concatenate(ends)


def test_search_in_files_matches_search_in_memory(many: tuple[Documents, np.ndarray]) -> None:
    documents, ends = many
    tokens = np.random.default_rng(1).integers(0, documents.tokens, 300).tolist()
    for token in [0, documents.tokens - 1, *tokens]:
        assert documents.at(token) == int(np.searchsorted(ends, token, "right"))
    bounds = documents.bounds(399_990, 400_020)
    assert bounds[:, 1].tolist() == ends[399_990:400_020].tolist()
    assert bounds[1:, 0].tolist() == bounds[:-1, 1].tolist()


def test_search_reads_few_values(many: tuple[Documents, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    documents = pickle.loads(pickle.dumps(many[0]))
    read: list[int] = []
    convert = Column._tokens

    def counted(self: Column, values: np.ndarray) -> np.ndarray:
        read.append(len(values))
        return convert(self, values)

    monkeypatch.setattr(Column, "_tokens", counted)
    documents.at(documents.tokens // 2)
    assert len(read) <= 3
    assert sum(read) < 4096
    read.clear()
    documents.at(documents.tokens // 2 + 1)
    assert len(read) == 1  # what the first steps read is remembered


@pytest.mark.parametrize("length", [1, 100, 1025, 50_000])
def test_documents_covering_window_match_reference(many: tuple[Documents, np.ndarray], length: int) -> None:
    documents, ends = many
    starts = [0, documents.tokens - length, int(ends[399_999]) - length // 2]
    for start in starts:
        first, bounds = documents.covering(start, start + length)
        assert first == int(np.searchsorted(ends, start, "right"))
        assert bounds[:, 1].tolist() == ends[first : int(np.searchsorted(ends, start + length)) + 1].tolist()
    for start, stop in [(5, 5), (-1, 4), (0, documents.tokens + 1)]:
        with refused(IndexingError, "out of bounds for"):
            documents.covering(start, stop)


def test_verify_accepts_valid_index(many: tuple[Documents, np.ndarray]) -> None:
    many[0].verify()


def test_pickled_documents_can_be_searched_by_threads(many: tuple[Documents, np.ndarray]) -> None:
    documents: Documents = pickle.loads(pickle.dumps(many[0]))
    assert len(pickle.dumps(documents)) < 3000
    wrong: list[int] = []

    def search(seed: int) -> None:
        for token in np.random.default_rng(seed).integers(0, documents.tokens, 100).tolist():
            if documents.at(token) != int(np.searchsorted(many[1], token, "right")):
                wrong.append(token)

    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_few_index_files_stay_open(tmp_path: Path) -> None:
    parts = [column(tmp_path / f"{i}.ends", np.array([3])) for i in range(200)]
    documents = Documents(parts, [3] * 200)
    assert documents.bounds(0, 200)[:, 1].tolist() == list(range(3, 603, 3))
    assert sum(part._array is not None for part in parts) <= module._OPEN


LIES = {
    "back": ([5, 3, 10], "found 3 after 5"),
    "beyond": ([5, 11], "found 11"),
    "negative": ([2**64 - 1, 10], "found -1"),
    "short": ([5, 9], "the last is 9, expected 10"),
}


@pytest.mark.parametrize("name", LIES)
def test_inconsistent_index_raises_when_read(tmp_path: Path, name: str) -> None:
    ends, says = LIES[name]
    documents = Documents([column(tmp_path / "x.ends", np.array(ends, "u8"))], [10], whole=True)
    for act in (lambda: documents.bounds(0, len(ends)), documents.verify, lambda: documents.at(4)):
        with refused(FormatError, tmp_path / "x.ends", says):
            act()


def test_token_after_last_document_raises(tmp_path: Path) -> None:
    documents = Documents([column(tmp_path / "x.ends", np.array([4]))], [10])
    assert documents.at(3) == 0
    with refused(FormatError, tmp_path / "x.ends", "before token 4 of 10"):
        documents.at(4)


def test_out_of_range_documents_and_tokens_raise() -> None:
    documents = Documents([Even("x", 3, 10)], [30])
    for start, stop in [(-1, 2), (2, 1), (0, 4)]:
        with refused(IndexingError, "for 3 documents"):
            documents.bounds(start, stop)
    for token in (-1, 30):
        with refused(IndexingError, "for 30 tokens"):
            documents.at(token)


def test_changed_index_file_is_detected(tmp_path: Path) -> None:
    documents = Documents([column(tmp_path / "x.ends", np.arange(1, 11))], [10])
    assert documents.at(9) == 9
    (tmp_path / "x.ends").rename(tmp_path / "old")
    column(tmp_path / "x.ends", np.arange(1, 11))
    documents._parts[0].close()
    assert documents.at(9) == 9  # opened again, it is the file that is there now
    (tmp_path / "x.ends").write_bytes(bytes(8))
    with pytest.raises((FormatError, FileChangedError)):
        documents.bounds(0, 10)


@examples(4, deadline=2000)
@given(values=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 30), max_size=12), size=st.integers(1, 30))
def test_bounds_from_any_index_stay_inside_corpus(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], size: int
) -> None:
    part = column(tmp_path_factory.getbasetemp() / "fuzz.ends", np.array(values, "u8"))
    documents = Documents([part], [size])
    for token in range(size):
        try:
            begin, end = documents.bounds(at := documents.at(token), at + 1)[0]
        except LowtideError:
            continue
        assert 0 <= begin <= token < end <= size
