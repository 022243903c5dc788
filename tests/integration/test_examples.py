"""Every example runs as it stands, and what it asserts at its end holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cgroup import limited

__all__ = ["limited"]
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)]


def environment(tmp_path: Path) -> dict[str, str]:
    """One thread: two examples on two cores would wait for each other's."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sklearn_partial_fit.py"])
def test_example_runs_and_leaves_no_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        command(name),
        cwd=tmp_path / "here",
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout
    # It leaves nothing behind; what PyTorch and Dask leave in the temporary folder is small.
    assert not list((tmp_path / "here").iterdir())
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 2**20


def test_sklearn_example_fits_matrix_larger_than_container(limited: Any, tmp_path: Path) -> None:
    with limited("256 MiB") as group:
        built = command("sklearn_partial_fit.py", tmp_path)
        done = group.run(built, cwd=tmp_path, timeout=250, env=environment(tmp_path))
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        assert group.oom_kills() == 0
        assert "this container 256.0 MiB" in done.stdout
    assert (tmp_path / "features.npy").stat().st_size > 2 * 256 * 2**20
    (tmp_path / "features.npy").unlink()


def test_every_example_is_listed_in_the_readme() -> None:
    message = (EXAMPLES / "README.md").read_text()
    assert NAMES
    for name in NAMES:
        assert f"[{name}]({name})" in message
        lines = (EXAMPLES / name).read_text().splitlines()
        assert f"    python examples/{name}" in "\n".join(lines[:10]), "it says how to run it"
        assert 40 <= len(lines) <= 120
        assert any("assert" in line for line in lines)
