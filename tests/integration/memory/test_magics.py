"""The magics in a plain IPython and in a notebook's kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CELLS = [
    "%load_ext lowtide",
    "%memit block = bytearray(b'x') * (64 << 20)",
    "%%memit size = 32\nother = bytearray(b'x') * (size << 20)\nlen(other)",
    "usage = %memit -o -q -r2 sum(range(10))\nprint(usage.heap < 2**20)",
    "def load(mib):\n    held = bytearray(b'x') * (mib << 20)\n    return held",
    "%mprun -f load kept = load(48)",
    "print(len(block) >> 20, len(other) >> 20, len(kept) >> 20)",
]


def check(output: str) -> None:
    first, second = re.findall(
        r"peak memory: ([\d.]+) MiB, increment: ([\d.]+) MiB "
        r"\(heap \+([\d.]+) MiB, mapped .+, page cache .+\)",
        output,
    )
    assert float(first[1]) == pytest.approx(64, abs=2)
    assert float(first[2]) == pytest.approx(64, abs=2)
    assert float(second[1]) == pytest.approx(32, abs=2)
    assert "True" in output
    assert re.search(r"load in .*\n.*\n.*def load", output)
    assert re.search(r" 1 +48\.\d+ +\S+ +48\.\d+ +held = bytearray", output)
    assert "64 32 48" in output


def test_magics_in_plain_ipython(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    script = tmp_path / "session.ipy"
    head = "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
    script.write_text(head + "".join(f"shell.run_cell({cell!r}).raise_error()\n" for cell in CELLS))
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout)


def test_magics_in_a_notebook() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    check("".join(output.get("text", "") for output in outputs))
