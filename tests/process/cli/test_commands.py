"""The program as a user calls it: info, shuffle, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lowtide


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lowtide.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=check)


def test_info_shows_format_shape_and_dtype(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 4), "f4"))
    result = run("info", tmp_path / "x.npy").stdout
    for part in ("npy", "(3, 4)", "float32", "128", "48 B"):
        assert part in result
    exact = json.loads(run("info", "--json", tmp_path / "x.npy").stdout)
    array = {"name": None, "format": "npy", "shape": [3, 4], "dtype": "float32", "order": "C", "offset": 128}
    assert exact["arrays"] == [{**array, "bytes": 48}]


def test_info_lists_members_with_reason_if_unreadable(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.ones((2, 2), "u1"))
    result = run("info", tmp_path / "x.npz").stdout
    assert "(2, 2)" in result
    assert "float64" in result
    np.savez_compressed(tmp_path / "y.npz", a=np.zeros(3))
    result = run("info", tmp_path / "y.npz").stdout
    assert "not in place" in result
    assert "np.savez" in result


def test_info_of_raw_file_needs_dtype(tmp_path: Path) -> None:
    (tmp_path / "data.raw").write_bytes(bytes(64))
    result = json.loads(run("info", "--json", "--dtype", "uint16", tmp_path / "data.raw").stdout)
    assert result["arrays"][0]["shape"] == [32]
    ended = run("info", tmp_path / "data.raw", check=False)
    assert ended.returncode == 1
    assert "dtype" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_errors_are_messages_and_not_tracebacks(tmp_path: Path) -> None:
    ended = run("info", tmp_path / "nothing.npy", check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("lowtide: ")
    assert "no such file" in ended.stderr
    assert "nothing.npy" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert run("nonsense", check=False).returncode == 2


def test_shuffle_writes_the_rows_in_another_order(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.arange(1000).reshape(500, 2))
    result = run("shuffle", tmp_path / "in.npy", tmp_path / "out.npy", "--seed", 3, "--budget", "1MiB").stdout
    assert "500 rows" in result
    with lowtide.open(tmp_path / "in.npy") as array:
        expected = np.concatenate(list(array.chunks(100, shuffle=True, seed=3)))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    ended = run("shuffle", tmp_path / "in.npy", tmp_path / "out.npy", "--budget", "lots", check=False)
    assert ended.returncode == 2
    assert "'lots' is not understood" in ended.stderr


def test_shuffle_refuses_to_overwrite_its_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))
    (tmp_path / "link.npy").symlink_to("x.npy")
    (tmp_path / "hard.npy").hardlink_to(tmp_path / "x.npy")
    before = (tmp_path / "x.npy").read_bytes()
    for name in ("x.npy", "link.npy", "hard.npy"):
        ended = run("shuffle", tmp_path / "x.npy", tmp_path / name, check=False)
        assert ended.returncode == 1
        assert "is the file to read" in ended.stderr
        assert (tmp_path / name).read_bytes() == before
    ended = run("shuffle", tmp_path / "x.npy", tmp_path / "out.h5", check=False)
    assert ended.returncode == 1
    assert ".h5 files are read and not written" in ended.stderr
    assert not (tmp_path / "out.h5").exists()


def test_info_lists_leftovers_of_killed_writers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    left = tmp_path / ".x.npy.partial"
    left.write_bytes(bytes(2048))
    for path in (tmp_path / "x.npy", tmp_path):
        assert f"{left}: 2.0 KiB left by a writer that was killed" in run("info", path, check=False).stderr
        assert f"`rm {left}`" in run("info", path, check=False).stderr
    (tmp_path / "x.npy").unlink()
    assert "left by a writer" in run("info", tmp_path / "x.npy", check=False).stderr
    with lowtide.create(tmp_path / "x.npy", "f4") as out:  # at work, not left behind
        out.append([1.0])
        assert "left by a writer" not in run("info", tmp_path, check=False).stderr
    assert run("info", tmp_path / "x.npy").stderr == ""


def test_info_shows_tokens_and_documents_of_corpus(tmp_path: Path) -> None:
    np.array([5, 6, 0, 7, 0, 300, 0] * 100, "<u2").tofile(tmp_path / "train.bin")
    np.array([5, 0], "<u2").tofile(tmp_path / "val.bin")
    result = run("info", tmp_path, "--eos", 0).stdout
    for part in ("nanogpt corpus", "700 of uint16", "300 (exact)"):
        assert part in result
    exact = json.loads(run("info", "--json", "--eos", 0, tmp_path).stdout)
    assert (exact["tokens"], exact["shards"], exact["documents"], exact["largest_id"]) == (700, 1, 300, 300)
    assert json.loads(run("info", "--json", "--split", "val", tmp_path).stdout)["tokens"] == 2
    assert "documents   unknown; --eos ID counts them" in run("info", tmp_path / "train.bin").stdout
    ended = run("info", tmp_path / "nowhere", check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("words", [("info", ""), ("shuffle", "", "x.npy"), ("report", "")], ids=" ".join)
def test_empty_path_is_reported(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = run(*words, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("lowtide: '': the path is empty; pass the path of a file or folder")
