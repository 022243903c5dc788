"""Several workers: the same bytes, and no guard in scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lowtide
from tests.support.preparing import content, jsonl, small
from tests.support.process import output


@pytest.mark.parametrize("holdout", ["documents", "contiguous"])
@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe:300"])
def test_output_does_not_depend_on_workers_and_units(tmp_path: Path, tokenizer: str, holdout: Any) -> None:
    jsonl(tmp_path / "web.jsonl", 200)
    (tmp_path / "sea.txt").write_text("low tide " * 1000)
    names = [tmp_path / "sea.txt", tmp_path / "web.jsonl"]
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "val_fraction": 0.1,
        "shard_tokens": 3000,
        "holdout": holdout,
    }
    lowtide.prepare(names, tmp_path / "one", workers=1, **options)
    if tokenizer.startswith("bpe"):  # the sample that it is trained on follows from the plan
        lowtide.prepare(names, tmp_path / "two", workers=2, **options)
    else:
        with small():
            lowtide.prepare(names, tmp_path / "two", workers=2, **options)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    jsonl(tmp_path / "web.jsonl", 100)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nsys.path.insert(0, sys.argv[1])\nimport lowtide\n"
        "from tests.support.preparing import small\n"
        "with small():\n    print(lowtide.prepare(sys.argv[2], sys.argv[3], workers=2).documents)\n"
    )
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    root = Path(__file__).parents[3]
    assert output(code, script, root, tmp_path / "web.jsonl", tmp_path / "out") == "100\n"


def test_importable_function_runs_in_workers(tmp_path: Path) -> None:
    jsonl(tmp_path / "web.jsonl", 100)
    code = """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        import lowtide
        from tests.support.preparing import first_process, small
        with small():
            lowtide.prepare(sys.argv[2], sys.argv[3], tokenizer=first_process, vocab_size=2**24, workers=2)
        ids = set(lowtide.corpus(sys.argv[3])[:].tolist())
        print(len(ids) >= 1, os.getpid() in ids)
    """
    root = Path(__file__).parents[3]
    assert output(code, root, tmp_path / "web.jsonl", tmp_path / "out") == "True False\n"


def test_parquet_token_ids_are_prepared(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [[n, n + 1, 7] for n in range(300)]
    kinds = (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16(), 3))
    for nth, kind in enumerate(kinds):
        table = pa.table({"id": range(300), "input_ids": pa.array(rows, kind)})
        parquet.write_table(table, tmp_path / f"{nth}.parquet", row_group_size=100)
        out = tmp_path / f"corpus-{nth}"
        lowtide.prepare(tmp_path / f"{nth}.parquet", out, tokenizer="ids:400", val_fraction=0, workers=1)
        with lowtide.corpus(out) as corpus:
            assert corpus[:].reshape(-1, 3).tolist() == rows
            assert corpus.documents.count == 300
    with pytest.raises(lowtide.FormatError, match="row 1: column 'text' must be a string, found null"):
        parquet.write_table(pa.table({"input_ids": [[1], None]}), tmp_path / "null.parquet")
        lowtide.prepare(tmp_path / "null.parquet", tmp_path / "null", tokenizer="ids:400", workers=1)
