"""What a path is, as data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide._tokens.description import ArrayFile, CorpusSummary, describe, expand
from lowtide.errors import FormatError, NotFoundError
from tests.support.formats import write


def test_array_files_are_described_by_their_members(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros((2, 2), "<f4"))
    file = describe(str(tmp_path / "x.npz"))
    assert isinstance(file, ArrayFile)
    assert [(array["name"], array["shape"]) for array in file.as_json()["arrays"]] == [
        ("a", [3]),
        ("b", [2, 2]),
    ]
    assert file.bytes == (tmp_path / "x.npz").stat().st_size
    assert not file.damage


def test_damaged_members_are_listed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    path = write(tmp_path / "x.npy", (tmp_path / "x.npy").read_bytes()[:-1])
    file = describe(str(path))
    assert isinstance(file, ArrayFile)
    assert [type(error) for error in file.damage] == [file.arrays[0].error.__class__]
    assert isinstance(file.damage[0], FormatError)


def test_raw_files_need_a_dtype(tmp_path: Path) -> None:
    path = write(tmp_path / "x.raw", b"\1" * 12)
    with pytest.raises(FormatError):
        describe(str(path))
    file = describe(str(path), dtype="uint16", shape=(2, 3))
    assert isinstance(file, ArrayFile)
    assert file.arrays[0].layout is not None
    assert file.arrays[0].layout.shape == (2, 3)


def test_corpora_are_summarised(tmp_path: Path) -> None:
    np.array([5, 0, 7, 7, 0], "<u2").tofile(tmp_path / "train.bin")
    summary = describe(str(tmp_path), eos=0)
    assert isinstance(summary, CorpusSummary)
    assert (summary.format, summary.tokens, summary.documents, summary.largest_id) == ("nanogpt", 5, 2, 7)
    assert summary.as_json()["largest_id_is"] == "exact"
    unknown = describe(str(tmp_path / "train.bin"))
    assert isinstance(unknown, CorpusSummary)
    assert unknown.documents is None
    with pytest.raises(NotFoundError):
        describe(str(tmp_path / "nowhere"))


def test_folders_of_arrays_expand_to_their_files(tmp_path: Path) -> None:
    for name in ("b.npy", "a.npy"):
        np.save(tmp_path / name, np.zeros((2, 2)))
    write(tmp_path / "notes.txt", b"text")
    write(tmp_path / "broken.npz", b"text")
    names = ["a.npy", "b.npy", "broken.npz"]
    assert expand(str(tmp_path)) == [str(tmp_path / name) for name in names]
    assert expand(str(tmp_path / "[ab].npy")) == [str(tmp_path / name) for name in names[:2]]
    assert expand(str(tmp_path / "a.npy")) == [str(tmp_path / "a.npy")]
    np.arange(3, dtype="<u2").tofile(tmp_path / "train.bin")
    (tmp_path / "owt").mkdir()
    np.arange(3, dtype="<u2").tofile(tmp_path / "owt" / "train.bin")
    assert expand(str(tmp_path / "owt")) == [str(tmp_path / "owt")]
