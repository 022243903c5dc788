"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lowtide._sizes import parse_count, parse_size
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._arrays.formats import Layout

F = TypeVar("F", bound=Callable[..., Any])


# Types of click are generic since 8.4; an argument would fail with an older one.
class Parsed(click.ParamType):  # type: ignore[type-arg]
    """A value that a function of lowtide parses."""

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return tuple(int(length) for length in str(value).strip("() ").rstrip(",").split(","))
    except ValueError:
        raise ArgumentError(f"{value!r} is not a shape; pass lengths with commas, as in 1000,256") from None


SIZE = Parsed("size", parse_size)
"""``64MiB``, ``1.5GB``, ``4096``."""
COUNT = Parsed("count", parse_count)
"""``100M``, ``1.5G``, ``4096``: powers of ten."""
SHAPE = Parsed("shape", _shape)
"""``1000,256``; one length may be ``-1``."""


checkpoint_option = click.option(
    "--checkpoint",
    type=click.Choice(["best", "last"]),
    help="Weights with the lowest validation loss, or the last ones.  [default: best, if evaluated]",
)


def layout_of(path: str, member: str | None = None, **which: Any) -> Layout:
    """The layout of the array that ``source_options`` specify."""
    from lowtide._arrays.formats import inspect  # not at the top: `lowtide profile` must stay small

    return inspect(path, name=member, **which)


def source_options(function: F) -> F:
    """``--dtype``, ``--shape``, ``--offset`` for raw files, ``--name`` for a member."""
    for option in (
        click.option(
            "--name", "member", metavar="NAME", help="Which member of an .npz, .safetensors or .h5 file."
        ),
        click.option(
            "--offset",
            type=int,
            metavar="BYTES",
            help="Where the data of a raw file starts [default: 0]; needed for a file with a header.",
        ),
        click.option(
            "--shape", type=SHAPE, help="The shape of a raw file, as in 1000,256; one length may be -1."
        ),
        click.option(
            "--dtype", metavar="DTYPE", help="Take the file as raw data of this NumPy dtype, as in float32."
        ),
    ):
        function = option(function)
    return function
