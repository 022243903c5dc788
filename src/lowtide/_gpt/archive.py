"""Safe reader of PyTorch files: damaged and hostile ones give tensors and plain values or a FormatError.

``torch.save`` writes a zip: a pickle, and the bytes of each tensor beside it. ``torch.load`` does not verify
the checksums, so that it returns other weights after a flipped bit; it allocates what the directory and the
pickle ask for; and it raises exceptions of any kind. Here every byte is verified, nothing is allocated before
the file is known to have it, and the pickle is interpreted, not run: nothing is imported or called.
A file takes its size in memory, and up to 120 times that of its pickle, which is limited to 4 MiB.
"""

from __future__ import annotations

import math
import pickletools
import sys
import zipfile
from typing import Any

from lowtide._gpt.model import torch
from lowtide._io.store import Stream, opened
from lowtide._printable import brief
from lowtide.errors import FormatError, LowtideError, TruncatedFileError, UnsupportedError

MAX_PICKLE = 4 * 2**20
"""Largest pickle in bytes: a model of some thousand tensors and its optimiser take 1 MiB."""
_MAX_DIRECTORY = 16 * 2**20
_END = 2**17  # bytes at the end of a file, where zipfile looks for the directory: it reads to the end there
_PART = 2**20  # bytes per read
_REMEDY = "copy the file again, or start the run again"

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STORAGES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
}
_TENSOR, _DICT = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"


def load(path: str) -> Any:
    """Load a file of ``torch.save``: dicts, lists, tuples, tensors on the CPU and plain values.

    >>> torch.save({"step": 3, "weights": torch.ones(2)}, tmp / "x.pt")
    >>> load(str(tmp / "x.pt"))
    {'step': 3, 'weights': tensor([1., 1.])}
    """
    with opened(path) as source:
        try:
            with zipfile.ZipFile(_File(source)) as archive:
                return _value(_Members(path, archive, source.size))
        except LowtideError:
            raise
        except Exception as error:  # zipfile and pickletools raise anything
            raise TruncatedFileError(
                f"{path}: cannot be read as a PyTorch file, it is truncated or damaged "
                f"({type(error).__name__}: {brief(str(error))[1:-1]}; {source.size} bytes); {_REMEDY}"
            ) from error


class _File(Stream):
    """Limits reads: a few bytes at the end of a file can make ``zipfile`` read any size."""

    def read(self, size: int | None = -1, /) -> bytes:
        size = _END if size is None or size < 0 else size
        if size > _MAX_DIRECTORY:
            raise ValueError(f"its directory has {size} bytes, expected at most {_MAX_DIRECTORY}")
        return super().read(size)


class _Members:
    """Members of the zip: uncompressed, and together not larger than the file."""

    def __init__(self, path: str, archive: zipfile.ZipFile, size: int) -> None:
        self.path, self._archive = path, archive
        self._entries = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in self._entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise FormatError(f"{path}: is a zip, but not a file that torch.save wrote; {_REMEDY}")
        self._folder = pickles[0].removesuffix("data.pkl")
        self._storages: dict[str, torch.Tensor] = {}
        total = sum(entry.file_size for entry in archive.infolist())
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        if total > size or not stored:
            raise self.damaged(f"members of {total} bytes in a file of {size}, expected all of them stored")
        if (order := self.read("byteorder", 16)) not in (None, sys.byteorder.encode()):
            raise UnsupportedError(
                f"{path}: was written on a machine of another byte order ({brief(order)}, expected "
                f"{sys.byteorder}); load it there and save it with safetensors"
            )

    def damaged(self, problem: str) -> FormatError:
        return FormatError(f"{self.path}: is damaged ({problem}); {_REMEDY}")

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of a member of at most ``limit`` bytes, if there is one."""
        entry = self._entries.get(self._folder + name)
        if entry is None:
            return None
        if entry.file_size > limit:
            raise self.damaged(f"{name} of {entry.file_size} bytes, expected at most {limit}")
        return self._archive.read(entry)

    def storage(self, identifier: Any) -> torch.Tensor:
        """The values of one member, which several tensors may share."""
        kind, storage, key, _, count = identifier
        if kind != "storage" or storage not in _STORAGES:
            raise ValueError("expected a storage")
        dtype = _STORAGES[storage]
        entry = self._entries.get(f"{self._folder}data/{key}") if isinstance(key, str) else None
        if entry is None or not isinstance(count, int) or entry.file_size != count * dtype.itemsize:
            member = "no member" if entry is None else f"{entry.file_size} bytes"
            raise self.damaged(f"{member} for storage {brief(key)} of {brief(count)} {dtype}")
        if key not in self._storages:
            memory = torch.empty(entry.file_size, dtype=torch.uint8)
            view: Any = memoryview(memory.numpy())  # type: ignore[arg-type]
            at = 0
            with self._archive.open(entry) as file:
                while part := file.read(_PART):  # verifies the checksum at its end
                    view[at : at + len(part)] = part
                    at += len(part)
            if at != entry.file_size:
                raise self.damaged(f"{at} bytes of storage {brief(key)}, expected {entry.file_size}")
            self._storages[key] = memory
        return self._storages[key].view(dtype)


def _value(members: _Members) -> Any:
    """The value of the pickle."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def popped(count: int) -> list[Any]:
        if count > len(stack):
            raise ValueError("a value is missing")
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return values

    def since_mark() -> list[Any]:
        return popped(len(stack) - marks.pop())

    for step, argument, at in pickletools.genops(members.read("data.pkl", MAX_PICKLE) or b""):
        name = step.name
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            stack.append(tuple(popped(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("SETITEM", "SETITEMS"):
            items = popped(2) if name == "SETITEM" else since_mark()
            _set(stack[-1], items)
        elif name in ("APPEND", "APPENDS"):
            items = popped(1) if name == "APPEND" else since_mark()
            _add(stack[-1], items)
        elif name == "GLOBAL" and argument in (_TENSOR, _DICT, *_STORAGES):
            stack.append(argument)  # the name only: nothing is imported
        elif name == "BINPERSID":
            stack.append(members.storage(*popped(1)))
        elif name == "REDUCE":
            stack.append(_build(members, *popped(2)))
        elif name == "BUILD":
            popped(1)  # attributes of an OrderedDict, which are not needed
        elif name == "STOP":
            (value,) = stack
            return value
        elif name != "PROTO":
            raise FormatError(
                f"{members.path}: holds something other than tensors and plain values "
                f"({name} {brief(argument, 80)} at byte {at}); pass a file that lowtide wrote"
            )
    raise ValueError("the pickle has no end")


def _set(container: Any, items: list[Any]) -> None:
    keys, values = items[::2], items[1::2]
    if type(container) is not dict or not all(isinstance(key, str | int) for key in keys):
        raise ValueError("expected a dict with strings or integers as keys")
    container.update(zip(keys, values, strict=True))


def _add(container: Any, items: list[Any]) -> None:
    if type(container) is not list:
        raise ValueError("expected a list")
    container.extend(items)


def _build(members: _Members, function: Any, arguments: Any) -> Any:
    """The result of a call in the pickle: an empty dict, or a contiguous tensor in its storage."""
    if not isinstance(function, str) or function not in (_DICT, _TENSOR):
        raise ValueError("expected a dict or a tensor")
    if function == _DICT:
        return {}
    storage, offset, shape, strides, *_ = arguments
    if not all(type(one) is int and one >= 0 for one in (offset, *shape, *strides)):
        raise ValueError("a tensor's shape must be of integers >= 0")
    count = math.prod(shape)
    in_order = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if offset + count > storage.numel() or any(
        size > 1 and stride != expected
        for size, stride, expected in zip(shape, strides, in_order, strict=True)
    ):
        raise members.damaged(f"a tensor of shape {brief(shape)} in a storage of {storage.numel()} numbers")
    return storage.flatten()[offset : offset + count].view(shape)
