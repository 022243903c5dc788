"""A memory limit for a test: ``@pytest.mark.max_memory("64 MiB")``.

The limit is for what the test adds at its highest, as a true peak kept by the kernel, not what sampling
happens to see. Nothing is imported or measured for tests without the mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

_MARK = (
    'max_memory(limit, kind="rss", isolate=False): fail the test if it adds more memory than `limit`, '
    'such as "64 MiB"; kind is rss, heap, mapped, cache or cgroup; isolate=True runs it in a fresh process'
)
_OPTION = "--lowtide-isolated"
# Options of the outer run that control where tests are collected and how they are imported.
_HANDED_DOWN = ("-c", "-o", "-p", "-W", "--config-file", "--override-ini", "--import-mode", "--confcutdir")


class Limit(NamedTuple):
    """The mark's arguments, checked."""

    size: int
    kind: Any
    isolate: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that the plugin itself uses when it starts a fresh process."""
    import argparse

    parser.addoption(_OPTION, metavar="FILE", default=None, help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _MARK)


@pytest.hookimpl(wrapper=True, trylast=True)  # innermost: what other plugins allocate does not count
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a marked test."""
    if item.get_closest_marker("max_memory") is None:
        return (yield)
    limit = _limit(item)
    from lowtide._memory import proc
    from lowtide._memory.peaks import Peak
    from lowtide._memory.watch import Watch
    from lowtide._sizes import format_size

    if not proc.available():
        pytest.skip("max_memory needs Linux's /proc, which this system does not have")
    try:
        with Watch(kind=limit.kind) as watch:
            peak = Peak()
            try:
                result = yield
            finally:
                highest = peak.read()
                peak.close()
    finally:
        growth = highest - peak.base if limit.kind == "rss" else watch.growth or 0
        text = (
            f"max_memory: the test added {format_size(growth)} ({growth:,} bytes, kind {limit.kind}), "
            f"the limit is {format_size(limit.size)} ({limit.size:,} bytes)\n  {watch.explain()}"
        )
        item.user_properties.append(("max_memory_growth", growth))
    if growth > limit.size:
        pytest.fail(text, pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a test that is to be isolated in a fresh process, its fixtures with it."""
    if item.get_closest_marker("max_memory") is None or item.config.getoption(_OPTION):
        return None
    with contextlib.suppress(pytest.fail.Exception):  # a wrong mark is reported when the test runs
        if _limit(item).isolate:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for report in _run_isolated(item):
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In a fresh process, write each report to a file for the process that started it."""
    report = yield
    target = item.config.getoption(_OPTION)
    if target:
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with open(target, "a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")
    return report


def _limit(item: pytest.Item) -> Limit:
    from lowtide._memory import gauges
    from lowtide._sizes import parse_size
    from lowtide.errors import ArgumentError

    mark = item.get_closest_marker("max_memory")
    assert mark is not None
    try:
        limit = _arguments(*mark.args, **mark.kwargs)
        size, kind = parse_size(limit.size), gauges.named(limit.kind).name
    except (TypeError, ArgumentError) as error:
        problem = str(error).replace("_arguments()", "the mark is")
        raise pytest.fail.Exception(
            f'max_memory: {problem}; write max_memory("64 MiB")', pytrace=False
        ) from None
    return limit._replace(size=size, kind=kind)


def _arguments(limit: Any, kind: str = "rss", isolate: bool = False) -> Limit:
    return Limit(limit, kind, isolate)


def _run_isolated(item: pytest.Item) -> list[pytest.TestReport]:
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        target = os.path.join(folder, "reports.jsonl")
        done = subprocess.run(
            _command(item, target), cwd=item.config.invocation_params.dir, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, check=False, errors="replace",
        )  # fmt: skip
        lines = []
        if os.path.exists(target):
            with open(target, encoding="utf-8") as file:
                # A process that is killed meanwhile leaves its last line in part.
                lines = [line for line in file if line.endswith("\n")]
    reports = [
        item.config.hook.pytest_report_from_serializable(config=item.config, data=json.loads(line))
        for line in lines
    ]
    if not any(report.when == "teardown" for report in reports):
        reports.append(_died(item, done))
    for report in reports:
        report.nodeid, report.location = item.nodeid, item.location
        if isinstance(report.longrepr, list):  # where a test was skipped: JSON has no tuples
            report.longrepr = tuple(report.longrepr)
    return reports


def _command(item: pytest.Item, target: str) -> list[str]:
    config = item.config
    name = "::".join([str(item.path), *item.nodeid.split("::")[1:]])
    command = [sys.executable, "-m", "pytest", name, f"{_OPTION}={target}", f"--rootdir={config.rootpath}"]
    command += ["-p", "no:cacheprovider"]
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        command += ["-p", __name__]
    if config.pluginmanager.hasplugin("xdist"):
        command.append("-n0")
    words = iter(map(str, config.invocation_params.args))
    for word in words:
        if word in _HANDED_DOWN:
            command += [word, next(words, "")]
        elif word.startswith(_HANDED_DOWN):
            command.append(word)
    return command


def _died(item: pytest.Item, done: subprocess.CompletedProcess[str]) -> pytest.TestReport:
    how = f"with status {done.returncode}"
    if done.returncode < 0:
        how = f"by {signal.Signals(-done.returncode).name}"
    output = "\n".join(filter(None, (done.stdout[-4000:], done.stderr[-4000:])))
    return pytest.TestReport(
        item.nodeid, item.location, {}, "failed",
        f"max_memory: the process of the isolated test was ended {how}\n{output}", "call",
    )  # fmt: skip
