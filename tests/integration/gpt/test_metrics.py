"""lowtide._gpt.metrics: one line per step, and no step twice."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest

from lowtide._gpt import metrics, plot
from lowtide._gpt.metrics import Log, Metrics
from lowtide.errors import NotFoundError


def example(step: int, loss: float = 0.1 + 0.2) -> Metrics:
    val = loss if step % 10 == 0 else None
    return Metrics(step, loss, val, 1e-3, step * 10, 100.0, 0.1, 10.0, 300.0)


def written(path: Path, steps: int, start: int = 0) -> None:
    log = Log(str(path), start)
    for step in range(start + 1, steps + 1):
        log.add(example(step))
    log.sync()
    log.close()
    log.close()


def steps(path: Path) -> list[int]:
    return [line["step"] for line in metrics.read(path)]


def test_line_has_all_fields_at_full_precision(tmp_path: Path) -> None:
    written(tmp_path / "metrics.jsonl", 1)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert set(line) >= {
        "step", "train_loss", "val_loss", "lr", "tokens", "tokens_per_s", "loader_ms", "rss_mib",
    }  # fmt: skip
    assert line["train_loss"] == 0.1 + 0.2
    assert line["val_loss"] is None


def test_resuming_removes_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 9)
    written(path, 12, start=6)
    assert steps(path) == list(range(1, 13))


def test_lines_of_version_0_1_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 3)
    path.write_text(path.read_text().replace(', "muon_dtype": null', ""))
    written(path, 4, start=3)
    assert steps(path) == [1, 2, 3, 4]


def test_truncated_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 5)
    whole = path.read_bytes()
    for cut in (1, 20):
        path.write_bytes(whole[:-cut])
        assert steps(path) == [1, 2, 3, 4]
        written(path, 6, start=4)
        assert steps(path) == list(range(1, 7))
    path.write_bytes(whole + b"\0\0\0")
    written(path, 6, start=5)
    assert steps(path) == list(range(1, 7))


GOOD = json.dumps(asdict(example(3))).encode()
DAMAGED = {
    "a tower": b"[" * 100_000,
    "bytes": b"\0\xff\xfe",
    "a list": b"[3]",
    "a text for the step": GOOD.replace(b'"step": 3', b'"step": "3"'),
    "an infinite step": GOOD.replace(b'"step": 3', b'"step": Infinity'),
    "a negative step": GOOD.replace(b'"step": 3', b'"step": -3'),
    "no loss": GOOD.replace(b"train_loss", b"main_loss"),
    "a number without end": GOOD.replace(b"300.0", b"1" + b"0" * 400),
    "a list for the memory": GOOD.replace(b"300.0", b"[300.0]"),
    "more than a line": b" " * 200_000 + GOOD,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_line_is_skipped(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 6)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = DAMAGED[damage] + b"\n"
    path.write_bytes(b"".join(lines))
    rest = [3] if damage == "more than a line" else []
    assert steps(path) == [1, 2, *rest, 4, 5, 6]
    written(path, 7, start=5)
    assert steps(path) == [1, 2, *rest, 4, 5, 6, 7]
    plot.draw(str(path), str(tmp_path / "training.png"))
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"metrics\.jsonl: no such file"):
        steps(tmp_path / "metrics.jsonl")


def test_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 5)
    written(path, 2)
    assert steps(path) == [1, 2]


class TestPicture:
    def test_plot_is_png(self, tmp_path: Path) -> None:
        written(tmp_path / "metrics.jsonl", 30)
        plot.draw(str(tmp_path / "metrics.jsonl"), str(tmp_path / "training.png"), budget=2**30)
        assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
        assert sorted(one.name for one in tmp_path.iterdir()) == ["metrics.jsonl", "training.png"]

    @pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e308, -1e308, 1e-320, 0.0])
    def test_extreme_losses_are_drawn(self, loss: float, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        log = Log(str(path), 0)
        for step in range(1, 12):
            log.add(example(step, loss if step % 5 == 0 else 3.0))
        log.close()
        assert len(steps(path)) == 11
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plot.draw(str(path), str(tmp_path / "training.png"), budget=2**63 - 1)
        assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")

    def test_long_run_is_thinned_evenly(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plot, "_POINTS", 100)
        written(tmp_path / "metrics.jsonl", 1050)
        train, val, memory = plot._curves(str(tmp_path / "metrics.jsonl"))
        assert train[0] == memory[0] == list(range(1, 1051, 11))
        assert val[0] == list(range(10, 1051, 20))
