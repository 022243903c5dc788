"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from lowtide._arrays.formats import Layout, inspect
from lowtide._sizes import parse_count, parse_size
from lowtide.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])


# Types of click are generic since 8.4; to say of what would fail with an older one.
class Size(click.ParamType):  # type: ignore[type-arg]
    """``64MiB``, ``1.5GB``, ``4096``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


class Count(click.ParamType):  # type: ignore[type-arg]
    """``100M``, ``1.5G``, ``4096``: powers of ten."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_count(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


class Shape(click.ParamType):  # type: ignore[type-arg]
    """``1000,256``; one length may be ``-1``."""

    name = "shape"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(length) for length in str(value).strip("() ").rstrip(",").split(","))
        except ValueError:
            self.fail(f"{value!r} is not a shape; pass lengths with commas, as in 1000,256", param, ctx)


@dataclass(frozen=True, slots=True)
class Source:
    """Which array of which file: what ``lowtide.open`` takes."""

    path: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offset: int | None = None
    member: str | None = None

    def layout(self) -> Layout:
        return inspect(self.path, self.dtype, self.shape, self.offset, name=self.member)


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
            "--shape", type=Shape(), help="The shape of a raw file, as in 1000,256; one length may be -1."
        ),
        click.option(
            "--dtype", metavar="DTYPE", help="Take the file as raw data of this NumPy dtype, as in float32."
        ),
    ):
        function = option(function)
    return function
