"""The quick programs of the truth table, each run once. ``python -m benchmarks.verdicts`` runs all, often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.memory import drop_page_cache
from tests.support import truth

PROFILE = [sys.executable, "-c", "from lowtide.cli import main; main()", "profile", "--"]


@pytest.fixture(scope="module")
def data(gib: Path) -> Path:
    """The file under the name that the verdicts mention."""
    path = gib.parent / "data.bin"
    path.hardlink_to(gib)
    return path


@pytest.mark.parametrize("program", truth.chosen(quick=True), ids=lambda program: program.name)
def test_verdict_matches_known_memory_of_program(
    program: truth.Program, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not program.available():
        pytest.skip(f"needs {program.needs}")
    if program.cold:
        drop_page_cache(data)
    command = [*PROFILE, *program.command(str(data), str(tmp_path))]
    if program.limit is None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    else:
        with request.getfixturevalue("limited")(program.limit) as group:
            done = group.run(command)
    assert done.returncode == 0, done.stderr
    line = done.stderr.splitlines()[-1]
    judged = program.judged(line)
    # On a machine that does other things as well, a short program may be unclear; it may never be wrong.
    assert judged == "right" or (judged == "unclear" and program.unclear), line
