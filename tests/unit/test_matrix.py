"""The CI matrix: one job per system and Python version that the classifiers claim, and no other claims."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MATRIX = runpy.run_path(str(ROOT / ".ci" / "matrix.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_classifier_has_a_job() -> None:
    jobs = MATRIX["matrix"](ROOT / "pyproject.toml")
    assert jobs == [
        {"runner": "ubuntu-latest", "python": "3.11"},
        {"runner": "ubuntu-latest", "python": "3.12"},
        {"runner": "ubuntu-latest", "python": "3.13"},
    ]
    assert PROJECT["requires-python"] == f">={jobs[0]['python']}"


def test_macos_classifier_gets_a_job(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nclassifiers = ["Operating System :: MacOS", "Programming Language :: Python :: 3.14"]\n'
    )
    assert MATRIX["matrix"](tmp_path / "pyproject.toml") == [{"runner": "macos-latest", "python": "3.14"}]


def test_unknown_system_raises(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nclassifiers = ["Operating System :: BeOS"]\n')
    with pytest.raises(KeyError):
        MATRIX["matrix"](tmp_path / "pyproject.toml")


def test_workflow_runs_the_generated_matrix() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "python .ci/matrix.py" in workflow
    assert "fromJSON(needs.matrix.outputs.include)" in workflow
