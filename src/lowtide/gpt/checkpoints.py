"""The run folder: checkpoints that are complete or not there, and what else a run keeps.

::

    RUN/settings.json     the settings, complete
    RUN/checkpoint.pt     the last state: model, optimiser, step, place in the data, settings, best loss
    RUN/best.pt           the weights with the lowest validation loss so far
    RUN/metrics.jsonl     one line a step
    RUN/tokenizer.json    the corpus' own, so that the folder alone can be sampled from
    RUN/training.png      loss and memory

Checkpoints are PyTorch's files, read by its restricted unpickler (``weights_only=True``) and never by a free
one. They hold no random state: weights come from the seed once, and dropout is seeded anew at every step from
the seed, the step and the rank, as the batch of a step is. So a run goes on exactly, on any number of ranks.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lowtide import errors
from lowtide.corpora import Corpus
from lowtide.errors import ArgumentError, FormatError, LowtideError, NotFoundError, TruncatedFileError
from lowtide.gpt.model import GPT, ModelConfig, torch
from lowtide.gpt.settings import Settings
from lowtide.publish import Pace, Partial, write_all, write_file

if TYPE_CHECKING:
    from lowtide.preparing.tokenizers import Tokenizer

LAST, BEST = "checkpoint.pt", "best.pt"
SETTINGS, METRICS, TOKENIZER, PICTURE = "settings.json", "metrics.jsonl", "tokenizer.json", "training.png"
FORMAT, VERSION = "lowtide checkpoint", 1
Which = Literal["best", "last"]


@dataclass(frozen=True)
class Checkpoint:
    """A run at one moment, on the CPU. ``best.pt`` has no optimiser, no scaler and no place in the data."""

    step: int
    settings: Settings
    config: ModelConfig
    model: Mapping[str, Any]
    best_val_loss: float | None = None
    optimiser: Mapping[str, Any] | None = None
    scaler: Mapping[str, Any] | None = None
    batches: Mapping[str, Any] | None = None

    def save(self, path: str) -> None:
        """Write it beside ``path``, put it on disk, rename: a kill meanwhile leaves the old one."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content["settings"] = self.settings.to_json()
        content["config"] = dataclasses.asdict(self.config)
        partial = Partial(path)
        file = _File(partial.fd)
        try:
            torch.save({"format": FORMAT, "version": VERSION, **content}, file)  # type: ignore[arg-type]
        except BaseException as error:
            partial.abort()
            # PyTorch's writer turns what the system says into a RuntimeError of its own.
            if file.error is not None:
                raise errors.writing(path, file.error) from error
            raise
        partial.publish()


class _File:
    """What ``torch.save`` writes to: unbuffered, with few bytes dirty, and it knows what went wrong."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at, self._pace = fd, 0, Pace(fd)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            write_all(self._fd, view, self._at)
        except OSError as error:
            self.error = error
            raise
        self._at += len(view)
        self._pace.wrote(self._at)
        return len(view)

    def flush(self) -> None:
        """Nothing is kept back."""


def load(path: str) -> Checkpoint:
    """A checkpoint from its file; the errors say what is wrong with it."""
    try:
        with open(path, "rb") as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise NotFoundError(
            errno.ENOENT, "no checkpoint there; name the folder of a run that has begun", path
        ) from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # PyTorch looks before the beginning of a file that lacks its end
            raise _damaged(path, "its end is missing") from error
        raise errors.reading(path, error) from error
    except pickle.UnpicklingError as error:
        said = str(error).partition("\n")[0]
        raise FormatError(
            f"{path}: holds something else than tensors and plain values, and is not loaded: {said}; lowtide "
            "does not write such files"
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        said = str(error).partition("\n")[0].partition(":")[2].strip() or type(error).__name__
        raise _damaged(path, said) from error
    return _checked(path, content)


def _damaged(path: str, said: str) -> TruncatedFileError:
    return TruncatedFileError(
        f"{path}: cannot be read as a checkpoint, it is cut short or damaged ({said}; "
        f"{os.path.getsize(path)} bytes); restore it, or begin the run again"
    )


def _checked(path: str, content: Any) -> Checkpoint:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(f"{path}: is a PyTorch file, but no checkpoint of lowtide train")
    if content.get("version") != VERSION:
        raise FormatError(
            f"{path}: version {content.get('version')!r} is not known, {VERSION} is; written by a newer "
            "lowtide: update this one"
        )
    try:
        settings, config = Settings(**content["settings"]), ModelConfig(**content["config"])
        rest = {
            name: content[name]
            for name in Checkpoint.__dataclass_fields__
            if name not in ("settings", "config")
        }
        return Checkpoint(settings=settings, config=config, **rest)
    except (KeyError, TypeError, LowtideError) as error:
        raise FormatError(
            f"{path}: does not hold what a checkpoint has ({type(error).__name__}: {error}); written by "
            "another version of lowtide"
        ) from error


def fill(model: GPT, saved: Checkpoint, path: str) -> None:
    """Put a checkpoint's weights into a model, if it has the same architecture."""
    differ = [
        f"{name} is {getattr(saved.config, name)!r} in it and {getattr(model.config, name)!r} here"
        for name in ModelConfig.__dataclass_fields__
        if getattr(saved.config, name) != getattr(model.config, name)
    ]
    if differ:
        raise FormatError(f"{path}: is the checkpoint of another architecture: {'; '.join(differ)}")
    try:
        model.load_state_dict(dict(saved.model))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise FormatError(
            f"{path}: its weights do not fit its own architecture: {' '.join(lines)}"
        ) from error


def load_model(run: str | os.PathLike[str], which: Which | None = None) -> GPT:
    """The model of a run folder, ready to be asked: the best weights where there are some, else the last."""
    if which not in (None, "best", "last"):
        raise ArgumentError(f"which must be 'best' or 'last', got {which!r}")
    folder = os.fspath(run)
    best = os.path.join(folder, BEST)
    path = best if which == "best" or (which is None and os.path.exists(best)) else os.path.join(folder, LAST)
    saved = load(path)
    model = GPT(saved.config)
    fill(model, saved, path)
    return model.eval()


def begin(run: str, settings: Settings) -> None:
    """Make the folder of a new run; one that holds a run already is refused."""
    path = os.path.join(run, LAST)
    if os.path.exists(path):
        raise ArgumentError(
            f"{run}: holds a run already; --resume goes on with it, or name another folder for a new one"
        )
    try:
        os.makedirs(run, exist_ok=True)
    except OSError as error:
        raise errors.writing(run, error) from error
    write_settings(run, settings)


def write_settings(run: str, settings: Settings) -> None:
    """``settings.json``, whole or not at all."""
    write_file(os.path.join(run, SETTINGS), (json.dumps(settings.to_json(), indent=1) + "\n").encode())


def keep_tokenizer(run: str, corpus: Corpus) -> None:
    """Copy the corpus' tokenizer into the run folder, where it has one."""
    told = corpus.found.metadata.get("tokenizer")
    if isinstance(told, dict) and told.get("file"):
        path = os.path.join(os.path.dirname(corpus.found.segments[0].path), told["file"])
        try:
            with open(path, "rb") as file:
                write_file(os.path.join(run, TOKENIZER), file.read())
        except OSError as error:
            raise errors.reading(path, error) from error
        return
    characters = _characters(corpus)
    if characters:
        from lowtide.preparing.tokenizers import make

        write_file(os.path.join(run, TOKENIZER), make("char", alphabet=characters).to_json().encode())


def _characters(corpus: Corpus) -> str | None:
    """The alphabet of nanoGPT's ``meta.pkl``, where ids are places in it."""
    known = corpus.found.metadata.get("stoi")
    if not isinstance(known, dict) or not all(isinstance(key, str) and len(key) == 1 for key in known):
        return None
    characters = "".join(sorted(known))
    return characters if [known[one] for one in characters] == list(range(len(characters))) else None


def load_tokenizer(run: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a run folder."""
    from lowtide.preparing.tokenizers import load as load_file

    path = os.path.join(os.fspath(run), TOKENIZER)
    if not os.path.exists(path):
        raise NotFoundError(
            errno.ENOENT,
            "the run has no tokenizer, since its corpus had none; ids can be sampled alone",
            path,
        )
    return load_file(path, eos=read_settings(run).eos)


def read_settings(run: str | os.PathLike[str]) -> Settings:
    """The settings that a run was begun with, and those that were changed when it went on."""
    path = os.path.join(os.fspath(run), SETTINGS)
    try:
        with open(path, "rb") as file:
            return Settings(**json.load(file))
    except OSError as error:
        raise errors.reading(path, error) from error
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: does not hold the settings of a run: {error}") from error
