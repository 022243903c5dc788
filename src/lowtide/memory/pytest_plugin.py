"""A memory limit for a test: ``@pytest.mark.max_memory("64 MiB")``.

The limit is for what the test adds at its highest, as a true peak kept by the kernel, not what sampling
happens to see. Nothing is imported or measured for tests without the mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

_MARK = (
    'max_memory(limit, kind="rss", isolate=False, children=False): fail the test if it adds more memory than '
    '`limit`, such as "64 MiB"; kind is rss, heap, mapped, cache or cgroup; isolate=True runs it in a fresh '
    "process; children=True counts the processes that it starts"
)
_BOUNDED = (
    'bounded(reads=None, repeats=5, limit="8 MiB", isolate=False): repeat the test, until it has read `reads`'
    " bytes if given, and fail it if memory grows by more than `limit` after the first two repeats"
)
_LEAK_FREE = (
    'leak_free(repeats=10, limit="1 MiB", isolate=False): repeat the test and fail it if heap grows by more '
    "than `limit` after the first two repeats; isolate=True runs it in a fresh process"
)
_OPTION = "--lowtide-isolated"
_REPORT = "--memory-report"
_PROPERTY = "memory_growth"
# Options of the outer run that control where tests are collected and how they are imported.
_HANDED_DOWN = ("-c", "-o", "-p", "-W", "--config-file", "--override-ini", "--import-mode", "--confcutdir")


class Limit(NamedTuple):
    """The mark's arguments, checked."""

    size: int
    kind: Any
    isolate: bool
    children: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the setting."""
    import argparse

    parser.addoption(_OPTION, metavar="FILE", default=None, help=argparse.SUPPRESS)
    parser.getgroup("terminal reporting").addoption(
        _REPORT, metavar="N", nargs="?", type=int, const=10, default=None,
        help="Show the N tests that added the most memory, as true peaks. [default of N: 10]",
    )  # fmt: skip
    parser.addini("max_memory", "Limit for tests without the mark max_memory, such as 512 MiB.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    for mark in (_MARK, _BOUNDED, _LEAK_FREE):
        config.addinivalue_line("markers", mark)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a test added; under xdist this runs where the summary is printed."""
    if report.when == "call":
        growth = dict(report.user_properties).get(_PROPERTY)
        if isinstance(growth, int):
            _growth[report.nodeid] = growth


_growth: dict[str, int] = {}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the tests that added the most."""
    most = config.getoption(_REPORT)
    if most is None:
        return
    from lowtide._sizes import format_size

    rows = sorted(_growth.items(), key=lambda row: -row[1])[:most]
    terminalreporter.section(f"{len(rows)} tests that added the most memory")
    for name, size in rows:
        terminalreporter.write_line(f"{format_size(size):>12}  {name}")
    _growth.clear()


@pytest.hookimpl(wrapper=True, trylast=True)  # innermost: what other plugins allocate does not count
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test that has a mark, and every test where a limit or a report is asked for."""
    limit = _limit(item)
    repeats = [mark for mark in item.iter_markers() if mark.name in ("bounded", "leak_free")]
    if limit is None and not repeats and item.config.getoption(_REPORT) is None:
        return (yield)
    from lowtide._memory import proc

    if not proc.available():
        if limit is not None or repeats:
            pytest.skip("marks of memory need Linux's /proc, which this system does not have")
        return (yield)
    from lowtide._memory import repeats as repeating

    repeating.settle()  # what earlier tests have freed and malloc has kept would hide growth
    result = yield from _limited(item, limit)
    for mark in repeats[:1]:
        if problem := repeating.check(item.runtest, mark.name, mark.args, mark.kwargs):
            pytest.fail(problem, pytrace=False)
    return result


def _limited(item: pytest.Item, limit: Limit | None) -> Generator[None, object, object]:
    """Run the test once; fail it if it adds more than the limit."""
    from lowtide._memory.peaks import Peak
    from lowtide._memory.watch import Watch
    from lowtide._sizes import format_size

    watch = None if limit is None else Watch(kind=limit.kind, children=limit.children)
    try:
        with watch or contextlib.nullcontext():
            peak = Peak()
            try:
                result = yield
            finally:
                highest = peak.read()
                peak.close()
    finally:
        growth = highest - peak.base
        item.user_properties.append((_PROPERTY, growth))
        if watch is not None and limit is not None:
            if limit.kind != "rss" or limit.children:
                growth = max(watch.growth or 0, growth if limit.kind == "rss" else 0)
            text = (
                f"max_memory: the test added {format_size(growth)} ({growth:,} bytes, kind {limit.kind}), "
                f"the limit is {format_size(limit.size)} ({limit.size:,} bytes)\n  {watch.explain()}"
            )
            item.user_properties.append(("max_memory_growth", growth))
    if limit is not None and growth > limit.size:
        pytest.fail(text, pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a test that is to be isolated in a fresh process, its fixtures with it."""
    if item.config.getoption(_OPTION):
        return None
    with contextlib.suppress(pytest.fail.Exception):  # a wrong mark is reported when the test runs
        limit = _limit(item) if item.get_closest_marker("max_memory") is not None else None
        marks = (item.get_closest_marker(name) for name in ("bounded", "leak_free"))
        isolated = any(mark is not None and mark.kwargs.get("isolate") is True for mark in marks)
        if isolated or (limit is not None and limit.isolate):
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


def _limit(item: pytest.Item) -> Limit | None:
    mark, default = item.get_closest_marker("max_memory"), item.config.getini("max_memory")
    if mark is None and not default:
        return None
    from lowtide._memory import gauges
    from lowtide._sizes import parse_size
    from lowtide.errors import ArgumentError

    try:
        limit = _arguments(default) if mark is None else _arguments(*mark.args, **mark.kwargs)
        size, kind = parse_size(limit.size), gauges.named(limit.kind).name
    except (TypeError, ArgumentError) as error:
        problem = str(error).replace("_arguments()", "the mark is")
        raise pytest.fail.Exception(
            f'max_memory: {problem}; write max_memory("64 MiB")', pytrace=False
        ) from None
    return limit._replace(size=size, kind=kind)


def _arguments(limit: Any, kind: str = "rss", isolate: bool = False, children: bool = False) -> Limit:
    return Limit(limit, kind, isolate, children)


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
    from lowtide._printable import signal_name

    status = done.returncode
    how = f"by {signal_name(-status)}" if status < 0 else f"with status {status}"
    output = "\n".join(filter(None, (done.stdout[-4000:], done.stderr[-4000:])))
    return pytest.TestReport(
        item.nodeid, item.location, {}, "failed",
        f"max_memory: the process of the isolated test was ended {how}\n{output}", "call",
    )  # fmt: skip
