"""Token corpora: each with its index files, made as their own writers make them."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

import lowtide
from lowtide._tokens import documents
from lowtide._tokens.formats import checksums, llmc
from lowtide.errors import LowtideError
from tests.fuzz.arrays import newest, show
from tests.fuzz.harness import Target

Files = dict[str, bytes]

_COUNT = 60
_TOKENS = np.arange(_COUNT, dtype="<u2")
_ENDS = np.arange(10, _COUNT + 1, 10, dtype="<u8")
_META = {"vocab_size": 65, "stoi": {"a": 0, "é": 1}, "itos": {0: "a", 1: "é"}}
_TABLE = b"".join(b"%d,%d,id-%d,a.jsonl.gz,%d\n" % (end - 10, end, end, end) for end in _ENDS.tolist())

_NANOGPT: Files = {
    "train.bin": _TOKENS.tobytes(),
    "val.bin": _TOKENS[:20].tobytes(),
    "meta.pkl": pickle.dumps(_META),
}
_LLMC: Files = {f"x_train_{i:06}.bin": llmc.make_header("uint16", 30) + bytes(60) for i in range(2)}
_OLMO: Files = {
    f"part-{i}{suffix}": data
    for i in range(2)
    for suffix, data in ((".npy", _TOKENS.tobytes()), (".csv.gz", gzip.compress(_TABLE, mtime=0)))
}
_DATATROVE: Files = {
    "x.ds": _TOKENS.tobytes(),
    "x.ds.index": _ENDS.tobytes(),
    "x.ds.metadata": f"gpt2|2\n{_COUNT}\n60.00 T".encode(),
}
_ITEMS = [[list(range(i, i + 10)) for i in range(4)], [list(range(i)) for i in range(5, 9)]]
_ORDERS = ("random", "packed")  # the quick ones on tiny corpora
_MDS_ROWS = [{"tokens": _TOKENS[:8], "name": "a"}, {"tokens": _TOKENS[:10], "name": "bc"}]


def _make(files: Files, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _make_megatron(folder: Path) -> None:
    from tests.integration.tokens.formats.test_megatron import (
        index,  # pytest and hypothesis take a while to import
    )

    _make({"x.bin": _TOKENS.tobytes(), "x.idx": index([10] * 6, [0, 2, 3, 6])}, folder)


def _make_npy(folder: Path) -> None:
    for i in range(2):
        np.save(folder / f"{i}.npy", _TOKENS)


def _make_mds(folder: Path) -> None:
    from tests.integration.tokens.formats.test_mds import build

    _make(build({"tokens": "ndarray:uint16:8"}, [{"tokens": _TOKENS[:8]}] * 4), folder / "even")
    _make(build({"tokens": "ndarray", "name": "str"}, _MDS_ROWS, _MDS_ROWS), folder / "uneven")


def _make_litdata(folder: Path) -> None:
    from tests.integration.tokens.formats.test_litdata import build

    _make(build(_ITEMS), folder / "flat")
    _make(build(_ITEMS, sized=True), folder / "sized")


def _make_arrow(folder: Path) -> None:
    import pyarrow as pa

    for name, kind in (("list", pa.list_(pa.int32())), ("fixed", pa.list_(pa.uint16(), 4))):
        rows = pa.array([[i, i + 1, i + 2, i + 3] for i in range(6)], kind)
        table = pa.table({"name": ["a"] * 6, "input_ids": rows})
        (folder / name).mkdir()
        path = folder / name / "data.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        state = {"_data_files": [{"filename": path.name}], "_split": None}
        (folder / name / "state.json").write_text(json.dumps(state))


def _make_own(folder: Path) -> None:
    (folder / "text").mkdir()
    for i in range(4):
        (folder / "text" / f"{i}.txt").write_text(f"document {i} " * 5)
    lowtide.prepare(folder / "text", folder / "corpus", workers=1, shard_tokens=100)


def _make_manifest(folder: Path) -> None:
    from lowtide._tokens.formats import manifest

    _TOKENS.tofile(folder / "train.bin")
    with lowtide.corpus(folder, eos=7) as corpus:
        manifest.write({"train": corpus})
    for index in folder.glob(".lowtide-documents-*.npy"):
        index.unlink()


def _make_documents(folder: Path) -> None:
    _TOKENS.tofile(folder / "train.bin")
    with lowtide.corpus(folder, eos=7) as corpus:
        documents.scan(corpus)
    [index] = folder.glob(".lowtide-documents-*.npy")
    index.rename(folder / "documents.npy")


def _read(folder: Path, eos: int | None = None, dtype: str | None = None) -> None:
    with warnings.catch_warnings(), lowtide.corpus(folder, eos=eos, dtype=dtype) as corpus:
        warnings.filterwarnings("ignore", ".*does not occur", UserWarning)  # it was damaged
        repr(corpus)
        corpus[:3], corpus[-1], corpus.vocab_size
        with suppress(LowtideError):
            _read_documents(corpus)
        for order in _ORDERS:
            with suppress(LowtideError):
                corpus.batches(2, 4, order=order, prefetch=0)[0]
        pickle.loads(pickle.dumps(corpus)).close()
    show(folder, eos, dtype)


def _read_documents(corpus: lowtide.Corpus) -> None:
    documents = corpus.documents
    repr(documents)
    if documents.count:
        documents.bounds(0, min(3, documents.count))
        corpus.document(-1)
    documents.at(len(corpus) - 1)
    documents.verify()


def _read_each(folder: Path) -> None:
    _read(newest(folder))


def _read_own(folder: Path) -> None:
    with suppress(LowtideError):
        _read(folder / "corpus")
    checksums.verify(folder / "corpus")


def _read_scanned(folder: Path) -> None:
    with lowtide.corpus(folder / "train.bin", eos=7) as corpus:
        name = f".lowtide-documents-{documents._digest(corpus)}.npy"
    with suppress(FileNotFoundError):
        os.replace(folder / "documents.npy", folder / name)
    _read(folder / "train.bin", eos=7)


TARGETS = [
    Target("nanogpt", partial(_make, _NANOGPT), partial(_read, eos=7), share=0.5),
    Target("llm.c", partial(_make, _LLMC), _read),
    Target("megatron", _make_megatron, _read),
    Target("datatrove", partial(_make, _DATATROVE), _read),
    Target("olmo", partial(_make, _OLMO), partial(_read, dtype="uint16"), share=0.5),
    Target("npy-tokens", _make_npy, partial(_read, eos=7)),
    Target("litdata", _make_litdata, _read_each, share=0.5),
    Target("mds", _make_mds, _read_each, share=0.5),
    Target("arrow", _make_arrow, _read_each),
    Target("corpus", _make_own, _read_own, damaged="corpus/**/*", share=0.4),
    Target("manifest", _make_manifest, _read, damaged="lowtide-manifest*", share=0.5),
    Target("documents", _make_documents, _read_scanned, damaged="documents.npy", share=0.3),
]
