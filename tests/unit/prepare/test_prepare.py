"""From text to a corpus: what is written, that it depends on nothing else, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._prepare.summary import Progress
from lowtide._prepare.worker import encode as real
from lowtide._tokens.formats import llmc, nanogpt, own
from lowtide._tokens.formats.checksums import verify
from lowtide.errors import ArgumentError, FormatError, LowtideError, StateError, TaskError, WriteError
from tests.support.formats import refused
from tests.support.preparing import as_bytes, content, documents, jsonl, small


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide._prepare.prepare.cores", lambda: 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    jsonl(tmp_path / "web.jsonl", 200)
    return tmp_path / "web.jsonl"


def test_every_document_is_written_once_and_in_order(tmp_path: Path) -> None:
    texts = jsonl(tmp_path / "web.jsonl", 300)
    with small():
        summary = lowtide.prepare(
            tmp_path / "web.jsonl", tmp_path / "out", val_fraction=0.1, shard_tokens="5k"
        )
    train, val = documents(tmp_path / "out", "train"), documents(tmp_path / "out", "val")
    expected = [as_bytes(text) for text in texts]
    assert 10 < len(val) < 60
    assert [document for document in expected if document not in val] == train
    assert [document for document in expected if document in val] == val
    assert summary.documents == 300
    assert summary.tokens == sum(map(len, expected))
    assert sum(summary.lengths) == 300
    assert "300 documents" in str(summary)
    sizes = [shard.tokens for shard in own.read(tmp_path / "out" / "corpus.json").splits["train"]]
    assert len(sizes) > 5
    assert set(sizes[:-1]) == {5000}
    assert verify(tmp_path / "out").files == 2 * (len(sizes) + 2) + 1


def test_text_of_many_units_is_one_document(tmp_path: Path) -> None:
    text = "low tide, é high tide\r\n" * 3000
    (tmp_path / "sea.txt").write_bytes(text.encode())
    with small(unit=1000):
        lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out", val_fraction=0, shard_tokens=10_000)
    assert documents(tmp_path / "out", "train") == [as_bytes(text)]


def nanogpt_shakespeare_char(text: str) -> tuple[bytes, bytes]:
    """What nanoGPT's data/shakespeare_char/prepare.py makes of a text."""
    chars = sorted(set(text))
    ids = {character: i for i, character in enumerate(chars)}
    count = len(text)
    train, val = text[: int(count * 0.9)], text[int(count * 0.9) :]
    return tuple(np.array([ids[c] for c in part], dtype=np.uint16).tobytes() for part in (train, val))  # type: ignore[return-value]


@pytest.mark.parametrize("length", [10, 1001, 33_333])
def test_nanogpt_layout_has_same_bytes_as_its_script(tmp_path: Path, length: int) -> None:
    letters = np.random.default_rng(length).choice(list("abc ABC\n.,é☃"), length)
    text = "".join(letters.tolist())
    (tmp_path / "input.txt").write_bytes(text.encode())
    with small(unit=1000):
        lowtide.prepare(
            tmp_path / "input.txt",
            tmp_path,  # beside its source, as nanoGPT has it
            tokenizer="char",
            val_fraction=0.1,
            holdout="contiguous",
            layout="nanogpt",
            meta_pkl=True,
        )
    expected = nanogpt_shakespeare_char(text)
    assert ((tmp_path / "train.bin").read_bytes(), (tmp_path / "val.bin").read_bytes()) == expected
    meta: Any = nanogpt.read_meta(str(tmp_path / "meta.pkl"))
    assert meta == pickle.loads((tmp_path / "meta.pkl").read_bytes())
    assert meta["vocab_size"] == len(set(text))
    assert [meta["itos"][meta["stoi"][character]] for character in text[:50]] == list(text[:50])
    verify(tmp_path)


def test_llmc_layout_has_header_and_same_tokens(tmp_path: Path, source: Path) -> None:
    lowtide.prepare(source, tmp_path / "raw", val_fraction=0, shard_tokens=7000)
    with small():
        lowtide.prepare(source, tmp_path / "llmc", val_fraction=0, shard_tokens=7000, layout="llmc")
    verify(tmp_path / "llmc")
    names = [path.name for path in sorted((tmp_path / "raw").glob("train-*.bin"))]
    assert len(names) > 3
    for name in names:
        raw = (tmp_path / "raw" / name).read_bytes()
        assert (tmp_path / "llmc" / name).read_bytes() == llmc.make_header("uint16", len(raw) // 2) + raw
    paths = [tmp_path / "llmc" / name for name in names]
    assert lowtide.corpus(paths).format == "llm.c"  # as anybody else would read them


def test_eos_false_writes_no_end_of_text(tmp_path: Path) -> None:
    texts = jsonl(tmp_path / "web.jsonl", 50)
    lowtide.prepare(tmp_path / "web.jsonl", tmp_path / "out", val_fraction=0, eos=False)
    assert documents(tmp_path / "out", "train") == [as_bytes(text)[:-1] for text in texts]
    assert lowtide.corpus(tmp_path / "out").eos is None


def test_validation_split_depends_only_on_seed_and_document(tmp_path: Path, source: Path) -> None:
    def val(name: str, **options: Any) -> list[list[int]]:
        lowtide.prepare(source, tmp_path / name, val_fraction=0.2, **options)
        return documents(tmp_path / name, "val")

    first = val("a")
    assert first == val("b", eos=True, shard_tokens=100)
    other = val("c", seed=1)
    assert first != other
    more = {tuple(document) for document in first}
    lowtide.prepare(source, tmp_path / "d", val_fraction=0.4)
    assert more < {tuple(document) for document in documents(tmp_path / "d", "val")}


def test_standard_input_gives_same_bytes_as_file(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdin:
        buffer = io.BytesIO(source.read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    lowtide.prepare("-", tmp_path / "piped", val_fraction=0)
    lowtide.prepare(source, tmp_path / "named", val_fraction=0)
    for name in ("train-00000.bin", "train-00000.ends"):
        assert (tmp_path / "piped" / name).read_bytes() == (tmp_path / "named" / name).read_bytes()
    assert own.read(tmp_path / "piped" / "corpus.json").sources == [
        {"name": "-", "bytes": source.stat().st_size}
    ]
    assert not (tmp_path / "piped" / ".prepare").exists()


def test_folder_of_small_files_is_prepared_in_order(tmp_path: Path) -> None:
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    for number in range(50):
        (tmp_path / "texts" / "deep" / f"{number:03}.txt").write_text(f"text {number}")
    (tmp_path / "texts" / "left_out.md").write_text("no")
    lowtide.prepare(tmp_path / "texts", tmp_path / "out", glob="*.txt", val_fraction=0)
    assert documents(tmp_path / "out", "train") == [as_bytes(f"text {number}") for number in range(50)]


def test_skipped_documents_are_counted(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "good"})] * 20
    lines[3], lines[7] = '{"text": ', json.dumps({"body": "other"})
    (tmp_path / "web.jsonl").write_text("\n".join(lines))
    with refused(FormatError, tmp_path / "web.jsonl", "line 4", "JSON"):
        lowtide.prepare(tmp_path / "web.jsonl", tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()
    summary = lowtide.prepare(tmp_path / "web.jsonl", tmp_path / "out", on_error="skip", val_fraction=0)
    assert (summary.documents, summary.skipped) == (18, 2)
    assert ["line 4" in summary.complaints[0], "'text'" in summary.complaints[1]] == [True, True]
    assert "skipped 2" in str(summary)
    assert summary.manifest.settings["skipped"] == 2


def test_valid_part_of_truncated_gzip_can_be_kept(tmp_path: Path) -> None:
    line = json.dumps({"text": "tide " * 200}).encode() + b"\n"
    packed = gzip.compress(line * 5000)  # 5 MB, read a megabyte at a time
    (tmp_path / "web.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with refused(FormatError, tmp_path / "web.jsonl.gz", "gzip"):
        lowtide.prepare(tmp_path / "web.jsonl.gz", tmp_path / "out")
    summary = lowtide.prepare(tmp_path / "web.jsonl.gz", tmp_path / "out", on_error="skip", val_fraction=0)
    assert summary.skipped == 1
    assert 500 < summary.documents < 5000


Case = tuple[bytes, dict[str, Any], type[LowtideError], tuple[str, ...]]
REFUSED: dict[str, Case] = {
    "utf8": (b'{"text": "a"}\n{"text": "\xff"}\n', {}, FormatError, ("line 2", "byte")),
    "json": (b'{"text": "a"}\n{"text"', {}, FormatError, ("line 2", "JSON")),
    "field": (b'{"body": "a"}\n', {}, FormatError, ("line 1", "'text'", "text_field")),
    "empty": (b"", {}, FormatError, ("empty",)),
    "fraction": (b'{"text": "a"}\n', {"val_fraction": 1.0}, ArgumentError, ("val_fraction", "1.0")),
    "holdout": (b'{"text": "a"}\n', {"holdout": "half"}, ArgumentError, ("'documents'", "'half'")),
    "layout": (b'{"text": "a"}\n', {"layout": "zarr"}, ArgumentError, ("'shards'", "'zarr'")),
    "on_error": (b'{"text": "a"}\n', {"on_error": "stop"}, ArgumentError, ("'skip'", "'stop'")),
    "shards": (b'{"text": "a"}\n', {"shard_tokens": 0}, ArgumentError, ("shard_tokens", "0")),
    "llmc": (
        b'{"text": "a"}\n',
        {"shard_tokens": "3G", "layout": "llmc"},
        ArgumentError,
        ("2147483647", "3000000000"),
    ),
    "meta": (b'{"text": "a"}\n', {"meta_pkl": True}, ArgumentError, ("'char'", "'byte'")),
    "workers": (b'{"text": "a"}\n', {"workers": 0}, ArgumentError, ("workers", "0")),
    "both": (b'{"text": "a"}\n', {"workers": 2, "dask": "tcp://x:1"}, ArgumentError, ("dask",)),
    "no-train": (b'{"text": "a"}\n', {"val_fraction": 0.99}, ArgumentError, ("'train'", "0.99")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_failed_run_leaves_no_files(tmp_path: Path, name: str) -> None:
    data, options, kind, parts = REFUSED[name]
    (tmp_path / "web.jsonl").write_bytes(data)
    with refused(kind, *parts):
        lowtide.prepare(tmp_path / "web.jsonl", tmp_path / "out", **options)
    assert not list((tmp_path / "out").glob("*"))
    (tmp_path / "web.jsonl").write_bytes(b'{"text": "mended"}\n')
    lowtide.prepare(tmp_path / "web.jsonl", tmp_path / "out", val_fraction=0)
    assert documents(tmp_path / "out", "train") == [as_bytes("mended")]


def test_invalid_bytes_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "sea.txt").write_bytes(b"low \xff tide")
    with refused(FormatError, tmp_path / "sea.txt", "byte 4"):
        lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out")
    lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out", on_error="replace", val_fraction=0)
    assert documents(tmp_path / "out", "train") == [as_bytes("low � tide")]


def test_existing_corpus_raises_without_overwrite(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    lowtide.prepare(source, out, val_fraction=0.1, shard_tokens=1000)
    before = content(out)
    with refused(WriteError, out, "corpus.json", "overwrite"):
        lowtide.prepare(source, out, val_fraction=0)
    assert content(out) == before
    lowtide.prepare(source, out, val_fraction=0, shard_tokens=10_000, overwrite=True)
    lowtide.prepare(source, tmp_path / "fresh", val_fraction=0, shard_tokens=10_000)
    assert content(out) == content(tmp_path / "fresh")  # nothing of the old is left


def test_existing_files_raise_without_overwrite(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.bin").write_bytes(b"precious")
    with refused(WriteError, "train.bin", "overwrite"):
        lowtide.prepare(source, tmp_path / "out")
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"precious"
    assert os.listdir(tmp_path / "out") == ["train.bin"]
    with refused(ArgumentError, source, "is a file"):
        lowtide.prepare(source, source)


def stopped(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let encoding fail in this process after so many tasks."""
    done = [0]

    def encode(*arguments: Any, **options: Any) -> Any:
        done[0] += 1
        if done[0] > after:
            raise RuntimeError("stopped")
        return real(*arguments, **options)

    monkeypatch.setattr("lowtide._prepare.run.encode", encode)


def test_unfinished_corpus_raises_and_is_resumed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"val_fraction": 0.1, "shard_tokens": 4000, "workers": 1}
    lowtide.prepare(source, tmp_path / "whole", **options)
    with small(), monkeypatch.context() as patched:
        stopped(patched, 6)
        with refused(TaskError, source, "failed 3 times", "stopped"):
            lowtide.prepare(source, tmp_path / "out", **options)
        with refused(FormatError, tmp_path / "out", "has not finished"):
            lowtide.corpus(tmp_path / "out")
        with refused(StateError, "seed was 0 and is 5", "overwrite"):
            lowtide.prepare(source, tmp_path / "out", seed=5, **options)
    reports: list[Progress] = []
    with small():
        lowtide.prepare(source, tmp_path / "out", progress=reports.append, **options)
    assert reports[0].earlier > 0
    assert reports[0].done == reports[0].earlier
    assert reports[-1].documents == 200
    assert reports[-1].done == reports[-1].total
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_changed_source_is_not_resumed(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small(), monkeypatch.context() as patched:
        stopped(patched, 6)
        with pytest.raises(TaskError):
            lowtide.prepare(source, tmp_path / "out", workers=1)
    texts = jsonl(source, 30, seed=9)
    with small():
        with refused(StateError, source, "has changed"):
            lowtide.prepare(source, tmp_path / "out")
        lowtide.prepare(source, tmp_path / "out", overwrite=True, val_fraction=0)
    assert documents(tmp_path / "out", "train") == [as_bytes(text) for text in texts]


def test_concurrent_run_in_same_folder_raises(tmp_path: Path, source: Path) -> None:
    from lowtide._prepare.workdir import Workdir

    held = Workdir(str(tmp_path / "out"))
    with refused(WriteError, tmp_path / "out", "another"):
        lowtide.prepare(source, tmp_path / "out")
    held.close()
    lowtide.prepare(source, tmp_path / "out")


def test_id_outside_the_vocabulary_raises(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide._prepare.tokenizers.byte import ByteTokenizer

    def encode_batch(self: object, texts: list[str]) -> list[np.ndarray]:
        return [np.full(3, 300, np.uint32) for _ in texts]

    monkeypatch.setattr(ByteTokenizer, "encode_batch", encode_batch)
    with refused(FormatError, source, "300", "256"):
        lowtide.prepare(source, tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("deprecated", "current"),
    [
        ({"split": "contiguous"}, {"holdout": "contiguous"}),
        ({"errors": "strict"}, {}),
        ({"errors": "replace"}, {"on_error": "replace"}),
        ({"errors": "replace", "on_error": "skip"}, {"on_error": "replace-or-skip"}),
    ],
)
def test_deprecated_argument_warns_and_gives_same_result(
    tmp_path: Path, source: Path, deprecated: dict[str, Any], current: dict[str, Any]
) -> None:
    old = next(iter(deprecated))
    with pytest.warns(DeprecationWarning, match=rf"prepare\({old}=\) is deprecated.*use (holdout|on_error)="):
        lowtide.prepare(source, tmp_path / "deprecated", val_fraction=0.1, **deprecated)
    lowtide.prepare(source, tmp_path / "current", val_fraction=0.1, **current)
    assert content(tmp_path / "deprecated") == content(tmp_path / "current")


def test_replace_or_skip_replaces_bytes_and_skips_lines(tmp_path: Path) -> None:
    (tmp_path / "web.jsonl").write_bytes(b'{"text": "low \xff"}\n{"text": \n{"text": "tide"}\n')
    with refused(FormatError, "line 2"):
        lowtide.prepare(tmp_path / "web.jsonl", tmp_path / "out", on_error="replace")
    summary = lowtide.prepare(
        tmp_path / "web.jsonl", tmp_path / "out", on_error="replace-or-skip", val_fraction=0
    )
    assert summary.skipped == 1
    assert documents(tmp_path / "out", "train") == [as_bytes("low \ufffd"), as_bytes("tide")]


@pytest.mark.parametrize("layout", ["shards", "llmc"])
def test_missing_system_calls_give_same_bytes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    """Windows has no pread, pwrite, fdatasync, fork, affinity or modes of files; macOS lacks some."""
    options: dict[str, Any] = {"val_fraction": 0.1, "shard_tokens": 4000, "layout": layout}
    lowtide.prepare(source, tmp_path / "whole", **options)
    for name in (
        *("pread", "preadv", "pwrite", "pwritev", "fdatasync", "fork", "sched_getaffinity"),
        *("posix_fadvise", "posix_fallocate", "fchmod", "fchown", "register_at_fork"),
    ):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr("lowtide._prepare.workdir._BOOT", str(tmp_path / "no such file"))
    with small(), monkeypatch.context() as patched:
        stopped(patched, 6)
        with refused(TaskError, source, "stopped"):
            lowtide.prepare(source, tmp_path / "out", **options)
    with small():
        lowtide.prepare(source, tmp_path / "out", **options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe:300"])
def test_single_text_is_split_into_train_and_val(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "sea.txt").write_text("the tide is low and the sea is far away\n" * 2000)
    summary = lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out", tokenizer=tokenizer, workers=1)
    train, val = (lowtide.corpus(tmp_path / "out", split=split) for split in ("train", "val"))
    assert abs(len(val) / (len(train) + len(val)) - 0.1) < 0.01
    assert f"val    {len(val):,} tokens" in str(summary)


def test_small_validation_split_adds_note(tmp_path: Path) -> None:
    (tmp_path / "sea.txt").write_text("low tide " * 100)
    summary = lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out", workers=1)
    assert any("val is small" in note for note in summary.notes)


def test_empty_validation_split_adds_note_with_remedy(tmp_path: Path) -> None:
    (tmp_path / "sea.txt").write_text("low tide " * 100)
    summary = lowtide.prepare(
        tmp_path / "sea.txt", tmp_path / "out", val_fraction=0.01, holdout="documents", workers=1
    )
    assert any("holdout='contiguous'" in note for note in summary.notes)


def test_vocabulary_smaller_than_requested_adds_note(tmp_path: Path) -> None:
    (tmp_path / "sea.txt").write_text("low tide " * 1000)
    summary = lowtide.prepare(tmp_path / "sea.txt", tmp_path / "out", tokenizer="bpe:5000", workers=1)
    assert any("instead of 5,000" in note for note in summary.notes)


def test_finished_run_is_not_repeated(tmp_path: Path) -> None:
    source = tmp_path / "sea.txt"
    source.write_text("low tide " * 1000)
    first = lowtide.prepare(source, tmp_path / "out", workers=1)
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = lowtide.prepare(source, tmp_path / "out", workers=1)
    assert (again.tokens, again.documents) == (first.tokens, first.documents)
    assert "nothing was written" in str(again)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == files


@pytest.mark.parametrize("change", ["settings", "source", "damage"])
def test_changed_run_is_not_taken_for_finished_run(tmp_path: Path, change: str) -> None:
    source = tmp_path / "sea.txt"
    source.write_text("low tide " * 1000)
    lowtide.prepare(source, tmp_path / "out", workers=1)
    options: dict[str, Any] = {"tokenizer": "char"} if change == "settings" else {}
    if change == "source":
        source.write_text("high tide " * 1000)
    if change == "damage":
        os.truncate(tmp_path / "out" / "train-00000.bin", 10)
    with pytest.raises(WriteError, match="already contains a corpus"):
        lowtide.prepare(source, tmp_path / "out", workers=1, **options)
