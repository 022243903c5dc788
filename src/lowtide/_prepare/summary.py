"""The progress and the result of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lowtide._printable import counted, printable
from lowtide._sizes import format_size
from lowtide._tokens.formats.own import Manifest

_WIDTH = 40  # of the longest bar


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` of ``total`` bytes of the sources are encoded, ``earlier`` of them in earlier runs."""

    stage: str  # "alphabet", "sample" and "training" of a tokenizer, or "tokens"
    done: int
    total: int
    earlier: int
    documents: int
    tokens: int


class ProgressCounter:
    """Counts what is done, and reports it at every ``tick``."""

    def __init__(self, total: int, done: int, report: Callable[[Progress], object]) -> None:
        self._now = Progress("tokens", done, total, done, 0, 0)
        self._report = report

    def add(self, documents: int, tokens: int, nbytes: int = 0) -> None:
        now = self._now
        documents, tokens = now.documents + documents, now.tokens + tokens
        self._now = replace(now, done=now.done + nbytes, documents=documents, tokens=tokens)

    def tick(self, stage: str = "tokens") -> None:
        self._report(replace(self._now, stage=stage))


@dataclass(frozen=True, slots=True)
class Summary:
    """A corpus that was prepared; ``str`` of it is a report to read."""

    folder: str
    manifest: Manifest
    tokens: int
    documents: int
    lengths: Sequence[int]
    """The number of documents with 0 tokens, 1, 2-3, 4-7, 8-15, ..."""
    notes: Sequence[str]
    skipped: int = 0
    complaints: Sequence[str] = ()
    """Errors of the first documents that were skipped."""

    def __str__(self) -> str:
        documents = counted(self.documents, "document")
        lines = [f"{printable(self.folder)}: {self.tokens:,} tokens in {documents}"]
        itemsize = 2 if self.manifest.dtype == "uint16" else 4
        for split, shards in self.manifest.splits.items():
            tokens = sum(shard.tokens for shard in shards)
            documents = counted(sum(shard.documents or 0 for shard in shards), "document")
            size = format_size(tokens * itemsize)
            lines.append(
                f"  {split:<6} {tokens:,} tokens, {documents}, {counted(len(shards), 'shard')}, {size}"
            )
        if self.manifest.tokenizer is not None and self.manifest.vocab_size is not None:
            name = printable(self.manifest.tokenizer.name)
            lines.append(f"  vocabulary {self.manifest.vocab_size:,} ids of the tokenizer {name}")
        if self.skipped:
            lines.append(f"  skipped {self.skipped:,} documents that could not be read, such as:")
            lines += [f"    {printable(complaint)}" for complaint in self.complaints]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, *histogram(self.lengths)])


def histogram(counts: Sequence[int]) -> list[str]:
    """A histogram of the lengths of documents; ``counts[i]`` have 2**(i-1) to 2**i - 1 tokens.

    >>> print("\\n".join(histogram([0, 0, 3, 0, 6])))
      tokens per document
                 2-3          3 ####################
                 4-7          0
                8-15          6 ########################################
    """
    bins = [i for i, count in enumerate(counts) if count]
    if not bins:
        return []
    most = max(counts)
    lines = ["  tokens per document"]
    for i in range(bins[0], bins[-1] + 1):
        low, high = 2 ** (i - 1), 2**i - 1
        name = f"{low:,}" if low == high else f"{low:,}-{high:,}"
        bar = "#" * -(-counts[i] * _WIDTH // most)
        lines.append(f"  {name:>18} {counts[i]:>10,} {bar}".rstrip())
    return lines
