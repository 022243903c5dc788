"""What the tests of corpus formats share: reading tokens without lowtide, and the real writers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lowtide._tokens.formats import Tokens, find
from lowtide.errors import LowtideError
from tests.support.missing import missing

Files = dict[str, bytes]


def read_tokens(tokens: Tokens) -> np.ndarray:
    """Every token, by nothing but seek and read."""
    pieces = []
    for segment in tokens.segments:
        assert os.path.getsize(segment.path) == segment.file_size
        records = segment.count // segment.record if segment.record else 1
        with open(segment.path, "rb") as file:
            for i in range(records):
                file.seek(segment.offset + i * segment.stride)
                count = segment.record or segment.count
                data = file.read(count * tokens.dtype.itemsize)
                assert len(data) == count * tokens.dtype.itemsize
                pieces.append(np.frombuffer(data, tokens.dtype))
    return np.concatenate(pieces) if pieces else np.empty(0, tokens.dtype)


def document_bounds(tokens: Tokens) -> list[list[int]]:
    assert tokens.documents is not None
    bounds: list[list[int]] = tokens.documents.bounds(0, tokens.documents.count).tolist()
    return bounds


def put(folder: Path, files: Files) -> Path:
    """A folder with just these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def assert_honest_corpus(path: Path, **options: Any) -> None:
    """A path either gives segments that lie inside their files and documents in order, or a LowtideError."""
    try:
        layout = find(path, **options)
    except LowtideError:
        return
    assert layout.dtype.kind in "iu"
    for segment in layout.segments:
        size = os.path.getsize(segment.path)
        last = segment.offset + segment.count * layout.dtype.itemsize
        if segment.record:
            assert segment.count % segment.record == 0
            assert segment.stride >= segment.record * layout.dtype.itemsize
            records = segment.count // segment.record
            last = segment.offset + (records - 1) * segment.stride + segment.record * layout.dtype.itemsize
        assert segment.count >= 0
        assert 0 <= segment.offset <= last <= size == segment.file_size
    documents = layout.documents
    if documents is not None:
        with suppress(LowtideError):
            bounds = documents.bounds(0, documents.count)
            assert (bounds[:, 0] <= bounds[:, 1]).all()
            assert (bounds >= 0).all()
            assert (bounds <= layout.count).all()
        for token in {0, layout.count // 2, layout.count - 1}:
            with suppress(LowtideError):
                begin, end = documents.bounds(at := documents.at(token), at + 1)[0]
                assert begin <= token < end
        with suppress(LowtideError):
            documents.verify()
    if layout.index is not None:
        with suppress(LowtideError):
            for ends in layout.index():
                assert (ends >= 0).all()
                assert (ends <= layout.count).all()


def written_by(package: str, script: str, folder: Path) -> Path:
    """What ``script`` makes in ``folder`` with the real writer, in a separate process."""
    if importlib.util.find_spec(package) is None:
        missing(f"{package} is not installed: pip install 'lowtide[peers]'")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "writer.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path.unlink()
    return folder
