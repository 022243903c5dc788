"""Public attributes cannot be assigned: a shape that was would be believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide


@pytest.fixture
def things(tmp_path: Path) -> Iterator[dict[str, Any]]:
    np.save(tmp_path / "a.npy", np.arange(12).reshape(4, 3))
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    array, corpus = lowtide.open(tmp_path / "a.npy"), lowtide.corpus(tmp_path / "train.bin", eos=7)
    things: dict[str, Any] = {
        "array": array,
        "chunks": array.chunks(2),
        "corpus": corpus,
        "batches": corpus.batches(2, 8),
        "mixture": lowtide.mix({"a": corpus}, {"a": 1}),
        "with_documents": corpus.batches(2, 8).with_documents(),
        "writer": lowtide.create(tmp_path / "out.npy", "f4", 3),
    }
    yield things
    things["writer"].abort()


KINDS = ["array", "chunks", "corpus", "batches", "mixture", "with_documents", "writer"]


def public_names(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


@pytest.mark.parametrize("kind", KINDS)
def test_no_public_name_can_be_assigned_or_deleted(things: dict[str, Any], kind: str) -> None:
    thing = things[kind]
    before = {
        name: getattr(thing, name) for name in public_names(thing) if name not in ("columns", "documents")
    }
    for name in public_names(thing):
        with pytest.raises(AttributeError, match=rf"\.{name} is read-only; \w+"):
            setattr(thing, name, 5)
        with pytest.raises(AttributeError, match=f"{name} is read-only"):
            delattr(thing, name)
    after = {name: getattr(thing, name) for name in before}
    assert str(after) == str(before)


@pytest.mark.parametrize("kind", KINDS)
def test_assigning_unknown_attribute_raises(things: dict[str, Any], kind: str) -> None:
    with pytest.raises(AttributeError, match="shpae does not exist"):
        things[kind].shpae = 5


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        ("array", "shape", "open the file again"),
        ("array", "dtype", r"array\[:\]"),
        ("array", "row_nbytes", "open the file again"),
        ("chunks", "rows", r"array\.chunks"),
        ("corpus", "eos", r"lowtide\.corpus"),
        ("batches", "length", r"corpus\.batches"),
        ("mixture", "weights", r"lowtide\.mix"),
        ("with_documents", "close", r"with_documents\(\)"),
        ("writer", "rows", "other arguments"),
    ],
)
def test_read_only_attribute_error_has_remedy(
    things: dict[str, Any], kind: str, name: str, remedy: str
) -> None:
    with pytest.raises(AttributeError, match=remedy):
        setattr(things[kind], name, 5)


def test_failed_assignment_does_not_change_rows(things: dict[str, Any]) -> None:
    array = things["array"]
    with pytest.raises(AttributeError):
        array.shape = (3, 4)
    with pytest.raises(AttributeError):
        array.dtype = np.dtype("f8")
    assert array[1].tolist() == [3, 4, 5]


def test_modifying_returned_weights_does_not_change_mixture(things: dict[str, Any]) -> None:
    mixture = things["mixture"]
    mixture.weights[0]["a"] = mixture.weights[0]["b"] = 5
    assert mixture.weights == {0: {"a": 1}}
