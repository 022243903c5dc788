"""What a loss of power leaves: the image of a mounted file system, copied as it is and mounted elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lowtide
from tests.support.process import in_child

MIB = 2**20


@contextmanager
def mounted(image: Path) -> Iterator[Path]:
    folder = image.with_suffix(".mounted")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-o", "loop", str(image), str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(16 * MIB)
    try:
        subprocess.run(["mkfs.ext4", "-q", str(path)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("mkfs.ext4 is not installed")
    return path


def test_what_flush_returned_for_survives_a_loss_of_power(image: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before.img", tmp_path / "after.img"
    with mounted(image) as folder:
        with lowtide.create(folder / "old.npy", "i4", shape=(300, 256)) as old:
            old[:] = 0
        old = lowtide.open(folder / "old.npy", mode="r+")
        old[:50] = 1
        assert in_child(lambda: old.__setitem__(slice(50, 100), 1) is None)  # another process
        old.flush()
        old[100:200] = 2
        new = lowtide.create(folder / "new.npy", "i4", shape=(300, 256))
        new[:] = 3
        new.flush()
        shutil.copyfile(image, before)
        new.close()
        shutil.copyfile(image, after)
        old.close()
    with mounted(before) as folder:
        rows = np.load(folder / "old.npy")
        assert (rows[:100] == 1).all()
        assert np.isin(rows[100:200], (0, 2)).all()
        assert (rows[200:] == 0).all()
        assert not (folder / "new.npy").exists()
    with mounted(after) as folder:
        assert (np.load(folder / "new.npy") == 3).all()
