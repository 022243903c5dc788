"""The comparison with peers: what it asks, what it tells, and that it never leaves anybody out in silence."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.peers import best, pages, plots, table
from benchmarks.peers.__main__ import chosen, main
from benchmarks.peers.measure import TOO_SLOW, Result
from benchmarks.peers.results import load, merged, save
from benchmarks.peers.work import COLUMNS, ROWS, Peer, Stream, Work, shuffled, write_matrix, write_tokens
from benchmarks.peers.worker import PEERS, RAM, Worker, samples

from tests.support.cgroup import require_memory_cgroups

ROOT = Path(__file__).parents[2]
MIB = 2**20


def message(*rows: Result) -> dict[str, Any]:
    machine = {
        "date": "2026-01-01 00:00", "cores": 2, "processor": "one", "memory_gib": 8.0, "kernel": "6.18",
        "file_system": "ext4", "disk": "nvme", "read_ahead": "128 KiB", "python": "3.11", "numpy": "2.4",
    }  # fmt: skip
    setting = {"size": 2**30, "limit": 256 * MIB, "rounds": 3, "load": [0.1, 0.2, 0.3]}
    return {"machine": machine, "setting": setting, "peers": [vars(row) for row in rows]}


def measured(name: str, title: str, **figures: Any) -> Result:
    result = {
        "warm": 1000.0, "cold": 80.0, "cold_read": 256 * MIB, "peak": 20 * MIB, "cached": 0, "start_up": 0.25,
        "limited": 4.0, "limited_how": "completed", "cloud": 3.0, "cloud_how": "completed",
        "curve": [(MIB, 10 * MIB), (2 * MIB, 12 * MIB)],
    }  # fmt: skip
    return Result(name, title, "somehow", "1.0", **{**result, **figures})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_row_has_each_figure_in_its_unit() -> None:
    row = measured(
        "rows/x", "X", in_order=4321.0, convert_seconds=1.25, convert_nbytes=3 * MIB, resume="yes",
        ranks="no", best={"warm": 2000.0, "cold": 32.0, "cloud": 100.0},
    )  # fmt: skip
    lines = table.markdown(message(row)).splitlines()
    headings, result = (cells(line) for line in lines if line.startswith("|") and not line.startswith("|--"))
    assert dict(zip(headings, result, strict=True)) == {
        "": "X",
        "version": "1.0",
        "warm, MiB/s (of RAM)": "1,000 (0.50)",
        "in order, MiB/s (of RAM)": "4,321",
        "cold, MiB/s (of fio)": "80 (2.5)",
        "in 256 MiB, MiB/s": "4.0 (20x slower)",
        "and a cloud disk, MiB/s (of fio)": "3.0 (0.030)",
        "peak RSS, MiB": "20",
        "page cache left, MiB": "0",
        "start-up, ms": "250",
        "conversion": "1.2 s, 3.0 MiB",
        "exact resume": "yes",
        "same on 2 ranks": "no",
    }


def test_missing_peer_is_listed_with_reason() -> None:
    lost = Result("tokens/y", "Y", "somehow", missing="not installed: No module named 'y'")
    both = message(measured("tokens/x", "X"), lost)
    for text in (table.text(both), table.markdown(both)):
        assert "not installed: No module named 'y'" in next(line for line in text.splitlines() if "Y" in line)


@pytest.mark.parametrize(("speed", "cell"), [(12345.6, "12,346"), (10, "10"), (9.94, "9.9"), (0.04, "0.04")])
def test_speed_is_rounded_to_significant_digits(speed: float, cell: str) -> None:
    assert f"| {cell} |" in table.markdown(message(measured("tokens/x", "X", warm=speed)))


def test_killed_peer_is_reported() -> None:
    killed = message(measured("rows/x", "X", limited=None, limited_how="killed"))
    assert "killed" in table.text(killed)
    assert "killed" in table.markdown(killed)


def test_truncated_cold_run_is_noted() -> None:
    slow = measured("rows/slow", "Slow", cold_read=8 * MIB)
    fast = measured("rows/fast", "Fast")
    assert table.notes(message(fast), "rows") == ["The best possible was not measured."]
    _, note = table.notes(message(fast, slow), "rows")
    assert "256 MiB" in note
    assert "Slow 8.0 MiB" in note
    assert "Fast" not in note


def test_tables_replace_text_between_page_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = pages.markdown([message(measured("rows/x", "X"))])
    page.write_text(f"before\n{pages.START}\nlast time\n{pages.END}\nafter\n")
    for _ in range(2):
        pages.put(text, str(page))
        result = page.read_text()
        assert result.startswith(f"before\n{pages.START}\n")
        assert result.endswith(f"{pages.END}\nafter\n")
        assert "last time" not in result
        assert pages.between_marks(str(page)) == text
    pages.put(text, str(tmp_path / "new.md"))
    assert (tmp_path / "new.md").read_text() == text


RESULTS = sorted(
    (str(path) for path in (ROOT / "docs/results").glob("*.json")),
    key=lambda path: load(path)["machine"]["date"],
)


def test_pages_match_saved_results() -> None:
    messages = [load(path) for path in RESULTS]
    assert pages.between_marks(str(ROOT / "docs/benchmarks.md")) == pages.markdown(messages)
    assert pages.between_marks(str(ROOT / "README.md")) == pages.short(pages.newest(messages))


@pytest.mark.parametrize("path", RESULTS, ids=os.path.basename)
def test_saved_results_are_small_without_host_names_or_paths(path: str, tmp_path: Path) -> None:
    text = Path(path).read_text()
    assert len(text) < 64_000
    assert socket.gethostname() not in text.replace('"', " ").split()
    assert not any(where in text for where in ("/tmp/", "/home/", "/root/", "/usr/", "site-packages"))
    save(load(path), str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_text() == text
    assert {"processor", "kernel", "read_ahead", "disk", "date"} <= set(load(path)["machine"])


def two_machines() -> list[dict[str, Any]]:
    kept, peer = (
        measured("rows/memmap", "Map"),
        measured("rows/x", "X", warm=500.0, limited=None, limited_how=TOO_SLOW),
    )
    first = message(kept, peer)
    best = {"warm": 4000.0}
    kept = measured(
        "rows/memmap", "Map", warm=2000.0, limited=None, limited_how=TOO_SLOW, best={"warm": 2000.0}
    )
    return [
        first,
        message(kept, measured("rows/x", "X", limited=2.0, best=best), measured("rows/new", "New")),
    ]


def test_two_machines_are_compared_by_ratio() -> None:
    text = pages.markdown(two_machines())
    lines = [cells(line) for line in text.partition("### one")[0].splitlines() if line.startswith("|")]
    headings, _, kept, peer, new = lines[-5:]
    assert headings[1:3] == ["warm: A", "warm: B"]
    rows = {row[0]: dict(zip(headings[1:], row[1:], strict=True)) for row in (kept, peer, new)}
    # 1,000 of 4,000 against 2,000 of 2,000: each is compared with the best possible of its part of a run.
    assert (rows["X"]["warm: A"], rows["X"]["warm: B"]) == ("0.50", "0.25")
    # No batch of 4 MiB in 20 s is less than 0.2 MiB/s.
    assert (rows["X"]["in 256 MiB: A"], rows["X"]["in 256 MiB: B"]) == ("<0.050", ">10")
    assert (rows["Map"]["warm: A"], rows["Map"]["in 256 MiB: B"]) == ("1", "1")
    assert rows["New"]["cold: A"] == table.UNKNOWN
    assert rows["New"]["cold: B"] == "1.0"
    assert text.count("### one, 2026-01-01") == 2


def test_short_table_has_container_and_cloud_disk_columns() -> None:
    rows = [
        measured("tokens/memmap", "Map", cloud=None, cloud_how=TOO_SLOW),
        measured("tokens/litdata", "Lit", convert_nbytes=1, convert_seconds=1.0),
        measured("tokens/lowtide", "lowtide"),
        Result("tokens/spdl", "SPDL", "", missing="not installed"),
    ]
    lines = pages.short(message(*rows)).splitlines()
    assert cells(lines[2]) == ["Map", "1,000", "4.0", TOO_SLOW, "20 MiB"]
    assert cells(lines[3])[0] == "Lit, converted"
    assert cells(lines[4]) == ["**lowtide**", "**1,000**", "**4.0**", "**3.0**", "**20 MiB**"]
    assert len(lines) == 8  # an empty line, and the headings of the other table


def test_partial_runs_are_merged_in_table_order(tmp_path: Path) -> None:
    before = message(measured("rows/b", "B"), measured("rows/a", "A", warm=1.0))
    after = message(measured("rows/a", "A", warm=2.23456))
    result = merged(before, after, ["rows/a", "rows/b"])
    assert [row["name"] for row in result["peers"]] == ["rows/a", "rows/b"]
    assert result["setting"]["load"] == [0.1, 0.2, 0.3] * 2
    save(result, str(tmp_path / "figures.json"))
    assert load(str(tmp_path / "figures.json"))["peers"][0]["warm"] == 2.235
    after["setting"]["size"] = 1
    with pytest.raises(SystemExit, match="--merge: size was 1073741824 in the earlier part"):
        merged(before, after, [])


def test_late_batch_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    rows = np.zeros((ROWS, COLUMNS), np.float32)
    rows[:, 0] = np.arange(ROWS)

    def bursts() -> Any:  # two batches at once, every 8 seconds
        while True:
            clock[0] += 8
            yield rows
            yield rows

    monkeypatch.setattr("benchmarks.peers.worker.time.perf_counter", lambda: clock[0])
    peer = Peer("rows/x", "X", "", lambda place: Stream(bursts()))
    assert Worker(peer, str(tmp_path)).run(seconds=10)["seconds"] == 8
    clock[0] = 0.0
    assert Worker(peer, str(tmp_path)).run(seconds=10)["nbytes"] == 2 * 4 * MIB
    clock[0] = 0.0
    assert Worker(peer, str(tmp_path)).run(seconds=5)["nbytes"] == 2 * 4 * MIB - 4 * MIB  # one, however late


@pytest.mark.parametrize("work", ["tokens", "rows"])
def test_ram_baseline_runs_same_work(work: Work, tmp_path: Path) -> None:
    (write_tokens if work == "tokens" else write_matrix)(str(tmp_path / RAM[work].reads), 8 * MIB)
    assert Worker(RAM[work], str(tmp_path)).run(batches=2)["nbytes"] > 0


def test_missing_fio_gives_no_device_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert best.random_reads("rows", "anything") is None
    assert best.dd("anything") is None
    row = measured("rows/x", "X", best={"warm": 2000.0})
    assert table.possible(message(row), "rows") == (
        "The best possible, MiB/s: a gather from RAM 2,000. fio was not installed."
    )


def test_plots_are_small_png_files(tmp_path: Path) -> None:
    rows = [measured(f"{work}/memmap", "np.memmap, kept") for work in ("tokens", "rows")]
    rows += [measured(f"{work}/lowtide", "lowtide", limited_how="killed") for work in ("tokens", "rows")]
    plots.draw(message(*rows, Result("rows/y", "Y", "", missing="not installed")), str(tmp_path))
    for name in ("peers-speed.png", "peers-memory.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
        assert 5_000 < (tmp_path / name).stat().st_size < 150_000


def test_peers_have_unique_names_and_descriptions() -> None:
    everyone = chosen([])
    assert len({peer.name for peer in everyone}) == len(everyone) == len(PEERS)
    assert all(peer.how and peer.reads and peer.package for peer in everyone)
    assert [peer.name for peer in chosen(["rows/lowtide*"])] == [
        "rows/lowtide",
        "rows/lowtide-drop",
        "rows/lowtide-budget",
        "rows/lowtide-blocks",
    ]
    with pytest.raises(SystemExit, match=r"--only rows/none: no such peer \(there are tokens/memmap"):
        chosen(["rows/none"])


@pytest.mark.parametrize("wrong", ["rows/zarr", "rows/zarr=", "rows/zarr=/nowhere", f"zarr={sys.executable}"])
def test_invalid_python_option_exits(wrong: str) -> None:
    with pytest.raises(SystemExit, match=f"--python {wrong}: expected the name of a peer"):
        main(["--only", "rows/zarr", "--python", wrong])


def test_shuffled_gives_every_number_once() -> None:
    parts = list(shuffled(1000, 100, epoch=1))
    assert sorted(np.concatenate(parts)) == list(range(1000))
    assert not np.array_equal(parts[0], next(shuffled(1000, 100, epoch=2)))


def test_generated_files_have_requested_size_and_unique_rows(tmp_path: Path) -> None:
    write_matrix(str(tmp_path / "matrix.npy"), 8 * MIB)
    matrix = np.load(tmp_path / "matrix.npy")
    assert matrix.shape == (2 * ROWS, COLUMNS)
    assert np.array_equal(matrix[:, 0], np.arange(2 * ROWS))
    write_tokens(str(tmp_path / "train.bin"), 9 * MIB)
    assert os.path.getsize(tmp_path / "train.bin") == 9 * MIB


def test_invalid_batch_exits() -> None:
    rows = np.zeros((ROWS, COLUMNS), np.float32)
    rows[:, 0] = np.arange(ROWS)
    assert samples("rows", rows) is rows
    rows[1, 0] = 0  # one row twice
    for wrong in (rows, rows.astype(np.float64), rows[1:]):
        with pytest.raises(SystemExit, match="different rows"):
            samples("rows", wrong)


def test_state_resumes_in_another_worker(tmp_path: Path) -> None:
    write_matrix(str(tmp_path / "matrix.npy"), 24 * MIB)
    state = str(tmp_path / "state")
    before = Worker(PEERS["rows/lowtide"], str(tmp_path)).digests(batches=2, skip=2, save=state)
    after = Worker(PEERS["rows/lowtide"], str(tmp_path)).digests(batches=2, load=state)
    anew = Worker(PEERS["rows/lowtide"], str(tmp_path)).digests(batches=2)
    assert before == after
    assert before != anew
    assert len({row for batch in before["digests"] for row in batch}) == 2 * ROWS


def test_peer_benchmark_end_to_end(tmp_path: Path) -> None:
    require_memory_cgroups()
    (tmp_path / "zarr.py").write_text("raise ImportError(\"No module named 'zarr'\")")
    figures, page = tmp_path / "peers.json", tmp_path / "peers.md"
    command = [sys.executable, "-m", "benchmarks.peers", "--size", "64MiB", "--rounds", "1"]
    command += [
        "--json",
        str(figures),
        "--markdown",
        str(page),
        "--files",
        str(tmp_path / "files"),
        "--merge",
    ]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for only in (["rows/memmap", "rows/zarr"], ["rows/memmap", "rows/lowtide"]):  # in two parts
        done = subprocess.run(
            [*command, "--only", *only],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "rows/memmap" not in done.stderr  # it was in the first part
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
        assert row["cloud"] > 0
        assert row["cloud_how"] == "completed"
        assert row["best"]["warm"] > 0
    assert memmap["peak"] > 50 * MIB
    assert (memmap["resume"], lowtide["resume"]) == ("none", "yes")
    assert (tmp_path / "files/matrix.npy").exists()
