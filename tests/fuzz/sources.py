"""What ``lowtide prepare`` reads: sources, tokenizers, and the work folder of a run that was stopped."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import zstandard

import lowtide
from lowtide._prepare import run, tokenizers
from lowtide._prepare.merge import Merger
from lowtide._prepare.tokenizers import probe
from lowtide._tokens.formats import own
from lowtide.errors import FormatError, LowtideError, TaskError
from tests.fuzz.harness import Target
from tests.support.preparing import content, jsonl, small, stop

TEXTS = ["the tide is low, the moon is full: the sea went out", "low tide\n\nhigh tide 12:30 ", "é 漢 😀"] * 9
_LINES = "".join(json.dumps({"text": text, "n": [{"a": 1.5}]}, ensure_ascii=False) + "\n" for text in TEXTS)
_ON_ERROR: list[Literal["raise", "skip"]] = ["raise", "skip"]


def _make_huggingface(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    (folder / "bpe.json").write_text(tokenizers.make("bpe:280", tokenizers.Texts(TEXTS)).to_json())
    for name, model, trainer in (
        ("wordpiece", models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=90)),
        ("unigram", models.Unigram(), trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>")),
        ("wordlevel", models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=90)),
    ):
        built = Tokenizer(model)
        built.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("tide", "sea")])
        built.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits()]
        )
        trainer.show_progress = False
        trainer.special_tokens = ["<unk>", "[UNK]", "</s>"]
        built.train_from_iterator(TEXTS, trainer)
        built.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", built.token_to_id("</s>"))]
        )
        built.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
        built.enable_truncation(5)
        built.enable_padding()
        (folder / f"{name}.json").write_text(built.to_str())


def _make_own(folder: Path) -> None:
    from lowtide._prepare.tokenizers.tiktoken import TiktokenTokenizer

    ranks = {bytes([i]): i for i in range(256)} | {b"lo": 256, b"low": 257, b" t": 258, b" ti": 259}
    special = {"<|endoftext|>": 270, "<|other|>": 271}
    built = TiktokenTokenizer("small", r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", ranks, special)
    (folder / "tiktoken.json").write_text(built.to_json())
    (folder / "char.json").write_text(tokenizers.make("char", tokenizers.Texts(TEXTS)).to_json())
    (folder / "byte.json").write_text(tokenizers.make("byte").to_json())
    (folder / "ids.json").write_text(tokenizers.make("ids:300").to_json())


class _Prober:
    """Tries tokenizers as ``probe.run`` does, but many in one process: starting one is expensive."""

    _PROGRAM = (
        "import sys\nfrom lowtide._prepare.tokenizers import probe\n"
        "for line in sys.stdin:\n    probe.main(line[:-1])\n    print(flush=True)"
    )
    _child: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", self._PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self._child

    def run(self, path: str) -> None:
        child = self.start()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(path + "\n")
        child.stdin.flush()
        if not child.stdout.readline():
            with child:
                self._child = None
            self.start()
            raise FormatError(f"{path}: ended the process that tried it with status {child.returncode}")


_prober = _Prober()


def _use_tokenizers(folder: Path) -> None:
    _prober.start()  # in the first case already: its pipes are not a leak
    changed = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    built = tokenizers.make(str(changed))
    with suppress(LowtideError):
        for text in ["", *TEXTS[:3], "<|endoftext|> \0\r\n\t" * 9]:
            ids = built.encode_batch([text])[0]
            tokenizers.checked(ids, built)
            built.decode(ids)
    for wrong in ([-1], [built.vocab_size], np.arange(min(built.vocab_size, 300)), [2**63], []):
        with suppress(LowtideError):
            built.decode(wrong)
    (folder / "again.json").write_text(built.to_json())


def _tried_quickly(folder: Path) -> None:
    with mock.patch.object(probe, "run", _prober.run):
        _use_tokenizers(folder)


def _make_texts(folder: Path) -> None:
    (folder / "x.txt").write_text("\n\n".join(TEXTS))
    (folder / "x.jsonl").write_text(_LINES)
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(_LINES.encode(), mtime=0))
    (folder / "y.txt.gz").write_bytes(gzip.compress(_LINES.encode(), 0, mtime=0))
    (folder / "x.jsonl.zst").write_bytes(zstandard.compress(_LINES.encode()))


def _make_tables(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.array(TEXTS)
    for i, kind in enumerate([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]):
        table = pa.table({"id": pa.array(range(len(TEXTS))), "text": column.cast(kind)})
        pq.write_table(
            table,
            folder / f"{i}.parquet",
            row_group_size=10,
            compression=["none", "zstd", "snappy"][i],
            use_dictionary=i == 1,
        )
        with pa.OSFile(str(folder / f"{i}.arrow"), "wb") as file:
            options = pa.ipc.IpcWriteOptions(compression=[None, "zstd", "lz4"][i])
            with pa.ipc.new_stream(file, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=10)


def _make_ids(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [[i, i + 1, i + 2] for i in range(40)]
    for i, kind in enumerate([pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16(), 3)]):
        table = pa.table({"input_ids": pa.array(rows, kind)})
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=10)
        with pa.OSFile(str(folder / f"{i}.arrow"), "wb") as file:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=10)
    (folder / "x.jsonl").write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in rows))


def _make_saved(folder: Path) -> None:
    _make_tables(folder)
    for path in [*folder.glob("*.parquet"), folder / "1.arrow", folder / "2.arrow"]:
        path.unlink()
    state = {"_data_files": [{"filename": "0.arrow"}], "_indices_data_files": None, "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def _prepare_damaged(folder: Path, tokenizer: str | None = None) -> None:
    """In one process: that its death is survived is looked at only where it dies."""
    with mock.patch.object(run, "_isolated", return_value=False):
        _prepare_isolated(folder, tokenizer)


def _prepare_isolated(folder: Path, tokenizer: str | None = None) -> None:
    """Prepare the file that was damaged, and a whole folder where only that says what its files are."""
    changed = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    source = folder if (folder / "state.json").exists() else changed
    # A task that is tried again failed with an exception of somebody else's.
    with mock.patch.object(os, "fsync"):
        try:
            on_error = _ON_ERROR[changed.stat().st_size % 2]
            options: dict[str, Any] = {"tokenizer": tokenizer, "on_error": on_error}
            lowtide.prepare(source, folder / "out", workers=1, val_fraction=0, **options)
        except TaskError as error:
            raise AssertionError(str(error)) from error


_SOURCE = tempfile.TemporaryDirectory(prefix="lowtide-fuzz-")
_WORK: dict[str, dict[str, Any]] = {
    "byte": {"val_fraction": 0.1, "shard_tokens": 3000},
    "llmc": {"val_fraction": 0.1, "shard_tokens": 3000, "layout": "llmc"},
    "char": {"val_fraction": 0.1, "tokenizer": "char", "layout": "nanogpt", "holdout": "contiguous"},
}
_STOPS = {"byte": (Merger, "consume", 4), "llmc": (own, "write", 1), "char": (Merger, "finish", 1)}
_expected: dict[str, dict[str, str]] = {}
_pristine: dict[str, dict[str, str]] = {}


def _make_work(folder: Path) -> None:
    source = Path(_SOURCE.name, "web.jsonl")
    jsonl(source, 60)
    for name, options in _WORK.items():
        with small():
            lowtide.prepare(source, folder / "whole", workers=1, **options)
        _expected[name] = content(folder / "whole")
        shutil.rmtree(folder / "whole")
        stop(*_STOPS[name], sources=source, out=folder / name, **options)
        _pristine[name] = content(folder / name)


def _resume(folder: Path) -> None:
    """Resume what was damaged: it must end as if nothing had been."""
    changed = [out for out in folder.iterdir() if content(out) != _pristine[out.name]]
    for out in changed or [folder / "byte"]:
        with small(), mock.patch.object(os, "fsync"):
            lowtide.prepare(Path(_SOURCE.name, "web.jsonl"), out, workers=1, **_WORK[out.name])
        assert content(out) == _expected[out.name]


TARGETS = [
    Target("workfolder", _make_work, _resume, damaged="*/.prepare/**/*", share=0.05),
    Target("source-text", _make_texts, _prepare_damaged, share=0.3),
    Target("source-table", _make_tables, _prepare_damaged, isolated=_prepare_isolated, share=0.3),
    Target(
        "source-ids",
        _make_ids,
        partial(_prepare_damaged, tokenizer="ids:1000"),
        isolated=partial(_prepare_isolated, tokenizer="ids:1000"),
        share=0.3,
    ),
    Target("source-dataset", _make_saved, _prepare_damaged, isolated=_prepare_isolated, share=0.1),
    Target("tokenizer-huggingface", _make_huggingface, _tried_quickly, share=0.3),
    Target("tokenizer-own", _make_own, _tried_quickly, share=0.3),
    Target("tokenizer-probe", _make_huggingface, _use_tokenizers, share=0.005),
]
