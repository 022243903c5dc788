"""A small GPT on lowtide's loader: model, training, sampling.

Names are imported when first used, since importing PyTorch takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide._front import front

if TYPE_CHECKING:
    from lowtide._gpt.config import Settings as Settings
    from lowtide._gpt.export import export as export
    from lowtide._gpt.folder import load_model as load_model
    from lowtide._gpt.folder import load_tokenizer as load_tokenizer
    from lowtide._gpt.generate import generate as generate
    from lowtide._gpt.generate import sample as sample
    from lowtide._gpt.gpt2 import from_gpt2 as from_gpt2
    from lowtide._gpt.gpt2 import to_gpt2 as to_gpt2
    from lowtide._gpt.loop import Outcome as Outcome
    from lowtide._gpt.model import GPT as GPT
    from lowtide._gpt.model import ModelConfig as ModelConfig
    from lowtide._gpt.presets import ARCHITECTURES as ARCHITECTURES
    from lowtide._gpt.train import train as train

_NAMES = {
    "ARCHITECTURES": "lowtide._gpt.presets",
    "GPT": "lowtide._gpt.model",
    "ModelConfig": "lowtide._gpt.model",
    "Outcome": "lowtide._gpt.loop",
    "Settings": "lowtide._gpt.config",
    "export": "lowtide._gpt.export",
    "from_gpt2": "lowtide._gpt.gpt2",
    "generate": "lowtide._gpt.generate",
    "load_model": "lowtide._gpt.folder",
    "load_tokenizer": "lowtide._gpt.folder",
    "sample": "lowtide._gpt.generate",
    "to_gpt2": "lowtide._gpt.gpt2",
    "train": "lowtide._gpt.train",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = front(__name__, _NAMES)
