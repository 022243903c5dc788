"""Module paths of version 0.1, which keep working for one more version.

All modules that are not public have moved behind an underscore. Importing an old path returns the module at
its new place, with a ``DeprecationWarning`` that says where its public names are now.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

# The old package, the new one, and the modules that moved: OLD=NEW if one has another name now.
_MOVES = (
    ("lowtide", "lowtide", "orders=_permutation pages=_pages preparing=_prepare printable=_printable"),
    ("lowtide", "lowtide", "readonly=_readonly sizes=_sizes"),
    ("lowtide", "lowtide._arrays", "array casting chunks formats indexing operators shuffling stored"),
    ("lowtide", "lowtide._arrays", "targets writer"),
    ("lowtide", "lowtide._io", "aio buffers descriptors dropping=pagecache extents files=reader identity"),
    ("lowtide", "lowtide._io", "jsonfiles mapped prefetch publish=atomic"),
    ("lowtide", "lowtide._tokens", "batches corpora=corpus document_ids=documents mixture packing"),
    ("lowtide", "lowtide._tokens", "samplers=sampling scanning=documents shards=segments windows=blocks"),
    ("lowtide.adapters", "lowtide", "dask nanogpt torch"),
    ("lowtide.formats", "lowtide._arrays.formats", "foreign hdf5 layout npy npz raw safetensors"),
    ("lowtide.formats", "lowtide._io", "journal source=store"),
    ("lowtide.formats", "lowtide._tokens.formats", "checksums datatrove documents litdata llmc mds"),
    ("lowtide.formats", "lowtide._tokens.formats", "megatron nanogpt npytokens olmo own records"),
    ("lowtide.formats", "lowtide._tokens.formats", "shards=index tokens"),
    ("lowtide.gpt", "lowtide._gpt", "archive checkpoints=checkpoint data generate metrics model"),
    ("lowtide.gpt", "lowtide._gpt", "optimisers=optim picture=plot presets ranks schedule=optim"),
    ("lowtide.gpt", "lowtide._gpt", "screen=progress settings=config tracking=metrics train weights=gpt2"),
    ("lowtide.memory", "lowtide._io", "pagecache"),
    ("lowtide.memory", "lowtide._memory", "cgroups=cgroup doctor guard=watch helper meter=snapshot peaks"),
    ("lowtide.memory", "lowtide._memory", "proc sampler tree trips=alarm"),
    ("lowtide.memory", "lowtide._memory.profile", "dat document foreign=document governor=profiler live"),
    ("lowtide.memory", "lowtide._memory.profile", "profiler recording report verdict"),
    ("lowtide.preparing", "lowtide._prepare", "assembling=merge encoding=worker executors plan=inputs"),
    ("lowtide.preparing", "lowtide._prepare", "prepare running=jobs sealed shards=shard_writer"),
    ("lowtide.preparing", "lowtide._prepare", "sources=inputs summary tasks=jobs tokenizers"),
    ("lowtide.preparing", "lowtide._prepare", "vocabulary=jobs workfolder=workdir"),
    ("lowtide.preparing", "lowtide._prepare.inputs", "cutting=pieces datasets jsonlines reading=kind"),
    ("lowtide.preparing", "lowtide._prepare.inputs", "streams tables texts=text units=kind"),
    ("lowtide.preparing.tokenizers", "lowtide._prepare.tokenizers", "bytelevel=byte characters=char"),
    ("lowtide.preparing.tokenizers", "lowtide._prepare.tokenizers", "huggingface openai=tiktoken probe"),
    ("lowtide.preparing.tokenizers", "lowtide._prepare.tokenizers", "shared=kind"),
)
_MOVED = {"lowtide.adapters": "lowtide", "lowtide.formats.detect": "lowtide._arrays.formats"}
for _old, _new, _names in _MOVES:
    for _was, _, _is in (name.partition("=") for name in _names.split()):
        _MOVED[f"{_old}.{_was}"] = f"{_new}.{_is or _was}"


class _Finder:
    """Finds modules at their old paths. It has no base class, whose import would take ten milliseconds."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        home = _MOVED[spec.name]
        warnings.warn(_message(spec.name, home), DeprecationWarning, stacklevel=2)
        module = import_module(home)
        self._specs[home] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]  # the import system has put the old name there


def _message(old: str, home: str) -> str:
    names = [
        f"{package}.{name}"
        for package in ("lowtide", "lowtide.memory", "lowtide.gpt")
        for name, module in import_module(package)._NAMES.items()
        if module == home
    ]
    instead = f"use {' or '.join(names)}" if names else "it is not a part of the public interface"
    if not home.startswith("lowtide._") and home != "lowtide":
        instead = f"import {home}"
    return f"{old} is deprecated and will be removed in the next version; {instead}"


def install() -> None:
    """Install the finder, before the others: they would import the modules of the new folders twice."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
