"""Data bigger than memory, read with memory that never rises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide import _deprecated
from lowtide._front import front

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lowtide import dask as dask
    from lowtide import errors as errors
    from lowtide import gpt as gpt
    from lowtide import grain as grain
    from lowtide import memory as memory
    from lowtide import nanochat as nanochat
    from lowtide import nanogpt as nanogpt
    from lowtide import torch as torch
    from lowtide._arrays.array import Array as Array
    from lowtide._arrays.array import open as open
    from lowtide._arrays.chunks import Chunks as Chunks
    from lowtide._arrays.shuffling import shuffle as shuffle
    from lowtide._arrays.together import Zip as Zip
    from lowtide._arrays.together import zip as zip
    from lowtide._arrays.writable import WritableArray as WritableArray
    from lowtide._arrays.writer import Writer as Writer
    from lowtide._arrays.writer import create as create
    from lowtide._io.copying import copy as copy
    from lowtide._memory.magics import load_ipython_extension as load_ipython_extension
    from lowtide._memory.watch import Watch as Watch
    from lowtide._memory.watch import watch as watch
    from lowtide._prepare.corpus_writer import CorpusWriter as CorpusWriter
    from lowtide._prepare.corpus_writer import create_corpus as create_corpus
    from lowtide._prepare.prepare import prepare as prepare
    from lowtide._prepare.tokenizers import load_tokenizer as load_tokenizer
    from lowtide._tokens.batches import Batches as Batches
    from lowtide._tokens.corpus import Corpus as Corpus
    from lowtide._tokens.corpus import corpus as corpus
    from lowtide._tokens.mixture import Mixture as Mixture
    from lowtide._tokens.mixture import mix as mix
    from lowtide.dask import to_dask as to_dask
    from lowtide.errors import BudgetError as BudgetError
    from lowtide.errors import FileChangedError as FileChangedError
    from lowtide.errors import FormatError as FormatError
    from lowtide.errors import LowtideError as LowtideError
    from lowtide.errors import MemoryBudgetExceeded as MemoryBudgetExceeded
    from lowtide.errors import TruncatedFileError as TruncatedFileError

# Each public name and the module that holds it; a module holds itself. They are imported when first used, so
# that `import lowtide` costs little more than the interpreter itself.
_NAMES = {
    "Array": "lowtide._arrays.array",
    "Batches": "lowtide._tokens.batches",
    "BudgetError": "lowtide.errors",
    "Chunks": "lowtide._arrays.chunks",
    "Corpus": "lowtide._tokens.corpus",
    "CorpusWriter": "lowtide._prepare.corpus_writer",
    "FileChangedError": "lowtide.errors",
    "FormatError": "lowtide.errors",
    "LowtideError": "lowtide.errors",
    "MemoryBudgetExceeded": "lowtide.errors",
    "Mixture": "lowtide._tokens.mixture",
    "TruncatedFileError": "lowtide.errors",
    "Watch": "lowtide._memory.watch",
    "WritableArray": "lowtide._arrays.writable",
    "Writer": "lowtide._arrays.writer",
    "Zip": "lowtide._arrays.together",
    "copy": "lowtide._io.copying",
    "corpus": "lowtide._tokens.corpus",
    "create": "lowtide._arrays.writer",
    "create_corpus": "lowtide._prepare.corpus_writer",
    "dask": "lowtide.dask",
    "errors": "lowtide.errors",
    "gpt": "lowtide.gpt",
    "grain": "lowtide.grain",
    "load_ipython_extension": "lowtide._memory.magics",
    "load_tokenizer": "lowtide._prepare.tokenizers",
    "memory": "lowtide.memory",
    "mix": "lowtide._tokens.mixture",
    "nanochat": "lowtide.nanochat",
    "nanogpt": "lowtide.nanogpt",
    "open": "lowtide._arrays.array",
    "prepare": "lowtide._prepare.prepare",
    "shuffle": "lowtide._arrays.shuffling",
    "to_dask": "lowtide.dask",
    "torch": "lowtide.torch",
    "watch": "lowtide._memory.watch",
    "zip": "lowtide._arrays.together",
}

__all__ = ["__version__", *_NAMES]
__getattr__, __dir__ = front(__name__, _NAMES)
_deprecated.install()
