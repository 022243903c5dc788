"""Marks over repeats, the default limit, the report: real runs of pytest."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import mmap, os, subprocess, sys
import pytest
MIB = 2**20
held = []
def take(mib):
    block = mmap.mmap(-1, int(mib * MIB), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(23)
    return block
"""


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(HEAD + tests)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_leak_free_and_bounded_marks_distinguish_leaks_from_caches(pytester: pytest.Pytester) -> None:
    tests = """
cache = {}
@pytest.mark.leak_free
def test_leak(): held.append(take(0.5))
@pytest.mark.leak_free(repeats=5, limit="16 MiB")
def test_small_leak_within_its_limit(): held.append(take(0.5))
@pytest.mark.leak_free
def test_cache(): cache.setdefault("a", take(32)); take(64)
@pytest.mark.bounded(repeats=6)
def test_growing(): held.append(take(4))
@pytest.mark.bounded
def test_bounded(): take(64)
class TestClass:
    @pytest.mark.leak_free
    def test_method(self, tmp_path): held.append(take(0.5))
"""
    tests += """
@pytest.fixture
def anyio_backend(): return "asyncio"
@pytest.mark.anyio
@pytest.mark.leak_free
async def test_async(): held.append(take(0.5))
"""
    result = run(pytester, tests)
    result.assert_outcomes(passed=3, failed=4)
    result.stdout.fnmatch_lines([
        "*leak_free: heap grew by *, the limit is 1.0 MiB; 512.0 KiB per call*",
        "*bounded: memory grew by *, the limit is 8.0 MiB; 4.0 MiB per call*",
    ])  # fmt: skip


def test_isolated_repeats_run_in_new_process(pytester: pytest.Pytester) -> None:
    tests = """
here = os.environ.setdefault("HERE", str(os.getpid()))
@pytest.mark.leak_free(isolate=True)
def test_leak(): held.append(take(0.5))
@pytest.mark.bounded(repeats=4, isolate=True)
def test_elsewhere(): assert here != str(os.getpid())
@pytest.mark.leak_free(isolate="yes")
def test_wrong(): pass
"""
    result = run(pytester, tests)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines([
        "*leak_free: heap grew by *",
        "*leak_free: isolate must be True or False (got 'yes')*",
    ])  # fmt: skip


def test_bounded_repeats_until_requested_bytes_are_read(pytester: pytest.Pytester) -> None:
    tests = """
calls = []
path = __file__ + ".bin"
with open(path, "wb") as file: file.write(bytes(MIB))
@pytest.mark.bounded(reads="16 MiB")
def test_reader():
    calls.append(1)
    with open(path, "rb") as file: file.read()
def test_calls(): assert 16 <= len(calls) <= 18
@pytest.mark.bounded(reads="1 TiB")
def test_nothing_is_read(): pass
@pytest.mark.leak_free(repeats=1)
def test_wrong_repeats(): pass
@pytest.mark.bounded(size=1)
def test_wrong_argument(): pass
"""
    result = run(pytester, tests)
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines([
        "*use repeats= instead of reads=*",
        "*leak_free: repeats must be an integer >= 4 (got 1)*",
        "*bounded: the mark got an unexpected keyword argument 'size'*",
    ])  # fmt: skip


def test_ini_file_sets_default_limit(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmax_memory = 32 MiB\n")
    tests = """
def test_over(): take(64)
def test_within(): take(8)
@pytest.mark.max_memory("128 MiB")
def test_mark_is_stronger(): take(64)
"""
    result = run(pytester, tests)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*max_memory: the test added *the limit is 32.0 MiB*"])


def test_children_count_only_on_request(pytester: pytest.Pytester) -> None:
    tests = """
def child():
    code = "import time; block = bytearray(b'x') * (96 << 20); time.sleep(0.7)"
    subprocess.run([sys.executable, "-c", code], check=True)
@pytest.mark.max_memory("64 MiB")
def test_alone(): child()
@pytest.mark.max_memory("64 MiB", children=True)
def test_children(): child()
"""
    run(pytester, tests).assert_outcomes(passed=1, failed=1)


def test_memory_retained_by_malloc_does_not_hide_growth(pytester: pytest.Pytester) -> None:
    tests = """
def test_before():
    small = [bytes(2000) for _ in range(40_000)]
    held.append(bytes(1000))
    del small
@pytest.mark.max_memory("32 MiB")
def test_it(): held.append([bytes(2000) for _ in range(40_000)])
"""
    run(pytester, tests).assert_outcomes(passed=1, failed=1)


REPORTED = """
import asyncio
@pytest.mark.parametrize("mib", [4, 60, 20])
def test_take(mib): take(mib)
@pytest.fixture
def much(): return take(100)
def test_fixture(much): take(12)
class TestClass:
    def test_method(self): asyncio.run(self.work())
    async def work(self): take(30)
@pytest.mark.max_memory("256 MiB", isolate=True)
def test_isolated(): take(80)
"""


@pytest.mark.parametrize("options", [[], ["-n2"]], ids=["alone", "xdist"])
def test_report_lists_tests_that_added_most_memory(pytester: pytest.Pytester, options: list[str]) -> None:
    result = run(pytester, REPORTED, "--memory-report=4", *options)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines([
        "*4 tests that added the most memory*",
        "* MiB  *::test_isolated",
        "* MiB  *::test_take?60?",
        "* MiB  *::TestClass::test_method",
        "* MiB  *::test_take?20?",
    ])  # fmt: skip
