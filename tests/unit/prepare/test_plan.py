"""The plan of units."""

from __future__ import annotations

import gzip
from pathlib import Path

from lowtide._prepare.inputs import find, plan
from lowtide._prepare.inputs.kind import ReadOptions
from tests.support.token_files import put


def test_units_cover_each_source_once(tmp_path: Path) -> None:
    zipped = gzip.compress(b"abc" * 100)
    put(tmp_path, {"a.txt": b"a" * 25, "b.txt.gz": zipped, "c.jsonl": b"{}" * 5})
    sources = find([str(tmp_path)])
    units = plan(sources, ReadOptions(unit_size=10))
    assert [(unit.number, sources[unit.number].label, unit.start, unit.stop) for unit in units] == [
        (0, "text", 0, 10),
        (0, "text", 10, 20),
        (0, "text", 20, 25),
        (1, "text.gz", 0, len(zipped)),
        (2, "jsonl", 0, 10),
    ]
    assert all(unit.path == sources[unit.number].path for unit in units)
    assert plan(sources, ReadOptions(unit_size=10)) == units
