"""What a loss of power leaves: the image of a mounted file system, copied as it is and mounted elsewhere."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.errors import WriteError
from tests.support.missing import missing
from tests.support.process import in_child

MIB = 2**20


@contextmanager
def mounted(image: Path, options: str = "loop") -> Iterator[Path]:
    folder = image.with_suffix(".mounted")
    folder.mkdir(exist_ok=True)
    command = ["mount", "-o", options, str(image), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
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
        missing("no mkfs.ext4: apt-get install e2fsprogs")
    return path


def test_flushed_data_survives_power_loss(image: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before.img", tmp_path / "after.img"
    with mounted(image) as folder:
        with lowtide.create(folder / "old.npy", "i4", shape=(300, 256)) as old:
            old[:] = 0
        old = lowtide.open(folder / "old.npy", mode="r+")
        old[:50] = 1

        def write() -> bool:
            old[50:100] = 1
            return True

        assert in_child(write)  # another process
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


def test_writing_to_read_only_file_system_raises(image: Path) -> None:
    """Not even root may write there."""
    with mounted(image) as folder:
        np.save(folder / "x.npy", np.arange(3))
    with mounted(image, "loop,ro") as folder:
        uses: list[Callable[[], object]] = [
            lambda: lowtide.open(folder / "x.npy", mode="r+"),
            lambda: lowtide.create(folder / "x.npy", "i8", shape=3),
            lambda: lowtide.create(folder / "y.npy", "i8"),
        ]
        for use in uses:
            with pytest.raises(WriteError) as caught:
                use()
            assert caught.value.errno == errno.EROFS
            assert str(folder) in str(caught.value)
        assert lowtide.open(folder / "x.npy")[:].tolist() == [0, 1, 2]
