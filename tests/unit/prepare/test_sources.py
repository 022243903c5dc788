"""Sources that are not files: iterables of texts, mappings and token ids; validation data that exists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._prepare import merge
from lowtide._prepare.summary import Progress
from lowtide._prepare.tokenizers import load
from lowtide.errors import ArgumentError, FormatError, LowtideError, StateError
from tests.support.formats import refused
from tests.support.preparing import as_bytes, content, documents, small, stop

TEXTS = ["low", "tide \u00e9", 'with "quotes" and \n newlines', "x" * 5000]


def generated() -> Iterator[str]:
    yield from TEXTS


@pytest.mark.parametrize("kind", ["generator", "mappings", "list of mappings"])
def test_iterable_of_texts_is_prepared_like_file(tmp_path: Path, kind: str) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    sources: Any = {"generator": generated(), "mappings": iter(rows), "list of mappings": rows}[kind]
    summary = lowtide.prepare(sources, tmp_path / "corpus", val_fraction=0, workers=1)
    assert documents(tmp_path / "corpus", "train") == [as_bytes(text) for text in TEXTS]
    assert [source["name"] for source in summary.manifest.sources] == ["(iterable)"]  # type: ignore[index]
    assert not (tmp_path / "corpus" / ".prepare").exists()


def test_repeated_iterable_writes_nothing_and_other_iterable_raises(tmp_path: Path) -> None:
    lowtide.prepare(generated(), tmp_path / "corpus", workers=1)
    before = content(tmp_path / "corpus")
    assert "prepared before" in str(lowtide.prepare(generated(), tmp_path / "corpus", workers=1))
    assert content(tmp_path / "corpus") == before
    with refused(LowtideError, "already contains a corpus"):
        lowtide.prepare(iter(["other"]), tmp_path / "corpus", workers=1)


def test_unfinished_run_of_an_iterable_is_resumed(tmp_path: Path) -> None:
    texts = [f"document {i} " * 50 for i in range(200)]
    with small():
        lowtide.prepare(iter(texts), tmp_path / "whole", workers=1)
    stop(merge.Merger, "consume", 5, sources=iter(texts), out=tmp_path / "resumed")
    with small():
        with pytest.raises(StateError, match="unfinished prepare with other sources"):
            lowtide.prepare(iter(texts[1:]), tmp_path / "resumed", workers=1)
        lowtide.prepare(iter(texts), tmp_path / "resumed", workers=1)
    assert content(tmp_path / "whole") == content(tmp_path / "resumed")


def test_paths_from_iterator_are_read_as_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name * 3)
    paths: Any = iter(sorted(tmp_path.glob("*.txt")))
    lowtide.prepare(paths, tmp_path / "corpus", val_fraction=0, workers=1)
    assert documents(tmp_path / "corpus", "train") == [as_bytes("aaa"), as_bytes("bbb")]
    with refused(ArgumentError, "is the path of a file", ".txt", "pass a list of paths"):
        lowtide.prepare((str(path) for path in tmp_path.glob("*.txt")), tmp_path / "other")


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        ({"train": [], "validation": []}, "got the splits 'train', 'validation'"),
        (iter([]), "sources is empty"),
        (iter([{"body": "x"}]), "document 0 has no field 'text', found ['body']"),
        (iter(["x", 1.5]), "document 1 must be a text"),
        (7, "paths or an iterable of texts, got 7"),
    ],
)
def test_sources_that_are_not_documents_raise(tmp_path: Path, sources: Any, problem: str) -> None:
    with refused(ArgumentError, problem):
        lowtide.prepare(sources, tmp_path / "corpus", workers=1)
    assert not (tmp_path / "corpus").exists()


IDS = [[5, 6, 7], [8, 0], [0], [60_000, 1]]


@pytest.mark.parametrize("kind", ["jsonl", "field", "iterable", "arrays"])
def test_token_ids_are_copied_unchanged(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {}
    sources: Any = tmp_path / "x.jsonl"
    if kind in ("jsonl", "field"):
        field = "input_ids" if kind == "jsonl" else "tokens"
        sources.write_text("".join(json.dumps({field: ids}) + "\n" for ids in IDS))
        options = {} if kind == "jsonl" else {"text_field": "tokens"}
    else:
        sources = iter(IDS if kind == "iterable" else [np.array(ids, np.uint16) for ids in IDS])
    options |= {"val_fraction": 0, "workers": 1}
    summary = lowtide.prepare(sources, tmp_path / "corpus", tokenizer="ids:60001", eos=0, **options)
    # A document that ends with the end of text already does not get a second one.
    assert documents(tmp_path / "corpus", "train") == [[5, 6, 7, 0], [8, 0], [0], [60_000, 1, 0]]
    assert (summary.manifest.vocab_size, summary.manifest.eos) == (60_001, 0)
    assert summary.manifest.tokenizer is not None
    assert (summary.manifest.tokenizer.name, summary.manifest.tokenizer.file) == ("ids:60001", None)


def test_token_ids_outside_vocabulary_raise(tmp_path: Path) -> None:
    for options, problem in (
        ({}, "the source contains token ids; pass the tokenizer that made them"),
        ({"tokenizer": "byte"}, "the id 60000 is not in the vocabulary of the tokenizer 'byte'"),
        ({"tokenizer": "ids:100"}, "the id 60000 is not in the vocabulary of the tokenizer 'ids:100'"),
    ):
        with refused(FormatError, problem):
            lowtide.prepare(iter(IDS), tmp_path / "corpus", workers=1, **options)  # type: ignore[arg-type]
    with refused(FormatError, "'ids:100' cannot encode text, found 'low'"):
        lowtide.prepare(iter(["low"]), tmp_path / "other", tokenizer="ids:100", workers=1)


def test_existing_validation_data_becomes_val_split(tmp_path: Path) -> None:
    for name in ("train", "val"):
        lines = [json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    options: dict[str, Any] = {"val": tmp_path / "val.jsonl", "workers": 1}
    summary = lowtide.prepare(tmp_path / "train.jsonl", tmp_path / "corpus", **options)
    for name in ("train", "val"):
        assert documents(tmp_path / "corpus", name) == [as_bytes(f"{name} {i}") for i in range(30)]
    assert summary.notes == ["val is small: a loss on 200 tokens says little; pass more sources as val"]
    with refused(ArgumentError, "val and val_fraction cannot be combined"):
        lowtide.prepare(tmp_path / "train.jsonl", tmp_path / "other", val_fraction=0.1, **options)
    with refused(ArgumentError, "val.jsonl: is among the sources and in val"):
        lowtide.prepare(tmp_path / "val.jsonl", tmp_path / "other", **options)
    lowtide.prepare(generated(), tmp_path / "both", val=iter(["held out"]), workers=1)
    assert documents(tmp_path / "both", "val") == [as_bytes("held out")]


def test_tokenizer_training_skips_val_data_and_reports_progress(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("low tide " * 500)
    (tmp_path / "val.txt").write_text("zzzz qqqq " * 500)
    val = tmp_path / "val.txt"
    stages: list[str] = []

    def report(progress: Progress) -> None:
        if progress.stage not in stages:
            stages.append(progress.stage)

    options: dict[str, Any] = {"tokenizer": "bpe:300", "val": val, "workers": 1, "progress": report}
    lowtide.prepare(tmp_path / "train.txt", tmp_path / "corpus", **options)
    assert stages == ["sample", "training", "tokens"]
    tokenizer = load(tmp_path / "corpus" / "tokenizer.json", trusted=True)
    assert len(tokenizer.encode_batch([" tide"])[0]) == 1
    assert len(tokenizer.encode_batch([" zzzz"])[0]) == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tokenizer": "char"}, "low\n\ntide\n\n\nhigh"),
        ({"tokenizer": "byte", "eos": False}, "low\n\ntide\n\n\nhigh"),
        ({"tokenizer": "byte"}, "lowtide\nhigh"),
    ],
)
def test_separators_are_kept_if_no_token_marks_document_end(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    (tmp_path / "x.txt").write_text("low\n\ntide\n\n\nhigh")
    lowtide.prepare(
        tmp_path / "x.txt", tmp_path / "corpus", split_on="\n\n", val_fraction=0, workers=1, **options
    )
    with lowtide.corpus(tmp_path / "corpus") as corpus:
        assert corpus.documents.count == 3
        assert lowtide.load_tokenizer(tmp_path / "corpus").decode(corpus[:]) == expected
