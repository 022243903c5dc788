"""Array files, made by the libraries that people make them with."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import safetensors.numpy

import lowtide
from lowtide.cli import info
from lowtide.errors import LowtideError
from lowtide.formats import members
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
    tensors = {"w": np.arange(12, dtype="<f4").reshape(4, 3), "b": np.zeros(3, np.uint8)}
    safetensors.numpy.save_file(tensors, folder / "x.safetensors", {"format": "np"})


def _make_hdf5(folder: Path) -> None:
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.arange(12).reshape(4, 3)
        file["group/fields"] = np.zeros(3, [("a", "<f4"), ("b", "S5")])
        file.create_dataset("chunked", data=np.arange(100), chunks=(10,), compression="gzip")
        file["text"] = "variable"
        file["link"] = h5py.SoftLink("/x")
        file["x"].attrs["unit"] = "m"
    with h5py.File(folder / "new.h5", "w", libver="latest") as file:
        file["x"] = np.arange(12).reshape(4, 3)
        for i in range(9):  # more than fit into the group itself
            file[f"group/{i}"] = np.zeros(i)


def _make_raw(folder: Path) -> None:
    np.arange(12, dtype="<f4").tofile(folder / "x.bin")


def _open(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        for name in [member.name for member in members(path)][:5]:
            with suppress(LowtideError):
                _read(lowtide.open(path, name=name))
        show(path)


def show(path: Path, *options: str) -> None:
    """``lowtide info`` without the program around it, which would hide exceptions."""
    with info.command.make_context("info", [str(path), "--json", *options]) as context:
        info.command.invoke(context)


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
                for _ in array.chunks(2, prefetch=0):
                    pass


TARGETS = [
    Target("npy", _make_npy, _open),
    Target("npz", _make_npz, _open),
    Target("safetensors", _make_safetensors, _open),
    Target("hdf5", _make_hdf5, _open, share=0.1),
    Target("raw", _make_raw, _open_raw),
]
