"""The settings of a run of ``prepare``, which determine the bytes together with the sources."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, get_args

from lowtide._prepare.inputs.kind import File, ReadOptions
from lowtide._tokens.formats import llmc, own
from lowtide.errors import ArgumentError

UNIT = 8 * 2**20
"""Bytes of an input in a unit, small enough that all workers finish at about the same time."""

_FEW = 100  # files of one document each, too few to select some of them by a hash
_VALIDATION = 4 * 2**20  # bytes of the sources that a validation split should have

Holdout = Literal["auto", "documents", "contiguous"]
OnError = Literal["raise", "skip", "replace", "replace-or-skip"]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings that determine the bytes, together with the inputs."""

    tokenizer: str
    """Its name; ``byte`` by default."""
    val_fraction: float | None
    holdout: Holdout
    seed: int
    eos: bool
    layout: own.LayoutName
    shard_tokens: int | None
    meta_pkl: bool
    on_error: OnError
    text_field: str
    split_on: str | None
    code: str = ""
    """A digest of the tokenizer, if it is an object and not a name."""
    val_files: int | None = None
    """The number of the first file of validation data; None if there is none."""

    def __post_init__(self) -> None:
        check_choice("holdout", self.holdout, get_args(Holdout))
        check_choice("layout", self.layout, get_args(own.LayoutName))
        check_choice("on_error", self.on_error, get_args(OnError))
        fraction = self.val_fraction or 0.0
        if not 0 <= fraction < 1 or math.isnan(fraction):
            raise ArgumentError(f"val_fraction must be from 0 to below 1, got {self.val_fraction!r}")
        if self.meta_pkl and self.tokenizer != "char":
            raise ArgumentError(
                "meta_pkl writes nanoGPT's table of characters, which only the tokenizer 'char' has, got "
                f"{self.tokenizer!r}"
            )
        most = llmc.MAX_TOKENS if self.layout == "llmc" else 2**50
        if self.shard_tokens is not None and not 1 <= self.shard_tokens <= most:
            raise ArgumentError(f"shard_tokens must be from 1 to {most}, got {self.shard_tokens}")

    @property
    def skips(self) -> bool:
        return self.on_error.endswith("skip")

    @property
    def held_out(self) -> float:
        """The fraction of documents that a hash selects for validation."""
        return (self.val_fraction or 0.0) if self.holdout == "documents" else 0.0

    def resolved(self, files: Sequence[File]) -> Settings:
        """These settings, with a fraction and a holdout that suit the files where none was given."""
        fraction, holdout = self.val_fraction, self.holdout
        if self.val_files is not None:
            return dataclasses.replace(self, val_fraction=0.0, holdout="documents")
        if fraction is None:
            fraction = validation_fraction(sum(file.size for file in files))
        if holdout == "auto":
            whole = self.split_on is None and all(file.kind.name == "text" for file in files)
            holdout = "contiguous" if whole and len(files) <= _FEW else "documents"
        return dataclasses.replace(self, val_fraction=fraction, holdout=holdout)

    def options(self) -> ReadOptions:
        replace = self.on_error.startswith("replace")
        # Preliminary: a tokenizer that is loaded from a file may have no end of text either.
        keep = not self.eos or self.tokenizer == "char"
        return ReadOptions(self.text_field, self.split_on, keep, replace=replace, unit_size=UNIT)


def validation_fraction(size: int) -> float:
    """The fraction of sources of ``size`` bytes that is worth holding out: 4 MiB, from 0.05 % to 10 %.

    >>> [validation_fraction(size) for size in (10**6, 2**30, 10**12)]
    [0.1, 0.00390625, 0.0005]
    """
    return min(0.1, max(0.0005, _VALIDATION / max(1, size)))


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless an argument has one of the values."""
    if value not in choices:
        raise ArgumentError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
