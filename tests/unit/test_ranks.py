"""lowtide._ranks: ranks as given, or from the environment of torchrun."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide._ranks import ranks
from lowtide.errors import ArgumentError
from tests.support.corpora import numbered


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")


def test_auto_without_a_launcher_is_the_only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks("auto", None) == ranks(None, None) == (0, 1)


@pytest.mark.usefixtures("torchrun")
def test_auto_takes_the_rank_from_the_environment(tmp_path: Path) -> None:
    assert ranks("auto", None) == ranks("auto", 3) == (1, 3)
    corpus = numbered(tmp_path / "tokens", 1000)
    np.save(tmp_path / "rows.npy", np.arange(12))
    array = lowtide.open(tmp_path / "rows.npy")
    mixed = lowtide.mix({"a": corpus}, {"a": 1})
    for source in (corpus, mixed):
        batches: Any = source.batches(6, 8, rank="auto")
        assert (batches.rank, batches.world_size) == (1, 3)
        assert (batches[2][0] == source.batches(6, 8, rank=0, world_size=1)[2][0][2:4]).all()
    assert [chunk.tolist() for chunk in array.chunks(6, rank="auto")] == [[2, 3], [8, 9]]
    assert [chunk[0].tolist() for chunk in lowtide.zip(array, array).chunks(6, rank="auto")] == [
        [2, 3],
        [8, 9],
    ]


@pytest.mark.usefixtures("torchrun")
def test_no_rank_under_a_launcher_warns(tmp_path: Path) -> None:
    corpus = numbered(tmp_path / "tokens", 1000)
    np.save(tmp_path / "rows.npy", np.arange(12))
    for use in (lambda: corpus.batches(6, 8), lambda: lowtide.open(tmp_path / "rows.npy").chunks(6)):
        with pytest.warns(UserWarning, match="WORLD_SIZE is 3 and no rank was given.*rank='auto'"):
            use()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corpus.batches(6, 8, rank=0, world_size=1)
        corpus.batches(6, 8, rank=0)


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        pytest.param({}, ("other", None), "rank must be an integer or 'auto', got 'other'", id="name"),
        pytest.param({"WORLD_SIZE": "3"}, ("auto", None), "has no RANK", id="no rank"),
        pytest.param({"RANK": "3", "WORLD_SIZE": "3"}, ("auto", None), "RANK 3 of WORLD_SIZE 3", id="beyond"),
        pytest.param({"RANK": "x", "WORLD_SIZE": "3"}, ("auto", None), "RANK must be an integer", id="text"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "3"}, ("auto", 2), "contradicts rank='auto'", id="both"),
        pytest.param({}, (2, 2), "rank must be below world_size, got rank 2 of 2", id="too large"),
    ],
)
def test_invalid_ranks_raise(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], arguments: Any, message: str
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=message):
        ranks(*arguments)
