"""The writers that this process has not yet published: one per path, and a warning for each that is lost."""

from __future__ import annotations

import atexit
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from typing import Literal, Protocol

from lowtide._io.system import after_fork

State = Literal["open", "closing", "closed", "aborted", "failed", "replaced", "forked"]
"""The states of a writer."""


class Unpublished(Protocol):
    """A writer whose file appears when it is closed."""

    @property
    def path(self) -> str: ...

    def _discard(self, state: State) -> bool:
        """End it without publishing; return whether it was open."""

    def _loss(self) -> str:
        """What is lost with it, as the start of a sentence."""


CREATING = threading.RLock()
"""Held while a writer is created."""
_WRITERS: weakref.WeakValueDictionary[str, Unpublished] = weakref.WeakValueDictionary()
_LOST: dict[str, str] = {}  # paths whose last writer was never closed, and the message about it


def take_over(path: str) -> None:
    """Discard the writer that this process still has for ``path``, as when a notebook's cell runs again."""
    old = _WRITERS.get(path)
    if old is not None and old._discard("replaced"):
        warnings.warn(
            f"{path}: this process already had a writer of this path, which was never closed; "
            f"{old._loss()} discarded, and the new one takes over",
            ResourceWarning,
            stacklevel=3,
        )


def add(writer: Unpublished) -> None:
    """Register a new writer."""
    _WRITERS[writer.path] = writer


def published(path: str) -> None:
    """Forget that a writer of ``path`` was lost."""
    _LOST.pop(path, None)


def collected(writer: Unpublished) -> None:
    """Discard a writer that the garbage collector has found, and warn if it was open."""
    if writer._discard("aborted"):
        _LOST[writer.path] = _message(writer)
        warnings.warn(_LOST[writer.path], ResourceWarning, stacklevel=3, source=writer)


def _message(writer: Unpublished) -> str:
    return (
        f"{writer.path}: {writer._loss()} not published, because the writer was never closed; write "
        f"`with {getattr(writer, '_call', 'lowtide.create')}(...) as out:`, or call its close()"
    )


def _at_exit() -> None:
    """A ResourceWarning is hidden by default, and the rows of hours may be at stake."""
    unclosed = [writer for writer in list(_WRITERS.values()) if writer._discard("aborted")]
    _LOST.update((writer.path, _message(writer)) for writer in unclosed)
    with suppress(OSError, ValueError, AttributeError):  # standard error is closed, or there is none
        sys.stderr.writelines(f"lowtide: {lost}\n" for lost in _LOST.values())
    for writer in unclosed:  # last, for a filter may turn it into an exception
        warnings.warn(_LOST[writer.path], ResourceWarning, stacklevel=2, source=writer)


@after_fork
def _after_fork() -> None:
    global CREATING
    CREATING = threading.RLock()  # another thread of the parent may have held it
    _LOST.clear()


atexit.register(_at_exit)
