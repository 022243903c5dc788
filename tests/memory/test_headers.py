"""Headers made to take memory: refused, at a true peak that does not depend on what they promise."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowtide._arrays.formats.npy import MAX_HEADER as MAX_NPY
from lowtide._arrays.formats.npz import MAX_DIRECTORY
from lowtide._arrays.formats.safetensors import MAX_HEADER
from lowtide._io.jsonfiles import MAX_MEMORY, memory_of
from tests.memory.test_arrays import measure

MIB = 2**20
LITTLE = 6 * MIB  # modules that the first open imports, buffers, the error itself

OPEN = """
try:
    lowtide.open(o["path"])
except lowtide.errors.LowtideError as error:
    report = {"words": str(error)}
"""


def npy(header: bytes, length: int | None = None) -> bytes:
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header) if length is None else length) + header


def archive(members: int, digits: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for number in range(members):
            zipped.writestr(f"{number:0{digits}}.npy", b"")
    return file.getvalue()


def directory_of(nbytes: int) -> bytes:
    """An archive whose end claims a directory of that many bytes."""
    return struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, nbytes, 0, 0)


def safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def repeated(entry: Callable[[int], str], memory: int) -> bytes:
    """A JSON object of entries that may take up to ``memory``, or as many as a header can hold."""
    sample = "{" + ",".join(map(entry, range(10**5, 10**5 + 1000))) + "}"
    count = 1000 * min(memory // memory_of(sample.encode()), (MAX_HEADER - 100) // len(sample))
    return ("{" + ",".join(map(entry, range(10**5, 10**5 + count))) + "}").encode()


# For each: the start of the file, its size with the hole behind that, the peak and words of the error.
BOMBS: dict[str, tuple[Callable[[], bytes], int, int, str]] = {
    "npy: header of 4 GiB": (lambda: npy(b"{'descr'", 2**32 - 1), 2**33, LITTLE, "header is too long"),
    "npy: nested brackets": (lambda: npy(b"(" * (MAX_NPY - 1)), 0, LITTLE, "header"),
    "npy: many numbers": (lambda: npy(b"(" + b"1," * (MAX_NPY // 2 - 9) + b")"), 0, LITTLE, "header"),
    "npz: directory of 4 GiB": (lambda: b"PK\3\4" + bytes(60) + directory_of(2**32 - 2), 0, LITTLE, "npz"),
    "npz: longest directory": (lambda: archive(MAX_DIRECTORY // 62, 12), 0, MAX_MEMORY, "arrays"),
    "npz: directory that is too long": (lambda: archive(MAX_DIRECTORY // 60, 12), 0, 24 * MIB, "directory"),
    "safetensors: header of 90 MB": (lambda: safetensors(b'{"', 90_000_000), 2**32, LITTLE, "too large"),
    "safetensors: nested brackets": (
        lambda: safetensors(b'{"w":' + b"[" * (MAX_HEADER - 5)), 0, MAX_HEADER + LITTLE, "of memory"
    ),
    "safetensors: as many values as are parsed": (
        lambda: safetensors(repeated(lambda number: f'"{number}":[]', MAX_MEMORY)), 0, MAX_MEMORY, "tensor"
    ),
    "safetensors: more values": (
        lambda: safetensors(repeated(lambda number: f'"{number}":[]', 2 * MAX_MEMORY)),
        0,
        MAX_HEADER + LITTLE,
        "of memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_header_with_oversized_claims_is_rejected_in_little_memory(tmp_path: Path, name: str) -> None:
    head, size, most, words = BOMBS[name]
    path = tmp_path / f"x.{name.partition(':')[0]}"
    with open(path, "wb") as file:
        file.write(head())
        file.truncate(max(size, file.tell()))
    # What opening a good file imports and keeps is there before.
    np.save(tmp_path / "good.npy", np.zeros(3))
    setup = "lowtide.open(o['good']).close()"
    result = measure(setup, OPEN, path=path, good=tmp_path / "good.npy")
    assert words in str(result.get("words")), result
    assert result["peak"] <= most, f"{result['peak'] / MIB:.1f} MiB"
