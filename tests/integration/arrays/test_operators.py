"""Arrays as PyTorch takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lowtide
from lowtide._arrays import array as array_module
from lowtide.errors import BudgetError


@pytest.mark.parametrize("order", ["C", "F"])
def test_torch_tensor_loads_array_in_few_reads(tmp_path: Path, order: Any) -> None:
    expected = np.asarray(np.random.default_rng(0).random((500, 20), np.float32), order=order)
    np.save(tmp_path / "a.npy", expected)
    with lowtide.open(tmp_path / "a.npy") as array:
        with mock.patch.object(lowtide.Array, "__iter__", side_effect=AssertionError("row by row")):
            with mock.patch.object(array, "_reader", wraps=array._reader) as reader:
                for tensor in (
                    torch.tensor(array),
                    torch.as_tensor(array),
                    torch.utils.dlpack.from_dlpack(array),
                ):
                    assert tensor.dtype == torch.float32
                    np.testing.assert_array_equal(tensor.numpy(), expected)
                assert reader.submit.call_count <= 3
        with mock.patch.object(array_module, "IMPLICIT_LOAD_LIMIT", array.nbytes - 1):
            with pytest.raises(BudgetError, match=r"torch\.from_numpy\(array\[:\]\)"):
                torch.tensor(array)


def test_data_loader_batch_is_one_read(tmp_path: Path) -> None:
    expected = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "a.npy", expected)
    with lowtide.open(tmp_path / "a.npy") as array:
        with mock.patch.object(array, "_reader", wraps=array._reader) as reader:
            batches = list(DataLoader(array, batch_size=8))  # type: ignore[arg-type]
            assert reader.submit.call_count == 3
        assert [tuple(batch.shape) for batch in batches] == [(8, 3), (8, 3), (4, 3)]
        np.testing.assert_array_equal(np.concatenate(batches), expected)
