"""Context managers that close themselves."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """For classes with ``close()``: a ``with`` block closes the object at its end."""

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release what the object holds; idempotent."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raise if the object was closed and cannot be used again."""
