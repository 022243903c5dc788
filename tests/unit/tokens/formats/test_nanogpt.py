"""nanoGPT's train.bin and val.bin, other raw files, and a meta.pkl that may be hostile."""

from __future__ import annotations

import os
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._tokens.formats import find
from lowtide._tokens.formats.nanogpt import MAX_META, read_meta
from lowtide.errors import ArgumentError, FormatError, LowtideError, NotFoundError, UnsupportedError
from tests.support.examples import examples
from tests.support.formats import damaged, refused, write
from tests.support.token_files import assert_honest_corpus, put, read_tokens

META = {"vocab_size": 3, "itos": {0: "\n", 1: "ä", 2: "b"}, "stoi": {"\n": 0, "ä": 1, "b": 2}}


def ids(*values: int, dtype: str = "<u2") -> bytes:
    return np.array(values, dtype).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(tmp_path / "shakespeare_char", {"train.bin": ids(1, 2, 65535), "val.bin": ids(7)})


def test_output_of_prepare_script_is_read(folder: Path) -> None:
    with open(folder / "meta.pkl", "wb") as file:
        pickle.dump(META, file)
    tokens = find(folder)
    assert (tokens.format, str(tokens.dtype), tokens.vocab_size, tokens.eos) == ("nanogpt", "uint16", 3, None)
    assert tokens.metadata == META
    assert (tokens.documents, tokens.index) == (None, None)
    assert read_tokens(tokens).tolist() == [1, 2, 65535]
    assert read_tokens(find(folder, split="val")).tolist() == [7]


def test_dtype_can_be_passed(tmp_path: Path) -> None:
    folder = put(tmp_path, {"train.bin": ids(1, 2**31, dtype="<u4")})
    tokens = find(folder, dtype="uint32")
    assert (tokens.format, read_tokens(tokens).tolist()) == ("nanogpt", [1, 2**31])


def test_missing_split_raises(folder: Path) -> None:
    (folder / "val.bin").unlink()
    with refused(NotFoundError, folder, "'val'", "train.bin"):
        find(folder, split="val")


def test_raw_file_without_nanogpt_name_needs_dtype(folder: Path, tmp_path: Path) -> None:
    assert find(folder / "train.bin").format == "nanogpt"
    (folder / "test.bin").write_bytes(ids(5))
    assert read_tokens(find(folder / "test.bin")).tolist() == [5]  # beside a train.bin
    path = write(tmp_path / "ids.bin", ids(5))
    with refused(ArgumentError, path, r"b'\x05\x00'", f"lowtide.corpus({str(path)!r}, dtype='uint16')"):
        find(path)
    tokens = find(path, dtype="uint16")
    assert (tokens.format, read_tokens(tokens).tolist()) == ("raw", [5])


def test_partial_token_at_end_raises(folder: Path) -> None:
    (folder / "train.bin").write_bytes(bytes(7))
    with refused(FormatError, folder / "train.bin", "7 bytes", "token's 2", "1 left over"):
        find(folder)


@pytest.mark.parametrize("linked", [False, True])
def test_unfinished_append_exposes_only_published_tokens(folder: Path, linked: bool) -> None:
    (folder / "train.bin.appending").write_bytes(b'{"size": 4}')
    path = folder / "train.bin"
    if linked:
        path = folder.parent / "train.bin"
        path.symlink_to(folder / "train.bin")
    [segment] = find(path).segments
    assert (segment.count, segment.file_size) == (2, 4)


# meta.pkl


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickle_of_protocol_2_or_later_is_read(tmp_path: Path, protocol: int) -> None:
    content: dict[str, Any] = {**META, "large": 2**40, "negative": -5, "long": "x" * 1000}
    assert read_meta(str(write(tmp_path / "meta.pkl", pickle.dumps(content, protocol)))) == content


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hacked",)


class Plain:
    pass


HOSTILE: dict[str, tuple[bytes, type[LowtideError], str]] = {
    "call": (pickle.dumps({"vocab_size": Exploit()}), UnsupportedError, "run any code"),
    "call-protocol-0": (pickle.dumps({"vocab_size": Exploit()}, 0), UnsupportedError, "run any code"),
    "global": (b"\x80\x04cos\nsystem\n.", UnsupportedError, "GLOBAL ('os system')"),
    "instance": (pickle.dumps({"x": Plain()}), UnsupportedError, "run any code"),
    "persistent": (b"\x80\x04X\x01\x00\x00\x00aQ.", UnsupportedError, "BINPERSID"),
    "extension": (b"\x80\x02\x82\x01.", UnsupportedError, "EXT1"),
    "list": (pickle.dumps({"x": [1]}), UnsupportedError, "EMPTY_LIST"),
    "float": (pickle.dumps({"x": 1.5}), UnsupportedError, "BINFLOAT"),
    "array": (pickle.dumps({"x": np.arange(3)}), UnsupportedError, "run any code"),
    "memo": (b"\x80\x02}r\xff\xff\xff\xff.", FormatError, "4294967295"),
    "long": (b"\x80\x02}X\x01\x00\x00\x00a\x8a\xff" + bytes(254) + b"\x01s.", UnsupportedError, "LONG1"),
    "dup": (b"\x80\x02}20.", UnsupportedError, "DUP"),
    "not-a-dict": (pickle.dumps("text"), FormatError, "found 'text'"),
    "keys": (pickle.dumps({1: 2}), FormatError, "names for keys"),
    "dict-twice": (b"\x80\x02}q\x00X\x01\x00\x00\x00a}q\x01sX\x01\x00\x00\x00bh\x01s.", FormatError, "twice"),
    "dict-in-itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", FormatError, "twice"),
    "many-dicts": (b"\x80\x02" + b"}" * 1000 + b".", FormatError, "more than 50 dicts"),
    "surrogate": (pickle.dumps({"a": "\ud800"}), FormatError, "surrogates"),
    "cut": (pickle.dumps(META)[:-5], FormatError, "not a valid pickle"),
    "empty": (b"", FormatError, "not a valid pickle"),
    "text": (b"vocab_size: 65\n", FormatError, "not a valid pickle"),
    "stack": (b"\x80\x02s.", FormatError, "not a valid pickle"),
    "size-lies": (b"\x80\x02X\xff\xff\xff\x7fabc.", FormatError, "not a valid pickle"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_meta_with_code_is_rejected_before_it_runs(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    data, kind, says = HOSTILE[name]
    path = write(folder / "meta.pkl", data)
    with refused(kind, path, says, f"pass the file of tokens: {str(folder / 'train.bin')!r}"):
        find(folder)
    assert not (folder / "hacked").exists()
    assert find(folder / "train.bin").count == 3  # the remedy


@pytest.mark.parametrize("size", [0, -1, True, "65", None, 65537, {}])
def test_invalid_vocab_size_in_meta_raises(folder: Path, size: Any) -> None:
    data = pickle.dumps({"vocab_size": size})
    path = write(folder / "meta.pkl", data)
    with refused(LowtideError, path):
        find(folder)


def test_meta_over_size_limit_raises(folder: Path) -> None:
    with open(folder / "meta.pkl", "wb") as file:
        file.truncate(MAX_META + 1)
    with refused(FormatError, folder / "meta.pkl", MAX_META + 1, MAX_META):
        find(folder)


def test_allowed_pickle_opcodes_cannot_import_or_call() -> None:
    from lowtide._tokens.formats.nanogpt import _PLAIN

    known = {step.name for step in pickletools.opcodes}
    assert known >= _PLAIN
    dangerous = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1"}
    assert not _PLAIN & dangerous


PICKLES = [pickle.dumps(META, protocol) for protocol in (2, 4, 5)]


@examples(6, deadline=2000)
@given(data=damaged(PICKLES, head=120) | st.binary(max_size=60))
def test_damaged_meta_raises_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = put(tmp_path_factory.getbasetemp() / "fuzz-meta", {"train.bin": ids(1, 2), "meta.pkl": data})
    assert_honest_corpus(folder)


@examples(2, deadline=2000)
@given(
    data=st.binary(max_size=40),
    dtype=st.sampled_from([None, "u1", "uint16", "uint32", "int64", "float32", ">u2", "nope"]),
    magic=st.sampled_from([b"", struct.pack("<3i", 20240520, 1, 5), b"MMIDIDX\0\0", b"\x93NUMPY\x01\x00"]),
)
def test_any_bytes_in_bin_raise_only_lowtide_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, dtype: Any, magic: bytes
) -> None:
    folder = put(tmp_path_factory.getbasetemp() / "fuzz-bin", {"train.bin": magic + data})
    assert_honest_corpus(folder, dtype=dtype)


@pytest.mark.parametrize("dtype", ["<u4", "<i4", "<i8"])
def test_wide_tokens_are_not_read_as_uint16(tmp_path: Path, dtype: str) -> None:
    ids = np.random.default_rng(0).integers(0, 50257, 1000)
    write(tmp_path / "train.bin", ids.astype(dtype).tobytes())
    with refused(ArgumentError, "train.bin", "looks like tokens of uint32", "dtype='uint32'"):
        find(tmp_path)
    assert find(tmp_path, dtype="uint16").count == 1000 * np.dtype(dtype).itemsize // 2


def test_uint16_tokens_are_not_taken_for_wider_ones(tmp_path: Path) -> None:
    for ids in (np.zeros(100), np.arange(100) % 2, np.arange(100) % 12, np.arange(1000)):
        write(tmp_path / "train.bin", ids.astype("<u2").tobytes())
        assert find(tmp_path).count == len(ids)
