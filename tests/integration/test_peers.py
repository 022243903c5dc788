"""The comparison with peers: what it asks, what it tells, and that it never leaves anybody out in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.peers import plots, table
from benchmarks.peers.__main__ import chosen, main
from benchmarks.peers.measure import Result
from benchmarks.peers.work import COLUMNS, ROWS, shuffled, write_matrix, write_tokens
from benchmarks.peers.worker import PEERS, Worker, samples

from tests.support.cgroup import require_memory_cgroups

ROOT = Path(__file__).parents[2]
MIB = 2**20


def message(*rows: Result) -> dict[str, Any]:
    machine = {
        "date": "2026-01-01 00:00", "cores": 2, "processor": "one", "memory_gib": 8.0, "kernel": "6.18",
        "file_system": "ext4", "read_ahead": "128 KiB", "python": "3.11", "numpy": "2.4",
    }  # fmt: skip
    setting = {"size": 2**30, "limit": 256 * MIB, "rounds": 3, "load": [0.1, 0.2, 0.3]}
    return {"machine": machine, "setting": setting, "peers": [vars(row) for row in rows]}


def measured(name: str, title: str, **figures: Any) -> Result:
    result = {
        "warm": 1000.0, "cold": 80.0, "cold_read": 256 * MIB, "peak": 20 * MIB, "cached": 0, "start_up": 0.25,
        "limited": 4.0, "limited_how": "completed", "curve": [(MIB, 10 * MIB), (2 * MIB, 12 * MIB)],
    }  # fmt: skip
    return Result(name, title, "somehow", "1.0", **{**result, **figures})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_of_the_table_tells_each_figure_in_its_unit() -> None:
    row = measured(
        "rows/x", "X", in_order=4321.0, convert_seconds=1.25, convert_nbytes=3 * MIB, resume="yes", ranks="no"
    )
    lines = table.markdown(message(row)).splitlines()
    headings, result = (cells(line) for line in lines if line.startswith("|") and not line.startswith("|--"))
    assert dict(zip(headings, result, strict=True)) == {
        "": "X",
        "version": "1.0",
        "warm, MiB/s": "1,000",
        "cold, MiB/s": "80",
        "in order, MiB/s": "4,321",
        "peak RSS, MiB": "20",
        "page cache left, MiB": "0",
        "start-up, ms": "250",
        "conversion": "1.2 s, 3.0 MiB",
        "in 256 MiB": "4.0 MiB/s (20x slower)",
        "exact resume": "yes",
        "same on 2 ranks": "no",
    }


def test_who_is_missing_is_listed_with_the_reason() -> None:
    lost = Result("tokens/y", "Y", "somehow", missing="not installed: No module named 'y'")
    both = message(measured("tokens/x", "X"), lost)
    for text in (table.text(both), table.markdown(both)):
        assert "not installed: No module named 'y'" in next(line for line in text.splitlines() if "Y" in line)


@pytest.mark.parametrize(("speed", "cell"), [(12345.6, "12,346"), (10, "10"), (9.94, "9.9"), (0.04, "0.04")])
def test_a_speed_has_the_digits_that_mean_something(speed: float, cell: str) -> None:
    assert f"| {cell} |" in table.markdown(message(measured("tokens/x", "X", warm=speed)))


def test_a_killed_peer_is_reported() -> None:
    killed = message(measured("rows/x", "X", limited=None, limited_how="killed"))
    assert "killed" in table.text(killed)
    assert "killed" in table.markdown(killed)


def test_a_cold_run_that_was_truncated_is_noted() -> None:
    slow = measured("rows/slow", "Slow", cold_read=8 * MIB)
    fast = measured("rows/fast", "Fast")
    assert table.notes(message(fast), "rows") == []
    (note,) = table.notes(message(fast, slow), "rows")
    assert "256 MiB" in note
    assert "Slow 8.0 MiB" in note
    assert "Fast" not in note


def test_tables_are_put_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    result = message(measured("rows/x", "X"))
    page.write_text(f"before\n{table.START}\nlast time\n{table.END}\nafter\n")
    for _ in range(2):
        table.put(result, str(page))
        text = page.read_text()
        assert text.startswith(f"before\n{table.START}\n")
        assert text.endswith(f"{table.END}\nafter\n")
        assert "last time" not in text
        assert text.count("| X |") == 1
    table.put(result, str(tmp_path / "new.md"))
    assert (tmp_path / "new.md").read_text() == table.markdown(result)


def test_pictures_are_small(tmp_path: Path) -> None:
    rows = [measured(f"{work}/memmap", "np.memmap, kept") for work in ("tokens", "rows")]
    rows += [measured(f"{work}/lowtide", "lowtide", limited_how="killed") for work in ("tokens", "rows")]
    plots.draw(message(*rows, Result("rows/y", "Y", "", missing="not installed")), str(tmp_path))
    for name in ("peers-speed.png", "peers-memory.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
        assert 5_000 < (tmp_path / name).stat().st_size < 150_000


def test_every_peer_is_named_once_and_says_how_it_is_used() -> None:
    everyone = chosen([])
    assert len({peer.name for peer in everyone}) == len(everyone) == len(PEERS)
    assert all(peer.how and peer.reads and peer.package for peer in everyone)
    assert [peer.name for peer in chosen(["rows/lowtide*"])] == [
        "rows/lowtide",
        "rows/lowtide-drop",
        "rows/lowtide-blocks",
    ]
    with pytest.raises(SystemExit, match=r"--only rows/none: no such peer \(there are tokens/memmap"):
        chosen(["rows/none"])


@pytest.mark.parametrize("wrong", ["rows/zarr", "rows/zarr=", "rows/zarr=/nowhere", f"zarr={sys.executable}"])
def test_a_python_must_be_there_and_a_peer_known(wrong: str) -> None:
    with pytest.raises(SystemExit, match=f"--python {wrong}: expected the name of a peer"):
        main(["--only", "rows/zarr", "--python", wrong])


def test_shuffled_numbers_come_once_each() -> None:
    parts = list(shuffled(1000, 100, epoch=1))
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert not np.array_equal(parts[0], next(shuffled(1000, 100, epoch=2)))


def test_the_files_are_as_long_as_asked_and_no_two_rows_are_the_same(tmp_path: Path) -> None:
    write_matrix(str(tmp_path / "matrix.npy"), 8 * MIB)
    matrix = np.load(tmp_path / "matrix.npy")
    assert matrix.shape == (2 * ROWS, COLUMNS)
    assert np.array_equal(matrix[:, 0], np.arange(2 * ROWS))
    write_tokens(str(tmp_path / "train.bin"), 9 * MIB)
    assert os.path.getsize(tmp_path / "train.bin") == 9 * MIB


def test_what_is_not_a_batch_is_refused() -> None:
    rows = np.zeros((ROWS, COLUMNS), np.float32)
    rows[:, 0] = np.arange(ROWS)
    assert samples("rows", rows) is rows
    rows[1, 0] = 0  # one row twice
    for wrong in (rows, rows.astype(np.float64), rows[1:]):
        with pytest.raises(SystemExit, match="different rows"):
            samples("rows", wrong)


def test_a_state_continues_in_another_worker_where_it_stopped(tmp_path: Path) -> None:
    write_matrix(str(tmp_path / "matrix.npy"), 24 * MIB)
    state = str(tmp_path / "state")
    before = Worker(PEERS["rows/lowtide"], str(tmp_path)).digests(batches=2, skip=2, save=state)
    after = Worker(PEERS["rows/lowtide"], str(tmp_path)).digests(batches=2, load=state)
    anew = Worker(PEERS["rows/lowtide"], str(tmp_path)).digests(batches=2)
    assert before == after
    assert before != anew
    assert len({row for batch in before["digests"] for row in batch}) == 2 * ROWS


def test_the_whole_way_at_a_small_size(tmp_path: Path) -> None:
    require_memory_cgroups()
    (tmp_path / "zarr.py").write_text("raise ImportError(\"No module named 'zarr'\")")
    figures, page = tmp_path / "peers.json", tmp_path / "peers.md"
    command = [sys.executable, "-m", "benchmarks.peers", "--size", "64MiB", "--rounds", "1"]
    command += ["--folder", str(tmp_path), "--json", str(figures), "--markdown", str(page)]
    command += ["--only", "rows/memmap", "rows/zarr", "rows/lowtide"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(figures.read_text())
    assert result["setting"]["size"] == 64 * MIB
    assert {"date", "kernel", "cores", "memory_gib", "file_system", "read_ahead"} <= set(result["machine"])
    memmap, zarr, lowtide = result["peers"]
    assert zarr["missing"] == "not installed: No module named 'zarr'"
    assert zarr["warm"] is None
    assert "not installed" in page.read_text()
    for row in (memmap, lowtide):
        assert row["missing"] == ""
        assert min(row["warm"], row["cold"], row["in_order"], row["start_up"], row["limited"]) > 0
        assert row["limited_how"] == "completed"
        assert row["cold_read"] == 16 * MIB
        assert row["curve"][-1][0] == row["cold_read"]
    assert memmap["peak"] > 50 * MIB > lowtide["peak"]
    assert (memmap["resume"], lowtide["resume"]) == ("none", "yes")
    assert not any(name.startswith("lowtide-peers-") for name in os.listdir(tmp_path))
