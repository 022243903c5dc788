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

_MOVED = {
    "lowtide.adapters.dask": "lowtide.dask",
    "lowtide.adapters.nanogpt": "lowtide.nanogpt",
    "lowtide.adapters.torch": "lowtide.torch",
    "lowtide.aio": "lowtide._io.aio",
    "lowtide.array": "lowtide._arrays.array",
    "lowtide.batches": "lowtide._tokens.batches",
    "lowtide.buffers": "lowtide._io.buffers",
    "lowtide.casting": "lowtide._arrays.casting",
    "lowtide.chunks": "lowtide._arrays.chunks",
    "lowtide.corpora": "lowtide._tokens.corpus",
    "lowtide.descriptors": "lowtide._io.descriptors",
    "lowtide.document_ids": "lowtide._tokens.documents",
    "lowtide.dropping": "lowtide._io.pagecache",
    "lowtide.extents": "lowtide._io.extents",
    "lowtide.files": "lowtide._io.reader",
    "lowtide.formats": "lowtide._arrays.formats",
    "lowtide.formats.checksums": "lowtide._tokens.formats.checksums",
    "lowtide.formats.datatrove": "lowtide._tokens.formats.datatrove",
    "lowtide.formats.detect": "lowtide._arrays.formats",
    "lowtide.formats.documents": "lowtide._tokens.formats.documents",
    "lowtide.formats.foreign": "lowtide._arrays.formats.foreign",
    "lowtide.formats.hdf5": "lowtide._arrays.formats.hdf5",
    "lowtide.formats.journal": "lowtide._io.journal",
    "lowtide.formats.layout": "lowtide._arrays.formats.layout",
    "lowtide.formats.litdata": "lowtide._tokens.formats.litdata",
    "lowtide.formats.llmc": "lowtide._tokens.formats.llmc",
    "lowtide.formats.mds": "lowtide._tokens.formats.mds",
    "lowtide.formats.megatron": "lowtide._tokens.formats.megatron",
    "lowtide.formats.nanogpt": "lowtide._tokens.formats.nanogpt",
    "lowtide.formats.npy": "lowtide._arrays.formats.npy",
    "lowtide.formats.npytokens": "lowtide._tokens.formats.npytokens",
    "lowtide.formats.npz": "lowtide._arrays.formats.npz",
    "lowtide.formats.olmo": "lowtide._tokens.formats.olmo",
    "lowtide.formats.own": "lowtide._tokens.formats.own",
    "lowtide.formats.raw": "lowtide._arrays.formats.raw",
    "lowtide.formats.records": "lowtide._tokens.formats.records",
    "lowtide.formats.safetensors": "lowtide._arrays.formats.safetensors",
    "lowtide.formats.shards": "lowtide._tokens.formats.index",
    "lowtide.formats.source": "lowtide._io.store",
    "lowtide.formats.tokens": "lowtide._tokens.formats.tokens",
    "lowtide.gpt.archive": "lowtide._gpt.archive",
    "lowtide.gpt.checkpoints": "lowtide._gpt.checkpoint",
    "lowtide.gpt.data": "lowtide._gpt.data",
    "lowtide.gpt.generate": "lowtide._gpt.generate",
    "lowtide.gpt.metrics": "lowtide._gpt.metrics",
    "lowtide.gpt.model": "lowtide._gpt.model",
    "lowtide.gpt.optimisers": "lowtide._gpt.optim",
    "lowtide.gpt.picture": "lowtide._gpt.plot",
    "lowtide.gpt.presets": "lowtide._gpt.presets",
    "lowtide.gpt.ranks": "lowtide._gpt.ranks",
    "lowtide.gpt.schedule": "lowtide._gpt.optim",
    "lowtide.gpt.screen": "lowtide._gpt.progress",
    "lowtide.gpt.settings": "lowtide._gpt.config",
    "lowtide.gpt.tracking": "lowtide._gpt.metrics",
    "lowtide.gpt.train": "lowtide._gpt.train",
    "lowtide.gpt.weights": "lowtide._gpt.gpt2",
    "lowtide.identity": "lowtide._io.identity",
    "lowtide.indexing": "lowtide._arrays.indexing",
    "lowtide.jsonfiles": "lowtide._io.jsonfiles",
    "lowtide.mapped": "lowtide._io.mapped",
    "lowtide.memory.cgroups": "lowtide._memory.cgroup",
    "lowtide.memory.dat": "lowtide._memory.profile.dat",
    "lowtide.memory.doctor": "lowtide._memory.doctor",
    "lowtide.memory.document": "lowtide._memory.profile.document",
    "lowtide.memory.foreign": "lowtide._memory.profile.document",
    "lowtide.memory.governor": "lowtide._memory.profile.profiler",
    "lowtide.memory.guard": "lowtide._memory.watch",
    "lowtide.memory.helper": "lowtide._memory.helper",
    "lowtide.memory.live": "lowtide._memory.profile.live",
    "lowtide.memory.meter": "lowtide._memory.snapshot",
    "lowtide.memory.pagecache": "lowtide._io.pagecache",
    "lowtide.memory.peaks": "lowtide._memory.peaks",
    "lowtide.memory.proc": "lowtide._memory.proc",
    "lowtide.memory.profiler": "lowtide._memory.profile.profiler",
    "lowtide.memory.recording": "lowtide._memory.profile.recording",
    "lowtide.memory.report": "lowtide._memory.profile.report",
    "lowtide.memory.sampler": "lowtide._memory.sampler",
    "lowtide.memory.tree": "lowtide._memory.tree",
    "lowtide.memory.trips": "lowtide._memory.alarm",
    "lowtide.memory.verdict": "lowtide._memory.profile.verdict",
    "lowtide.mixture": "lowtide._tokens.mixture",
    "lowtide.operators": "lowtide._arrays.operators",
    "lowtide.orders": "lowtide._permutation",
    "lowtide.packing": "lowtide._tokens.packing",
    "lowtide.pages": "lowtide._pages",
    "lowtide.prefetch": "lowtide._io.prefetch",
    "lowtide.preparing": "lowtide._prepare",
    "lowtide.preparing.assembling": "lowtide._prepare.merge",
    "lowtide.preparing.cutting": "lowtide._prepare.inputs.pieces",
    "lowtide.preparing.datasets": "lowtide._prepare.inputs.datasets",
    "lowtide.preparing.encoding": "lowtide._prepare.worker",
    "lowtide.preparing.executors": "lowtide._prepare.executors",
    "lowtide.preparing.jsonlines": "lowtide._prepare.inputs.jsonlines",
    "lowtide.preparing.plan": "lowtide._prepare.inputs",
    "lowtide.preparing.prepare": "lowtide._prepare.prepare",
    "lowtide.preparing.reading": "lowtide._prepare.inputs.kind",
    "lowtide.preparing.running": "lowtide._prepare.jobs",
    "lowtide.preparing.sealed": "lowtide._prepare.sealed",
    "lowtide.preparing.shards": "lowtide._prepare.shard_writer",
    "lowtide.preparing.sources": "lowtide._prepare.inputs",
    "lowtide.preparing.streams": "lowtide._prepare.inputs.streams",
    "lowtide.preparing.summary": "lowtide._prepare.summary",
    "lowtide.preparing.tables": "lowtide._prepare.inputs.tables",
    "lowtide.preparing.tasks": "lowtide._prepare.jobs",
    "lowtide.preparing.texts": "lowtide._prepare.inputs.text",
    "lowtide.preparing.tokenizers": "lowtide._prepare.tokenizers",
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
    "lowtide.shuffling": "lowtide._arrays.shuffling",
    "lowtide.sizes": "lowtide._sizes",
    "lowtide.stored": "lowtide._arrays.stored",
    "lowtide.targets": "lowtide._arrays.targets",
    "lowtide.windows": "lowtide._tokens.blocks",
    "lowtide.writer": "lowtide._arrays.writer",
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
