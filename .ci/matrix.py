"""Print the CI matrix as JSON: one job per system and Python version that the classifiers claim."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

RUNNERS = {
    "Operating System :: POSIX :: Linux": "ubuntu-latest",
    "Operating System :: MacOS": "macos-latest",
    "Operating System :: Microsoft :: Windows": "windows-latest",
}
PYTHON = "Programming Language :: Python :: 3."


def matrix(pyproject: Path) -> list[dict[str, str]]:
    """The jobs for the classifiers of a pyproject.toml."""
    classifiers = tomllib.loads(pyproject.read_text())["project"]["classifiers"]
    runners = [RUNNERS[name] for name in classifiers if name.startswith("Operating System")]
    versions = [name.rpartition(" ")[2] for name in classifiers if name.startswith(PYTHON)]
    return [{"runner": runner, "python": version} for runner in runners for version in versions]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(matrix(Path(__file__).parent.parent / "pyproject.toml")) + "\n")
