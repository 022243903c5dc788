"""Base classes of array formats: a name, how files start, and where the arrays in them are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from lowtide._arrays.formats.layout import Layout, Member
from lowtide._closing import Closing
from lowtide._io.store import Store
from lowtide._printable import brief
from lowtide.errors import ArgumentError, FormatError, MemberError, UnsupportedError

_LISTED = 20  # members that an error lists


class Format(ABC):
    """A file format. An instance in ``FORMATS`` is one that ``lowtide.open`` reads."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The name with its article, for errors: "an NPY"."""
    signature: ClassVar[str]
    """How its files start, for the error about a file of no known format."""
    magics: ClassVar[tuple[bytes, ...]] = ()
    """First bytes, one of which each file has; empty where the format has no fixed ones."""
    grows: ClassVar[bool] = False
    """Whether rows may be appended to a file that is open."""

    def starts(self, head: bytes, size: int) -> bool:
        """Whether a file of ``size`` bytes with the first bytes ``head`` is one, whatever its name."""
        return head.startswith(self.magics)

    def recognises(self, store: Store) -> bool:
        """Whether the file is of this format; by more than its first bytes where that is needed."""
        return self.starts(store.head, store.size)

    @abstractmethod
    def inspect(self, store: Store, name: str | None = None) -> Layout:
        """Where the array ``name`` is, or the only one."""

    def members(self, store: Store) -> list[Member]:
        """Every array, with its layout or with the reason why it cannot be read in place."""
        return [self._member(None, partial(self.inspect, store))]

    def _member(self, name: str | None, locate: Callable[[], Layout]) -> Member:
        try:
            return Member(name, self.name, layout=locate())
        except (FormatError, UnsupportedError) as error:
            return Member(name, self.name, error=error)


class Arrays(Closing, ABC):
    """The arrays of one open file that may hold several; a context manager."""

    store: Store

    def close(self) -> None:
        """Nothing, unless a library has opened the file by itself."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all arrays, in the order of the file."""

    @abstractmethod
    def canonical(self, name: str) -> str | None:
        """``name`` as ``names`` has it, or None if there is no such array."""

    @abstractmethod
    def locate(self, name: str) -> Layout:
        """Where an array is, by its canonical name."""

    def empty(self) -> str:
        """The message for a file without arrays."""
        return f"{self.store.path}: holds no array (found 0, expected 1 or more); write one to it first"


class Container(Format):
    """A format whose files hold several arrays by name."""

    @abstractmethod
    def open(self, store: Store) -> Arrays:
        """Read the directory of a file."""

    def inspect(self, store: Store, name: str | None = None) -> Layout:
        with self.open(store) as arrays:
            return arrays.locate(self._pick(arrays, name))

    def members(self, store: Store) -> list[Member]:
        with self.open(store) as arrays:
            return [self._member(name, partial(arrays.locate, name)) for name in arrays.names()]

    def _pick(self, arrays: Arrays, name: str | None) -> str:
        """The canonical name of the array that is meant."""
        path = arrays.store.path
        if name is None:
            names = arrays.names()
            if len(names) == 1:
                return names[0]
            if not names:
                raise MemberError(arrays.empty())
            raise MemberError(
                f"{path}: the {self.name} file holds {len(names)} arrays ({_listing(names)}); pass the name "
                f"of one, as in lowtide.open({path!r}, name={names[0]!r})"
            )
        if not isinstance(name, str):
            raise ArgumentError(f"{path}: name must be a str, got {name!r}")
        canonical = arrays.canonical(name)
        if canonical is None:
            import difflib

            names = arrays.names()
            close = difflib.get_close_matches(name, names[:10_000], n=3)
            guess = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
            raise MemberError(
                f"{path}: the {self.name} file has no array {brief(name)}{guess} "
                f"It holds {len(names)}: {_listing(names)}"
            )
        return canonical


def _listing(names: list[str]) -> str:
    shown = ", ".join(brief(name) for name in names[:_LISTED])
    return shown + (f", … and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
