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
def test_the_same_bytes_whatever_the_workers_and_the_units(
    tmp_path: Path, tokenizer: str, holdout: Any
) -> None:
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


def test_a_script_needs_no_guard_for_its_workers(tmp_path: Path) -> None:
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
