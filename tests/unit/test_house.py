"""How large the code is, and how long its paths are: `python -m benchmarks.house` prints both."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import house

import lowtide

MOST_FRAMES = {"tokens": 15, "chunks in order": 9, "shuffled chunks": 17}
"""From next() to the system call. A change that needs more has a reason to give."""


@pytest.mark.parametrize("kind", MOST_FRAMES)
def test_frames_from_next_to_system_call_are_bounded(kind: str, tmp_path: Path) -> None:
    call = house.frames(house.streams(tmp_path)[kind])
    assert call.name in ("preadv", "io_submit")
    assert len(call.functions) <= MOST_FRAMES[kind], " < ".join(call.functions)
    assert call.functions[-1] in ("batches.Batches.__next__", "chunks.Chunks.__next__")


def test_lines_are_counted_without_docstrings_and_comments() -> None:
    source = 'def f(x):\n    """Twice.\n\n    As it says.\n    """\n\n    # why\n    return """\n\n"""\n'
    assert house.lines_of(source) == house.Lines(all=10, code=4)


def test_every_module_is_counted() -> None:
    folder = Path(str(lowtide.__file__)).parent
    lines = house.lines_by_package(folder)
    assert {"(modules)", "_io", "_arrays", "_tokens"} <= set(lines)
    every = sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))
    assert sum(one.all for one in lines.values()) == every


def test_public_names_are_those_of_the_fronts() -> None:
    assert house.public_names(house.FRONTS)["lowtide"] == lowtide.__all__
