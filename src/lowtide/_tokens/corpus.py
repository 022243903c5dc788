"""Corpora: any token corpus, in place, as one long array of tokens with documents in it."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from lowtide._closing import Closing
from lowtide._io import store
from lowtide._io.reader import Cache, ReaderName
from lowtide._ranks import Rank
from lowtide._readonly import ReadOnly
from lowtide._sizes import whole
from lowtide._tokens.formats import find
from lowtide._tokens.formats.documents import Documents
from lowtide._tokens.formats.index import token_id
from lowtide._tokens.formats.tokens import Tokens
from lowtide._tokens.marks import find_marks
from lowtide._tokens.segments import Segments
from lowtide.errors import ArgumentError, ClosedError, FormatError, IndexingError

if TYPE_CHECKING:
    from lowtide._tokens.batches import Batches
    from lowtide._tokens.schedules import Setting

_PART = 4 * 2**20  # bytes of tokens that are looked at together
_PAGE = 4096  # bytes: single tokens that are farther apart than this are read one by one


def corpus(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    split: str = "train",
    dtype: npt.DTypeLike | None = None,
    eos: int | None = None,
    reader: ReaderName = "auto",
    cache: Cache | int | str = "keep",
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Corpus:
    """Open a token corpus in place: a folder, a file, a list of either or a glob.

    Recognised by their content are nanoGPT's ``train.bin`` and ``val.bin``, the shards of llm.c and
    modded-nanogpt, Megatron-LM's ``.bin`` with ``.idx``, datatrove's ``.ds``, OLMo's raw ``.npy`` (with
    ``dtype``), true ``.npy``, LitData and MosaicML MDS data sets, the column ``input_ids`` of Hugging Face
    data sets (``save_to_disk``), and what ``lowtide prepare`` writes. Nothing is converted or copied.

    Parameters
    ----------
    path
        A folder, a file, a glob, or a list of files or of folders, which are read one after another. Any of
        them may be an address such as ``"s3://bucket/corpus/"``.
    split
        Which split of a folder or a glob to open. A file or a list of files is opened as it is.
    dtype
        Type of the tokens, for raw files that have neither a header nor an index.
    eos
        The token that ends a document, where the format does not record it.
    reader
        ``"pread"``, ``"remap"``, ``"advise"`` or ``"memmap"``; ``"auto"`` is the best one for the platform.
    cache
        ``"keep"`` leaves the page cache to the kernel, ``"drop"`` leaves nothing of the files in it.
    cache_dir, storage_options
        For addresses, as in :func:`lowtide.open`; ``cache`` then is a size, such as ``"20 GiB"``.

    Examples
    --------
    >>> np.arange(1000, dtype=np.uint16).tofile(tmp / "train.bin")
    >>> corpus = lowtide.corpus(tmp)
    >>> len(corpus), corpus.format, corpus[5:8]
    (1000, 'nanogpt', array([5, 6, 7], dtype=uint16))
    """
    policy: Any = "keep" if cache_dir is not None else cache
    with store.using(path, storage_options, cache_dir, cache):
        return Corpus(find(path, split=split, dtype=dtype), eos=eos, reader=reader, cache=policy)


class Corpus(ReadOnly, Closing):
    """One long array of tokens, in one file or in ten thousand.

    :func:`lowtide.corpus` opens one. Reads give new arrays, which the caller may keep and change.

    Examples
    --------
    >>> corpus.dtype, len(corpus), corpus[-1]
    (dtype('uint16'), 1000, np.uint16(999))
    """

    _remedy = "open the corpus again with lowtide.corpus and other arguments"

    def __init__(
        self,
        layout: Tokens,
        *,
        eos: int | None = None,
        reader: ReaderName = "auto",
        cache: Cache = "keep",
    ) -> None:
        if eos is not None and layout.eos is not None and eos != layout.eos:
            raise ArgumentError(
                f"eos contradicts the corpus ({eos}, expected {layout.eos}); leave it out, or pass the same"
            )
        self._layout = layout
        self._settings: dict[str, Any] = {"eos": eos, "reader": reader, "cache": cache}
        self._eos = layout.eos if eos is None else token_id(whole("eos", eos), layout.dtype, "eos")
        self._segments = Segments(layout.segments, layout.dtype, reader=reader, cache=cache)
        self._closed = False
        if layout.usual_eos is not None:  # the format records neither which token marks documents nor where
            self._eos, marks = find_marks(self, layout.usual_eos)
            self._layout = replace(self._layout, marks=marks)

    @property
    def name(self) -> str:
        """The path of the file, or of the folder if there are several."""
        first = self.paths[0]
        return first if len(self.paths) == 1 else os.path.dirname(first)

    @property
    def paths(self) -> list[str]:
        """The files of tokens, in order."""
        return list(dict.fromkeys(segment.path for segment in self._layout.segments))

    @property
    def format(self) -> str:
        """The name of the format, such as ``"nanogpt"`` or ``"megatron"``."""
        return self._layout.format

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens."""
        return self._layout.dtype

    @property
    def eos(self) -> int | None:
        """The token that ends a document (that starts one, in llm.c's shards), where known."""
        return self._eos

    @property
    def vocab_size(self) -> int | None:
        """The number of ids of the tokenizer, where the format records it."""
        return self._layout.vocab_size

    @property
    def metadata(self) -> Mapping[str, object]:
        """Other values that the format records, such as the tokenizer."""
        return self._layout.metadata

    @property
    def has_documents(self) -> bool:
        """Whether the format or ``eos`` says where documents end."""
        layout = self._layout
        return layout.documents is not None or layout.index is not None or self.eos is not None

    def __len__(self) -> int:
        return len(self._segments)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return (
            f"<lowtide.Corpus {self.name!r}, {self.format}, {len(self)} tokens of {self.dtype} in "
            f"{len(self.paths)} {'shard' if len(self.paths) == 1 else 'shards'}{state}>"
        )

    @overload
    def __getitem__(self, index: slice) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self._check_open()
        if isinstance(index, slice):
            return self._slice(range(*index.indices(len(self))))
        try:
            number = operator.index(index)
        except TypeError:
            number = None
        if number is None or isinstance(index, (bool, np.bool_)):
            raise IndexingError(f"{self.name}: a corpus takes an integer or a slice, got {index!r}")
        if not -len(self) <= number < len(self):
            raise IndexingError(f"{self.name}: token {number} is out of bounds for {len(self)} tokens")
        number %= len(self)
        return self._slice(range(number, number + 1))[0]

    def _slice(self, positions: range) -> npt.NDArray[Any]:
        out = np.empty(len(positions), self.dtype)
        if not len(out):
            return out
        if positions.step < 0:
            return self._slice(positions[::-1])[::-1].copy()
        if positions.step == 1:
            self._segments.stream(positions.start, out)
        elif positions.step * self.dtype.itemsize > _PAGE:
            self._segments.submit_windows(np.array(positions, np.int64), out.reshape(-1, 1)).wait()
        else:  # a part at a time, so that memory is that of the result and not of what lies between
            count = max(1, _PART // (positions.step * self.dtype.itemsize))
            for first in range(0, len(out), count):
                part = positions[first : first + count]
                out[first : first + count] = self._slice(range(part[0], part[-1] + 1))[:: positions.step]
        return out

    def stream(self, nbytes: int = _PART) -> Iterator[npt.NDArray[Any]]:
        """Read every token once, in order.

        Parameters
        ----------
        nbytes
            Approximate size of each array in bytes.

        Examples
        --------
        >>> sum(len(part) for part in corpus.stream())
        1000
        """
        step = max(1, nbytes // self.dtype.itemsize)
        for start in range(0, len(self), step):
            yield self[start : start + step]

    @cached_property
    def documents(self) -> Documents:
        """The documents: how many (``count``), and where each starts and ends (``bounds``).

        They come from the format's own index, or from one pass for ``eos``, whose result is kept beside the
        corpus.
        """
        if self._layout.documents is not None:
            return self._layout.documents
        if not self.has_documents:
            raise ArgumentError(
                f"{self.name}: a {self.format} corpus does not record where its documents end; "
                f"open it with eos=, the token that ends them (50256 for GPT-2)"
            )
        from lowtide._tokens.documents import scan

        return scan(self)

    def document(self, number: int) -> npt.NDArray[Any]:
        """Read the tokens of one document.

        Parameters
        ----------
        number
            Which document; negative numbers count from the last one.

        Examples
        --------
        >>> lowtide.corpus(tmp / "given" / "train.bin", eos=7).document(0)
        array([0, 1, 2, 3, 4, 5, 6, 7], dtype=uint16)
        """
        count = self.documents.count
        if not -count <= number < count:
            raise IndexingError(f"{self.name}: document {number} is out of bounds for {count} documents")
        start, stop = self.documents.bounds(number % count, number % count + 1)[0].tolist()
        return self[start:stop]

    def batches(
        self,
        batch_size: Setting,
        length: Setting,
        *,
        order: str = "shuffle",
        seed: int = 0,
        rank: Rank = None,
        world_size: int | None = None,
        start: int = 0,
        prefetch: int = 2,
        budget: int | str | None = None,
    ) -> Batches:
        """Batches for training: ``batches[step]`` depends on the seed, the step and the corpus alone.

        Parameters
        ----------
        batch_size
            Windows in the global batch, which all ranks share. ``{0: 32, 1000: 64}`` has 32 of them up to
            step 1000 and 64 from then on.
        length
            Tokens in a window; also by step, as ``{0: 512, 2000: 1024}``.
        order
            ``"shuffle"`` (windows that do not overlap, every token once per epoch, a new permutation and a
            new phase each time), ``"random"`` (anywhere, with replacement), ``"blocks"`` (long reads,
            shuffled in a bounded buffer), ``"sequential"``, ``"documents"`` (windows start where documents
            start), or ``"packed"`` (rows of whole documents by best fit; ``dropped_tokens`` are lost).
        seed
            Selects the permutation, or the random windows.
        rank
            Which of the ``world_size`` ranks this is. ``"auto"`` takes both from ``torch.distributed`` or,
            under ``torchrun``, from the environment.
        world_size
            Number of ranks that share the global batch.
        start
            The first step.
        prefetch
            Batches that a thread reads ahead; 0 reads each when it is needed, without a thread.
        budget
            Memory, such as ``"256 MiB"``, for the windows of many steps of files that are not in the page
            cache. They are read together, in few long reads, and come in the same order. It pays where reads
            are expensive, as on a cloud disk. Without it each step is read by itself.

        Examples
        --------
        >>> batches = corpus.batches(batch_size=2, length=4, order="sequential")
        >>> x, y = batches[0]
        >>> x.tolist(), y.tolist()
        ([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])
        """
        from lowtide._tokens.batches import Batches, order_called
        from lowtide._tokens.schedules import Schedule
        from lowtide._tokens.stretches import scheduled

        self._check_open()
        self._check_ids()
        lengths = Schedule(batch_size, length).stretches
        return Batches(
            scheduled(order_called(order), self, lengths, whole("seed", seed)),
            batch_size,
            length,
            rank=rank,
            world_size=world_size,
            start=start,
            prefetch=prefetch,
            budget=budget,
        )

    def largest(self, *, scan: bool = False) -> int:
        """The largest token id.

        Parameters
        ----------
        scan
            Read every token; otherwise about 250,000 that are spread over the corpus.

        Examples
        --------
        >>> corpus.largest()
        999
        """
        if scan or len(self) <= 2**18:
            return max((int(part.max()) for part in self.stream() if part.size), default=0)
        return int(self._spread(256, 1024).max())

    def _check_ids(self) -> None:
        """Refuse a corpus if a sample of it has an id beyond its vocabulary."""
        if self.vocab_size is not None and len(self):
            largest = self.largest()
            if largest >= self.vocab_size:
                raise FormatError(
                    f"{self.name}: token {largest} is not in its vocabulary of {self.vocab_size} ids (0 to "
                    f"{self.vocab_size - 1}); check the dtype and whose vocabulary it is"
                )

    @cached_property
    def _content(self) -> str:
        """A hash of tokens spread over the corpus: cheap, and different for different corpora."""
        return hashlib.blake2b(self._spread(32, 256).tobytes(), digest_size=8).hexdigest()

    def _fingerprint(self) -> dict[str, Any]:
        """What distinguishes this corpus from another one."""
        return {
            "corpus_tokens": len(self),
            "corpus_dtype": str(self.dtype),
            "corpus_content": self._content,
        }

    def _spread(self, windows: int, length: int) -> npt.NDArray[Any]:
        length = min(length, len(self))
        starts = np.linspace(0, len(self) - length, windows).astype(np.int64)
        out = np.empty((windows, length), self.dtype)
        self._segments.submit_windows(starts, out).wait()
        return out

    # Closing

    def close(self) -> None:
        """Close its files; idempotent."""
        self._closed = True
        self._segments.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name}: the corpus was closed; open it again with lowtide.corpus")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Corpus, **self._settings), (self._layout,)
