"""PyTorch data sets of arrays: rows by number, and chunks in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._arrays.array import Array
from lowtide._arrays.loaded import LoadedArray
from lowtide._arrays.orders import OrderName, Shuffle
from lowtide._arrays.together import Rows, Zip
from lowtide._arrays.together import zip as zip_arrays
from lowtide._ranks import Rank, ranks
from lowtide._sizes import whole
from lowtide._tensors import SharedEpoch, data, torch
from lowtide.errors import ArgumentError, IndexingError, StateError

_TINY_ROW, _TINY = 64, 32 * 2**20  # bytes of a row, and of an array of such rows that is loaded


class ArrayDataset(data.Dataset[Any]):
    """Rows of arrays as tensors, for ``DataLoader`` and its samplers; a batch is one read per array.

    An item is a tuple of tensors, as of ``TensorDataset``, or a dict if the arrays have names. An array of
    at most 32 MiB whose rows have at most 64 bytes, such as labels, is loaded with the first batch, in every
    worker: a read would cost as much for such a row as for one of a kilobyte.

    Parameters
    ----------
    *arrays : Array, ndarray or Zip
        Arrays with equally many rows, such as features and labels, or views; or one :class:`lowtide.Zip`.
    **named : Array or ndarray
        Arrays by name, for items that are dicts.

    Examples
    --------
    >>> dataset = ArrayDataset(a, a.columns[0])
    >>> len(dataset), dataset[2]
    (4, (tensor([6, 7, 8]), tensor(6)))
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=3)
    >>> [tuple(x.shape) for x, y in loader]
    [(3, 3), (1, 3)]
    """

    def __init__(self, *arrays: Rows | Zip, **named: Rows) -> None:
        self._zip = _zipped(arrays, named)
        _check_dtypes(self._zip.arrays)
        self._loaded: dict[int, npt.NDArray[Any]] = {}
        """Arrays of few bytes, by their places."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __len__(self) -> int:
        return len(self._zip)

    def _take(self, place: int, rows: Sequence[int]) -> npt.NDArray[Any]:
        array = self._zip.arrays[place]
        if array.row_nbytes > _TINY_ROW or array.nbytes > _TINY or isinstance(array, LoadedArray):
            return array.take(rows)
        array._check_file()  # also of what was read before
        loaded = self._loaded.get(place)
        if loaded is None:
            loaded = self._loaded[place] = array[:]
        try:
            return loaded[np.asarray(rows, np.int64)]
        except IndexError as error:
            raise IndexingError(f"{array.path}: {error}") from None

    def __getitem__(self, row: int) -> Any:
        return _item([_tensor(np.asarray(array[row])) for array in self._zip.arrays], self._zip._names)

    def __getitems__(self, rows: Sequence[int]) -> Sequence[Any]:
        """Several rows in one read of each array: PyTorch's ``DataLoader`` calls this for its batches."""
        parts = [_tensor(self._take(place, rows)) for place in range(len(self._zip.arrays))]
        return _Items(parts, self._zip._names)


class _Row(tuple[Any, ...]):
    """An item. It has its own type so that PyTorch's ``default_collate`` joins items by ``_collate``."""


class _NamedRow(dict[str, Any]):
    """An item of arrays that have names."""


def _item(parts: Sequence[Any], names: tuple[str, ...] | None) -> _Row | _NamedRow:
    return _Row(parts) if names is None else _NamedRow(zip(names, parts, strict=True))


class _Items(Sequence[Any]):
    """The items of a batch. They were read as one tensor per array, and are joined to these."""

    def __init__(self, parts: list[torch.Tensor], names: tuple[str, ...] | None) -> None:
        self.parts, self._names = parts, names

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return _Items([part[number] for part in self.parts], self._names)
        return _item([part[number] for part in self.parts], self._names)

    def __iter__(self) -> Iterator[Any]:
        return (_item(row, self._names) for row in zip(*self.parts, strict=True))

    def joined(self) -> Any:
        """The result of ``default_collate`` for tuples and dicts of tensors, without copying row by row."""
        return self.parts if self._names is None else dict(zip(self._names, self.parts, strict=True))


def _collate(items: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    if isinstance(items, _Items):
        return items.joined()
    plain = [dict(item) if isinstance(item, dict) else tuple(item) for item in items]
    return data._utils.collate.collate(plain, collate_fn_map=collate_fn_map)


# The documented way to join items of another type; see torch.utils.data.default_collate.
data._utils.collate.default_collate_fn_map.update({_Row: _collate, _NamedRow: _collate})


class ChunkDataset(data.IterableDataset[Any]):
    """Chunks of arrays as batches of tensors, for ``DataLoader(dataset, batch_size=None)``.

    Every chunk of the pass comes once, in the order of ``chunks``, with any number of workers: each reads
    every n-th of them. ``state_dict`` is the position after the last one given; with workers save the state
    of torchdata's ``StatefulDataLoader``.

    Parameters
    ----------
    arrays
        An array, or arrays together as :func:`lowtide.zip` makes them.
    rows
        Rows per batch, of all ranks together.
    order, shuffle, seed, drop_last
        As in :meth:`lowtide.Array.chunks`.
    rank, world_size
        As there; ``"auto"`` asks each time an ``iter`` starts, so that it may be given before Lightning, for
        example, starts its processes.
    epoch
        The epoch to start with; :meth:`set_epoch` sets another.
    budget
        As in :meth:`lowtide.Array.chunks`: on slow disks more memory is more speed. Workers read chunk by
        chunk and need none of it.

    Examples
    --------
    >>> dataset = ChunkDataset(lowtide.zip(a, a.columns[0]), 3, shuffle=True)
    >>> [tuple(x.shape) for x, y in torch.utils.data.DataLoader(dataset, batch_size=None)]
    [(3, 3), (1, 3)]
    """

    def __init__(
        self,
        arrays: Array | Zip,
        rows: int,
        *,
        order: OrderName | None = None,
        shuffle: Shuffle | None = None,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = False,
        rank: Rank = None,
        world_size: int | None = None,
        budget: int | str | None = None,
    ) -> None:
        if not isinstance(arrays, Array | Zip):
            raise ArgumentError(f"ChunkDataset takes an array or a lowtide.zip, got {type(arrays).__name__}")
        _check_dtypes(arrays.arrays if isinstance(arrays, Zip) else [arrays])
        self._arrays = arrays
        self._options: dict[str, Any] = {
            "rows": whole("rows", rows, 1),
            "order": order,
            "shuffle": shuffle,
            "seed": seed,
            "drop_last": drop_last,
            "budget": budget,
        }
        # Raises for invalid ranks. With "auto" they may be others by the time of an ``iter``.
        self._options |= dict(zip(("rank", "world_size"), ranks(rank, world_size), strict=True))
        if rank == "auto":
            self._options |= {"rank": rank, "world_size": world_size}
        self._epoch = SharedEpoch(epoch)
        self._at = 0
        """The next chunk of this process; of worker n it is n less, so that a state fits every worker."""
        self._resume: int | None = None
        len(self)  # raises for arguments that chunks() refuses

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._options["rank"] == "auto" and _in_a_group():  # of which a spawned worker knows nothing
            rank, world_size = ranks("auto", self._options["world_size"])
            state["_options"] = {**self._options, "rank": rank, "world_size": world_size}
        return state

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter`` gives."""
        return self._epoch.value

    def _chunks(self) -> Any:
        return self._arrays.chunks(epoch=self.epoch, **self._options)  # its thread starts with the first

    def __len__(self) -> int:
        return len(self._chunks())

    def set_epoch(self, epoch: int) -> None:
        """Start the next ``iter`` at another epoch.

        Parameters
        ----------
        epoch
            The number of the epoch.
        """
        if whole("epoch", epoch, 0) != self.epoch:
            self._epoch.value, self._resume, self._at = epoch, None, 0

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: its body would run at the first `next`, and a state may be requested before that.
        self._at, self._resume = self._resume or 0, None
        return self._walk(self._at)

    def _walk(self, at: int) -> Iterator[Any]:
        worker = data.get_worker_info()
        number, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        chunks = self._chunks()
        count = len(chunks)
        if worker is None:  # alone it reads ahead, as a pass does
            chunks.load_state_dict({**chunks.state_dict(), "position": min(at, count)})
        while at + number < count:
            chunk = chunks[at + number] if worker is not None else next(chunks)
            at += stride
            self._at = at
            yield _tensors(chunk)

    def state_dict(self) -> dict[str, Any]:
        """The next chunk, the epoch and the settings."""
        return {**self._chunks().state_dict(), "position": self._at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next ``iter`` at a state; an error lists what differs if it is of other data.

        Parameters
        ----------
        state
            What ``state_dict`` returned, on any number of ranks and as many workers.
        """
        epoch, position = state.get("epoch"), state.get("position")
        if not isinstance(epoch, int) or not isinstance(position, int):
            raise StateError("not a state of a data set; pass what state_dict() returned")
        before, self._epoch.value = self.epoch, epoch
        try:
            # The last state of a worker may be behind the end, by the chunks of the others.
            self._chunks().load_state_dict({**state, "position": min(position, len(self))})
        except StateError:
            self._epoch.value = before
            raise
        self._at = self._resume = position


def _in_a_group() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def _zipped(arrays: Sequence[Rows | Zip], named: Mapping[str, Rows]) -> Zip:
    if len(arrays) == 1 and isinstance(arrays[0], Zip) and not named:
        return arrays[0]
    return zip_arrays(*arrays, **named)  # type: ignore[arg-type]  # it checks what they are


def _check_dtypes(arrays: Sequence[Array]) -> None:
    for array in arrays:
        try:
            _tensor(np.zeros(0, array.dtype))
        except TypeError:
            remedy = (
                "select a field, as in array['x']"
                if array.dtype.names
                else "convert it, as in array.astype('int64')"
            )
            raise ArgumentError(f"{array.path}: PyTorch has no dtype for {array.dtype}; {remedy}") from None


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _tensors(chunk: Any) -> Any:
    if isinstance(chunk, dict):
        return {name: _tensor(part) for name, part in chunk.items()}
    return tuple(map(_tensor, chunk)) if isinstance(chunk, tuple) else _tensor(chunk)
