"""Preparing: text to a corpus on disk, against the tokenizer alone and against one pass of NumPy.

Bars: with a Hugging Face tokenizer at least 0.85 of `tokenizers`' own encode_batch on the same cores and
text; with byte and char at least 0.5 of reading the file and one np.frombuffer and translate pass. Those do
not write what they make; prepare hashes it, writes it twice and forces it to disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.harness import MIB, Report, make_warm, rounds, run

VOCABULARY = 8192
DOCUMENT = 4096  # characters

_TABLE = bytes(reversed(range(256)))


def _python_sources(most: int) -> Iterator[bytes]:
    """The Python standard library, which every machine has."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in path.parts and most > 0:
            data = path.read_bytes()
            if data.isascii():
                most -= len(data)
                yield data


@contextmanager
def _text(nbytes: int, folder: str | None) -> Iterator[tuple[str, str]]:
    """A text file of so many bytes, and a folder for what comes of it."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-", dir=folder) as where:
        path = os.path.join(where, "input.txt")
        library = b"\n".join(_python_sources(nbytes))
        with open(path, "wb") as file:
            for _ in range(-(-nbytes // len(library))):
                file.write(library[: nbytes - file.tell()])
            file.flush()
            os.fsync(file.fileno())
        make_warm(path)
        yield path, os.path.join(where, "out")


def _prepared(path: str, out: str, tokenizer: str) -> Callable[[], None]:
    def method() -> None:
        lowtide.prepare(path, out, tokenizer=tokenizer, val_fraction=0)
        shutil.rmtree(out)

    return method


def _numpy_bytes(path: str) -> None:
    with open(path, "rb") as file:
        np.frombuffer(file.read(), np.uint8).astype(np.uint16)


def _numpy_bytes_in_blocks(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(4 * MIB):
            np.frombuffer(data, np.uint8).astype(np.uint16)


def _numpy_characters(path: str) -> None:
    """With a table that somebody else made: the alphabet costs nothing here, and lowtide a pass."""
    with open(path, "rb") as file:
        np.frombuffer(file.read().translate(_TABLE), np.uint8).astype(np.uint16)


def _fast(options: argparse.Namespace) -> Report:
    report = Report(f"byte and char: {options.size} MiB of text, warm")
    with _text(options.size * MIB, options.folder) as (path, out):
        times = rounds(
            {
                "read, frombuffer, astype": lambda: _numpy_bytes(path),
                "the same in blocks of 4 MiB": lambda: _numpy_bytes_in_blocks(path),
                "read, translate, frombuffer, astype": lambda: _numpy_characters(path),
                "lowtide, byte": _prepared(path, out, "byte"),
                "lowtide, char": _prepared(path, out, "char"),
            },
            options.rounds,
        )
    for name, seconds in times.items():
        report.row(name, **{"MB/s of text": options.size * MIB / seconds / 1e6})
    one_pass = times["read, frombuffer, astype"]
    report.claim("byte / read and one pass", one_pass / times["lowtide, byte"], 0.5)
    characters = times["read, translate, frombuffer, astype"]
    report.claim("char / read and one pass", characters / times["lowtide, char"], 0.5)
    report.notes.append(
        "The pass in blocks of 4 MiB reuses memory that is in the CPU's cache and keeps nothing: it shows "
        "how much of the other is page faults. No program that writes what it made could match half of it."
    )
    return report


def _huggingface(options: argparse.Namespace) -> Report:
    from tokenizers import Tokenizer

    size = max(16, options.size // 32)
    report = Report(f"A Hugging Face tokenizer: byte-level BPE of {VOCABULARY} ids, {size} MiB of text, warm")
    with _text(size * MIB, options.folder) as (path, out):
        with open(path) as source:
            text = source.read()
        texts = [text[start : start + DOCUMENT] for start in range(0, len(text), DOCUMENT)]
        lines = os.path.join(os.path.dirname(path), "documents.jsonl")
        with open(lines, "w") as target:
            target.writelines(json.dumps({"text": document}) + "\n" for document in texts)
        lowtide.prepare(lines, out, tokenizer=f"bpe:{VOCABULARY}", val_fraction=0)
        file = os.path.join(os.path.dirname(path), "tokenizer.json")
        shutil.copy(os.path.join(out, "tokenizer.json"), file)
        shutil.rmtree(out)
        tokenizer = Tokenizer.from_file(file)
        times = rounds(
            {
                "tokenizers, encode_batch": lambda: tokenizer.encode_batch(texts, add_special_tokens=False),
                "tokenizers, encode_batch_fast": lambda: tokenizer.encode_batch_fast(
                    texts, add_special_tokens=False
                ),
                "lowtide": _prepared(lines, out, file),
            },
            options.rounds,
        )
    for name, seconds in times.items():
        report.row(name, **{"MB/s of text": size * MIB / seconds / 1e6})
    report.claim("lowtide / encode_batch", times["tokenizers, encode_batch"] / times["lowtide"], 0.85)
    report.notes.append(
        "encode_batch_fast keeps no offsets, which a corpus does not need; lowtide uses it too."
    )
    return report


def build(options: argparse.Namespace) -> list[Report]:
    """Text to tokens, fast tokenizers and a slow one."""
    built = []
    if options.only in ("all", "fast"):
        built.append(_fast(options))
    if options.only in ("all", "hf"):
        built.append(_huggingface(options))
    return built


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=1024, help="MiB of text")
    parser.add_argument("--only", choices=["all", "fast", "hf"], default="all")


if __name__ == "__main__":
    run(build, _more)
