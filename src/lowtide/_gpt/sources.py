"""Corpora that a run trains and evaluates on: one, several as one, or a mixture by weight."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lowtide
from lowtide._gpt.config import Settings
from lowtide._io import store
from lowtide.errors import ArgumentError, LowtideError

_WEIGHTED = re.compile(r"(?P<name>[A-Za-z][\w.-]*):(?P<weight>\d+(?:\.\d+)?|\.\d+)=(?P<path>.+)", re.DOTALL)


class Source(NamedTuple):
    """A corpus of a run, and its weight in the mixture."""

    name: str
    weight: float
    path: Any
    """A path, or a list of files that are one corpus."""


def parse(data: str | Sequence[str]) -> list[Source]:
    """The corpora of ``--data``.

    >>> [(one.name, one.weight, one.path) for one in parse(["web:0.7=a", "code:0.3=b"])]
    [('web', 0.7, 'a'), ('code', 0.3, 'b')]
    """
    entries = [data] if isinstance(data, str) else list(data)
    matches = [_weighted(entry) for entry in entries]
    weighted = [match for match in matches if match is not None]
    if not weighted:
        return [Source("data", 1.0, entries[0] if len(entries) == 1 else entries)]
    if len(weighted) < len(entries):
        plain = next(entry for entry, match in zip(entries, matches, strict=True) if match is None)
        raise ArgumentError(
            f"data: {plain!r} has no weight, but others have one (expected NAME:WEIGHT=PATH); give every "
            "corpus a weight, or none"
        )
    names = [match["name"] for match in weighted]
    if len(set(names)) < len(names):
        raise ArgumentError(
            f"data: the names {', '.join(names)} are not unique; pass a different name per corpus"
        )
    return [Source(match["name"], float(match["weight"]), match["path"]) for match in weighted]


def _weighted(entry: str) -> re.Match[str] | None:
    """``NAME:WEIGHT=PATH``; None for a path, which may look like that."""
    return None if store.exists(entry) else _WEIGHTED.fullmatch(entry)


def anchored(values: Mapping[str, Any], beside: str = "") -> dict[str, Any]:
    """The settings that are paths, as absolute ones, so that a run can be resumed from any folder.

    A path that does not exist is looked up in the folder ``beside`` too, that of the TOML file.

    >>> anchored({"data": ["web:1=/a", "code:2=/b"], "val_data": "/c", "n_layer": 2})
    {'data': ('web:1=/a', 'code:2=/b'), 'val_data': '/c'}
    """
    result: dict[str, Any] = {}
    for name in ("data", "val_data", "loss_mask"):
        if value := values.get(name):
            paths = [_anchor(one, beside) for one in ([value] if isinstance(value, str) else value)]
            result[name] = tuple(paths) if len(paths) > 1 else paths[0]
    if init := values.get("init"):  # may be the name of a model
        local = [path for path in (init, os.path.join(beside, init)) if store.exists(path)]
        result["init"] = store.absolute(local[0]) if local else init
    return result


def _anchor(entry: str, beside: str) -> str:
    match = _weighted(entry)
    path = match["path"] if match else entry
    if not store.exists(path) and store.exists(os.path.join(beside, path)):
        path = os.path.join(beside, path)
    path = store.absolute(path)
    return f"{match['name']}:{match['weight']}={path}" if match else path


def open_all(
    sources: Sequence[Source], settings: Settings, split: str = "train"
) -> dict[str, lowtide.Corpus]:
    """The corpora by name."""
    return {
        one.name: lowtide.corpus(one.path, split=split, dtype=settings.token_dtype, eos=settings.eos)
        for one in sources
    }


def open_validation(
    sources: Sequence[Source], training: Mapping[str, lowtide.Corpus], settings: Settings
) -> dict[str, lowtide.Corpus]:
    """The validation corpora, long enough for one window each."""
    remedy = "pass --val-data, another --val-split, or --eval-interval 0 to train without evaluation"
    if settings.val_data is not None:
        sources = [Source("val", 1.0, settings.val_data)]
    try:
        try:
            corpora = open_all(sources, settings, settings.val_split)
        except LowtideError:
            if settings.val_data is None:
                raise
            corpora = open_all(sources, settings)  # separate data without that split: all of it
    except LowtideError as error:
        raise ArgumentError(
            f"{settings.val_data or settings.data}: cannot open the validation split {settings.val_split!r} "
            f"({error}); {remedy}"
        ) from error
    for name, corpus in corpora.items():
        if len(corpus) <= settings.length:
            raise ArgumentError(
                f"{corpus.name}: the validation data is too short ({len(corpus)} tokens, expected more than "
                f"the --length of {settings.length}); {remedy}"
            )
        if any(corpus.paths == other.paths for other in training.values()):
            which = next(one.path for one in sources if one.name == name)
            raise ArgumentError(
                f"{which}: has a single split, which would be both trained and evaluated on; {remedy}"
            )
    return corpora


def open_mask(
    corpora: Mapping[str, lowtide.Corpus], settings: Settings, split: str = "train"
) -> lowtide.Corpus | None:
    """The corpus of ``--loss-mask``, with one value for each token; for validation it may be missing."""
    if settings.loss_mask is None or (split != "train" and store.is_file(settings.loss_mask)):
        return None
    if len(corpora) > 1:
        raise ArgumentError(
            "loss_mask: not supported for a mixture (got several corpora, expected one); train on one "
            "corpus, or leave it out"
        )
    (corpus,) = corpora.values()
    try:
        mask = lowtide.corpus(settings.loss_mask, split=split)
    except ArgumentError:  # raw values, and 0 and 1 are bytes
        mask = lowtide.corpus(settings.loss_mask, split=split, dtype="uint8")
    except LowtideError:
        if split == "train":
            raise
        return None
    if len(mask) != len(corpus):
        raise ArgumentError(
            f"{mask.name}: the loss mask does not fit the corpus ({len(mask)} values, expected one for each "
            f"of the {len(corpus)} tokens of {corpus.name}); write it along with the tokens"
        )
    if mask.largest() > 1:
        raise ArgumentError(
            f"{mask.name}: the loss mask must hold 0 and 1 only (got {mask.largest()}); write 1 for each "
            "token whose loss counts"
        )
    return mask
