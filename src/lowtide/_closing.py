"""Base classes of context managers that close or publish at the end of their block."""

from __future__ import annotations

from typing import Self


class Closing:
    """For classes with ``close()``: a ``with`` block closes the object at its end."""

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object = None, /, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the resources of the object; idempotent."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raise if the object was closed and cannot be used again."""


class Publishing(Closing):
    """For writers: a ``with`` block publishes what was written, or discards it after an exception."""

    def __exit__(self, kind: object = None, /, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Discard what was written."""
        raise NotImplementedError
