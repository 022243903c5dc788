"""Threads that read ahead."""

from __future__ import annotations

import gc
import threading


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lowtide-prefetch")]


def assert_no_thread() -> None:
    """Threads end a moment after their iterator, which a traceback may hold until the next collection."""
    if threads():
        gc.collect()
    for thread in threads():
        thread.join(10)
    assert not threads()
