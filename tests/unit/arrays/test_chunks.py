"""Chunks: every row exactly once, in order or shuffled, within the budget, and from any place on."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide._arrays import chunks as chunks_module
from lowtide._arrays import orders
from lowtide._arrays.chunks import Chunks
from lowtide._arrays.stored import StoredArray
from lowtide._io.extents import Bytes, Extents
from lowtide._io.pending import Pending
from lowtide._permutation import Shuffled
from lowtide.errors import ArgumentError, BudgetError, ClosedError, IndexingError, StateError
from tests.support.rows import save
from tests.support.threads import assert_no_thread, threads
from tests.support.variants import Variant, every_variant, tight

Shuffle = bool | Literal["blocks"]
SHUFFLES: tuple[Shuffle, ...] = (False, True, "blocks")
any_shuffle = pytest.mark.parametrize("shuffle", SHUFFLES, ids=["in_order", "shuffled", "blocks"])


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert_no_thread()


def collected(chunks: Chunks) -> list[np.ndarray]:
    return [chunk.copy() for chunk in chunks]


@pytest.fixture
def array(tmp_path: Path) -> Iterator[lowtide.Array]:
    save(tmp_path / "a.npy", 1000)
    with lowtide.open(tmp_path / "a.npy") as opened:
        yield opened


# Every row once


@any_shuffle
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("reuse", [False, True], ids=["own", "reuse"])
@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop_last"])
def test_chunks_hold_every_row_exactly_once(
    tmp_path: Path, shuffle: Shuffle, prefetch: int, reuse: bool, drop_last: bool
) -> None:
    save(tmp_path / "a.npy", 300)
    array = lowtide.open(tmp_path / "a.npy")
    for rows, budget in [(1, None), (7, None), (300, None), (5000, None), (None, 2000), (3, "1 MiB")]:
        chunks = array.chunks(
            rows, budget=budget, shuffle=shuffle, prefetch=prefetch, reuse=reuse, drop_last=drop_last
        )
        expected = 300 // chunks.rows if drop_last else math.ceil(300 / chunks.rows)
        assert len(chunks) == expected
        got = collected(chunks)
        assert len(got) == expected
        assert len(chunks) == 0
        assert all(len(chunk) == chunks.rows for chunk in got[:-1])
        together = np.concatenate([np.empty((0, 3), "i4"), *got])
        assert (np.diff(together, axis=1) == 1).all()  # whole rows
        numbers = together[:, 0] // 3
        assert len(np.unique(numbers)) == len(numbers) == (expected * chunks.rows if drop_last else 300)
        assert (list(numbers) == sorted(numbers)) == (shuffle is False or not len(numbers))
    array.close()


@every_variant
@any_shuffle
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("small", [False, True], ids=["", "tight"])
def test_chunks_are_the_same_with_every_reader(
    tmp_path: Path, variant: Variant, shuffle: Shuffle, order: Literal["C", "F"], small: bool
) -> None:
    expected = save(tmp_path / "a.npy", 200, 5, ">f8", order)
    with variant.open(tmp_path / "a.npy") as array, tight(small):
        chunks = collected(array.chunks(32, shuffle=shuffle, seed=3, budget="1 MiB"))
    assert {chunk.dtype for chunk in chunks} == {expected.dtype}
    got = np.concatenate(chunks)
    assert (got[np.argsort(got[:, 0])] == expected).all()
    assert (got == expected).all() == (shuffle is False)


@given(
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
    rows=st.integers(1, 50),
    shuffle=st.sampled_from(SHUFFLES),
    seed=st.integers(-5, 5),
    prefetch=st.integers(0, 3),
    reuse=st.booleans(),
    block=st.integers(1, 8),
    window=st.integers(1, 4096),
)
def test_chunks_of_any_shape_hold_every_row_once(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    rows: int,
    shuffle: Shuffle,
    seed: int,
    prefetch: int,
    reuse: bool,
    block: int,
    window: int,
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.npy"
    expected = np.arange(math.prod(shape), dtype="u2").reshape(shape)
    np.save(path, expected)
    small = mock.patch.multiple(orders, _WINDOW=window, _BLOCK=block)
    with small, lowtide.open(path) as array:
        chunks = array.chunks(rows, shuffle=shuffle, seed=seed, prefetch=prefetch, reuse=reuse)
        got = collected(chunks)
    together = np.concatenate([np.empty((0, *shape[1:]), "u2"), *got])
    assert together.shape == shape
    assert sorted(map(bytes, together)) == sorted(map(bytes, expected))
    if shuffle is False:
        assert (together == expected).all()


@any_shuffle
def test_order_depends_only_on_seed(array: lowtide.Array, shuffle: Shuffle) -> None:
    def order(rows: int, **options: Any) -> list[int]:
        return [int(x) for chunk in array.chunks(rows, shuffle=shuffle, **options) for x in chunk[:, 0]]

    first = order(10, seed=5)
    assert first == order(10, seed=5) == order(33, seed=5, prefetch=3) == order(1000, seed=5, reuse=True)
    assert first == order(10, seed=np.int64(5))
    assert (first == order(10, seed=6)) == (shuffle is False)


def test_shuffled_chunks_follow_permutation(array: lowtide.Array) -> None:
    got = np.concatenate(list(array.chunks(64, shuffle=True, seed=9)))
    assert (got[:, 0] // 3 == Shuffled(1000, 9)(0, 1000)).all()


def test_large_chunks_hold_every_row(tmp_path: Path) -> None:
    """Chunks of more rows than are placed at once."""
    save(tmp_path / "a.npy", 100_000, 1, "i4")
    with lowtide.open(tmp_path / "a.npy") as array:
        for shuffle in SHUFFLES:
            for budget in (None, "600 KiB"):
                got = np.concatenate(collected(array.chunks(70_000, shuffle=shuffle)))
                assert (np.sort(got[:, 0]) == np.arange(100_000)).all(), (shuffle, budget)


# The caller's chunks


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_chunks_do_not_share_memory(array: lowtide.Array, prefetch: int) -> None:
    kept = list(array.chunks(10, prefetch=prefetch))
    assert all(chunk.flags.writeable for chunk in kept)
    assert not any(np.shares_memory(a, b) for a, b in itertools.pairwise(kept))
    kept[0][:] = -1
    assert (np.concatenate(kept[1:])[:, 0] == np.arange(10, 1000) * 3).all()


@any_shuffle
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_reused_chunk_is_valid_until_next_step(array: lowtide.Array, shuffle: Shuffle, prefetch: int) -> None:
    want = collected(array.chunks(10, shuffle=shuffle, prefetch=0))
    addresses = set()
    for chunk, expected in zip(
        array.chunks(10, shuffle=shuffle, prefetch=prefetch, reuse=True), want, strict=True
    ):
        time.sleep(0.0005)  # let the thread get as far ahead as it may
        assert (chunk == expected).all()
        addresses.add(chunk.ctypes.data)
    assert len(addresses) == prefetch + 1


def test_reused_buffers_are_not_larger_than_array(array: lowtide.Array) -> None:
    chunks = array.chunks(10**15, reuse=True)
    assert chunks.nbytes_in_flight < 17 * 2**20
    assert len(next(chunks)) == 1000


# How many are left


@any_shuffle
def test_len_counts_remaining_chunks(array: lowtide.Array, shuffle: Shuffle) -> None:
    chunks = array.chunks(300, shuffle=shuffle)
    left = [len(chunks)]
    for _ in chunks:
        left.append(len(chunks))
    assert left == [4, 3, 2, 1, 0]


def test_tqdm_shows_correct_total(array: lowtide.Array) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    screen = io.StringIO()
    bar = tqdm(array.chunks(100), file=screen)
    assert bar.total == 10
    assert sum(len(chunk) for chunk in bar) == 1000
    assert "10/10" in screen.getvalue()


def test_rich_bar_reaches_total(array: lowtide.Array) -> None:
    from rich.console import Console
    from rich.progress import track

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True)
    assert sum(len(chunk) for chunk in track(array.chunks(100), console=console)) == 1000
    assert "100%" in screen.getvalue()


# From any place on


@any_shuffle
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("reuse", [False, True])
def test_loaded_state_resumes_at_same_position(
    array: lowtide.Array, shuffle: Shuffle, prefetch: int, reuse: bool
) -> None:
    def fresh() -> Chunks:
        return array.chunks(90, shuffle=shuffle, seed=4, prefetch=prefetch, reuse=reuse)

    want = collected(fresh())
    one = fresh()
    for position in range(len(want) + 1):
        state = json.loads(json.dumps(one.state_dict()))
        other = fresh()
        if position % 2:
            next(other)  # wherever it stands, and in its midst
        other.load_state_dict(state)
        assert len(other) == len(want) - position
        rest = collected(other)
        assert len(rest) == len(want) - position
        assert all((a == b).all() for a, b in zip(rest, want[position:], strict=True))
        if position < len(want):
            assert (next(one) == want[position]).all()
    one.load_state_dict(one.state_dict() | {"position": 2})  # back again, after the end
    assert (next(one) == want[2]).all()
    one.close()


def test_state_does_not_depend_on_prefetch_or_reuse(array: lowtide.Array) -> None:
    one = array.chunks(90, shuffle=True, prefetch=0)
    next(one)
    other = array.chunks(90, shuffle=True, prefetch=3, reuse=True)
    other.load_state_dict(one.state_dict())
    assert (next(other) == next(one)).all()
    other.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 91}, "rows was 90 and is 91"),
        ({"shuffle": True}, "order was 'blocks' and is 'shuffle'"),
        ({"seed": 5}, "seed was 4 and is 5"),
        ({"drop_last": True}, "drop_last was False and is True"),
        ({"epoch": 2}, "epoch was 0 and is 2"),
    ],
)
def test_mismatched_state_error_shows_difference(
    array: lowtide.Array, options: dict[str, Any], words: str
) -> None:
    settings: dict[str, Any] = {"rows": 90, "shuffle": "blocks", "seed": 4}
    state = array.chunks(**settings).state_dict()
    other = array.chunks(**(settings | options))
    with pytest.raises(StateError, match=words) as caught:
        other.load_state_dict(state)
    assert array.path in str(caught.value)
    assert other.state_dict()["position"] == 0


def test_state_of_another_array_is_rejected(array: lowtide.Array, tmp_path: Path) -> None:
    save(tmp_path / "b.npy", 1001, dtype="i8")
    words = r"shape was \[1000, 3\] and is \[1001, 3\]; dtype was 'int32'"
    with lowtide.open(tmp_path / "b.npy") as other, pytest.raises(StateError, match=words):
        other.chunks(10).load_state_dict(array.chunks(10).state_dict())


@pytest.mark.parametrize("position", [-1, 12, None, "3", 1.0])
def test_invalid_position_in_state_raises(array: lowtide.Array, position: object) -> None:
    chunks = array.chunks(90)
    with pytest.raises(StateError, match="expected 0 to 12") if position != 12 else mock.MagicMock():
        chunks.load_state_dict(chunks.state_dict() | {"position": position})


def test_state_of_large_array_is_small(tmp_path: Path) -> None:
    with open(tmp_path / "x", "wb") as file:
        file.truncate(10**12)
    with lowtide.open(tmp_path / "x", dtype="u1", shape=(-1, 10)) as array:
        chunks = array.chunks(100, shuffle=True)
        assert len(chunks) == 10**9
        chunks.load_state_dict(chunks.state_dict() | {"position": 10**9 - 1})
        assert len(next(chunks)) == 100
        with pytest.raises(StopIteration):
            next(chunks)
        assert len(json.dumps(chunks.state_dict())) < 200


# When something fails


class Broken:
    """A reader that fails while ``fails`` is set."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def submit(self, extents: Extents, out: Bytes, **options: Any) -> Any:
        return Pending(self._fail) if self.fails else self._reader.submit(extents, out, **options)

    def read(self, offset: int, out: Bytes, **options: Any) -> None:
        if self.fails:
            self._fail()
        self._reader.read(offset, out, **options)

    def fill(self, *arguments: Any) -> Any:
        return self._fail() if self.fails else self._reader.fill(*arguments)

    def _fail(self) -> None:
        raise OSError(5, "broken")


@any_shuffle
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_read_error_reaches_caller_and_can_be_retried(
    array: lowtide.Array, shuffle: Shuffle, prefetch: int
) -> None:
    def fresh() -> Chunks:
        # Windows smaller than a chunk: in a block shuffle a chunk then has to read too.
        # No room to look ahead: else all rows are in memory after the first chunk.
        with mock.patch.object(orders, "_BLOCK", 1), mock.patch.object(chunks_module, "DEFAULT_BUDGET", 0):
            return array.chunks(90, shuffle=shuffle, prefetch=prefetch)

    want = collected(fresh())
    broken = Broken(array._reader)
    array._reader = broken
    chunks = fresh()
    got = [next(chunks)]
    broken.fails = True
    for _ in range(2):
        with pytest.raises(OSError, match="broken") as caught:
            got.extend(chunks)  # what was prefetched comes first
        assert "_fail" in {frame.name for frame in traceback.extract_tb(caught.tb)}
    assert len(chunks) == len(want) - len(got)
    broken.fails = False
    got.extend(chunks)
    assert all((a == b).all() for a, b in zip(got, want, strict=True))


def test_file_truncated_during_pass_raises(array: lowtide.Array) -> None:
    chunks = array.chunks(100)
    next(chunks)
    os.truncate(array.path, 2000)
    with pytest.raises(lowtide.LowtideError, match="was truncated"):
        list(chunks)
    chunks.close()


def test_array_closed_during_pass_raises(array: lowtide.Array) -> None:
    chunks = array.chunks(10, prefetch=1)
    next(chunks)
    array.close()
    with pytest.raises(ClosedError, match=r"a\.npy: the array was closed"):
        list(chunks)


@any_shuffle
def test_closed_chunks_raise(array: lowtide.Array, shuffle: Shuffle) -> None:
    with array.chunks(10, shuffle=shuffle, prefetch=3) as chunks:
        next(chunks)
    chunks.close()
    with pytest.raises(ClosedError, match="chunks were closed"):
        next(chunks)


def test_break_from_loop_ends_prefetch_thread(array: lowtide.Array) -> None:
    for chunk in array.chunks(10, prefetch=3):
        assert len(chunk) == 10
        break


def test_interrupt_in_loop_ends_prefetch_thread(array: lowtide.Array) -> None:
    def interrupted() -> None:
        for _ in array.chunks(10, prefetch=3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


# Budgets


@any_shuffle
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("width", [1, 100_000])
@pytest.mark.parametrize("rows", [None, 7])
def test_smallest_budget_works_and_one_byte_less_raises(
    tmp_path: Path, shuffle: Shuffle, prefetch: int, reuse: bool, width: int, rows: int | None
) -> None:
    with open(tmp_path / "x", "wb") as file:
        file.truncate(width * 50)
    options: dict[str, Any] = {"rows": rows, "shuffle": shuffle, "prefetch": prefetch, "reuse": reuse}
    with lowtide.open(tmp_path / "x", dtype="u1", shape=(50, width)) as array:
        with pytest.raises(BudgetError, match=r"the smallest that works is (\d+) bytes") as caught:
            array.chunks(budget=0, **options)
        least = int(str(caught.value).split("the smallest that works is ")[1].split(" ")[0])
        chunks = array.chunks(budget=least, **options)
        assert chunks.nbytes_in_flight <= least
        assert chunks.rows == (rows or 1)
        assert len(next(chunks)) == chunks.rows
        chunks.close()
        with pytest.raises(BudgetError, match=f"{least} bytes"):
            array.chunks(budget=least - 1, **options)
        assert array.path in str(caught.value)


@given(
    width=st.integers(1, 3000),
    total=st.integers(1, 10**6),
    budget=st.integers(0, 300 * 2**20),
    shuffle=st.sampled_from(SHUFFLES),
    prefetch=st.integers(0, 4),
    reuse=st.booleans(),
    rows=st.none() | st.integers(1, 10_000),
    scale=st.sampled_from([1, 1000]),
)
def test_budget_is_never_exceeded(
    tmp_path_factory: pytest.TempPathFactory,
    width: int,
    total: int,
    budget: int,
    shuffle: Shuffle,
    prefetch: int,
    reuse: bool,
    rows: int | None,
    scale: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "sparse.bin"
    width *= scale
    with open(path, "wb") as file:
        file.truncate(width * total)
    with lowtide.open(path, dtype="u1", shape=(total, width)) as array:
        try:
            chunks = array.chunks(rows, budget=budget, shuffle=shuffle, prefetch=prefetch, reuse=reuse)
        except BudgetError as error:
            least = int(str(error).split("the smallest that works is ")[1].split(" ")[0])
            assert least > budget
            return
        assert chunks.nbytes_in_flight <= budget
        assert chunks.rows == rows or (rows is None and 1 <= chunks.rows <= total)


def test_budget_counts_only_existing_rows(array: lowtide.Array) -> None:
    few = array.rows(0, 10)
    chunks = few.chunks(10**6, budget=16 * few.nbytes)
    assert chunks.nbytes_in_flight <= 16 * few.nbytes
    assert [len(chunk) for chunk in chunks] == [10]


def test_budget_is_fully_used(array: lowtide.Array) -> None:
    chunks = array.chunks(budget=10_000)
    assert 9_900 <= chunks.nbytes_in_flight <= 10_000
    assert array.chunks(budget="64 MiB").rows == array.chunks().rows == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 0}, "rows must be an integer >= 1, got 0"),
        ({"rows": 0, "budget": "1 MiB"}, "rows must be an integer >= 1, got 0"),
        ({"rows": -3, "budget": "1 MiB"}, "got -3"),
        ({"rows": 2.5}, "rows must be an integer, got 2.5"),
        ({"rows": "7"}, "got '7'"),
        ({"prefetch": -1}, "prefetch must be an integer >= 0, got -1"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"seed": None}, "got None"),
        ({"shuffle": "rows"}, "shuffle must be False, True or 'blocks', got 'rows'"),
        ({"budget": "lots"}, "'lots' is not understood"),
        ({"budget": -1}, "must not be negative"),
    ],
    ids=str,
)
def test_wrong_arguments_raise(array: lowtide.Array, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        array.chunks(**options)


def test_chunks_of_0d_array_raise(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(5))
    with lowtide.open(tmp_path / "a.npy") as array, pytest.raises(ArgumentError, match="no dimensions"):
        array.chunks(1)


# Forks


def test_window_is_marked_invalid_while_loading(array: lowtide.Array) -> None:
    """What the child copies may be half new: it must not be taken for the old window."""
    with mock.patch.object(orders, "_BLOCK", 10):
        chunks = array.chunks(10, shuffle="blocks", prefetch=0)
        want = collected(array.chunks(10, shuffle="blocks", prefetch=0))
    order = chunks._plan._order
    assert isinstance(order, orders.BlockOrder)
    next(chunks)
    read, states = StoredArray._read_runs, []

    def forked(*arguments: Any, **options: Any) -> Any:
        states.append(order._held)
        return read(*arguments, **options)

    with mock.patch.object(StoredArray, "_read_runs", forked):
        order._load_window(0)
    assert set(states) == {None}
    assert (next(chunks) == want[1]).all()


@pytest.mark.parametrize("last", [1, 100], ids=["closed", "exhausted"])
def test_blocks_release_their_window_at_the_end(array: lowtide.Array, last: int) -> None:
    chunks = array.chunks(10, shuffle="blocks")
    order = chunks._plan._order
    for _ in range(last):
        next(chunks)
    assert vars(order)["_held"] is not None
    state = chunks.state_dict()
    if last == 1:
        chunks.close()
    else:
        assert next(chunks, None) is None
    assert vars(order)["_held"] is None
    chunks.load_state_dict(state | {"position": 7})
    assert (next(chunks) == array.chunks(10, shuffle="blocks")[7]).all()


def test_indexing_during_pass_works(array: lowtide.Array) -> None:
    for i, chunk in enumerate(array.chunks(10, prefetch=3)):
        assert (array[i * 10 : i * 10 + 10] == chunk).all()
        with pytest.raises(IndexingError):
            array[1000]


def test_cached_shuffled_chunks_start_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # nobody is slow
    monkeypatch.setattr(chunks_module, "DEFAULT_BUDGET", 0)  # no room to look ahead
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(2_000_000).reshape(-1, 100))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with lowtide.open(path) as array:
        for cold in (True, False):
            with array.chunks(2000, shuffle=True) as chunks:
                next(chunks)
                assert not threads()  # the first must be waited for anyway
                next(chunks)
                assert bool(threads()) is cold
            array[:]  # to the last page
            array.take(np.arange(len(array))[::-1])
