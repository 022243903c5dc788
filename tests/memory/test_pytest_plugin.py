"""The mark for tests, at the edge of its limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import mmap, os, time
import pytest

PAGE = mmap.PAGESIZE
LIMIT = 2000 * PAGE
held = []

def take(pages):
    block = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(23)
    held.append(block)

@pytest.fixture(autouse=True)
def release():
    yield
    held.clear()

@pytest.mark.max_memory(LIMIT)
def test_nothing_much():
    # What Python and pytest touch the first time they go this way is not the next tests' doing.
    take(1)
"""


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(HEAD + tests)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


@pytest.mark.parametrize(("pages", "passes"), [(1999, True), (2000, True), (2001, False)])
def test_one_page_above_the_limit_fails(pytester: pytest.Pytester, pages: int, passes: bool) -> None:
    result = run(pytester, f"@pytest.mark.max_memory(LIMIT)\ndef test_it(): take({pages})\n")
    result.assert_outcomes(passed=2 if passes else 1, failed=0 if passes else 1)
    if not passes:
        result.stdout.fnmatch_lines([
            "*max_memory: the test added 7.8 MiB (8,196,096 bytes, kind rss), "
            "the limit is 7.8 MiB (8,192,000 bytes)*",
            "*true peak, kept by the kernel*",
            "*what grew: heap +7.8 MiB, mapped files*",
        ])  # fmt: skip


def test_freed_memory_counts(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.max_memory(LIMIT)\ndef test_it(): take(4000); held.clear()\n")
    result.assert_outcomes(passed=1, failed=1)


def test_memory_of_fixtures_does_not_count(pytester: pytest.Pytester) -> None:
    tests = (
        "@pytest.fixture\ndef much(): take(4000)\n"
        "@pytest.mark.max_memory(LIMIT)\ndef test_it(much): take(100)\n"
    )
    run(pytester, tests).assert_outcomes(passed=2)


@pytest.mark.parametrize(("kind", "passes"), [("heap", False), ("mapped", True)])
def test_kind_selects_the_gauge(pytester: pytest.Pytester, kind: str, passes: bool) -> None:
    tests = f"@pytest.mark.max_memory(LIMIT, kind={kind!r})\ndef test_it(): take(4000); time.sleep(0.05)\n"
    run(pytester, tests).assert_outcomes(passed=2 if passes else 1, failed=0 if passes else 1)


def test_isolated_test_runs_in_new_process_with_its_fixtures(pytester: pytest.Pytester) -> None:
    tests = (
        f"""
import tempfile
outer = {pytester.path!s}
@pytest.fixture
def where(tmp_path): return tmp_path
""".replace(str(pytester.path), repr(str(pytester.path)))
        + """
pid = os.path.join(outer, "pid")
def test_outside():
    with open(pid, "w") as file: file.write(str(os.getpid()))
@pytest.mark.max_memory(LIMIT, isolate=True)
def test_inside(where):
    assert where.is_dir()
    with open(pid) as file: assert int(file.read()) != os.getpid()
@pytest.mark.max_memory(LIMIT, isolate=True)
@pytest.mark.parametrize("pages", [1900, 2001], ids=["below", "above the limit"])
def test_edge(pages): take(pages)
@pytest.mark.max_memory(LIMIT, isolate=True)
def test_wrong(): assert 1 == 2, "its own failure"
@pytest.mark.max_memory(LIMIT, isolate=True)
def test_skipped(): pytest.skip("not today")
"""
    )
    result = run(pytester, tests, "-rs")
    result.assert_outcomes(passed=4, failed=2, skipped=1)
    result.stdout.fnmatch_lines(
        ["*test_edge[[]above the limit[]]*", "*max_memory: the test added*", "*its own failure*"]
    )
    result.stdout.fnmatch_lines(["*not today*"])


def test_killed_isolated_test_fails_with_signal_name(pytester: pytest.Pytester) -> None:
    tests = "@pytest.mark.max_memory(LIMIT, isolate=True)\ndef test_it(): os.kill(os.getpid(), 9)\n"
    result = run(pytester, tests)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the process of the isolated test was ended by SIGKILL*"])


def test_failing_test_reports_its_own_failure(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "@pytest.mark.max_memory(LIMIT)\ndef test_it():\n    take(4000)\n    assert 1 == 2\n"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])
    assert "max_memory: the test added" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'12 bananas'", "*size '12 bananas' is not understood*"),
        ("", "*missing 1 required positional argument: 'limit'*"),
        ("'1 MiB', kind='stack'", "*kind must be one of rss, heap, mapped, cache, cgroup (got 'stack')*"),
        ("'1 MiB', size=3", "*unexpected keyword argument 'size'*"),
        ("None", "*max_memory: *"),
    ],
)
def test_invalid_mark_fails_with_the_reason(pytester: pytest.Pytester, arguments: str, message: str) -> None:
    result = run(pytester, f"@pytest.mark.max_memory({arguments})\ndef test_it(): pass\n")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([message])


def test_marks_are_registered_and_unused_plugin_prints_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_it(): assert 'lowtide._memory.watch' not in sys.modules\n")
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert "max_memory" not in result.stdout.str()
    assert "max_memory(limit" in pytester.runpytest_subprocess("--markers").stdout.str()


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    script = (
        "import sys, pytest\nbefore = set(sys.modules)\nimport lowtide.memory.pytest_plugin\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('lowtide')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
