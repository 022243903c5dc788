"""Files and objects side by side: the same bytes on disk and in a bucket."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lowtide
from tests.fuzz import tokens
from tests.support.servers import BUCKET, ObjectServer


def upload(server: ObjectServer, folder: Path, prefix: str) -> str:
    """Put every file below ``folder`` into the bucket, and return the address of the prefix."""
    import obstore

    client = server.store()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            obstore.put(client, f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
    return f"s3://{BUCKET}/{prefix}"


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


CORPORA: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {
    "nanogpt": (tokens.TARGETS[0].make, "", {"eos": 7}),
    "llm.c": (tokens.TARGETS[1].make, "", {}),
    "megatron": (tokens._make_megatron, "", {}),
    "datatrove": (tokens.TARGETS[3].make, "", {}),
    "olmo": (tokens.TARGETS[4].make, "", {"dtype": "uint16"}),
    "npy": (tokens._make_npy, "", {"eos": 7}),
    "litdata": (tokens._make_litdata, "flat", {}),
    "litdata-sized": (tokens._make_litdata, "sized", {}),
    "mds": (tokens._make_mds, "even", {}),
    "mds-uneven": (tokens._make_mds, "uneven", {}),
    "lowtide": (tokens._make_own, "corpus", {}),
}
"""How each token format is made, in which folder below, and how it is opened."""


def some_batches(corpus: lowtide.Corpus, order: str, ranks: int) -> Iterator[np.ndarray]:
    """Tokens of a few steps in a row, by each rank; resumed in between."""
    for rank in range(ranks):
        batches = corpus.batches(4, 3, order=order, seed=5, rank=rank, world_size=ranks)
        for _ in range(2):
            yield next(batches)[0]
        again = corpus.batches(4, 3, order=order, seed=5, rank=rank, world_size=ranks)
        again.load_state_dict(batches.state_dict())
        yield next(again)[1]
        yield again[40][0]
        batches.close()
        again.close()
