"""lowtide.create_corpus: what was appended is what is read, and nothing is there before."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._prepare import corpus_writer
from lowtide._tokens.formats.checksums import verify
from lowtide.errors import ArgumentError, ClosedError, WriteError
from tests.support.examples import examples

DOCUMENTS = st.lists(
    st.tuples(st.lists(st.integers(0, 999), max_size=40), st.sampled_from(["train", "val"])), min_size=1
)


@examples(1)
@given(
    documents=DOCUMENTS,
    shard_tokens=st.integers(1, 50),
    buffered=st.integers(1, 30),
    eos=st.sampled_from([None, 0]),
    layout=st.sampled_from(["shards", "nanogpt", "llmc"]),
    dtype=st.sampled_from(["uint16", "uint32"]),
)
def test_appended_documents_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[tuple[list[int], str]],
    shard_tokens: int,
    buffered: int,
    eos: int | None,
    layout: Any,
    dtype: str,
) -> None:
    folder = tmp_path_factory.mktemp("written") / "corpus"
    options = {"eos": eos, "layout": layout, "dtype": dtype, "shard_tokens": shard_tokens}
    expected: dict[str, list[list[int]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_writer, "_BUFFER", buffered * np.dtype(dtype).itemsize)
        patch.setattr(corpus_writer, "_ENDS", 3)
        out = lowtide.create_corpus(folder, **options)
        for ids, split in documents:
            out.append(ids, split)
            if ids:
                ended = ids if eos is None or ids[-1] == eos else [*ids, eos]
                expected.setdefault(split, []).append(ended)
        tokens = sum(len(ids) for split in expected.values() for ids in split)
        assert (out.tokens, out.documents) == (tokens, sum(map(len, expected.values())))
        assert not folder.exists()
        if not tokens:
            with pytest.raises(ArgumentError, match="no document was appended"):
                out.close()
            return
        out.close()
        out.close()
    for split, written in expected.items():
        with lowtide.corpus(folder, split=split) as corpus:
            assert str(corpus.dtype) == dtype
            assert corpus.eos == eos
            count = corpus.documents.count
            assert [corpus.document(i).tolist() for i in range(count)] == written
    verify(folder)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([1, -1], "from 0 to 99, got -1"),
        ([1, 100], "from 0 to 99, got 100; pass a larger vocab_size"),
        ([1.5], "token ids are integers, got dtype float64"),
        ([[1, 2]], "got an array of shape \\(1, 2\\)"),
        (["low"], "token ids are integers"),
        ([True], "token ids are integers, got dtype bool"),
    ],
)
def test_documents_that_are_not_token_ids_raise(tmp_path: Path, document: Any, problem: str) -> None:
    with lowtide.create_corpus(tmp_path / "corpus", vocab_size=100) as out:
        with pytest.raises(ArgumentError, match=problem):
            out.append(document)
        out.append([99])
    assert lowtide.corpus(tmp_path / "corpus")[:].tolist() == [99]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dtype": "int32"}, "dtype must be 'uint16' or 'uint32'"),
        ({"eos": -1}, "eos must be an integer >= 0"),
        ({"eos": 65_536}, "eos must be an id below 65536"),
        ({"vocab_size": 70_000}, "pass dtype='uint32'"),
        ({"layout": "rows"}, "layout must be"),
        ({"shard_tokens": 0}, "shard_tokens must be an integer >= 1"),
        ({"tokenizer": "char"}, "created from the text"),
    ],
)
def test_invalid_arguments_raise_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ArgumentError, match=problem):
        lowtide.create_corpus(tmp_path / "corpus", **options)
    assert list(tmp_path.iterdir()) == []


def test_writer_that_is_not_closed_leaves_no_files(tmp_path: Path) -> None:
    def fail() -> None:
        with lowtide.create_corpus(tmp_path / "corpus") as out:
            out.append([1, 2])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    out = lowtide.create_corpus(tmp_path / "corpus")
    out.abort()
    out.abort()
    with pytest.raises(ClosedError, match="the writer is aborted"):
        out.append([1])
    with pytest.warns(ResourceWarning, match="0 documents were not published.*lowtide.create_corpus"):
        _drop(tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []
    with lowtide.create_corpus(tmp_path / "corpus") as out:  # or it would be reported at the end of the tests
        out.append([1])


def _drop(path: Path) -> None:
    lowtide.create_corpus(path)
    gc.collect()


def test_nonempty_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"")
    with pytest.raises(WriteError, match="is not empty; pass another folder"):
        lowtide.create_corpus(tmp_path)
    with pytest.raises(WriteError, match="is not empty"):
        lowtide.create_corpus(tmp_path / "train.bin")


def test_second_writer_replaces_first(tmp_path: Path) -> None:
    first = lowtide.create_corpus(tmp_path / "corpus")
    first.append([1])
    with pytest.warns(ResourceWarning, match="1 documents were discarded"):
        second = lowtide.create_corpus(tmp_path / "corpus")
    second.append([2])
    second.close()
    with pytest.raises(ClosedError, match="replaced"):
        first.close()
    assert lowtide.corpus(tmp_path / "corpus")[:].tolist() == [2]
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(second)
    assert "closed" in repr(second)


def test_tokenizer_is_saved_with_the_corpus(tmp_path: Path) -> None:
    with lowtide.create_corpus(tmp_path / "corpus", eos=256, tokenizer="byte") as out:
        out.append(np.frombuffer(b"low tide", np.uint8))
    corpus = lowtide.corpus(tmp_path / "corpus")
    assert corpus.vocab_size == 257
    assert lowtide.load_tokenizer(tmp_path / "corpus").decode(corpus[:]) == "low tide"
