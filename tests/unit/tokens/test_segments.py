"""lowtide._tokens.segments: tokens of many files, and of files with records, as one long array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide._tokens import segments
from lowtide._tokens.formats.tokens import Segment
from lowtide._tokens.segments import Segments

DTYPE = np.dtype("<u2")


def write(folder: Path, sizes: list[int], record: int, gap: int) -> tuple[Segments, np.ndarray[Any, Any]]:
    """Segments of these sizes, every second one in records with ``gap`` bytes between them."""
    parts, start = [], 0
    for nth, size in enumerate(sizes):
        tokens = np.arange(start, start + size, dtype=DTYPE)
        start += size
        path = folder / f"{nth}.bin"
        if nth % 2:
            rows = [tokens[i : i + record].tobytes() + bytes(gap) for i in range(0, size, record)]
            content, shape = b"head" + b"".join(rows), (record, record * 2 + gap)
        else:
            content, shape = b"head" + tokens.tobytes(), (0, 0)
        path.write_bytes(content)
        parts.append(Segment(str(path), 4, size, *shape, file_size=len(content)))
    return Segments(parts, DTYPE, reader="auto", cache="keep"), np.arange(start, dtype=DTYPE)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    record=st.integers(1, 9),
    gap=st.integers(0, 5),
    data=st.data(),
)
def test_spans_match_one_long_ring(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], record: int, gap: int, data: st.DataObject
) -> None:
    tokens, expected = write(tmp_path_factory.mktemp("segments"), sizes, record, gap)
    assert len(tokens) == len(expected)
    starts = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=6)))
    width = data.draw(st.integers(1, 2 * len(expected)))
    out = np.empty((len(starts), width), DTYPE)
    tokens.submit_windows(starts, out).wait()
    assert (out == expected[(starts[:, None] + np.arange(width)) % len(expected)]).all()
    lengths = np.array(data.draw(st.lists(st.integers(1, width), min_size=len(starts), max_size=len(starts))))
    out[:] = 0
    tokens.submit(starts, lengths, np.cumsum(lengths) - lengths, out).wait()
    spans = [
        expected[(start + np.arange(n)) % len(expected)] for start, n in zip(starts, lengths, strict=True)
    ]
    assert (out.ravel()[: lengths.sum()] == np.concatenate(spans)).all()
    tokens.close()


def test_empty_request_is_done_immediately(tmp_path: Path) -> None:
    tokens, _ = write(tmp_path, [5], 1, 0)
    empty = np.empty(0, np.int64)
    assert tokens.submit(empty, empty, empty, np.empty(0, DTYPE)).done


def test_readers_beyond_the_limit_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_READERS", 3)
    tokens, expected = write(tmp_path, [4] * 10, 2, 1)
    out = np.empty((10, 4), DTYPE)
    tokens.submit_windows(np.arange(10) * 4, out).wait()
    assert (out.ravel() == expected).all()
    assert len(tokens._readers) == 3
    tokens.close()
    assert not tokens._readers
