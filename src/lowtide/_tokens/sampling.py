"""Sampling: which window of the corpus each sample is, as a pure function of its number.

Samples are numbered through all epochs. An order computes any range of them and stores none. To add an order,
write a subclass of ``Windows`` and add it to ``ORDERS`` of ``lowtide._tokens.batches``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._io.pending import Pending
from lowtide._permutation import BlockShuffled, Shuffled, key_of, mix
from lowtide._tokens.documents import Ids, ids_from_index, ids_from_marks, warn_of_one
from lowtide._tokens.segments import Places, Segments
from lowtide.errors import ArgumentError

if TYPE_CHECKING:
    from lowtide._tokens.corpus import Corpus

P = TypeVar("P", Shuffled, BlockShuffled)
Bools = npt.NDArray[np.bool_]
LengthsKind = Literal["one", "numbered", "blocks", "shuffled blocks"]

# Samples whose places are computed at once: a batch at a time would cost more than reading, and of 2**14 each
# takes half as long as of 2**12. Those of a small corpus would be of many epochs.
_PLANNED, _FEW_PLANNED = 2**14, 2**12


class Samples(ABC):
    """Numbered samples of a corpus, or of several: what batches consist of."""

    epoch_samples: int
    """Samples in an epoch."""
    dropped_tokens: int
    """Tokens that are in no sample of an epoch."""
    tokens: int
    """Tokens of the corpus."""
    dtype: np.dtype[Any]

    @abstractmethod
    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        """Start to fill each row of ``out`` with one sample, from number ``first`` on."""

    def gather(self, numbers: Ints, out: npt.NDArray[Any]) -> None:
        """Fill each row of ``out`` with the sample of its number; consecutive numbers are one read."""
        row = 0
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            if len(run):
                self.submit(int(run[0]), out[row : row + len(run)]).wait()
                row += len(run)

    @abstractmethod
    def containing(self, token: int, epoch: int) -> list[int]:
        """Numbers of the samples of an epoch that contain the token at position ``token``."""

    @abstractmethod
    def document_ids(self, first: int, x: npt.NDArray[Any]) -> Ids:
        """The document of each token of the samples from ``first`` on, counted within its row."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the samples depend on, to be compared when a state is loaded."""


class Order(Samples):
    """Samples of one corpus, in one order. Each kind has a name and one class."""

    name: ClassVar[str]
    """The value of ``order=`` that selects this kind."""
    lengths: ClassVar[LengthsKind] = "one"
    """How it takes a length that changes: not at all, by numbering samples through all lengths, or by blocks
    that hold windows of each of them (``lowtide._tokens.stretches``)."""

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        self._corpus, self._length, self._seed = corpus, length, seed
        self.dtype, self.tokens = corpus.dtype, len(corpus)

    def settings(self) -> dict[str, Any]:
        return {"order": self.name, "seed": self._seed, **self._corpus._fingerprint()}

    def over(self, corpus: Corpus) -> Order:
        """The same places of another corpus of equally many tokens, such as a mask of those that count."""
        other = copy.copy(self)  # as __reduce__ makes it, so that no cache is shared
        other._corpus, other.dtype = corpus, corpus.dtype
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        # Without caches and locks, which a thread may be using at the moment.
        return type(self), (self._corpus, self._length, self._seed)


class Windows(Order):
    """An order whose samples are ``length + 1`` consecutive tokens each.

    A subclass computes where they start (``starts_at``) and which of them contain a token (``containing``),
    and sets ``epoch_samples`` if it is not the number of windows that fit into the corpus.
    """

    reads_ahead: ClassVar[bool] = True
    """Whether windows are read one by one, so that those of several steps may be read together."""

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        if self.tokens < length + 1:
            raise ArgumentError(
                f"{corpus.name}: has {self.tokens} tokens, too few for one window of {length} and its "
                f"target; use a length of at most {max(0, self.tokens - 1)}"
            )
        self.epoch_samples = self.tokens // length
        self._page = _PLANNED if self.epoch_samples >= _PLANNED else _FEW_PLANNED
        self._plan: tuple[int, Places | None] = (-1, None)

    @property
    def dropped_tokens(self) -> int:  # type: ignore[override]
        return max(0, self.tokens - self.epoch_samples * self._length)

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self._length

    @property
    def segments(self) -> Segments:
        """The files that windows are read from."""
        return self._corpus._segments

    @abstractmethod
    def starts_at(self, numbers: Ints) -> Ints:
        """Positions of the first tokens of some samples, in any order."""

    def starts(self, first: int, last: int) -> Ints:
        """Positions of the first tokens of samples ``first`` to ``last``."""
        return self.starts_at(np.arange(first, last, dtype=np.int64))

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        page, row = divmod(first, self._page)
        if row + len(out) > self._page:
            starts = self._planned_starts(first, first + len(out))
            return self._corpus._segments.submit_windows(starts, out)
        return self._corpus._segments.submit_places(self._planned(page), row, out)

    def gather(self, numbers: Ints, out: npt.NDArray[Any]) -> None:
        first = int(numbers[0]) if len(numbers) else 0
        if len(numbers) and int(numbers[-1]) - first == len(numbers) - 1 and (np.diff(numbers) == 1).all():
            self.submit(first, out).wait()
        else:
            self._corpus._segments.submit_windows(self.starts_at(numbers), out).wait()

    def document_ids(self, first: int, x: npt.NDArray[Any]) -> Ids:
        layout = self._corpus._layout
        if self._corpus.eos is not None and layout.documents is None:
            return ids_from_marks(x, self._corpus.eos, layout.marks)
        starts = self._planned_starts(first, first + len(x))
        return ids_from_index(self._corpus.documents, starts, x.shape[1])

    def _planned_starts(self, first: int, last: int) -> Ints:
        page, row = divmod(first, self._page)
        if row + last - first > self._page:
            middle = (page + 1) * self._page
            return np.concatenate((self._planned_starts(first, middle), self._planned_starts(middle, last)))
        return self._planned(page).starts[row : row + last - first]

    def _planned(self, page: int) -> Places:
        """Where the samples of a page are; the last page is kept."""
        number, places = self._plan  # both at once, since several threads may ask
        if number != page or places is None:
            starts = self.starts(page * self._page, (page + 1) * self._page)
            places = self._corpus._segments.places(starts, self._length + 1)
            self._plan = (page, places)
        return places


class Epochs(Generic[P]):
    """The permutation of each epoch; the last two are kept."""

    def __init__(self, samples: int, permutation: Callable[[int], P]) -> None:
        self._samples = samples
        self._permutation: Callable[[int], P] = lru_cache(2)(permutation)

    def __getitem__(self, epoch: int) -> P:
        return self._permutation(epoch)

    def split(self, first: int, last: int) -> Iterator[tuple[int, Ints]]:
        """The epochs that samples ``first`` to ``last`` fall into, and the rows of each permutation."""
        while first < last:
            epoch, place = divmod(first, self._samples)
            until = min(last, (epoch + 1) * self._samples)
            yield epoch, self[epoch](place, place + until - first)
            first = until

    def split_at(self, numbers: Ints) -> Iterator[tuple[int, Bools, Ints]]:
        """Epochs, which of ``numbers`` fall into each, and their rows of its permutation."""
        epochs, places = np.divmod(numbers, self._samples)
        for epoch in np.unique(epochs).tolist():
            inside = epochs == epoch
            yield epoch, inside, self[epoch].at(places[inside])

    def numbers(self, rows: Ints, epoch: int) -> list[int]:
        """The samples of an epoch that are ``rows`` of its permutation, ascending."""
        return sorted((self[epoch].places(rows) + epoch * self._samples).tolist())


class Shuffle(Windows):
    """Windows that do not overlap, each once per epoch, in a new order and with a new phase every epoch.

    The corpus is a ring: windows of any phase then cover every token, except for the fewer than ``length``
    that are left when it is not a multiple of ``length``.
    """

    name = "shuffle"
    lengths: ClassVar[LengthsKind] = "shuffled blocks"

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        count = self.epoch_samples
        self._epochs: Epochs[Any] = Epochs(count, lambda epoch: Shuffled(count, key_of(seed, 2 * epoch + 1)))

    def phase(self, epoch: int) -> int:
        """The position at which the first window of an epoch starts."""
        return key_of(self._seed, 2 * epoch) % self._length

    def starts(self, first: int, last: int) -> Ints:
        parts = [
            (windows * self._length + self.phase(epoch)) % self.tokens
            for epoch, windows in self._epochs.split(first, last)
        ]
        return np.concatenate(parts)

    def starts_at(self, numbers: Ints) -> Ints:
        starts = np.empty(len(numbers), np.int64)
        for epoch, inside, windows in self._epochs.split_at(numbers):
            starts[inside] = windows * self._length + self.phase(epoch)
        return starts % self.tokens

    def containing(self, token: int, epoch: int) -> list[int]:
        place = (token - self.phase(epoch)) % self.tokens
        window = place // self._length
        # It is also the last target of the window that ends just before it, unless the gap does.
        before, within = divmod((place - 1) % self.tokens, self._length)
        windows = {window, before} if within == self._length - 1 else {window}
        inside = [window for window in windows if window < self.epoch_samples]
        return self._epochs.numbers(np.array(inside, np.int64), epoch)


class Random(Windows):
    """Windows anywhere, with replacement, as nanoGPT draws them."""

    name = "random"
    lengths: ClassVar[LengthsKind] = "numbered"

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        self._key = np.uint64(key_of(seed, 0))

    def starts_at(self, numbers: Ints) -> Ints:
        # Two rounds: neighbouring numbers under related keys must not give related places.
        hashes = mix(mix(numbers.astype(np.uint64) + self._key) + self._key)
        return (hashes % np.uint64(self.tokens - self._length)).astype(np.int64)

    def containing(self, token: int, epoch: int) -> list[int]:
        numbers = []
        end = (epoch + 1) * self.epoch_samples
        for first in range(epoch * self.epoch_samples, end, 2**16):
            starts = self.starts(first, min(first + 2**16, end))
            inside = (starts <= token) & (token <= starts + self._length)
            numbers += (np.flatnonzero(inside) + first).tolist()
        return numbers


class Sequential(Windows):
    """From the first token to the last, and again."""

    name = "sequential"
    lengths: ClassVar[LengthsKind] = "blocks"

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        self.epoch_samples = (self.tokens - 1) // length

    def starts_at(self, numbers: Ints) -> Ints:
        return numbers % self.epoch_samples * self._length

    def containing(self, token: int, epoch: int) -> list[int]:
        window, within = divmod(token, self._length)
        windows = [window - 1, window] if within == 0 else [window]
        return [epoch * self.epoch_samples + one for one in windows if 0 <= one < self.epoch_samples]


class DocumentStarts(Windows):
    """Windows that start where documents start: each document once per epoch, in a new order every epoch."""

    name = "documents"
    lengths: ClassVar[LengthsKind] = "numbered"

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        super().__init__(corpus, length, seed)
        self._documents = corpus.documents
        count = self.epoch_samples = self._documents.count
        warn_of_one(corpus, count)
        self._epochs = Epochs(count, lambda epoch: Shuffled(count, key_of(seed, 2 * epoch + 1)))

    def starts(self, first: int, last: int) -> Ints:
        return self._documents.starts(np.concatenate([rows for _, rows in self._epochs.split(first, last)]))

    def starts_at(self, numbers: Ints) -> Ints:
        documents = np.empty(len(numbers), np.int64)
        for _, inside, rows in self._epochs.split_at(numbers):
            documents[inside] = rows
        return self._documents.starts(documents)

    def containing(self, token: int, epoch: int) -> list[int]:
        """Those of documents that start at most a window before the token."""
        last = self._documents.at(token)
        first = self._documents.at(max(0, token - self._length))
        numbers = np.arange(first, last + 1, dtype=np.int64)
        reach = numbers[self._documents.starts(numbers) + self._length >= token]
        return self._epochs.numbers(reach, epoch)
