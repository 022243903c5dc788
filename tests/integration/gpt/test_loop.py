"""lowtide._gpt.loop: the training loop, in this process; test_runs.py has processes."""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowtide._gpt import attention, checkpoint, folder
from lowtide._gpt.attention import Split
from lowtide._gpt.config import Settings, resolve
from lowtide._gpt.data import Data
from lowtide._gpt.loop import Outcome, Trainer
from lowtide._gpt.ranks import Ranks
from lowtide._gpt.train import keep_heap
from lowtide._gpt.train import run as train
from lowtide._memory import proc
from lowtide.errors import ArgumentError, DivergedError, FormatError, MemoryBudgetExceeded, StateError
from tests.support.training import ALPHABET, corpus, lines, losses, tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus"))


def resumed(out: Path, **changes: Any) -> Outcome:
    saved = checkpoint.load(str(out / "checkpoint.pt"))
    return train(resolve(changes, base=saved.settings), str(out), saved=saved)


def test_run_reduces_loss_and_writes_folder(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = train(tiny(data, max_iters=60, eval_interval=20), str(out))
    assert sorted(os.listdir(out)) == [
        "best.pt", "checkpoint.pt", "metrics.jsonl", "settings.json", "tokenizer.json", "training.png",
    ]  # fmt: skip
    seen = lines(out)
    assert len(losses(out)) == 60
    assert np.mean(losses(out)[-10:]) < np.mean(losses(out)[:10]) - 0.3
    assert [line["step"] for line in seen if line["val_loss"] is not None] == [20, 40, 60]
    assert (outcome.step, outcome.end, outcome.val_loss) == (60, "done", seen[-1]["val_loss"])
    assert outcome.best_val_loss == min(line["val_loss"] for line in seen if line["val_loss"] is not None)
    assert seen[-1]["tokens"] == 60 * 4 * 8
    assert all(0 < line["loader_ms"] < line["step_ms"] and line["rss_mib"] > 10 for line in seen)
    assert folder.load_model(out).config.vocab_size == len(ALPHABET)
    tokenizer = folder.load_tokenizer(out)
    assert tokenizer.decode(tokenizer.encode_batch(["low tide"])[0]) == "low tide"


@pytest.mark.parametrize("preset", ["modern", "nanogpt"])
def test_resumed_run_is_exact(data: Path, tmp_path: Path, preset: str) -> None:
    settings = tiny(data, preset=preset, dropout=0.2, gradient_accumulation_steps=2, max_iters=9)
    train(settings, str(tmp_path / "whole"))
    train(dataclasses.replace(settings, max_iters=5), str(tmp_path / "parts"))
    outcome = resumed(tmp_path / "parts", max_iters=9)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    whole, parts = (checkpoint.load(str(tmp_path / name / "checkpoint.pt")) for name in ("whole", "parts"))
    assert all(torch.equal(whole.model[name], parts.model[name]) for name in whole.model)
    assert outcome.best_val_loss is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_resumed_run_keeps_the_dtype_of_muon(data: Path, tmp_path: Path, dtype: str) -> None:
    train(tiny(data, muon_dtype=dtype, max_iters=2), str(tmp_path / "run"))
    resumed(tmp_path / "run", max_iters=4)
    assert folder.read_settings(tmp_path / "run").muon_dtype == dtype
    assert {line["muon_dtype"] for line in lines(tmp_path / "run")} == {dtype}


def test_trains_without_positional_writes_and_fdatasync(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows and macOS."""
    for name in ("pwrite", "fdatasync", "posix_fadvise"):
        monkeypatch.delattr(os, name)
    train(tiny(data, max_iters=2), str(tmp_path / "run"))
    assert checkpoint.load(str(tmp_path / "run" / "checkpoint.pt")).step == 2
    assert len(losses(tmp_path / "run")) == 2


def test_accumulation_equals_one_batch(data: Path, tmp_path: Path) -> None:
    together = tiny(data, batch_size=8, max_iters=6, optimiser="adamw", grad_clip=0.5)
    parts = dataclasses.replace(together, batch_size=2, gradient_accumulation_steps=4)
    train(together, str(tmp_path / "together"))
    train(parts, str(tmp_path / "parts"))
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "together"), rel=1e-4)


def test_losses_depend_only_on_seed(data: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tiny(data, seed=seed, max_iters=3), str(tmp_path / name))
    assert losses(tmp_path / "a") == losses(tmp_path / "b") != losses(tmp_path / "c")


def test_evaluation_batches_do_not_depend_on_the_seed(data: Path) -> None:
    seen = []
    for seed in (1, 2):
        with Ranks("cpu") as ranks:
            source = Data(tiny(data, seed=seed), ranks)
            seen.append([micro.x.tolist() for micro in source.validation()])
            assert seen[-1] == [micro.x.tolist() for micro in source.validation()]
            source.close()
    assert len(seen[0]) == 3
    assert seen[0] == seen[1]


def test_best_weights_are_saved(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = iter([3.0, 2.0, 2.5, 2.2])

    def validation(self: Data) -> Any:
        yield from ()

    monkeypatch.setattr(Data, "validation", validation)
    real = Ranks.sum
    monkeypatch.setattr(
        Ranks,
        "sum",
        lambda self, *values: (
            [next(reported) * 3, 3.0, 0.0, 0.0] if values == (0.0,) * 4 else real(self, *values)
        ),
    )
    outcome = train(tiny(data, max_iters=8, eval_interval=2), str(tmp_path / "run"))
    assert outcome.best_val_loss == 2.0
    assert outcome.val_loss == pytest.approx(2.2)
    assert checkpoint.load(str(tmp_path / "run" / "best.pt")).step == 4


def test_document_mask_changes_the_loss(data: Path, tmp_path: Path) -> None:
    train(tiny(data, max_iters=3, eos=0), str(tmp_path / "open"))
    train(tiny(data, max_iters=3, eos=0, document_mask=True), str(tmp_path / "masked"))
    assert losses(tmp_path / "open")[2] != losses(tmp_path / "masked")[2]


class TestEnds:
    def test_time_limit_stops_the_run(self, data: Path, tmp_path: Path) -> None:
        outcome = train(tiny(data, max_iters=100_000, max_minutes=0.01), str(tmp_path / "run"))
        assert outcome.end == "time"
        assert 0 < outcome.step < 100_000
        assert checkpoint.load(str(tmp_path / "run" / "checkpoint.pt")).step == outcome.step
        assert (tmp_path / "run" / "training.png").exists()

    def test_signal_stops_the_run(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = signal.getsignal(signal.SIGTERM)
        real = Trainer.update

        def update(self: Trainer, *wishes: bool) -> Any:
            if self.step == 6:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(self, *wishes)

        monkeypatch.setattr(Trainer, "update", update)
        outcome = train(tiny(data, max_iters=50), str(tmp_path / "run"))
        assert (outcome.end, outcome.signal) == ("signal", signal.SIGTERM)
        assert outcome.step == 8  # heard before the next step, and that one is finished
        assert checkpoint.load(str(tmp_path / "run" / "checkpoint.pt")).step == 8
        assert signal.getsignal(signal.SIGTERM) is before

    def test_memory_budget_stops_the_run(self, data: Path, tmp_path: Path) -> None:
        budget = str(proc.status().rss // 2)
        with pytest.raises(MemoryBudgetExceeded, match=r"(?s)resident memory reached .*what grew"):
            train(tiny(data, memory_budget=budget), str(tmp_path / "run"))
        assert checkpoint.load(str(tmp_path / "run" / "checkpoint.pt")).step == 1

    def test_exceeded_memory_budget_can_warn(
        self, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        budget = str(proc.status().rss // 2)
        outcome = train(tiny(data, memory_budget=budget, over_budget="warn"), str(tmp_path / "run"))
        assert (outcome.step, outcome.end) == (12, "done")
        assert capsys.readouterr().out.count("warning: step 0: memory exceeds") == 1

    def test_the_end_is_that_of_the_run_when_memory_is_a_warning(self, data: Path, tmp_path: Path) -> None:
        limits: dict[str, Any] = {"memory_budget": str(proc.status().rss // 2), "over_budget": "warn"}
        outcome = train(tiny(data, max_iters=100_000, max_minutes=0.01, **limits), str(tmp_path / "run"))
        assert outcome.end == "time"

    @pytest.mark.parametrize("broken", ["loss", "gradient"])
    def test_loss_or_gradient_that_is_not_finite_raises(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
    ) -> None:
        """An infinite weight, or a gradient that is not finite while the loss is."""
        real = Trainer.update

        def update(self: Trainer, *wishes: bool) -> Any:
            if self.step == 6 and broken == "loss":
                with torch.no_grad():
                    self.model.embedding.weight[:] = float("inf")
            elif self.step == 6:
                self.model.embedding.weight.register_hook(  # type: ignore[no-untyped-call]
                    lambda grad: grad * float("nan")
                )
            return real(self, *wishes)

        monkeypatch.setattr(Trainer, "update", update)
        with pytest.raises(DivergedError, match=r"step 7: the loss is .*nan.*keeps the last good state"):
            train(tiny(data), str(tmp_path / "run"))
        saved = checkpoint.load(str(tmp_path / "run" / "checkpoint.pt"))
        assert saved.step == 4
        assert all(torch.isfinite(one).all() for one in saved.model.values())
        assert len(losses(tmp_path / "run")) == 6


class TestBadInput:
    def run(self, settings: Settings, tmp_path: Path) -> None:
        train(settings, str(tmp_path / "run"))

    def test_ids_beyond_the_vocabulary_raise_before_training(self, data: Path, tmp_path: Path) -> None:
        corpus(tmp_path / "c", meta=False)
        with pytest.raises(FormatError, match=r"train\.bin: holds .*\(30, expected 0 to 19\)"):
            self.run(tiny(tmp_path / "c", vocab_size=20), tmp_path)
        assert not (tmp_path / "run").exists()
        with pytest.raises(ArgumentError, match=r"vocab_size is too small .*\(20, expected at least 31"):
            self.run(tiny(data, vocab_size=20), tmp_path)

    def test_rare_id_beyond_the_vocabulary_raises_when_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rare id is not in the sample."""
        import lowtide

        folder = corpus(tmp_path / "c", meta=False)
        monkeypatch.setattr(lowtide.Corpus, "largest", lambda self: 3)
        with pytest.raises(FormatError, match=r"train\.bin: holds a token .*\(\d+, expected 0 to 19"):
            self.run(tiny(folder, vocab_size=20), tmp_path)

    def test_corpus_without_vocabulary_needs_vocab_size(self, tmp_path: Path) -> None:
        folder = corpus(tmp_path / "c", meta=False)
        with pytest.raises(
            ArgumentError, match="largest id of a sample is 30\\); pass --vocab-size, such as 50304"
        ):
            self.run(tiny(folder), tmp_path)
        self.run(tiny(folder, vocab_size=64, max_iters=1), tmp_path)

    def test_missing_validation_split_raises(self, tmp_path: Path) -> None:
        folder = corpus(tmp_path / "c")
        (folder / "val.bin").unlink()
        with pytest.raises(ArgumentError, match=r"validation split 'val' .*--eval-interval 0"):
            self.run(tiny(folder), tmp_path)
        self.run(tiny(folder, eval_interval=0), tmp_path)
        assert not (tmp_path / "run" / "best.pt").exists()
        assert len(losses(tmp_path / "run")) == 12

    def test_single_file_without_validation_split_raises(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match=r"has a single split.*--eval-interval 0"):
            self.run(tiny(data / "train.bin"), tmp_path)

    def test_short_validation_split_raises(self, tmp_path: Path) -> None:
        folder = corpus(tmp_path / "c")
        np.zeros(8, np.uint16).tofile(folder / "val.bin")
        with pytest.raises(
            ArgumentError,
            match=r"val\.bin: the validation data is too short \(8 tokens, expected .* 8\); pass --val-data",
        ):
            self.run(tiny(folder), tmp_path)

    def test_short_training_split_raises(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="has 5000 tokens, too few for one window of 6000"):
            self.run(tiny(data, length=6000, eval_interval=0), tmp_path)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
    def test_missing_device_raises(self, data: Path, tmp_path: Path) -> None:
        for device in ("cuda", "cuda:3", "nonsense"):
            with pytest.raises(
                ArgumentError, match=rf"device '{device}' cannot be used here \(.*\); use cpu"
            ):
                self.run(tiny(data, device=device), tmp_path)

    def test_folder_with_a_run_raises(self, data: Path, tmp_path: Path) -> None:
        self.run(tiny(data, max_iters=2), tmp_path)
        with pytest.raises(ArgumentError, match="already holds a run; pass --resume"):
            self.run(tiny(data, max_iters=2), tmp_path)

    def test_resuming_with_another_corpus_raises(self, data: Path, tmp_path: Path) -> None:
        self.run(tiny(data, max_iters=2), tmp_path)
        other = corpus(tmp_path / "other", tokens=6000)
        with pytest.raises(StateError, match="corpus_tokens was 5000 and is 6000"):
            resumed(tmp_path / "run", data=str(other), max_iters=4)


class TestCompile:
    def test_compile_failure_falls_back_with_message(
        self,
        data: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def compile(model: Any) -> Any:
            def broken(*_: Any) -> Any:
                raise RuntimeError("no C++ compiler\nand a long story")

            return broken

        monkeypatch.setattr(torch, "compile", compile)
        train(tiny(data, max_iters=2, compile=True), str(tmp_path / "run"))
        message = "torch.compile does not work here, training without it: no C++ compiler\n"
        assert message in capsys.readouterr().out
        assert len(losses(tmp_path / "run")) == 2

    def test_checkpoints_hold_uncompiled_model(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = []

        def compile(model: Any) -> Any:
            class Wrapped(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self._orig_mod = model

                def forward(self, *ids: Any) -> Any:
                    used.append(ids)
                    return self._orig_mod(*ids)

            return Wrapped()

        monkeypatch.setattr(torch, "compile", compile)
        train(tiny(data, max_iters=2, compile=True), str(tmp_path / "run"))
        assert len(used) > 2
        monkeypatch.undo()
        assert folder.load_model(tmp_path / "run").config.n_layer == 1
        train(tiny(data, max_iters=2), str(tmp_path / "plain"))
        assert losses(tmp_path / "run") == losses(tmp_path / "plain")


def test_bfloat16_trains(data: Path, tmp_path: Path) -> None:
    train(tiny(data, dtype="bfloat16", max_iters=3), str(tmp_path / "half"))
    train(tiny(data, max_iters=3), str(tmp_path / "full"))
    assert losses(tmp_path / "half") != losses(tmp_path / "full")
    assert losses(tmp_path / "half") == pytest.approx(losses(tmp_path / "full"), abs=0.05)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_reused_by_next_step() -> None:
    keep_heap()

    def page_faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            tensors = [torch.zeros(1 << 20) for _ in range(10)]
            tensors.clear()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    page_faults()
    assert page_faults() < 10_000  # of 51,200 pages


class TestTargetsThatCount:
    """A loss mask, and the borders of documents."""

    @staticmethod
    def masks(folder: Path, data: Path, value: Any) -> Path:
        folder.mkdir()
        for name in ("train", "val"):
            count = len(np.fromfile(data / f"{name}.bin", np.uint16))
            np.resize(np.array(value, np.uint16), count).tofile(folder / f"{name}.bin")
        return folder

    @pytest.mark.parametrize("order", ["shuffle", "random", "blocks", "sequential", "documents", "packed"])
    def test_loss_mask_is_aligned_with_tokens(self, data: Path, tmp_path: Path, order: str) -> None:
        """Of a mask that says which ids count, exactly the targets with these ids do."""
        for name in ("train", "val"):
            (tmp_path / f"{name}.bin").write_bytes((np.fromfile(data / f"{name}.bin", "u2") % 2).tobytes())
        settings = tiny(data, order=order, eos=0, loss_mask=str(tmp_path), gradient_accumulation_steps=2)
        with Ranks("cpu") as ranks:
            source = Data(settings, ranks)
            for _ in range(6):
                for micro in source.next():
                    tokens = torch.cat((micro.x, micro.y[:, -1:]), 1)[:, 1:]
                    odd = tokens % 2 == 1
                    inner = torch.ones_like(odd)
                    inner[:, -1] = False  # the last target is not in x
                    assert ((micro.y == -1) == ~odd)[inner].all()
                    assert micro.counted == int((micro.y != -1).sum())
                    assert ((micro.y == tokens) | (micro.y == -1)).all()
            state = source.state_dict()
            expected = [micro.y for micro in source.next()]
            source.load_state_dict(state)
            assert all(torch.equal(one.y, y) for one, y in zip(source.next(), expected, strict=True))
            source.close()

    def test_loss_is_mean_over_unmasked_targets(self, data: Path, tmp_path: Path) -> None:
        """However micro-batches share the targets; a mask of ones is none."""
        ones = self.masks(tmp_path / "ones", data, [1])
        some = self.masks(tmp_path / "some", data, [1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
        changed: dict[str, dict[str, Any]] = {
            "plain": {},
            "ones": {"loss_mask": str(ones)},
            "some": {"loss_mask": str(some)},
            "parts": {"loss_mask": str(some), "batch_size": 1, "gradient_accumulation_steps": 4},
        }
        for name, changes in changed.items():
            train(tiny(data, max_iters=4, optimiser="adamw", **changes), str(tmp_path / f"run-{name}"))
        runs = {name: losses(tmp_path / f"run-{name}") for name in ("plain", "ones", "some", "parts")}
        assert runs["ones"] == runs["plain"]
        assert runs["some"] != runs["plain"]
        assert runs["parts"] == pytest.approx(runs["some"], rel=1e-5)
        val = {name: lines(tmp_path / f"run-{name}")[-1]["val_loss"] for name in runs}
        assert val["ones"] == val["plain"] != val["some"]

    def test_step_without_targets_has_zero_loss(self, data: Path, tmp_path: Path) -> None:
        zeros = self.masks(tmp_path / "zeros", data, [0])
        settings = tiny(data, max_iters=2, eval_interval=0, weight_decay=0.0, loss_mask=str(zeros))
        train(settings, str(tmp_path / "run"))
        assert losses(tmp_path / "run") == [0.0, 0.0]

    def test_border_targets_are_ignored(self, data: Path) -> None:
        """The token that follows an end of text is not predicted, with and without a mask of documents."""
        for document_mask in (False, True):
            with Ranks("cpu") as ranks:
                source = Data(tiny(data, eos=0, border_loss=False, document_mask=document_mask), ranks)
                seen = [source.next()[0] for _ in range(40)]
                assert sum(int((micro.x == 0).sum()) for micro in seen) > 20
                assert any((micro.x[:, -1] == 0).any() for micro in seen), "the last target needs a look at y"
                for micro in seen:
                    assert torch.equal(micro.y == -1, micro.x == 0)
                    assert (micro.documents is not None) == document_mask
                source.close()

    def test_invalid_loss_mask_raises(self, data: Path, tmp_path: Path) -> None:
        twos = self.masks(tmp_path / "twos", data, [2])
        np.ones(7, np.uint8).tofile(tmp_path / "short.bin")
        for path, problem in (
            (twos, "must hold 0 and 1 only"),
            (tmp_path / "short.bin", r"short\.bin: the loss mask does not fit the corpus \(7 values"),
        ):
            settings = tiny(data, loss_mask=str(path))
            with Ranks("cpu") as ranks, pytest.raises(ArgumentError, match=problem):
                Data(settings, ranks)


def test_micro_batches_have_documents_of_their_rows(data: Path) -> None:
    """Each micro-batch has the documents of its rows."""
    settings = tiny(data, eos=0, document_mask=True, length=200, batch_size=2, gradient_accumulation_steps=2)
    with Ranks("cpu") as ranks:
        source = Data(settings, ranks)
        for micro in source.next():
            documents = micro.documents
            assert isinstance(documents, Split)
            assert documents.positions is not None
            first = torch.ones_like(micro.x, dtype=torch.bool)
            first[:, 1:] = micro.x[:, :-1] == 0
            assert np.array_equal(documents.borders[:-1], np.flatnonzero(first))
            assert documents.borders[-1] == micro.x.numel()
            assert torch.equal(documents.positions == 0, first)
        source.close()


def test_split_attention_trains_like_masked_attention(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With learned positions, dropout off, several documents in each window; the evaluation too."""
    changes: dict[str, Any] = {"eos": 0, "document_mask": True, "length": 200, "preset": "nanogpt"}
    settings = tiny(data, max_iters=4, eval_interval=4, **changes)
    train(settings, str(tmp_path / "documents"))
    monkeypatch.setattr(attention, "_SHORT", 10**9)
    train(settings, str(tmp_path / "mask"))
    both = [tmp_path / name for name in ("documents", "mask")]
    assert losses(both[0]) == pytest.approx(losses(both[1]), rel=1e-5)
    assert lines(both[0])[-1]["val_loss"] == pytest.approx(lines(both[1])[-1]["val_loss"], rel=1e-5)
