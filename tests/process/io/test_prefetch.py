"""Prefetching at the end of a program and after a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher
from tests.support.process import in_child, output


def later(make: Callable[[int], Any]) -> Callable[[int], Pending[Any]]:
    """Submits nothing before it is waited for."""
    return lambda number: Pending(make, number)


@pytest.mark.parametrize("dropped", ["", "del items"])
def test_program_can_exit_during_prefetch(dropped: str) -> None:
    program = """
import threading, time
from lowtide._io.pending import Pending
from lowtide._io.prefetch import Prefetcher

started = threading.Event()

def make(number):
    if number == 2:
        started.set()
        time.sleep(0.2)
        print("made", number, flush=True)
    return number

items = Prefetcher(lambda i: Pending(make, i), 0, 10, 3)
items.next()
started.wait()
"""
    assert output(program + dropped) == "made 2\n"


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_forked_child_continues_where_parent_was(depth: int) -> None:
    items = Prefetcher(later(lambda i: (i, os.getpid())), 0, 10, depth)
    items.next()
    items.next()
    assert in_child(lambda: [items.next() for _ in range(8)] == [(i, os.getpid()) for i in range(2, 10)])
    assert [items.next()[0] for _ in range(8)] == list(range(2, 10))
    items.close()


def test_forked_child_can_close_unused_prefetcher() -> None:
    items = Prefetcher(later(lambda i: i), 0, 10, 3)
    items.next()
    assert in_child(lambda: not items.close())  # type: ignore[func-returns-value]
    assert items.next() == 1
    items.close()
