"""Weights to start from: those of another run, or GPT-2's."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any

from lowtide._gpt import checkpoint, folder
from lowtide._gpt.gpt2 import from_gpt2
from lowtide._gpt.model import GPT
from lowtide._tokens.corpus import Corpus
from lowtide.errors import ArgumentError


@dataclass
class Initial:
    """A model to train further, and the settings that follow from it."""

    model: GPT
    home: str = ""
    """The folder of the run; empty for GPT-2's weights."""
    tokenizer: bytes | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings of the other run, for those that are not given."""

    @classmethod
    def load(cls, source: str, dropout: float = 0.0, length: int | None = None) -> Initial:
        """The weights of ``--init``: a run, one of its checkpoints, or a source for ``from_gpt2``."""
        if not _is_run(source):
            return cls(from_gpt2(source, dropout=dropout))
        path = os.path.abspath(folder.checkpoint_path(source))
        saved, home = checkpoint.load(path), os.path.dirname(path)
        config = dataclasses.replace(saved.config, dropout=dropout)
        if config.positions == "rotary" and length is not None:  # computed, so that any length works
            config = dataclasses.replace(config, length=length)
        model = GPT(config)
        model.load_state_dict(saved.model)
        defaults = {"preset": saved.settings.preset, "length": config.length}
        return cls(model, home, folder.read_tokenizer(home), defaults)

    @property
    def sizes(self) -> dict[str, Any]:
        """The settings that the weights decide. Windows may be shorter than the context of the model."""
        config = dataclasses.asdict(self.model.config)
        return {name: value for name, value in config.items() if name != "length"}

    def check_tokenizer(self, tokenizer: bytes | None, corpus: Corpus) -> bytes | None:
        """The tokenizer of the new run: the corpus' or the other run's; they must agree if there are both."""
        if tokenizer is None or self.tokenizer is None:
            return tokenizer or self.tokenizer
        if not _same(tokenizer, self.tokenizer):
            raise ArgumentError(
                f"{corpus.name}: was prepared with another tokenizer than the weights of --init, so that one "
                f"id stands for different texts; prepare it with --tokenizer "
                f"{os.path.join(self.home, folder.TOKENIZER)}"
            )
        return tokenizer


def _same(one: bytes, other: bytes) -> bool:
    """Whether two tokenizer files have the same content; their white space may differ."""
    try:
        return one == other or bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False


def _is_run(source: str) -> bool:
    files = (os.path.join(source, name) for name in (checkpoint.LAST, checkpoint.BEST))
    return source.endswith(".pt") or any(map(os.path.exists, files))
