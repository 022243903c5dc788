"""What is installed: the wheel holds the package and nothing else, and runs with what it asks for alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import lowtide
from lowtide.cli import COMMANDS
from tests.support.shared import shared

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "lowtide"
ASKED_FOR = {"numpy", "psutil", "rich", "click"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built without a network."""

    def make(folder: Path) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return folder

    return shared(tmp_path_factory, "dist", make)


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = built.glob("*.whl")
    assert path.name == f"lowtide-{lowtide.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_wheel_holds_only_the_package(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    info = f"lowtide-{lowtide.__version__}.dist-info/"
    package = {name for name in names if not name.startswith(info)}
    ours = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert package == {path.relative_to(PACKAGE.parent).as_posix() for path in ours}
    assert {"lowtide/py.typed", "lowtide/_memory/profile/report.html"} <= package
    assert f"{info}licenses/LICENSE" in names


def test_wheel_metadata_has_entry_points_and_extras(wheel: zipfile.ZipFile) -> None:
    info = f"lowtide-{lowtide.__version__}.dist-info/"
    entries = wheel.read(f"{info}entry_points.txt").decode()
    assert "[console_scripts]\nlowtide = lowtide.cli:main" in entries
    assert "[pytest11]\nlowtide = lowtide.memory.pytest_plugin" in entries
    about = HeaderParser().parsestr(wheel.read(f"{info}METADATA").decode())
    assert about["Version"] == lowtide.__version__
    requirements = [line for line in about.get_all("Requires-Dist") or () if "extra" not in line]
    assert {Requirement(line).name for line in requirements} == ASKED_FOR
    # Every extra that an error names can be installed.
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    named = {part.split("]")[0] for source in sources for part in source.split("pip install 'lowtide[")[1:]}
    assert "gpt" in named
    named.remove("{extra}")  # of _extras.library, which is called with these:
    named |= {name for source in sources for name in re.findall(r'\blibrary\([^()]*, "(\w+)"\)', source)}
    assert named <= set(about.get_all("Provides-Extra") or ())


def test_package_index_links_resolve(wheel: zipfile.ZipFile) -> None:
    about = HeaderParser().parsestr(wheel.read(f"lowtide-{lowtide.__version__}.dist-info/METADATA").decode())
    home = dict(line.split(", ") for line in about.get_all("Project-URL") or ())["Homepage"]
    links = re.findall(r"\]\(([^)]*)\)", str(about.get_payload()))
    assert any(link.startswith(f"{home}/raw/main/docs/images/") for link in links)
    for link in links:
        assert link.startswith("https://"), f"{link}: relative, dead on a package index"
        if link.startswith(home):
            path = re.sub(r"^/(raw|blob)/main/", "", link.removeprefix(home)).partition("#")[0]
            assert (ROOT / path).exists(), link


def test_twine_accepts_distributions(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_matrix_covers_classifiers() -> None:
    jobs = json.loads(subprocess.check_output([sys.executable, ROOT / ".ci" / "matrix.py"]))
    claimed = metadata.metadata("lowtide").get_all("Classifier") or []
    versions = {
        line.rpartition(" ")[2] for line in claimed if line.startswith("Programming Language :: Python :: 3.")
    }
    assert {job["python"] for job in jobs} == versions
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in versions
    systems = [line for line in claimed if line.startswith("Operating System")]
    assert len(jobs) == len(versions) * len(systems)


def test_source_distribution_is_complete(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    top = f"lowtide-{lowtide.__version__}"
    with tarfile.open(path) as opened:
        names = {name.removeprefix(f"{top}/") for name in opened.getnames()}
    needed = {"pyproject.toml", "Makefile", "constraints.txt", "conftest.py", "README.md", "LICENSE"}
    needed |= {
        "src/lowtide/__init__.py",
        "tests/integration/test_wheel.py",
        "examples/README.md",
        "benchmarks/__main__.py",
    }
    assert needed <= names
    assert not any(part in name.split("/") for name in names for part in (".venv", "__pycache__", ".git"))


# Installed


def closure(names: set[str]) -> set[str]:
    """These distributions and all that they need."""
    result: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in result:
            continue
        result.add(name)
        for line in metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return result


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment: the wheel, what it asks for, and nothing else."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    programs = home / os.path.basename(sysconfig.get_path("scripts"))
    (path,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", path], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    for name in closure(ASKED_FOR):
        for file in metadata.distribution(name).files or ():
            link = packages / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(str(metadata.distribution(name).locate_file(file.parts[0]))))
    return programs


def run(programs: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(programs / str(command[0])), *map(str, command[1:])]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=programs.parent, env=environment
    )


def test_installed_program_runs(installed: Path, tmp_path: Path) -> None:
    code = "import lowtide, lowtide.memory; print(lowtide.__file__)"
    assert str(installed.parent) in run(installed, "python", "-c", code).stdout
    assert run(installed, "lowtide", "--version").stdout == f"lowtide {lowtide.__version__}\n"
    message = run(installed, "lowtide", "--help")
    assert (message.returncode, message.stderr) == (0, "")
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    assert "(3, 4)" in run(installed, "lowtide", "info", tmp_path / "a.npy").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_works_without_extras(installed: Path, command: str) -> None:
    message = run(installed, "lowtide", command, "--help")
    assert (message.returncode, message.stderr) == (0, "")
    assert message.stdout.startswith(f"Usage: lowtide {command}")


def test_missing_extra_error_has_install_command(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(4000))
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    done = run(installed, "lowtide", "train", "--data", tmp_path / "train.bin", "--out", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr == "lowtide: PyTorch is not installed; pip install 'lowtide[gpt]'\n"
    code = f"import lowtide; lowtide.to_dask(lowtide.open({str(tmp_path / 'a.npy')!r}))"
    done = run(installed, "python", "-c", code)
    assert "MissingExtraError" in done.stderr
    assert "pip install 'lowtide[dask]'" in done.stderr
