"""The folder of a run.

::

    RUN/settings.json     all settings
    RUN/checkpoint.pt     the last state: model, optimiser, step, position in the data, settings, best loss
    RUN/best.pt           the weights with the lowest validation loss so far
    RUN/metrics.jsonl     one line per step
    RUN/tokenizer.json    the corpus' tokenizer, so that the folder is enough to sample from
    RUN/training.png      loss and memory
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal

from lowtide._gpt import checkpoint
from lowtide._gpt.aliases import upgrade
from lowtide._gpt.checkpoint import BEST, LAST
from lowtide._gpt.config import Settings
from lowtide._gpt.model import GPT
from lowtide._io import jsonfiles
from lowtide._io.atomic import write_file
from lowtide._io.store import opened
from lowtide._printable import brief
from lowtide._tokens.corpus import Corpus
from lowtide.errors import ArgumentError, FormatError, missing, write_errors

if TYPE_CHECKING:
    from lowtide._prepare.tokenizers import Tokenizer

SETTINGS, METRICS, TOKENIZER, PICTURE = "settings.json", "metrics.jsonl", "tokenizer.json", "training.png"
_MAX_SETTINGS = 2**20  # bytes
_SUFFIX = ".pt"
Which = Literal["best", "last"]


def create(run: str) -> None:
    """Make the folder of a new run; one that already holds a run is refused."""
    if os.path.exists(os.path.join(run, LAST)):
        raise ArgumentError(
            f"{run}: already holds a run; pass --resume (or --resume auto) to continue it, or another folder"
        )
    with write_errors(run):
        os.makedirs(run, exist_ok=True)


def load_model(run: str | os.PathLike[str], which: Which | None = None) -> GPT:
    """Load the model of a run, in ``eval()`` mode on the CPU.

    Parameters
    ----------
    run : path
        The folder of the run, or one of its checkpoints.
    which : {"best", "last"}, optional
        The weights with the lowest validation loss, or those of the last checkpoint. [default: the best if
        the run was evaluated, else the last]

    Examples
    --------
    >>> load_model("no-such-run")
    Traceback (most recent call last):
    lowtide.errors.NotFoundError: no-such-run/checkpoint.pt: no checkpoint there; pass the folder of a run ...
    """
    return load_weights(run, which)[0]


def load_weights(run: str | os.PathLike[str], which: Which | None = None) -> tuple[GPT, str, int]:
    """Load a model as ``load_model`` does; return the path of its checkpoint and its step too."""
    path = checkpoint_path(run, which)
    saved = checkpoint.load(path)
    model = GPT(saved.config)
    model.load_state_dict(saved.model)
    return model.eval(), path, saved.step


def checkpoint_path(run: str | os.PathLike[str], which: Which | None = None) -> str:
    """The checkpoint to load: the best of a run if it has one, unless ``which`` or a file is given."""
    if which not in (None, "best", "last"):
        raise ArgumentError(f"which must be 'best' or 'last', got {which!r}")
    folder = os.fspath(run)
    if which is None and folder.endswith(_SUFFIX) and os.path.isfile(folder):
        return folder
    best = os.path.join(folder, BEST)
    if which == "best" and not os.path.exists(best) and os.path.exists(os.path.join(folder, LAST)):
        raise missing(best, "the run was not evaluated, so it has no best checkpoint; take the last")
    return best if which == "best" or (which is None and os.path.exists(best)) else os.path.join(folder, LAST)


def folder_of(run: str | os.PathLike[str]) -> str:
    """The folder of a run, from its path or that of one of its checkpoints."""
    path = os.fspath(run)
    return os.path.dirname(path) or "." if path.endswith(_SUFFIX) and os.path.isfile(path) else path


def write_settings(run: str, settings: Settings) -> None:
    """Write ``settings.json``."""
    write_file(os.path.join(run, SETTINGS), (json.dumps(settings.to_json(), indent=1) + "\n").encode())


def read_settings(run: str | os.PathLike[str]) -> Settings:
    """Read the settings of a run, those of its last start."""
    path = os.path.join(os.fspath(run), SETTINGS)
    values = jsonfiles.load(path, limit=_MAX_SETTINGS, what="settings of a run")
    try:
        if not isinstance(values, dict):
            raise TypeError(f"got {brief(values)}, expected an object")
        return Settings(**upgrade(values))
    except (ValueError, TypeError) as error:
        raise FormatError(
            f"{path}: does not hold the settings of a run ({brief(str(error), 500)[1:-1]}); restore the "
            "file, or start the run again"
        ) from error


def tokenizer_of(corpus: Corpus) -> bytes | None:
    """The content of a corpus' tokenizer file, if it has one."""
    record = corpus.metadata.get("tokenizer")
    if isinstance(record, dict) and record.get("file"):
        source_path = os.path.join(os.path.dirname(corpus.paths[0]), record["file"])
        with opened(source_path) as source:
            return source.read(0, source.size, "tokenizer")
    if characters := _characters(corpus):
        from lowtide._prepare.tokenizers.char import CharTokenizer

        return CharTokenizer(characters).to_json().encode()
    return None


def read_tokenizer(run: str) -> bytes | None:
    """The content of a run's tokenizer file, if it has one."""
    path = os.path.join(run, TOKENIZER)
    if not os.path.exists(path):
        return None
    with opened(path) as file:
        return file.read(0, file.size, "tokenizer")


def _characters(corpus: Corpus) -> str | None:
    """The alphabet of nanoGPT's ``meta.pkl``, if ids are positions in it."""
    ids = corpus.metadata.get("stoi")
    if not isinstance(ids, dict) or not all(isinstance(key, str) and len(key) == 1 for key in ids):
        return None
    characters = "".join(sorted(ids))
    return characters if [ids[one] for one in characters] == list(range(len(characters))) else None


def load_tokenizer(run: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a run.

    Parameters
    ----------
    run : path
        The folder of the run.

    Examples
    --------
    >>> load_tokenizer("no-such-run")
    Traceback (most recent call last):
    lowtide.errors.NotFoundError: no-such-run/tokenizer.json: the run has no tokenizer, since its corpus ...
    """
    from lowtide._prepare.tokenizers import load

    path = os.path.join(os.fspath(run), TOKENIZER)
    if not os.path.exists(path):
        raise missing(path, "the run has no tokenizer, since its corpus had none; pass one by name")
    return load(path, eos=read_settings(run).eos)
