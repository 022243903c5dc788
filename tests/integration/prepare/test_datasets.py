"""Data sets that Hugging Face's own library wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

import lowtide
from lowtide._prepare.inputs import find
from lowtide._prepare.inputs.kind import ReadOptions
from lowtide.errors import ArgumentError, NotFoundError, UnsupportedError
from tests.support.formats import refused
from tests.support.pieces import documents, pieces_of

TEXTS = [f"document {i}" for i in range(2500)]


def test_saved_data_set_is_prepared(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict({"id": list(range(2500)), "text": TEXTS})
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    for unit_size in (1000, 2**20):
        result = documents(pieces_of(tmp_path / "saved", ReadOptions(unit_size=unit_size)))
        assert [text for _, text in result] == TEXTS
    sources = find([str(tmp_path / "saved")])
    assert [(source.label, Path(source.name).name) for source in sources] == [
        ("dataset", "data-00000-of-00002.arrow"),
        ("dataset", "data-00001-of-00002.arrow"),
    ]


def test_shuffled_data_set_is_read_in_shuffled_order(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict({"text": TEXTS}).shuffle(seed=1)
    dataset.save_to_disk(tmp_path / "saved")
    result = [text for _, text in documents(pieces_of(tmp_path / "saved", ReadOptions()))]
    assert result == dataset["text"][:]
    assert result != TEXTS


def test_ambiguous_split_raises(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict({"text": TEXTS[:5]})
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(tmp_path / "two")
    with refused(ArgumentError, tmp_path / "two", "'train', 'test'", tmp_path / "two" / "train"):
        find([str(tmp_path / "two")])
    assert len(pieces_of(tmp_path / "two" / "test", ReadOptions())) == 5
    datasets.DatasetDict({"train": part}).save_to_disk(tmp_path / "one")
    assert len(pieces_of(tmp_path / "one", ReadOptions())) == 5


def test_separate_indices_file_raises(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": TEXTS[:5]}).save_to_disk(tmp_path / "saved")
    state = tmp_path / "saved" / "state.json"
    content = json.loads(state.read_text())
    state.write_text(json.dumps({**content, "_indices_data_files": [{"filename": "indices.arrow"}]}))
    with refused(UnsupportedError, "saved", "flatten_indices()"):
        find([str(tmp_path / "saved")])


def test_data_set_is_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder is a name to the library too: the same code as for one on the hub, and no network.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "named"
    folder.mkdir()
    for split, texts in (("train", TEXTS[:50]), ("test", TEXTS[50:60])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = find([f"hf:{folder}:test"])
    assert [source.label for source in sources] == ["dataset"]
    result = documents(pieces_of(Path(sources[0].path), ReadOptions()))
    assert [text for _, text in result] == TEXTS[50:60]
    with refused(ArgumentError, "'train', 'test'", f"hf:{folder}:train"):
        find([f"hf:{folder}"])
    with refused(UnsupportedError, "5 rows, expected 50", "save_to_disk"):
        find([f"hf:{folder}:train[:5]"])


def test_unknown_hub_name_raises(tmp_path: Path) -> None:
    program = "from lowtide._prepare.inputs import find; find(['hf:nobody/nothing'])"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert NotFoundError.__name__ in last
    assert "hf:nobody/nothing: could not be loaded" in last
    assert "save_to_disk" in last


def test_data_set_object_is_prepared(tmp_path: Path) -> None:
    """With its indices, as text and as token ids, in memory or streamed."""
    dataset = datasets.Dataset.from_dict({"id": list(range(100)), "text": TEXTS[:100]}).shuffle(seed=1)
    expected = dataset["text"][:]
    for name, sources in (("table", dataset), ("stream", dataset.to_iterable_dataset())):
        lowtide.prepare(sources, tmp_path / name, val_fraction=0, workers=1)
        assert text_of(tmp_path / name) == expected
    ids = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1], [1]]})
    lowtide.prepare(ids, tmp_path / "ids", tokenizer="ids:10", val=ids, workers=1)
    assert lowtide.corpus(tmp_path / "ids", split="val")[:].tolist() == [1, 2, 3]
    with refused(ArgumentError, "got the splits 'train', 'test'", "sources['train']"):
        lowtide.prepare(datasets.DatasetDict({"train": ids, "test": ids}), tmp_path / "dict")
    with refused(ArgumentError, "no column 'body'", "text_field"):
        lowtide.prepare(dataset, tmp_path / "body", text_field="body")


def test_transformers_tokenizer_is_accepted(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<eos>": 0, "low": 1, "tide": 2}, unk_token="<eos>")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    lowtide.prepare(iter(["low tide"]), tmp_path / "corpus", tokenizer=tokenizer, val_fraction=0, workers=1)
    assert lowtide.corpus(tmp_path / "corpus")[:].tolist() == [1, 2, 0]


def text_of(folder: Path) -> list[str]:
    with lowtide.corpus(folder) as corpus:
        tokenizer = lowtide.load_tokenizer(folder)
        return [tokenizer.decode(corpus.document(i)) for i in range(corpus.documents.count)]
