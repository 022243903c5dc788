"""HDF5 files that another process has open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lowtide._arrays.formats import inspect
from lowtide.errors import ReadError
from tests.support.formats import refused


def test_file_open_for_writing_elsewhere_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    script = (
        "import h5py, sys\n"
        f"with h5py.File({str(path)!r}, 'w') as f:\n"
        "    f['x'] = 1.0; f.flush(); print('ready', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with refused(ReadError, path, "open for writing", "close it"):
            inspect(path)
        writer.communicate(b"")
    assert inspect(path).shape == ()
