"""The training loop.

A step takes its global batch, which depends on the seed and the step only, accumulates the gradients of its
micro-batches on every rank, averages them over the ranks, and updates the weights. Then, if it is due, the
model is evaluated and the state is saved. A reason to end a run early (a signal, the time or memory limit) is
noticed between two steps, by all ranks at the same one, and the state is saved first.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from lowtide._gpt import checkpoint, folder, optim, plot
from lowtide._gpt.bits import Lengths, TokenBytes
from lowtide._gpt.checkpoint import Checkpoint
from lowtide._gpt.config import Settings
from lowtide._gpt.data import Data
from lowtide._gpt.metrics import Log, Metrics, Tracking
from lowtide._gpt.model import GPT, ModelConfig, torch
from lowtide._gpt.progress import Progress
from lowtide._gpt.ranks import Ranks
from lowtide._memory.snapshot import resident
from lowtide._memory.watch import Watch
from lowtide._sizes import format_size
from lowtide.errors import ArgumentError, DivergedError

End = Literal["done", "signal", "time", "memory"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    step : int
        Number of updates.
    end : {"done", "signal", "time", "memory"}
        All steps are done, or the reason why the run ended early.
    train_loss : float or None
        Loss of the last training batch.
    val_loss : float or None
        The last validation loss.
    best_val_loss : float or None
        The lowest validation loss.
    signal : int
        Number of the signal that ended the run, or 0.
    val_bpb : float or None
        The last validation loss in bits per byte of text, if the tokenizer knows the bytes of its tokens.

    Examples
    --------
    >>> Outcome(2000, "done", 1.41, 1.52, 1.52).end
    'done'
    """

    step: int
    end: End
    train_loss: float | None
    val_loss: float | None
    best_val_loss: float | None
    signal: int = 0
    val_bpb: float | None = None


class Trainer:
    """A run in progress: all that a step needs and changes."""

    def __init__(
        self,
        settings: Settings,
        out: str,
        ranks: Ranks,
        data: Data,
        progress: Progress,
        watch: Watch,
        saved: Checkpoint | None,
        initial: GPT | None,
        lengths: Lengths | None = None,
    ) -> None:
        self.settings, self.out = settings, out
        self.ranks, self.data, self.progress, self.watch = ranks, data, progress, watch
        self._warned = False
        self.step = 0
        self.train_loss: float | None = None
        self.val_loss: float | None = None
        self.best_val_loss: float | None = None
        self.val_bpb: float | None = None
        self._bits = None if lengths is None else TokenBytes(lengths, data.vocabulary.size, ranks.device)
        kind = ranks.device.type
        if kind == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 for products that stay in float32
        torch.manual_seed(settings.seed)
        if initial is not None and settings.length > initial.config.length:
            raise ArgumentError(
                f"length is too large for the weights of --init ({settings.length}, expected at most "
                f"{initial.config.length}); pass a smaller --length"
            )
        self.model = (initial or GPT(saved.config if saved else model_config(settings))).to(ranks.device)
        self.optimiser = optim.make(self.model, settings)
        self.scaler = torch.amp.GradScaler(kind, enabled=settings.dtype == "float16")
        if saved is not None:
            self._restore(saved)
        self.model.train()
        self.callable = compiled(self.model, settings, progress) if settings.compile else self.model
        self.shared = ranks.share(self.callable)
        self.sinks: list[Log | Tracking] = []
        if ranks.first:
            if settings.wandb:
                self.sinks.append(Tracking(settings, out))
            self.sinks.append(Log(os.path.join(out, folder.METRICS), self.step))
            if not plot.available():
                progress.print("no plot of this run, matplotlib is missing; pip install 'lowtide[gpt]'")
        parameters = sum(one.numel() for one in self.model.parameters())
        progress.print(
            f"{parameters:,} parameters on {ranks.device}, {ranks.world_size} "
            f"{'process' if ranks.world_size == 1 else 'processes'}, {settings.dtype}; "
            f"{data.tokens:,} tokens, {settings.global_batch * settings.length:,} per step"
        )

    # The run

    def run(self) -> Outcome:
        """Train to the last step, or until something else ends the run."""
        settings = self.settings
        if self.step == 0:
            self.save()  # a run that is killed at once can be resumed, and a full disk is reported at once
        start, first = time.monotonic(), self.step
        limit = math.inf if settings.max_minutes is None else 60 * settings.max_minutes
        end: End = "done"
        with signals() as received:
            while self.step < settings.max_iters:
                late = time.monotonic() - start >= limit
                metrics, reason = self.update(bool(received), late, self._over_budget())
                last = self.step == settings.max_iters
                if settings.eval_interval and (self.step % settings.eval_interval == 0 or last):
                    metrics = dataclasses.replace(metrics, val_loss=self.evaluate(), val_bpb=self.val_bpb)
                for sink in self.sinks:
                    sink.add(metrics)
                elapsed = time.monotonic() - start
                left = elapsed / (self.step - first) * (settings.max_iters - self.step)
                self.progress.step(metrics, min(left, max(0.0, limit - elapsed)))
                if self.step % settings.checkpoint_interval == 0 or last or reason:
                    self.save()
                if reason and not last:
                    end = reason
                    break
        if self.ranks.first and plot.available() and self.step:
            log, picture = (os.path.join(self.out, name) for name in (folder.METRICS, folder.PICTURE))
            plot.draw(log, picture, self.watch.budget)
        number = received[0] if end == "signal" and received else 0
        losses = self.train_loss, self.val_loss, self.best_val_loss
        return Outcome(self.step, end, *losses, signal=number, val_bpb=self.val_bpb)

    def update(self, signalled: bool, late: bool, over: bool) -> tuple[Metrics, End | None]:
        """Make one step; also return why the run should end, if any rank has a reason."""
        settings, ranks = self.settings, self.ranks
        start = time.perf_counter()
        micros = self.data.next()
        loaded = time.perf_counter()
        # Dropout is a function of the seed, the step and the rank, as the batch is: no state to save.
        torch.manual_seed((settings.seed * 1_000_003 + self.step) * 4096 + ranks.rank)
        rate = optim.learning_rate(settings, self.step)
        self.optimiser.set_learning_rate(rate)
        loss = torch.zeros((), device=ranks.device)
        counted = settings.global_batch * settings.length
        if self.data.masked:
            counted = max(1, int(ranks.sum(sum(micro.counted for micro in micros))[0]))
        for number, micro in enumerate(micros, 1):
            # Each target counts the same, however ranks and micro-batches share them.
            share = micro.counted / counted
            targets = micro.y if micro.counted else micro.x  # the mean over no target would be NaN
            with ranks.accumulate(self.shared, last=number == len(micros)):
                with self._autocast():
                    _, part = self.shared(micro.x, targets, micro.documents)
                # DDP averages the gradients of the ranks, which should be summed.
                self.scaler.scale(part * (share * ranks.world_size)).backward()
            loss += part.detach() * share
        total, *reasons = ranks.sum(loss.item(), signalled, late, over)
        self._apply(total, rate)
        self.step += 1
        self.train_loss = total
        elapsed = time.perf_counter() - start
        tokens = settings.global_batch * settings.length
        metrics = Metrics(
            step=self.step,
            train_loss=total,
            val_loss=None,
            lr=rate,
            tokens=self.step * tokens,
            tokens_per_s=tokens / elapsed,
            loader_ms=1000 * (loaded - start),
            step_ms=1000 * elapsed,
            rss_mib=resident() / 2**20,
            muon_dtype=settings.muon_dtype if settings.optimiser == "muon" else None,
        )
        names: tuple[End, ...] = ("signal", "time", "memory")
        return metrics, next((name for name, reason in zip(names, reasons, strict=True) if reason), None)

    def _apply(self, loss: float, rate: float) -> None:
        """Clip the gradients and update the weights, unless the loss is not finite."""
        for part in self.optimiser.parts:
            self.scaler.unscale_(part)
        largest = self.settings.grad_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest))
        # With float16 the norm overflows now and then, and the scaler skips that step.
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.scaler.is_enabled()):
            gradient = f", its gradient {norm}" if math.isfinite(loss) else ""
            raise DivergedError(
                f"step {self.step + 1}: the loss is {loss:.4g}{gradient} at a learning rate of {rate:.3g}, "
                f"and {os.path.join(self.out, checkpoint.LAST)} keeps the last good state; start again with "
                "a lower --learning-rate, a longer --warmup-iters or a --grad-clip, or look for damaged data"
            )
        for part in self.optimiser.parts:
            self.scaler.step(part)
        self.scaler.update()
        self.optimiser.zero_grad()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.ranks.device.type, getattr(torch, self.settings.dtype))

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss over the validation batches; saves the best weights so far."""
        self.model.eval()
        total = weight = nats = count = 0.0
        for micro in self.data.validation():
            if not micro.counted:
                continue
            with self._autocast():
                logits, part = self.callable(micro.x, micro.y, micro.documents)
            share = micro.counted / micro.y.numel()
            total, weight = total + float(part) * share, weight + share
            if self._bits is not None:
                more = self._bits.measure(logits, micro.y, float(part) * micro.counted)
                nats, count = nats + more[0], count + more[1]
        self.model.train()
        total, weight, nats, count = self.ranks.sum(total, weight, nats, count)
        self.val_loss = total / weight if weight else math.inf
        self.val_bpb = nats / math.log(2) / count if count else None
        if self.best_val_loss is None or self.val_loss < self.best_val_loss:
            self.best_val_loss = self.val_loss
            if self.ranks.first:
                self._checkpoint().save(os.path.join(self.out, checkpoint.BEST))
        return self.val_loss

    # State

    def _checkpoint(self) -> Checkpoint:
        model = self.model
        return Checkpoint(self.step, self.settings, model.config, model.state_dict(), self.best_val_loss)

    def save(self) -> None:
        """Save everything that an exact continuation needs."""
        if not self.ranks.first:
            return
        for sink in self.sinks:
            sink.sync()
        dataclasses.replace(
            self._checkpoint(),
            optimiser=self.optimiser.state_dict(),
            scaler=self.scaler.state_dict(),
            batches=self.data.state_dict(),
        ).save(os.path.join(self.out, checkpoint.LAST))

    def _restore(self, saved: Checkpoint) -> None:
        path = os.path.join(self.out, checkpoint.LAST)
        self.model.load_state_dict(saved.model)
        checkpoint.restore(self.optimiser, saved, path)
        if self.scaler.is_enabled() and saved.scaler:
            self.scaler.load_state_dict(dict(saved.scaler))
        assert saved.batches is not None  # or restore would have raised
        self.data.load_state_dict(saved.batches)
        self.step, self.best_val_loss = saved.step, saved.best_val_loss

    def _over_budget(self) -> bool:
        """Whether to stop for the memory budget. The watch reads the kernel's peak, so no spike is missed."""
        if not self.watch.exceeded:
            return False
        if self.settings.over_budget == "warn" and not self._warned:
            self._warned = True
            budget = format_size(self.watch.budget or 0)
            self.progress.print(f"warning: step {self.step}: memory exceeds the budget of {budget}")
        return self.settings.over_budget == "stop"

    def close(self) -> None:
        """Close the outputs; idempotent."""
        for sink in self.sinks:
            sink.close()


def model_config(settings: Settings) -> ModelConfig:
    """The model that settings describe."""
    return ModelConfig(**{name: getattr(settings, name) for name in ModelConfig.__dataclass_fields__})


def compiled(model: GPT, settings: Settings, progress: Progress) -> Any:
    """The model through ``torch.compile``, or unchanged if that fails; tried before training starts."""
    device = next(model.parameters()).device
    try:
        result = torch.compile(model)
        ids = torch.zeros((settings.batch_size, settings.length), dtype=torch.int64, device=device)
        result(ids, ids)[1].backward()
    except Exception as error:  # compilers raise anything
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        progress.print(f"torch.compile does not work here, training without it: {reason}")
        return model
    finally:
        model.zero_grad(set_to_none=True)
    return result


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM; a second one ends the process at once, without saving."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: object) -> None:
        received.append(number)
        restore()

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: only that one can handle signals
        pass
    try:
        yield received
    finally:
        restore()
