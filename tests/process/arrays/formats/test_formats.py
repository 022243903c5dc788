"""What importing the formats costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np


def test_modules_of_other_formats_are_not_imported(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    script = (
        "import sys, numpy\n"
        "before = set(sys.modules)\n"
        "from lowtide._arrays import formats\n"
        f"formats.inspect({str(tmp_path / 'a.npy')!r})\n"
        f"formats.inspect({str(tmp_path / 'a.npy')!r}, 'u1', offset=0)\n"
        "print(*sorted({'h5py', 'zipfile', 'json', 'difflib'} & (set(sys.modules) - before)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
