"""Array files, made by the libraries that people make them with."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lowtide
from lowtide._arrays.formats import members
from lowtide._tokens.description import describe
from lowtide.errors import LowtideError
from tests.fuzz.harness import Target

_SMALL = 2**20  # bytes that are read


def _make_npy(folder: Path) -> None:
    np.save(folder / "x.npy", np.arange(12, dtype="<f4").reshape(4, 3))
    np.save(folder / "fortran.npy", np.asfortranarray(np.arange(12).reshape(4, 3)))
    np.save(folder / "fields.npy", np.zeros(3, [("a", "<f4"), ("b", "S5", (2, 3)), ("c", [("d", "<i2")])]))


def _make_npz(folder: Path) -> None:
    np.savez(folder / "x.npz", x=np.arange(12).reshape(4, 3), y=np.zeros(3, "<f4"))
    np.savez_compressed(folder / "compressed.npz", x=np.arange(12))


def _make_safetensors(folder: Path) -> None:
    import safetensors.numpy

    tensors = {"w": np.arange(12, dtype="<f4").reshape(4, 3), "b": np.zeros(3, np.uint8)}
    safetensors.numpy.save_file(tensors, folder / "x.safetensors", {"format": "np"})


def _make_hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.arange(12).reshape(4, 3)
        file["group/fields"] = np.zeros(3, [("a", "<f4"), ("b", "S5")])
        file.create_dataset("chunked", data=np.arange(100), chunks=(10,), compression="gzip")
        file["text"] = "variable"
        file["link"] = h5py.SoftLink("/x")
        file["x"].attrs["unit"] = "m"
    with h5py.File(folder / "types.h5", "w", userblock_size=512) as file:
        file["enum"] = np.zeros(3, h5py.enum_dtype({"a": 0, "b": 1}, "<i2"))
        file.create_dataset("strings", data=["a", "bc"], dtype=h5py.string_dtype())
        file.create_dataset("arrays", (4,), np.dtype("(2, 3)<f4"))
        file.create_dataset("external", (5,), "<i4", external=[("x.raw", 0, 20)])
        file.create_dataset("grown", data=np.arange(6).reshape(2, 3), maxshape=(None, 3), shuffle=True)
        file["external link"] = h5py.ExternalLink("x.h5", "/x")
        parts = h5py.VirtualLayout((4, 3), "<i8")
        parts[:] = h5py.VirtualSource("x.h5", "x", (4, 3))
        file.create_virtual_dataset("virtual", parts)
    with h5py.File(folder / "new.h5", "w", libver="latest") as file:
        file["x"] = np.arange(12).reshape(4, 3)
        for i in range(9):  # more than fit into the group itself
            file[f"group/{i}"] = np.zeros(i)


def _make_raw(folder: Path) -> None:
    np.arange(12, dtype="<f4").tofile(folder / "x.bin")


def _make_journals(folder: Path) -> None:
    """Files with a journal: two rows of an append that was killed, behind four that are published."""
    for path in (folder / "x.npy", folder / "x.bin"):
        with lowtide.create(path, "<f4", 3) as out:
            out.append(np.arange(12).reshape(4, 3))
        (folder / f"{path.name}.appending").write_text(json.dumps({"size": path.stat().st_size}))
        with path.open("ab") as file:
            file.write(bytes(24))


def _append(folder: Path) -> None:
    """Read, append and create: each works as if there were no damage, or is refused."""
    row = [7, 8, 9]
    for path in (folder / "x.npy", folder / "x.bin"):
        raw: Any = {} if path.suffix == ".npy" else {"dtype": "<f4", "shape": (-1, 3)}
        with suppress(LowtideError):
            _read(lowtide.open(path, **raw))
        for append in (True, False):
            with mock.patch.object(os, "fsync"), suppress(LowtideError):
                with lowtide.create(path, "<f4", 3, append=append) as out:
                    out.append(row)
                written = lowtide.open(path, **raw)[:].tolist()
                assert written[-1] == row
                assert append or len(written) == 1


def _open(folder: Path) -> None:
    path = newest(folder)
    for name in [member.name for member in members(path)][:5]:
        with suppress(LowtideError):
            _read(lowtide.open(path, name=name))
    show(path)


def show(path: Path, eos: int | None = None, dtype: str | None = None) -> None:
    """``lowtide info`` without the program around it, which would hide exceptions."""
    describe(str(path), eos=eos, dtype=dtype).as_json()


def newest(folder: Path) -> Path:
    """The file or folder that was damaged: the others are copies, with the times of the originals."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not files:
        return folder / "deleted"
    damaged = max(files, key=lambda path: path.stat().st_mtime_ns)
    return folder / damaged.relative_to(folder).parts[0]


def _open_raw(folder: Path) -> None:
    path = folder / "x.bin"
    for shape in (None, (-1, 3), (4, 3)):
        with suppress(LowtideError):
            _read(lowtide.open(path, "<f4", shape))


def _read(array: lowtide.Array) -> None:
    with array:
        repr(array)
        if array.nbytes < _SMALL:
            np.asarray(array)
            if array.shape and len(array):
                array[-1], array[:2], array.take([0, -1])
                for _ in array.chunks(max(2, len(array) // 4), prefetch=0):
                    pass


TARGETS = [
    Target("npy", _make_npy, _open),
    Target("npz", _make_npz, _open),
    Target("safetensors", _make_safetensors, _open),
    Target("hdf5", _make_hdf5, _open, share=0.1),
    Target("raw", _make_raw, _open_raw, share=0.3),
    Target("journal", _make_journals, _append, share=0.3),
]
