"""Module paths of version 0.1, which keep working for one version more.

Everything but the public names has moved behind an underscore. Importing an old path gives the module at its
new place, and a ``DeprecationWarning`` that says where its public names are now.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Modules that kept their name: the old package, the new one, and the names.
_KEPT = (
    (
        "lowtide",
        "lowtide._arrays",
        "array casting chunks formats indexing operators shuffling stored targets writer",
    ),
    ("lowtide", "lowtide._io", "aio buffers descriptors extents identity jsonfiles mapped prefetch"),
    ("lowtide", "lowtide._tokens", "batches mixture packing"),
    ("lowtide.formats", "lowtide._arrays.formats", "foreign hdf5 layout npy npz raw safetensors"),
    (
        "lowtide.formats",
        "lowtide._tokens.formats",
        "checksums datatrove documents litdata llmc mds megatron nanogpt npytokens olmo own records tokens",
    ),
    ("lowtide.gpt", "lowtide._gpt", "archive data generate metrics model presets ranks train"),
    ("lowtide.memory", "lowtide._memory", "doctor helper peaks proc sampler tree"),
    ("lowtide.memory", "lowtide._memory.profile", "dat document live profiler recording report verdict"),
    ("lowtide.preparing", "lowtide._prepare", "executors prepare sealed summary tokenizers"),
    ("lowtide.preparing", "lowtide._prepare.inputs", "datasets jsonlines streams tables"),
)
_MOVED = {
    **{f"{old}.{name}": f"{new}.{name}" for old, new, names in _KEPT for name in names.split()},
    "lowtide.adapters.dask": "lowtide.dask",
    "lowtide.adapters.nanogpt": "lowtide.nanogpt",
    "lowtide.adapters.torch": "lowtide.torch",
    "lowtide.corpora": "lowtide._tokens.corpus",
    "lowtide.document_ids": "lowtide._tokens.documents",
    "lowtide.dropping": "lowtide._io.pagecache",
    "lowtide.files": "lowtide._io.reader",
    "lowtide.formats.detect": "lowtide._arrays.formats",
    "lowtide.formats.journal": "lowtide._io.journal",
    "lowtide.formats.shards": "lowtide._tokens.formats.index",
    "lowtide.formats.source": "lowtide._io.store",
    "lowtide.gpt.checkpoints": "lowtide._gpt.checkpoint",
    "lowtide.gpt.optimisers": "lowtide._gpt.optim",
    "lowtide.gpt.picture": "lowtide._gpt.plot",
    "lowtide.gpt.schedule": "lowtide._gpt.optim",
    "lowtide.gpt.screen": "lowtide._gpt.progress",
    "lowtide.gpt.settings": "lowtide._gpt.config",
    "lowtide.gpt.tracking": "lowtide._gpt.metrics",
    "lowtide.gpt.weights": "lowtide._gpt.gpt2",
    "lowtide.memory.cgroups": "lowtide._memory.cgroup",
    "lowtide.memory.foreign": "lowtide._memory.profile.document",
    "lowtide.memory.governor": "lowtide._memory.profile.profiler",
    "lowtide.memory.guard": "lowtide._memory.watch",
    "lowtide.memory.meter": "lowtide._memory.snapshot",
    "lowtide.memory.pagecache": "lowtide._io.pagecache",
    "lowtide.memory.trips": "lowtide._memory.alarm",
    "lowtide.orders": "lowtide._permutation",
    "lowtide.pages": "lowtide._pages",
    "lowtide.preparing": "lowtide._prepare",
    "lowtide.preparing.assembling": "lowtide._prepare.merge",
    "lowtide.preparing.cutting": "lowtide._prepare.inputs.pieces",
    "lowtide.preparing.encoding": "lowtide._prepare.worker",
    "lowtide.preparing.plan": "lowtide._prepare.inputs",
    "lowtide.preparing.reading": "lowtide._prepare.inputs.kind",
    "lowtide.preparing.running": "lowtide._prepare.jobs",
    "lowtide.preparing.shards": "lowtide._prepare.shard_writer",
    "lowtide.preparing.sources": "lowtide._prepare.inputs",
    "lowtide.preparing.tasks": "lowtide._prepare.jobs",
    "lowtide.preparing.texts": "lowtide._prepare.inputs.text",
    "lowtide.preparing.tokenizers.bytelevel": "lowtide._prepare.tokenizers.byte",
    "lowtide.preparing.tokenizers.characters": "lowtide._prepare.tokenizers.char",
    "lowtide.preparing.tokenizers.huggingface": "lowtide._prepare.tokenizers.huggingface",
    "lowtide.preparing.tokenizers.openai": "lowtide._prepare.tokenizers.tiktoken",
    "lowtide.preparing.tokenizers.probe": "lowtide._prepare.tokenizers.probe",
    "lowtide.preparing.tokenizers.shared": "lowtide._prepare.tokenizers.kind",
    "lowtide.preparing.units": "lowtide._prepare.inputs.kind",
    "lowtide.preparing.vocabulary": "lowtide._prepare.jobs",
    "lowtide.preparing.workfolder": "lowtide._prepare.workdir",
    "lowtide.printable": "lowtide._printable",
    "lowtide.publish": "lowtide._io.atomic",
    "lowtide.readonly": "lowtide._readonly",
    "lowtide.samplers": "lowtide._tokens.sampling",
    "lowtide.scanning": "lowtide._tokens.documents",
    "lowtide.shards": "lowtide._tokens.segments",
    "lowtide.sizes": "lowtide._sizes",
    "lowtide.windows": "lowtide._tokens.blocks",
    "lowtide.adapters": "lowtide",
}


class _Finder(MetaPathFinder, Loader):
    """Finds modules at their old places."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in _MOVED else None

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
    """Let old paths be found. First of all: else their modules would be found again in the new folders."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
