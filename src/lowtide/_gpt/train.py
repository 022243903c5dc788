"""Start and resume training runs."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from contextlib import ExitStack, closing, nullcontext
from typing import Any, Literal

import lowtide
from lowtide._gpt import checkpoint, folder
from lowtide._gpt.aliases import without_alias
from lowtide._gpt.bits import token_bytes
from lowtide._gpt.checkpoint import Checkpoint
from lowtide._gpt.config import Settings, read_file, resolve, validate
from lowtide._gpt.data import Data
from lowtide._gpt.initial import Initial
from lowtide._gpt.loop import Outcome, Trainer
from lowtide._gpt.progress import Progress
from lowtide._gpt.ranks import Ranks
from lowtide._gpt.sources import anchored
from lowtide._io.atomic import write_file
from lowtide.errors import ArgumentError, MemoryBudgetExceeded

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt
_KEPT, _LARGEST = 256 << 20, 32 << 20  # bytes; glibc accepts no more than 32 MiB for the second


def train(
    out: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    resume: bool | Literal["auto"] = False,
    **settings: Any,
) -> Outcome:
    """Train a GPT, or resume a run.

    Parameters
    ----------
    out : path
        The folder of the run: a new one, or with ``resume`` that of an earlier run.
    config : path, optional
        A TOML file with settings.
    resume : bool or "auto"
        Continue the run in ``out`` from its last checkpoint; ``"auto"`` starts it if there is none.
    **settings
        Settings by name, as in ``lowtide.gpt.Settings``; they override ``config``. A new run needs ``data``;
        the defaults of the others come from the preset and the device.

    Returns
    -------
    Outcome
        The last step, why the run ended, and the losses.

    Examples
    --------
    >>> train("run", data="no-such-corpus", device="cpu")
    Traceback (most recent call last):
    lowtide.errors.NotFoundError: ...no-such-corpus: ...
    """
    out = os.fspath(out)
    file = None if config is None else os.fspath(config)
    if resume not in (True, False, "auto"):
        raise ArgumentError(f"resume must be True, False or 'auto', got {resume!r}")
    settings = {name: validate(name, one) for name, one in without_alias(settings, "block_size", 3).items()}
    values = {**(read_file(file) if file else {}), **settings}
    settings.update(anchored(values, os.path.dirname(file or "")))
    if resume is True or (resume == "auto" and os.path.exists(os.path.join(out, checkpoint.LAST))):
        saved = checkpoint.load(os.path.join(out, checkpoint.LAST))
        return run(resolve(settings, file, base=saved.settings), out, saved=saved)
    if not values.get("init"):
        return run(resolve(settings, file), out)
    initial = Initial.load(settings["init"], values.get("dropout", 0.0), values.get("length"))
    missing = {name: value for name, value in initial.defaults.items() if name not in values}
    return run(resolve({**missing, **settings}, file, weights=initial.sizes), out, initial=initial)


def run(
    settings: Settings, out: str, *, saved: Checkpoint | None = None, initial: Initial | None = None
) -> Outcome:
    """Train in the folder ``out``: from random or ``initial`` weights, or from a ``saved`` checkpoint."""
    keep_heap()
    with ExitStack() as stack:
        ranks = stack.enter_context(Ranks(settings.device))
        data = stack.enter_context(closing(Data(settings, ranks)))
        # Each rank measures its own processor, and all must compute the same.
        bfloat16 = ranks.sum(settings.muon_dtype == "bfloat16")[0] == ranks.world_size
        settings = dataclasses.replace(
            settings,
            vocab_size=data.vocabulary.size,
            eos=data.corpus.eos,
            muon_dtype="bfloat16" if bfloat16 else "float32",
        )
        tokenizer = folder.tokenizer_of(data.corpus)
        if initial is not None:
            tokenizer = initial.check_tokenizer(tokenizer, data.corpus)
        elif saved is not None and tokenizer is None:
            tokenizer = folder.read_tokenizer(out)
        if ranks.first:
            if saved is None:
                folder.create(out)
            folder.write_settings(out, settings)
            if tokenizer is not None:
                write_file(os.path.join(out, folder.TOKENIZER), tokenizer)
        watch = lowtide.watch(settings.memory_budget, absolute=True)
        start, silent = saved.step if saved else 0, not ranks.first
        progress = stack.enter_context(
            Progress(settings.max_iters, start, settings.log_interval, watch.budget, silent=silent)
        )
        lengths = None if tokenizer is None else token_bytes(tokenizer)
        weights = None if initial is None else initial.model
        trainer = Trainer(settings, out, ranks, data, progress, watch, saved, weights, lengths)
        stack.callback(trainer.close)
        saved = initial = weights = None  # the trainer has copied what it needs
        outcome = None
        try:
            with watch if watch.budget is not None else nullcontext():
                outcome = trainer.run()
        except MemoryBudgetExceeded as error:
            if outcome is None or settings.over_budget == "stop":
                raise
            progress.print(f"warning: {error}")
        return outcome


def keep_heap() -> None:
    """Let glibc keep the memory that a step frees, for the next step.

    By default it returns the top of the heap to the system after every backward pass, and the next step
    spends a part of its time on page faults. The setting is the process's, and stays. Other C libraries are
    left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl; Windows has no such library
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_MMAP_THRESHOLD, _LARGEST)
