"""lowtide.gpt.metrics: one line a step, and no step twice."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from lowtide.gpt import metrics, picture
from lowtide.gpt.metrics import Log, Metrics


def made(step: int, loss: float = 0.1 + 0.2) -> Metrics:
    val = loss if step % 10 == 0 else None
    return Metrics(step, loss, val, 1e-3, step * 10, 100.0, 0.1, 10.0, 300.0)


def written(path: Path, steps: int, start: int = 0) -> None:
    log = Log(str(path), start)
    for step in range(start + 1, steps + 1):
        log.add(made(step))
    log.sync()
    log.close()
    log.close()


def steps(path: Path) -> list[int]:
    return [line["step"] for line in metrics.read(path)]


def test_a_line_holds_what_it_should_with_all_digits(tmp_path: Path) -> None:
    written(tmp_path / "metrics.jsonl", 1)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert set(line) >= {
        "step", "train_loss", "val_loss", "lr", "tokens", "tokens_per_s", "loader_ms", "rss_mib",
    }  # fmt: skip
    assert line["train_loss"] == 0.1 + 0.2
    assert line["val_loss"] is None


def test_going_on_cuts_off_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 9)
    written(path, 12, start=6)
    assert steps(path) == list(range(1, 13))


def test_a_line_that_was_written_in_part_goes(tmp_path: Path) -> None:
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


def test_a_new_run_begins_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written(path, 5)
    written(path, 2)
    assert steps(path) == [1, 2]


class TestPicture:
    def test_is_a_png(self, tmp_path: Path) -> None:
        written(tmp_path / "metrics.jsonl", 30)
        picture.draw(str(tmp_path / "metrics.jsonl"), str(tmp_path / "training.png"), budget=2**30)
        assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
        assert sorted(one.name for one in tmp_path.iterdir()) == ["metrics.jsonl", "training.png"]

    def test_a_long_run_takes_no_more_points(self) -> None:
        thin = picture._Thin()
        for step in range(100_000):
            thin.add(step, float(step))
        steps, values = thin.course
        assert 1000 <= len(steps) <= picture._POINTS
        assert steps == values
        assert steps[0] == 0
        assert steps[-1] > 99_000
        assert len({round(b - a) for a, b in pairwise(steps)}) == 1


@pytest.mark.parametrize("seconds", [(3725.0, "1:02:05"), (59.4, "0:59")])
def test_the_time_left_reads_as_a_clock(seconds: tuple[float, str]) -> None:
    from lowtide.gpt.screen import _clock

    assert _clock(seconds[0]) == seconds[1]
