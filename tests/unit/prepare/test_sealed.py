"""Sealed files: damage, another name and another key are all noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide._prepare.sealed import digest_of, read, write

CONTENT = {"consumed": 3, "name": "sea"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(str(tmp_path / "state.json"), CONTENT, "key")
    return tmp_path / "state.json"


def test_content_round_trips_and_leaves_no_other_files(path: Path) -> None:
    assert read(str(path), "key") == CONTENT
    assert os.listdir(path.parent) == ["state.json"]


def test_any_changed_byte_is_detected(path: Path) -> None:
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert read(str(path), "key") is None, place


@pytest.mark.parametrize("size", [0, 1, 60, -1])
def test_truncated_content_is_detected(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    assert read(str(path), "key") is None


def test_different_key_or_name_does_not_match(path: Path) -> None:
    assert read(str(path), "another") is None
    assert read(str(path.rename(path.with_name("plan.json"))), "key") is None


def test_missing_file_and_folder_return_none(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) is None
    assert read(str(tmp_path)) is None


def test_digest_does_not_depend_on_key_order() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
