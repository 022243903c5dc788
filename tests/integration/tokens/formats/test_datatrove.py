"""datatrove's .ds files: from its own writer, from the bytes of its format, and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._tokens.formats import find
from lowtide.errors import ArgumentError, FormatError, LowtideError, TruncatedFileError
from tests.support.examples import examples
from tests.support.formats import damaged, refused
from tests.support.token_files import (
    Files,
    assert_honest_corpus,
    document_bounds,
    put,
    read_tokens,
    written_by,
)


def build(
    name: str = "x.ds", *, ids: int = 5, ends: tuple[int, ...] = (3, 5), metadata: str | None = None
) -> Files:
    text = f"gpt2|2\n{ids}\n5.00 T" if metadata is None else metadata
    tokens = np.arange(ids, dtype="<u2").tobytes()
    return {name: tokens, f"{name}.index": np.array(ends, "<u8").tobytes(), f"{name}.metadata": text.encode()}


WRITER = """
import sys
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
folder = sys.argv[1]
made = [("a/x", 2, "gpt2"), ("a/y", 2, "gpt2"), ("b/x", 4, "org/a|b"), ("c/x", 2, None)]
for name, size, tokenizer in made:
    file = TokenizedFile(
        folder, name + ".ds", tokenizer_name_or_path=tokenizer, save_final_metadata=True, token_size=size
    )
    file.write([1, 2, 3], None)
    file.write([4, 65535], None)
    file.close()
file = TokenizedFile(folder, "d/x.ds", token_size=4)
file.write([7], None)
file.close()
"""


def test_files_of_datatrove_writer_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = written_by("datatrove", WRITER, tmp_path_factory.mktemp("datatrove"))
    layout = find(folder / "a")
    assert (layout.format, str(layout.dtype), layout.metadata) == (
        "datatrove",
        "uint16",
        {"tokenizer": "gpt2"},
    )
    assert read_tokens(layout).tolist() == [1, 2, 3, 4, 65535] * 2
    assert document_bounds(layout) == [[0, 3], [3, 5], [5, 8], [8, 10]]
    layout = find(folder / "b")
    assert (str(layout.dtype), layout.metadata) == ("uint32", {"tokenizer": "org/a|b"})
    assert read_tokens(layout).tolist() == [1, 2, 3, 4, 65535]
    assert find(folder / "c").metadata == {"tokenizer": "Unknown Tokenizer|2"}
    with refused(ArgumentError, "without a .metadata", "dtype='uint16'"):
        find(folder / "d")
    assert read_tokens(find(folder / "d", dtype="uint32")).tolist() == [7]


def test_corpus_opens_by_folder_file_list_and_glob(tmp_path: Path) -> None:
    put(tmp_path, {**build(), "x.ds.loss": b""})
    for path in (tmp_path, tmp_path / "x.ds", [tmp_path / "x.ds"], tmp_path / "*.ds"):
        assert document_bounds(find(path)) == [[0, 3], [3, 5]]


def test_missing_index_leaves_documents_unknown(tmp_path: Path) -> None:
    files = build()
    del files["x.ds.index"]
    assert find(put(tmp_path, files)).documents is None
    put(tmp_path, {**files, **build("y.ds")})
    with refused(FormatError, tmp_path / "x.ds.index", "not there", tmp_path / "y.ds.index"):
        find(tmp_path)


def test_files_of_different_tokenizer_or_dtype_raise(tmp_path: Path) -> None:
    put(tmp_path, {**build("a.ds"), **build("b.ds", metadata="llama|2\n5\n")})
    with refused(ArgumentError, tmp_path / "b.ds.metadata", "'llama'", "'gpt2'"):
        find(tmp_path)
    put(tmp_path, {**build("a.ds"), **build("b.ds", metadata="gpt2|4\n5\n")})
    with refused(ArgumentError, tmp_path / "b.ds.metadata", "uint32", "uint16"):
        find(tmp_path)
    with refused(ArgumentError, tmp_path / "a.ds.metadata", "uint16", "got dtype='uint32'"):
        find(tmp_path / "a.ds", dtype="uint32")


LIES: dict[str, tuple[Files, type[LowtideError], tuple[object, ...]]] = {
    "tokens": (build(metadata="gpt2|2\n6\n"), TruncatedFileError, ("x.ds:", "10 bytes", "expected 12")),
    "tokens-more": (build(metadata="gpt2|2\n4\n"), FormatError, ("10 bytes", "expected 8")),
    "width": (build(metadata="gpt2|3\n5\n"), FormatError, ("x.ds.metadata", "'gpt2|3'")),
    "no-width": (build(metadata="gpt2\n5\n"), FormatError, ("'gpt2'",)),
    "no-count": (build(metadata="gpt2|2\n"), FormatError, ("number of tokens",)),
    "count": (build(metadata="gpt2|2\n-5\n"), FormatError, ("'-5'",)),
    "count-huge": (build(metadata="gpt2|2\n" + "9" * 5000), FormatError, ("number of tokens",)),
    "metadata-empty": (build(metadata=""), FormatError, ("number of tokens",)),
    "index-short": (build(ends=(3, 4)), FormatError, ("x.ds.index", "the last is 4", "expected 5")),
    "index-beyond": (build(ends=(3, 6)), FormatError, ("x.ds.index", "found 6", "5 tokens")),
    "index-empty": (build(ends=()), FormatError, ("x.ds.index", "0 bytes", "5 tokens")),
    "index-cut": ({**build(), "x.ds.index": bytes(15)}, TruncatedFileError, ("15 bytes", "8 bytes each")),
    "index-back": (build(ends=(5, 3)), FormatError, ("x.ds.index", "found 3 after 5")),
}


@pytest.mark.parametrize("name", LIES)
def test_contradictory_files_raise(tmp_path: Path, name: str) -> None:
    files, kind, says = LIES[name]
    put(tmp_path, files)
    with refused(kind, tmp_path, *says):
        find(tmp_path)


@examples(6, deadline=2000)
@given(data=st.data(), name=st.sampled_from(sorted(build())))
def test_damaged_files_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    files = build()
    files[name] = data.draw(damaged([files[name]], head=30))
    assert_honest_corpus(put(tmp_path_factory.getbasetemp() / "fuzz-datatrove", files))
