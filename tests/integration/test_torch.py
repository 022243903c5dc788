"""lowtide.torch: batches as tensors."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import lowtide
from lowtide._tensors import Destination, _numpy_dtype
from lowtide.errors import ArgumentError, ClosedError, StateError
from lowtide.torch import TorchBatches
from tests.support.corpora import numbered
from tests.support.process import output

KINDS = ["uint16", "uint32", "int32", "int64"]


def extreme(folder: Path, kind: str, tokens: int = 5000) -> lowtide.Corpus:
    """Random tokens over the whole range of a dtype: each is wrong if a sign is."""
    info = np.iinfo(kind)
    rng = np.random.default_rng(0)
    rng.integers(max(info.min, 0), info.max, tokens, kind, endpoint=True).tofile(folder / "part.bin")
    return lowtide.corpus(folder / "part.bin", dtype=kind)


@pytest.fixture(params=KINDS)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> lowtide.Corpus:
    return extreme(tmp_path, request.param)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lowtide-prefetch")]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_tensors_match_widened_numpy_batches(corpus: lowtide.Corpus, prefetch: int) -> None:
    batches = corpus.batches(6, 32, seed=3, start=5, prefetch=prefetch)
    with batches.torch(device="cpu", dtype=torch.int64) as tensors:
        for step in range(5, 25):
            assert tensors.step == step
            x, y = next(tensors)
            for tensor, expected in zip((x, y), batches[step], strict=True):
                assert tensor.dtype == torch.int64
                assert tensor.is_contiguous()
                assert (tensor.numpy() == expected.astype(np.int64)).all()
            assert y.view(-1).shape == (6 * 32,)
            assert (x[:, 1:] == y[:, :-1]).all()
            assert x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()


def test_indexing_does_not_advance_iterator(corpus: lowtide.Corpus) -> None:
    with corpus.batches(4, 16).torch() as tensors:
        far = tensors[10**9]
        assert tensors.step == 0
        assert (far[0].numpy() == corpus.batches(4, 16)[10**9][0]).all()


def test_each_rank_has_its_rows(corpus: lowtide.Corpus) -> None:
    whole = corpus.batches(5, 16, seed=1).torch()[7][0]
    parts = [corpus.batches(5, 16, seed=1, rank=rank, world_size=2).torch()[7][0] for rank in (0, 1)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("uint16", torch.int32), ("uint16", torch.uint16), ("uint32", torch.uint32), ("int32", torch.int32)],
)
def test_dtype_that_holds_every_token_is_accepted(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    batches = extreme(tmp_path, kind).batches(4, 16)
    x, y = batches.torch(dtype=dtype)[3]
    assert x.dtype == y.dtype == dtype
    assert (x.numpy() == batches[3][0]).all()


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [
        ("uint16", torch.int16, "torch.int16 does not hold every uint16"),
        ("uint32", torch.int32, "torch.int32 does not hold every uint32"),
        ("int32", torch.uint32, "torch.uint32 does not hold every int32"),
        ("uint16", torch.float32, "tokens are integers, got dtype torch.float32"),
        ("uint16", torch.bool, "tokens are integers, got dtype torch.bool"),
        ("uint16", np.int64, r"one of PyTorch's, such as torch\.int64, got <class 'numpy.int64'>"),
    ],
)
def test_dtype_that_cannot_hold_every_token_raises(
    tmp_path: Path, kind: str, dtype: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        extreme(tmp_path, kind).batches(4, 16).torch(dtype=dtype)


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "mps", "gpu", torch.device("cuda")], ids=str)
def test_unavailable_device_raises(tmp_path: Path, device: Any) -> None:
    if torch.accelerator.is_available() and device != "gpu":
        pytest.skip(f"this machine has a {torch.accelerator.current_accelerator()}")
    with pytest.raises(ArgumentError, match=rf"cannot use device '{device}' here: .+; try 'cpu'"):
        numbered(tmp_path, 100).batches(4, 16).torch(device)


def test_default_device_is_ignored(corpus: lowtide.Corpus) -> None:
    """People set torch.set_default_device("cuda"); "meta" is the one such device that is everywhere."""
    expected = corpus.batches(4, 16)[0][0]
    for prefetch in (0, 2):
        _numpy_dtype.cache_clear()  # as in a new process
        with torch.device("meta"):
            with corpus.batches(4, 16, prefetch=prefetch).torch("cpu") as tensors:
                x, _ = next(tensors)
        assert x.device.type == "cpu"
        assert (x.numpy() == expected).all()


def test_batches_are_moved_to_device(corpus: lowtide.Corpus) -> None:
    with corpus.batches(4, 16).torch("meta") as tensors:
        x, y = next(tensors)
    assert x.device.type == y.device.type == "meta"
    assert x.shape == (4, 16)


def test_writing_to_batch_does_not_change_others(corpus: lowtide.Corpus) -> None:
    """Writing into a batch changes no other: a buffer that was reused too early would show here."""
    expected = [corpus.batches(4, 16)[step][0] for step in range(6)]
    with corpus.batches(4, 16).torch() as tensors:
        kept = []
        for _ in range(6):
            kept.append(next(tensors)[0])
            kept[-1] += 0
        assert all((x.numpy() == old).all() for x, old in zip(kept, expected, strict=True))


# Documents


def documents(folder: Path) -> lowtide.Corpus:
    np.array([1, 1, 0, 2, 2, 2, 0] * 40, "<u2").tofile(folder / "t.bin")
    return lowtide.corpus(folder / "t.bin", dtype="<u2", eos=0)


@pytest.mark.parametrize("kind", ["ids", "cu_seqlens"])
@pytest.mark.parametrize("order", ["shuffle", "packed"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_documents_and_tensors_compose_in_both_orders(
    tmp_path: Path, kind: Literal["ids", "cu_seqlens"], order: str, prefetch: int
) -> None:
    batches = documents(tmp_path).batches(4, 16, order=order, seed=1, prefetch=prefetch)
    arrays = batches.with_documents(kind)
    with arrays.torch() as first, batches.torch().with_documents(kind) as second:
        for step in range(4):
            expected, one, other = arrays[step], next(first), next(second)
            for batch in (one, other, first[step]):
                x, y, third = batch
                assert (x.dtype, y.dtype, third.dtype) == (torch.int64, torch.int64, torch.int32)
                assert batch.position_ids.dtype == torch.int64
                assert batch.position_ids.shape == x.shape
                assert batch.max_seqlen == expected.max_seqlen
                assert type(batch.max_seqlen) is int
                for tensor, array in zip(
                    (*batch, batch.position_ids), (*expected, expected.position_ids), strict=True
                ):
                    assert tensor.tolist() == array.tolist()
        assert first.step == second.step == 4
        assert first.state_dict() == {**batches.state_dict(), "step": 4}
        second.load_state_dict({**second.state_dict(), "step": 1})
        assert torch.equal(next(second)[2], first[1][2])


def test_position_ids_and_max_seqlen_match_cu_seqlens(tmp_path: Path) -> None:
    """What kernels for sequences of different lengths need: positions restart at each border."""
    batch = documents(tmp_path).batches(4, 16, seed=1).torch().with_documents("cu_seqlens")[0]
    borders = batch[2].tolist()
    lengths = np.diff(borders).tolist()
    assert batch.max_seqlen == max(lengths)
    assert batch.position_ids.view(-1).tolist() == [at for length in lengths for at in range(length)]


def test_with_documents_starts_at_step_of_tensors(tmp_path: Path) -> None:
    tensors = documents(tmp_path).batches(4, 16, seed=1).torch()
    next(tensors)
    marked = tensors.with_documents()
    assert marked.step == 1
    assert torch.equal(next(marked)[0], next(tensors)[0])
    marked.close()
    tensors.close()
    with pytest.raises(ArgumentError, match="kind must be 'ids' or 'cu_seqlens', got 'mask'"):
        tensors.with_documents("mask")  # type: ignore[arg-type]


def test_documents_are_computed_and_pinned_in_prefetch_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer only moves tensors, without waiting; nothing comes back from the GPU."""
    calls: list[tuple[str, str]] = []
    empty, to = torch.empty, torch.Tensor.to

    def record(what: str) -> None:
        calls.append((what, threading.current_thread().name.partition("_")[0]))

    def pinned(*arguments: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        if pin_memory:
            record("pin")
        return empty(*arguments, **more)

    def move(tensor: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        record("move" if more.get("non_blocking") else "widen")
        return to(tensor, *arguments, **more)

    batches = documents(tmp_path).batches(4, 16, order="blocks", seed=1, prefetch=1)
    expected = batches.with_documents()[1]
    tensors = batches.torch().with_documents()
    monkeypatch.setattr(tensors._to, "_pinned", True)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    next(tensors)
    for name in ("cpu", "numpy", "tolist", "item"):
        monkeypatch.setattr(torch.Tensor, name, _only_in_the_thread(getattr(torch.Tensor, name)))
    batch = next(tensors)
    tensors.close()
    monkeypatch.undo()
    assert ("pin", "lowtide-prefetch") in calls
    consumer = [what for what, thread in calls if thread == "MainThread"]
    assert consumer[-6:] == ["move", "widen", "widen", "move", "move", "move"]
    assert consumer.count("pin") <= 1  # of the first batch, which is submitted before there is a thread
    for tensor, array in zip((*batch, batch.position_ids), (*expected, expected.position_ids), strict=True):
        assert tensor.tolist() == array.tolist()


def _only_in_the_thread(method: Any) -> Any:
    def checked(*arguments: Any, **more: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread(), "the consumer waits for the GPU"
        return method(*arguments, **more)

    return checked


# The way to a GPU, as far as it can go without one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int64, None])
def test_batches_are_pinned_in_prefetch_thread(
    tmp_path: Path, kind: str, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned memory is filled in the prefetch thread, for the right GPU; the rest is the consumer's."""
    calls: list[tuple[str, str]] = []
    empty, to = torch.empty, torch.Tensor.to

    def record(what: str) -> None:
        calls.append((what, threading.current_thread().name.partition("_")[0]))

    def pinned(*arguments: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        if pin_memory:
            record(f"pinned for {current[-1]}")
        return empty(*arguments, **more)

    def moved(tensor: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        record("moved, not waiting" if more.get("non_blocking") else "widened")
        return to(tensor, *arguments, **more)

    current = ["none"]

    @contextmanager
    def gpu(device: Any) -> Iterator[None]:
        current.append(str(device))
        yield
        current.pop()

    batches = extreme(tmp_path, kind).batches(4, 16, order="blocks", prefetch=1)
    tensors = TorchBatches(batches, "cpu", dtype, prefetch=1)
    monkeypatch.setattr(tensors._to, "_pinned", True)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.cuda, "device", gpu)
    next(tensors)
    x, y = next(tensors)
    tensors.close()
    assert x.dtype == y.dtype == torch.int64
    assert x.is_contiguous()
    assert y.is_contiguous()
    assert (x.numpy() == batches[1][0].astype(np.int64)).all()
    assert (y.numpy() == batches[1][1].astype(np.int64)).all()
    assert ("pinned for cpu", "lowtide-prefetch") in calls
    consumer = [what for what, thread in calls if thread == "MainThread"]
    assert consumer[-3:] == ["moved, not waiting", "widened", "widened"]
    assert sum("pinned" in what for what in consumer) <= 1  # of the batch before there is a thread


def test_cuda_without_index_is_callers_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has its own current GPU: in the prefetch thread 'cuda' would be GPU 0 on every rank."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **more: empty(*a, **more))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert Destination("cuda", None, np.dtype("uint16"), 8).device == torch.device("cuda", 3)
    assert Destination("cuda:1", None, np.dtype("uint16"), 8).device == torch.device("cuda", 1)


# State


@pytest.mark.parametrize("prefetch", [0, 2])
def test_state_resumes_exactly(corpus: lowtide.Corpus, prefetch: int) -> None:
    tensors = corpus.batches(4, 16, seed=2, prefetch=prefetch).torch()
    for _ in range(7):
        next(tensors)
    state = tensors.state_dict()
    assert state["step"] == 7  # not what was read ahead
    expected = [next(tensors) for _ in range(5)]
    tensors.close()

    fresh = corpus.batches(4, 16, seed=2, prefetch=prefetch).torch()
    next(fresh)
    fresh.load_state_dict(state)
    for x, y in expected:
        again = next(fresh)
        assert torch.equal(again[0], x)
        assert torch.equal(again[1], y)
    fresh.close()


def test_numpy_and_torch_states_are_interchangeable(corpus: lowtide.Corpus) -> None:
    arrays = corpus.batches(4, 16, seed=2, start=9)
    with corpus.batches(4, 16, seed=2).torch() as tensors:
        tensors.load_state_dict(arrays.state_dict())
        assert tensors.state_dict() == arrays.state_dict()
        assert (next(tensors)[0].numpy() == next(arrays)[0]).all()
    arrays.close()


def test_rejected_state_of_other_settings_changes_nothing(corpus: lowtide.Corpus) -> None:
    with corpus.batches(4, 16, seed=2).torch() as tensors:
        next(tensors)
        with pytest.raises(StateError, match="seed was 3 and is 2"):
            tensors.load_state_dict(corpus.batches(4, 16, seed=3).state_dict())
        assert tensors.step == 1
        assert (next(tensors)[0].numpy() == corpus.batches(4, 16, seed=2)[1][0]).all()


# Its life


def gone(before: int) -> bool:
    gc.collect()
    until = time.monotonic() + 5
    while len(threads()) > before and time.monotonic() < until:
        time.sleep(0.01)
    return len(threads()) == before


def test_closing_dropping_and_loading_leave_no_thread(corpus: lowtide.Corpus) -> None:
    before = len(threads())
    tensors = corpus.batches(4, 16, order="blocks").torch()
    next(tensors)
    assert len(threads()) == before + 1
    tensors.load_state_dict(tensors.state_dict())
    next(tensors)
    assert gone(before + 1)
    tensors.close()
    tensors.close()
    assert len(threads()) == before
    with pytest.raises(ClosedError, match="were closed"):
        next(tensors)
    assert len(threads()) == before

    tensors = corpus.batches(4, 16, order="blocks").torch()
    next(tensors)
    del tensors
    assert gone(before)


def test_no_thread_without_prefetch(corpus: lowtide.Corpus) -> None:
    before = len(threads())
    tensors = corpus.batches(4, 16, prefetch=0).torch()
    next(tensors)
    assert len(threads()) == before


def test_prefetch_error_reaches_caller(tmp_path: Path) -> None:
    tensors = numbered(tmp_path, 5000).batches(4, 16).torch()
    next(tensors)
    (tmp_path / "part-000.bin").write_bytes(b"")
    with pytest.raises(lowtide.LowtideError, match=r"part-000\.bin"):
        for _ in range(10):
            next(tensors)
    tensors.close()


@pytest.mark.parametrize("module", ["torch", "nanogpt"])
def test_missing_pytorch_error_has_install_command(module: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
try:
    import lowtide.{module}
except ImportError as error:
    print(type(error).__name__, error)
"""
    assert output(code) == "MissingExtraError PyTorch is not installed; pip install 'lowtide[torch]'\n"


def test_assigning_tensor_batches_attribute_raises(tmp_path: Path) -> None:
    with extreme(tmp_path, "uint16").batches(2, 4).torch() as tensors:
        with pytest.raises(AttributeError, match=r"batch_size does not exist; .*\.torch\(\)"):
            tensors.batch_size = 8
        with pytest.raises(AttributeError, match="step is read-only"):
            tensors.step = 5  # type: ignore[misc]
