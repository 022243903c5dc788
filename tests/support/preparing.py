"""Helpers for tests of prepare: tasks of a few kilobytes, so that small sources make many of them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lowtide
from lowtide._prepare import jobs, merge, settings


@contextmanager
def small(unit: int = 4096, uncommitted: int = 10_000) -> Iterator[None]:
    """Units of ``unit`` bytes, one per task, and a commit every few of them."""
    with (
        mock.patch.object(settings, "UNIT", unit),
        mock.patch.object(jobs, "_TASK_SIZE", unit),
        mock.patch.object(merge, "_UNCOMMITTED", uncommitted),
    ):
        yield


SCRIPT = """
import json, sys
from tests.support.preparing import small
import lowtide
arguments = json.loads(sys.argv[1])
with small(arguments.pop("unit", 4096)):
    print(lowtide.prepare(**arguments).tokens)
"""


def start(script: str = SCRIPT, **arguments: Any) -> subprocess.Popen[str]:
    """``prepare`` with small units, in another process."""
    command = [sys.executable, "-W", "error", "-c", script, json.dumps(arguments, default=str)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop(owner: Any, name: str, call: int, **arguments: Any) -> None:
    """``prepare`` with small units, stopped before a call of ``owner.name``, as by a kill."""
    real = getattr(owner, name)
    calls = 0

    def stopping(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return real(*given, **named)

    with small(), mock.patch.object(owner, name, stopping), suppress(KeyboardInterrupt):
        lowtide.prepare(workers=1, **arguments)
        raise AssertionError(f"{name} was not called {call} times")


def jsonl(path: Path, documents: int, seed: int = 0) -> list[str]:
    """Write a file of documents of 1 to 399 characters; their texts."""
    chance = random.Random(seed)
    texts = ["".join(chance.choices("abcdefgh é\n", k=chance.randrange(1, 400))) for _ in range(documents)]
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return texts


def content(folder: Path) -> dict[str, str]:
    """Every file of a folder and its digest, but for the digest of the plan, which holds paths and times."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".prepared.json"
    }


def documents(folder: Path, split: str) -> list[list[int]]:
    """The tokens of each document of a split."""
    with lowtide.corpus(folder, split=split) as corpus:
        whole = corpus[:]
        bounds = corpus.documents.bounds(0, corpus.documents.count)
        return [whole[start:stop].tolist() for start, stop in bounds.tolist()]


def as_bytes(text: str) -> list[int]:
    """The tokens of a document with the tokenizer ``byte``."""
    return [*np.frombuffer(text.encode(), np.uint8).tolist(), 256]


def first_process(text: str) -> list[int]:
    """A tokenizer that tells in which process it ran."""
    return [os.getpid()] if text else []
