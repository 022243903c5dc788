"""The magics in a plain IPython and in a notebook's kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide._memory.magics import Magics
from lowtide.errors import ArgumentError

CELLS = [
    "%load_ext lowtide",
    "%memit block = bytearray(b'x') * (64 << 20)",
    "%%memit size = 32\nother = bytearray(b'x') * (size << 20)\nlen(other)",
    "usage = %memit -o -q -r2 sum(range(10))\nprint(usage.heap < 2**20)",
    "def load(mib):\n    held = bytearray(b'x') * (mib << 20)\n    return held",
    "%mprun -f load kept = load(48)",
    "print(len(block) >> 20, len(other) >> 20, len(kept) >> 20)",
    "%%mprun -fload first = load(1)\nsecond = load(2)\nwords = 'two  spaces'",
    "import os\ndescriptors = len(os.listdir('/proc/self/fd'))",
    "%mprun -f load -T lines.txt words += 'and  more'; load(3)",
    "print(words, descriptors - len(os.listdir('/proc/self/fd')), open('lines.txt').read().count('load in'))",
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
    assert re.search(r" 2 +\S+ +\S+ +\S+ +held = bytearray", output), "both lines of the cell"
    assert "two  spacesand  more 0 1" in output


def test_magics_run_in_plain_ipython(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    script = tmp_path / "session.ipy"
    head = "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
    script.write_text(head + "".join(f"shell.run_cell({cell!r}).raise_error()\n" for cell in CELLS))
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout)


def test_magics_run_in_notebook(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    check("".join(output.get("text", "") for output in outputs))


def test_wrong_options_are_errors_with_the_reason() -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    magics = Magics(InteractiveShell.instance())
    with pytest.raises(ArgumentError, match="-r needs a number"):
        magics.memit("-r x 1")
    with pytest.raises(ArgumentError, match="no function to measure"):
        magics.mprun("len([])")
    with pytest.raises(ArgumentError, match="-f needs a Python function"):
        magics.mprun("-f len len([])")
