"""The run folder: checkpoints that are complete or not there, and what else a run keeps.

::

    RUN/settings.json     the settings, complete
    RUN/checkpoint.pt     the last state: model, optimiser, step, place in the data, settings, best loss
    RUN/best.pt           the weights with the lowest validation loss so far
    RUN/metrics.jsonl     one line a step
    RUN/tokenizer.json    the corpus' own, so that the folder alone can be sampled from
    RUN/training.png      loss and memory

Checkpoints are PyTorch's files, read by ``gpt/archive.py``: what is in one is verified and never run. They
hold no random state: weights come from the seed once, and dropout is seeded again at every step from the
seed, the step and the rank, as the batch of a step is. So a run resumes exactly, on any number of ranks.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from lowtide import errors
from lowtide._gpt import archive
from lowtide._gpt.model import GPT, ModelConfig, skeleton, torch
from lowtide._gpt.optimisers import Optimiser
from lowtide._gpt.settings import Settings
from lowtide._io import jsonfiles
from lowtide._io.publish import Pace, Partial, write_all, write_file
from lowtide._printable import brief
from lowtide._tokens.corpus import Corpus
from lowtide.errors import ArgumentError, FormatError, LowtideError, NotFoundError, StateError

if TYPE_CHECKING:
    from lowtide._prepare.tokenizers import Tokenizer

LAST, BEST = "checkpoint.pt", "best.pt"
SETTINGS, METRICS, TOKENIZER, PICTURE = "settings.json", "metrics.jsonl", "tokenizer.json", "training.png"
FORMAT, VERSION = "lowtide checkpoint", 1
_MAX_SETTINGS = 2**20  # bytes
_MOST_VALUES = 10_000  # of one level of a state
_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
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
        content = archive.load(path)
        size = os.path.getsize(path)
    except FileNotFoundError:
        raise NotFoundError(
            errno.ENOENT, "no checkpoint there; pass the folder of a run that was started", path
        ) from None
    saved = _checked(path, content)
    _check_weights(path, saved, size)
    return saved


def _checked(path: str, content: Any) -> Checkpoint:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(
            f"{path}: is a PyTorch file, but not a checkpoint of lowtide train; pass the folder of a run"
        )
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        raise FormatError(
            f"{path}: the version of the checkpoint is not known ({brief(version)}, expected {VERSION}); "
            "update lowtide"
        )
    try:
        parts = {name: content[name] for name in Checkpoint.__dataclass_fields__}
        _check_parts(parts)
        parts["settings"], parts["config"] = Settings(**parts["settings"]), ModelConfig(**parts["config"])
        return Checkpoint(**parts)
    except (KeyError, TypeError, LowtideError) as error:
        raise FormatError(
            f"{path}: does not hold what a checkpoint has ({type(error).__name__}: "
            f"{brief(str(error), 500)[1:-1]}); load it with the version of lowtide that wrote it, or start "
            "the run again"
        ) from error


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse values of other types than ``save`` writes."""
    step, best = parts["step"], parts["best_val_loss"]
    if type(step) is not int or not 0 <= step < 2**32:
        raise TypeError(f"step is {brief(step)}, expected an integer >= 0")
    if type(best) not in (int, float, NoneType):
        raise TypeError(f"best_val_loss is {brief(best)}, expected a number")
    for name, depth in (("settings", 1), ("config", 1), ("scaler", 1), ("batches", 10)):
        if not (_is_plain(parts[name], depth) or (parts[name] is None and name in ("scaler", "batches"))):
            raise TypeError(f"{name} is {brief(parts[name])}, expected a dict of plain values")
    scaler = parts["scaler"] or dict.fromkeys(_SCALER, 1.0)  # empty where it was not in use
    if not all(type(scaler.get(name)) in (int, float) for name in _SCALER):
        raise TypeError(f"scaler is {brief(scaler)}, expected numbers for {', '.join(_SCALER)}")
    if not isinstance(parts["optimiser"], dict | NoneType):
        raise TypeError(f"optimiser is {brief(parts['optimiser'])}, expected a dict")
    weights = parts["model"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        for name, tensor in weights.items()
    ):
        raise TypeError("model must be a dict of tensors")


def _is_plain(value: Any, depth: int) -> bool:
    """Whether it is a dict of plain values, ``depth`` levels deep: a pickle can hold itself, or a tower."""
    if not isinstance(value, dict):
        return False
    level: list[Any] = [value]
    for _ in range(depth + 1):
        if not all(isinstance(one, dict | list | tuple | str | int | float | NoneType) for one in level):
            return False
        if not all(isinstance(key, str) for one in level if isinstance(one, dict) for key in one):
            return False
        inside = (one.values() if isinstance(one, dict) else one for one in level if _holds(one))
        level = list(islice(chain.from_iterable(inside), _MOST_VALUES + 1))
        if len(level) > _MOST_VALUES:
            return False
    return not level


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _check_weights(path: str, saved: Checkpoint, size: int) -> None:
    """Refuse weights of other shapes than the architecture has, before memory is taken for a model."""
    numbers = size // 2  # at most: a tensor may lie in another one's bytes
    model = skeleton(saved.config, len(saved.model), numbers, path)
    expected = model.state_dict()
    for name in sorted({*expected, *saved.model}):
        found, right = (tuple(one[name].shape) if name in one else None for one in (saved.model, expected))
        if found != right:
            raise FormatError(
                f"{path}: its weights do not fit its own architecture ({brief(name)} has the shape {found}, "
                f"expected {right}); restore another copy of the file, or start the run again"
            )
    if (count := sum(one.numel() for one in model.parameters())) > numbers:
        raise FormatError(
            f"{path}: is damaged ({count} weights, expected at most {numbers} in {size} bytes); restore "
            "another copy of the file, or start the run again"
        )


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


def restore(optimiser: Optimiser, saved: Checkpoint, path: str) -> None:
    """Put a checkpoint's state into an optimiser, if it is the state of such a one."""
    if saved.optimiser is None or saved.batches is None:
        raise FormatError(
            f"{path}: holds weights alone, as {BEST} does, and not the state of a run; restore {LAST}, or "
            "start another run"
        )
    try:
        optimiser.load_state_dict(saved.optimiser)
    except StateError as error:
        raise FormatError(
            f"{path}: {error}; restore another copy of the file, or start the run again"
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
    told = corpus.metadata.get("tokenizer")
    if isinstance(told, dict) and told.get("file"):
        path = os.path.join(os.path.dirname(corpus.paths[0]), told["file"])
        try:
            with open(path, "rb") as file:
                write_file(os.path.join(run, TOKENIZER), file.read())
        except OSError as error:
            raise errors.reading(path, error) from error
        return
    characters = _characters(corpus)
    if characters:
        from lowtide._prepare.tokenizers import make

        write_file(os.path.join(run, TOKENIZER), make("char", alphabet=characters).to_json().encode())


def _characters(corpus: Corpus) -> str | None:
    """The alphabet of nanoGPT's ``meta.pkl``, where ids are places in it."""
    known = corpus.metadata.get("stoi")
    if not isinstance(known, dict) or not all(isinstance(key, str) and len(key) == 1 for key in known):
        return None
    characters = "".join(sorted(known))
    return characters if [known[one] for one in characters] == list(range(len(characters))) else None


def load_tokenizer(run: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a run folder."""
    from lowtide._prepare.tokenizers import load as load_file

    path = os.path.join(os.fspath(run), TOKENIZER)
    if not os.path.exists(path):
        raise NotFoundError(
            errno.ENOENT,
            "the run has no tokenizer, since its corpus had none; ids can be sampled alone",
            path,
        )
    return load_file(path, eos=read_settings(run).eos)


def read_settings(run: str | os.PathLike[str]) -> Settings:
    """The settings that a run was started with, and those that were changed when it was resumed."""
    path = os.path.join(os.fspath(run), SETTINGS)
    found = jsonfiles.load(path, limit=_MAX_SETTINGS, what="settings of a run")
    try:
        if not isinstance(found, dict):
            raise TypeError(f"found {brief(found)}, expected an object")
        return Settings(**found)
    except (ValueError, TypeError) as error:
        raise FormatError(
            f"{path}: does not hold the settings of a run ({brief(str(error), 500)[1:-1]}); restore the "
            "file, or start the run again"
        ) from error
