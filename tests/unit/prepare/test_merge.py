"""Shards and their ends, however the tokens come."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowtide._prepare.jobs import Record
from lowtide._prepare.merge import Merger
from lowtide._prepare.workdir import Workdir
from lowtide._prepare.worker import files_of
from lowtide._tokens.formats import own
from lowtide._tokens.formats.checksums import verify
from tests.support.examples import examples
from tests.support.preparing import documents

TASKS = st.lists(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4), min_size=1, max_size=5)


@examples(0.5)
@given(
    pieces=TASKS, shard_tokens=st.integers(1, 20), again=st.booleans(), narrow=st.sampled_from(["u1", "<u2"])
)
def test_documents_do_not_depend_on_task_boundaries(
    tmp_path_factory: object,
    pieces: list[list[tuple[int, bool]]],
    shard_tokens: int,
    again: bool,
    narrow: str,
) -> None:
    """A task is a list of pieces: so many tokens, and whether the document ends."""
    tmp: Path = tmp_path_factory.mktemp("assembled")  # type: ignore[attr-defined]
    work = Workdir(str(tmp))
    work.start({"settings": {}, "sources": []}, overwrite=False)
    expected: list[list[int]] = [[]]
    records = []
    value = 0
    for index, task in enumerate(pieces):
        tokens: list[int] = []
        ends = []
        for count, ended in task:
            expected[-1] += range(value, value + count)
            tokens += range(value, value + count)
            value += count
            if ended:
                ends.append(len(tokens))
                expected.append([])
        for path, data in zip(
            files_of(work.tasks, index, "train"),
            (np.array(tokens, narrow), np.array(ends, "<u8")),
            strict=True,
        ):
            Path(path).write_bytes(data.tobytes())
        records.append(Record(index, {"train": len(tokens), "val": 0}, {"train": len(ends), "val": 0}))
    make = partial(Merger, work, narrow=narrow, dtype="<u2", layout="shards", shard_tokens=shard_tokens)
    merger = make()
    for record in records:
        merger.consume(record)
        if again:
            merger.commit()
            merger.close()
            merger = make(state=work.read_state())
    merger.finish()
    merger.close()
    stream = merger.writers["train"]
    assert merger.writers["val"].shards == []
    whole = [document for document in expected if document]
    assert (stream.tokens, stream.documents) == (value, len(whole))
    assert int(stream.lengths.sum()) == len(whole)
    assert [shard.tokens for shard in stream.shards[:-1]] == [shard_tokens] * (len(stream.shards) - 1)
    for shard in stream.shards:
        assert hashlib.sha256(Path(work.shards, shard.file).read_bytes()).hexdigest() == shard.sha256
    if value:
        work.publish(own.Manifest("uint16", {"train": stream.shards}))
        assert documents(tmp, "train") == whole
        verify(tmp)
    work.close()
