"""Unit tests stay in one process and do without PyTorch: whatever breaks that says where it belongs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
STARTS_PROCESS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
HEAVY_PACKAGES = {"dask", "lightning", "torch", "transformers"}

_current: list[Path] = []  # the file of the unit test that runs, or is collected


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _current:
        return
    if event in STARTS_PROCESS:
        _fail(f"starts a process ({event})", "process")
    elif event == "import" and args[0] in HEAVY_PACKAGES:
        _fail(f"imports {args[0]}", "integration")


def _fail(problem: str, folder: str) -> None:
    path = _current[-1].relative_to(FOLDER)
    # Not an Exception: code that tries an import, or a process, must not swallow it.
    raise pytest.fail.Exception(
        f"tests/unit/{path}: {problem}; move the test to tests/{folder}/{path}", pytrace=True
    )


# h5py asks for it when it is imported, and Python runs `uname` the first time.
platform.processor()
sys.addaudithook(_audit)

# No audit event is raised for processes that multiprocessing spawns.
_start = BaseProcess.start


def _audited_start(self: BaseProcess) -> None:
    _audit("subprocess.Popen", ())
    _start(self)


BaseProcess.start = _audited_start  # type: ignore[method-assign]


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    if FOLDER not in path.parents:
        yield
        return
    _current.append(path)
    try:
        yield
    finally:
        _current.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with _guarded(item.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    with _guarded(collector.path):
        return (yield)
