"""Which libraries are imported, and what is raised without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_nothing_heavy_is_imported_for_text_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "low tide"}\n')
    program = (
        "import sys\n"
        "from lowtide._prepare.inputs import plan\n"
        "from lowtide._prepare.inputs.kind import ReadOptions\n"
        "from lowtide._prepare.inputs import find\n"
        "from lowtide._prepare.tokenizers import make\n"
        "options = ReadOptions()\n"
        "pieces = [p for unit in plan(find(sys.argv[1:]), options) for p in unit.read(options)]\n"
        "assert len(make('byte').encode_batch([p.text for p in pieces])[0]) == 8\n"
        "heavy = {'torch', 'pyarrow', 'tokenizers', 'tiktoken', 'datasets', 'zstandard', 'requests'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "act"),
    [
        ("zstandard", "find(['x.jsonl.zst']); [list(blocks('x.jsonl.zst', 'zst'))]"),
        ("pyarrow", "plan(find(['x.parquet']), ReadOptions())"),
        ("datasets", "find(['hf:name'])"),
        ("tokenizers", "make('bpe:300', Texts([]))"),
        ("tiktoken", "make('gpt2')"),
    ],
)
def test_missing_library_error_has_install_command(tmp_path: Path, module: str, act: str) -> None:
    (tmp_path / "x.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    program = (
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"
        "from lowtide._prepare.inputs import plan\n"
        "from lowtide._prepare.inputs.kind import ReadOptions\n"
        "from lowtide._prepare.inputs import find\n"
        "from lowtide._prepare.inputs.streams import blocks\n"
        "from lowtide._prepare.tokenizers import Texts, make\n"
        f"{act}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    extra = "datasets" if module == "datasets" else "prepare"
    assert "MissingExtraError" in last
    assert module in last
    assert f"pip install 'lowtide[{extra}]'" in last
