"""Mixtures: several corpora by weight, still a pure function of the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide._io.extents import Ints
from lowtide._io.pending import Pending, every
from lowtide._permutation import key_of
from lowtide._ranks import Rank
from lowtide._readonly import ReadOnly
from lowtide._sizes import whole
from lowtide._tokens.batches import Batches, order_called
from lowtide._tokens.corpus import Corpus
from lowtide._tokens.documents import Ids
from lowtide._tokens.sampling import Samples
from lowtide._tokens.schedules import Schedule, Setting
from lowtide._tokens.stretches import Lengths, scheduled
from lowtide.errors import ArgumentError

_FINEST = 10**5  # parts of a weight: so one table of at most this length repeats for ever

Weights = Mapping[str, float]


def mix(corpora: Mapping[str, Corpus], weights: Weights | Mapping[int, Weights]) -> Mixture:
    """Mix several corpora by weight.

    After any number of samples each corpus' share is within one sample of its weight.

    Parameters
    ----------
    corpora
        The corpora by name.
    weights
        A number for each name (they need not sum to one), or such a map for each step at which the weights
        change, starting with step 0.

    Examples
    --------
    >>> mixed = lowtide.mix({"web": corpus, "code": corpus}, {"web": 0.7, "code": 0.3})
    >>> mixed.batches(batch_size=10, length=4).shares(0)
    {'web': 7, 'code': 3}
    """
    return Mixture(corpora, weights)


class Mixture(ReadOnly):
    """Corpora and their weights. :func:`lowtide.mix` makes one.

    Examples
    --------
    >>> mixed = lowtide.mix({"web": corpus, "code": corpus}, {"web": 3, "code": 1})
    >>> mixed.weights
    {0: {'web': Fraction(3, 4), 'code': Fraction(1, 4)}}
    """

    _remedy = "make another mixture with lowtide.mix"

    def __init__(self, corpora: Mapping[str, Corpus], weights: Weights | Mapping[int, Weights]) -> None:
        if not corpora:
            raise ArgumentError("a mixture needs at least one corpus")
        if not isinstance(corpora, Mapping) or not all(isinstance(one, Corpus) for one in corpora.values()):
            raise ArgumentError(
                "a mixture takes a dict of corpora by name; open each, as in {'web': lowtide.corpus(path)}"
            )
        _check_tokenizers(corpora)
        kinds = {name: str(corpus.dtype) for name, corpus in corpora.items()}
        self._dtype: np.dtype[Any] = np.result_type(*[corpus.dtype for corpus in corpora.values()])
        if self.dtype.kind not in "iu":
            raise ArgumentError(f"the corpora's dtypes have no common integer type: {kinds}")
        self._corpora = dict(corpora)
        by_step: Mapping[Any, Any] = weights
        if not by_step or not all(isinstance(value, Mapping) for value in by_step.values()):
            by_step = {0: weights}
        if min(by_step) != 0 or not all(isinstance(step, int) for step in by_step):
            raise ArgumentError(
                f"weights that change must start at step 0, got steps {sorted(by_step, key=str)}"
            )
        self._weights = {step: _exact(self.corpora, by_step[step]) for step in sorted(by_step)}

    def __repr__(self) -> str:
        shares = {
            step: {name: float(one) for name, one in shares.items()} for step, shares in self._weights.items()
        }
        return f"<lowtide.Mixture of {', '.join(map(repr, self._corpora))}, weights={shares}>"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the tokens: one that holds those of every corpus."""
        return self._dtype

    @property
    def corpora(self) -> dict[str, Corpus]:
        """The corpora by name."""
        return dict(self._corpora)

    @property
    def weights(self) -> dict[int, dict[str, Fraction]]:
        """For each step at which they change, the weights as exact fractions that sum to one."""
        return {step: dict(weights) for step, weights in self._weights.items()}

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
    ) -> MixedBatches:
        """Batches of the mixture, as :meth:`lowtide.Corpus.batches`; each corpus has its own order.

        Parameters
        ----------
        batch_size
            Windows in the global batch, which all ranks share; also by step, as ``{0: 32, 1000: 64}``.
        length
            Tokens in a window; also by step.
        order
            The order within each corpus, as in :meth:`lowtide.Corpus.batches`.
        seed
            Selects the permutations, or the random windows.
        rank
            Which of the ``world_size`` ranks this is. ``"auto"`` takes both from ``torch.distributed`` or,
            under ``torchrun``, from the environment.
        world_size
            Number of ranks that share the global batch.
        start
            The first step.
        prefetch
            Batches that a thread reads ahead; 0 reads each when it is needed, without a thread.

        Examples
        --------
        >>> mixed = lowtide.mix({"web": corpus, "code": corpus}, {"web": 0.7, "code": 0.3})
        >>> x, y = mixed.batches(batch_size=10, length=4)[0]
        >>> x.shape
        (10, 4)
        """
        count = len(Schedule(batch_size, length).stretches)
        samples = [(MixedSamples(self, batch_size, length, order, seed, nth), 0) for nth in range(count)]
        return MixedBatches(
            samples, batch_size, length, rank=rank, world_size=world_size, start=start, prefetch=prefetch
        )


@dataclass(frozen=True)
class _Phase:
    """Weights in force from a sample on. Which corpus a sample comes from repeats every ``len(table)``."""

    first: int
    table: npt.NDArray[np.int16]
    before: npt.NDArray[np.int64]
    """Samples of the same corpus before each place of the table."""
    each: Ints
    """Samples of each corpus in one round of the table."""
    used: Ints
    """Samples of each corpus before this phase."""


class MixedSamples(Samples):
    """Samples of a mixture; of one of its lengths, the one with the number ``stretch``."""

    def __init__(
        self,
        mixture: Mixture,
        batch_size: Setting,
        length: Setting,
        order: str,
        seed: int,
        stretch: int = 0,
    ) -> None:
        schedule = Schedule(batch_size, length)
        self.dtype = mixture.dtype
        self._names = list(mixture.corpora)
        self._seed = whole("seed", seed)
        self._weights = {
            step: {name: str(share) for name, share in shares.items()}
            for step, shares in mixture.weights.items()
        }
        self._phases: list[_Phase] = []
        self._firsts: list[int] = []
        for step, shares in mixture.weights.items():
            first = schedule.total(step)
            used = self._used(first) if self._phases else np.zeros(len(self._names), np.int64)
            self._phases.append(_phase(first, [shares[name] for name in self._names], used))
            self._firsts.append(first)
        self._start = schedule.totals[stretch]
        # Each corpus has its own seed, or two copies of one corpus would come in the same order.
        kind, lengths = order_called(order), self._lengths(schedule)
        orders = [
            scheduled(kind, corpus, lengths[nth], key_of(self._seed, nth))
            for nth, corpus in enumerate(mixture.corpora.values())
        ]
        self._parts = [samples[stretch][0] for samples in orders]
        before = self._used(self._start)
        self._origins = np.array([samples[stretch][1] for samples in orders], np.int64) - before
        self.tokens = sum(part.tokens for part in self._parts)
        self.epoch_samples = sum(part.epoch_samples for part in self._parts)
        self.dropped_tokens = sum(part.dropped_tokens for part in self._parts)

    def _lengths(self, schedule: Schedule) -> list[Lengths]:
        """For each corpus the lengths, and its number of samples of each."""
        used = [self._used(total) for total in schedule.totals]
        counts = [(after - before).tolist() for before, after in pairwise(used)]
        last = [None] * len(self._names)
        lengths = [length for length, _ in schedule.stretches]
        return [list(zip(lengths, column, strict=True)) for column in zip(*counts, last, strict=True)]

    def _used(self, sample: int) -> Ints:
        """Samples of each corpus before one of the mixture, counted through all lengths."""
        phase = self._phases[bisect_right(self._firsts, sample) - 1]
        return phase.used + _counts(phase, sample - phase.first)

    def assign(self, first: int, last: int) -> tuple[npt.NDArray[np.int16], Ints]:
        """For each sample, the number of its corpus and the sample's number there."""
        first, last = first + self._start, last + self._start
        parts: list[tuple[npt.NDArray[np.int16], Ints]] = []
        while first < last:
            nth = bisect_right(self._firsts, first) - 1
            until = min(last, self._firsts[nth + 1]) if nth + 1 < len(self._firsts) else last
            phase = self._phases[nth]
            rounds, place = np.divmod(np.arange(first, until, dtype=np.int64) - phase.first, len(phase.table))
            which = phase.table[place]
            numbers = phase.used[which] + rounds * phase.each[which] + phase.before[place]
            numbers += self._origins[which]
            parts.append((which, numbers.astype(np.int64)))
            first = until
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _rows(self, first: int, last: int) -> Iterator[tuple[Samples, Ints, int]]:
        """The samples of each corpus, the rows that they fill and the number of the first of them.

        A corpus' samples of one batch are neighbours in its own order.
        """
        which, numbers = self.assign(first, last)
        for nth, part in enumerate(self._parts):
            rows = np.flatnonzero(which == nth)
            if len(rows):
                yield part, rows, int(numbers[rows[0]])

    def submit(self, first: int, out: npt.NDArray[Any]) -> Pending[Any]:
        reads = []
        for part, rows, number in self._rows(first, first + len(out)):
            tokens = np.empty((len(rows), out.shape[1]), part.dtype)
            reads.append(part.submit(number, tokens).then(partial(_place, out, rows, tokens)))
        return every(reads)

    def document_ids(self, first: int, x: npt.NDArray[Any]) -> Ids:
        ids = np.zeros(x.shape, np.int32)
        for part, rows, number in self._rows(first, first + len(x)):
            ids[rows] = part.document_ids(number, x[rows])
        return ids

    def containing(self, token: int, epoch: int) -> list[int]:
        raise ArgumentError(
            "the steps of a token of a mixture depend on its corpus; call when() of that corpus' own batches"
        )

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"mixture_seed": self._seed, "weights": self._weights}
        for name, part in zip(self._names, self._parts, strict=True):
            settings |= {f"{name}.{key}": value for key, value in part.settings().items()}
        return settings

    def shares(self, first: int, last: int) -> dict[str, int]:
        """The number of samples from each corpus."""
        counts = np.bincount(self.assign(first, last)[0], minlength=len(self._names))
        return dict(zip(self._names, counts.tolist(), strict=True))


class MixedBatches(Batches):
    """Batches of a mixture."""

    _samples: MixedSamples

    def shares(self, step: int) -> dict[str, int]:
        """The number of rows of a step's global batch that come from each corpus.

        Parameters
        ----------
        step
            The number of the batch.

        Examples
        --------
        >>> weights = {0: {"web": 1, "code": 0}, 100: {"web": 1, "code": 1}}
        >>> mixed = lowtide.mix({"web": corpus, "code": corpus}, weights)
        >>> batches = mixed.batches(batch_size=4, length=8)
        >>> batches.shares(99), batches.shares(100)
        ({'web': 4, 'code': 0}, {'web': 2, 'code': 2})
        """
        phase = self._schedule.at(whole("step", step, 0))
        samples = self._stretches[phase.stretch][0]
        assert isinstance(samples, MixedSamples)
        return samples.shares(phase.sample(step), phase.sample(step + 1))


def _place(out: npt.NDArray[Any], rows: Ints, tokens: npt.NDArray[Any], _: object) -> None:
    out[rows] = tokens


def _check_tokenizers(corpora: Mapping[str, Corpus]) -> None:
    """Refuse corpora whose ids have different meanings, as far as their formats record it."""
    hashes, kinds, sizes = set(), {}, {}
    for name, corpus in corpora.items():
        tokenizer: Any = corpus.metadata.get("tokenizer")
        if digest := corpus._layout.tokenizer_digest:
            hashes.add(digest)  # whatever its name is: a path, or what trained it
            kinds[name] = f"{tokenizer.get('name')}, sha256 {str(digest)[:8]}"
        if corpus.vocab_size is not None:
            sizes[name] = str(corpus.vocab_size)
    if len(hashes) > 1:
        problem, values = "have different tokenizers", kinds
    elif len(set(sizes.values())) > 1:
        problem, values = "have vocabularies of different sizes", sizes
    else:
        return
    listed = "; ".join(f"{name!r}: {value}" for name, value in values.items())
    raise ArgumentError(
        f"the corpora of the mixture {problem} ({listed}); prepare them with one tokenizer, as in lowtide "
        "prepare --tokenizer"
    )


def _exact(corpora: Mapping[str, Corpus], weights: Weights) -> dict[str, Fraction]:
    if set(weights) != set(corpora):
        raise ArgumentError(f"weights are for {sorted(weights)}, and the corpora are {sorted(corpora)}")
    for name, weight in weights.items():
        if not math.isfinite(weight) or weight < 0:
            raise ArgumentError(f"the weight of {name!r} must be a number >= 0, got {weight!r}")
    total = sum(Fraction(str(weight)) for weight in weights.values())
    if not total:
        raise ArgumentError("all weights are 0, so nothing can be sampled")
    shares = {name: Fraction(str(weights[name])) / total for name in corpora}
    if math.lcm(*(share.denominator for share in shares.values())) <= _FINEST:
        return shares
    # Too fine for a table: to the next hundred-thousandth, the largest taking what is left.
    rounded = {name: Fraction(round(share * _FINEST), _FINEST) for name, share in shares.items()}
    largest = max(rounded, key=lambda name: rounded[name])
    rounded[largest] += 1 - sum(rounded.values())
    return rounded


def _phase(first: int, shares: list[Fraction], used: Ints) -> _Phase:
    """Each sample to the corpus whose next one is due first, of those that may have one already.

    Tijdeman's rule for the chairman assignment problem (1980): after any number of samples each corpus has
    its share to within one.
    """
    length = math.lcm(*(share.denominator for share in shares))
    each = [int(share * length) for share in shares]
    part = max(2, 2 * len(shares) - 2)  # a corpus may be ahead by at most 1 - 1/part of a sample
    given = [0] * len(shares)
    due = [-(-(part - 1) * length // (part * count)) if count else math.inf for count in each]
    table = np.empty(length, np.int16)
    for place in range(length):
        ready = [
            nth
            for nth, count in enumerate(each)
            if count and (count * (place + 1) - given[nth] * length) * part >= length
        ]
        chosen = min(ready, key=due.__getitem__)
        table[place] = chosen
        given[chosen] += 1
        due[chosen] = -(-(part - 1 + given[chosen] * part) * length // (part * each[chosen]))
    before = np.empty(length, np.int64)
    for nth in range(len(shares)):
        places = table == nth
        before[places] = np.arange(int(places.sum()))
    return _Phase(first, table, before, np.array(each, np.int64), used)


def _counts(phase: _Phase, samples: int) -> Ints:
    rounds, rest = divmod(samples, len(phase.table))
    counts: Ints = phase.each * rounds + np.bincount(phase.table[:rest], minlength=len(phase.each))
    return counts
