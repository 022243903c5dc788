"""The training loop.

A step takes its global batch, which depends on the seed and the step alone, adds up the gradients of its
micro-batches on every rank, averages them over the ranks, and updates the weights. Then, where it is due, the
model is evaluated, and the state is saved. Whatever ends a run early (a signal, the clock, the memory budget)
is noticed between two steps, by all ranks at the same one, and saves first.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import lowtide
from lowtide._gpt import checkpoints, optimisers, picture
from lowtide._gpt.checkpoints import Checkpoint
from lowtide._gpt.data import Data
from lowtide._gpt.metrics import Log, Metrics
from lowtide._gpt.model import GPT, ModelConfig, torch
from lowtide._gpt.ranks import Ranks
from lowtide._gpt.schedule import learning_rate
from lowtide._gpt.screen import Screen
from lowtide._gpt.settings import ARCHITECTURE, Settings
from lowtide._gpt.tracking import Tracking
from lowtide._memory import proc
from lowtide._memory.snapshot import resident
from lowtide._sizes import format_size, parse_size
from lowtide.errors import ArgumentError, DivergedError, MemoryBudgetExceeded

End = Literal["done", "signal", "time", "memory"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    end: End
    train_loss: float | None
    val_loss: float | None
    best_val_loss: float | None
    signal: int = 0


def train(
    settings: Settings, out: str, *, saved: Checkpoint | None = None, initial: GPT | None = None
) -> Outcome:
    """Train in the folder ``out``: from the beginning, from ``initial`` weights, or on from ``saved``."""
    with ExitStack() as stack:
        ranks = stack.enter_context(Ranks(settings.device))
        data = stack.enter_context(closing(Data(settings, ranks)))
        settings = dataclasses.replace(settings, vocab_size=data.vocab_size, eos=data.corpus.eos)
        if ranks.first:
            if saved is None:
                checkpoints.begin(out, settings)
            checkpoints.write_settings(out, settings)
            checkpoints.keep_tokenizer(out, data.corpus)
        budget = None if settings.memory_budget is None else parse_size(settings.memory_budget)
        screen = stack.enter_context(
            Screen(
                settings.max_iters, saved.step if saved else 0, settings.log_interval, budget,
                silent=not ranks.first,
            )
        )  # fmt: skip
        trainer = Trainer(settings, out, ranks, data, screen, saved, initial)
        saved = initial = None  # what they held is in the trainer, and memory is dear
        try:
            with lowtide.watch(budget, absolute=True) if budget else nullcontext():
                outcome = trainer.run()
        except MemoryBudgetExceeded as error:
            if settings.over_budget == "stop":
                raise
            screen.say(f"warning: {error}")
            outcome = trainer.outcome("done")
        finally:
            trainer.close()
        return outcome


class Trainer:
    """A run in the making: everything that a step needs and changes."""

    def __init__(
        self,
        settings: Settings,
        out: str,
        ranks: Ranks,
        data: Data,
        screen: Screen,
        saved: Checkpoint | None,
        initial: GPT | None,
    ) -> None:
        self.settings, self.out = settings, out
        self.ranks, self.data, self.screen = ranks, data, screen
        self.budget = None if settings.memory_budget is None else parse_size(settings.memory_budget)
        self._warned = False
        self.step = 0
        self.train_loss: float | None = None
        self.val_loss: float | None = None
        self.best_val_loss: float | None = None
        kind = ranks.device.type
        if kind == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 where float32 is left
        torch.manual_seed(settings.seed)
        if initial is not None and settings.block_size > initial.config.block_size:
            raise ArgumentError(
                f"block_size is {settings.block_size}, and the weights of --init look back on "
                f"{initial.config.block_size} tokens; pass at most that"
            )
        self.model = (initial or GPT(saved.config if saved else model_config(settings))).to(ranks.device)
        self.optimiser = optimisers.make(
            self.model,
            optimiser=settings.optimiser,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            beta1=settings.beta1,
            beta2=settings.beta2,
            device_type=kind,
        )
        self.scaler = torch.amp.GradScaler(kind, enabled=settings.dtype == "float16")
        if saved is not None:
            self._restore(saved)
        self.model.train()
        self.callable = compiled(self.model, settings, screen) if settings.compile else self.model
        self.shared = ranks.share(self.callable)
        self.log: Log | None = None
        self.tracking: Tracking | None = None
        if ranks.first:
            if settings.wandb:
                self.tracking = Tracking(settings, out)
            self.log = Log(os.path.join(out, checkpoints.METRICS), self.step)
            if not picture.available():
                screen.say("there will be no picture of this run: pip install 'lowtide[gpt]' for matplotlib")
        parameters = sum(one.numel() for one in self.model.parameters())
        screen.say(
            f"{parameters:,} parameters on {ranks.device}, {ranks.world_size} "
            f"{'process' if ranks.world_size == 1 else 'processes'}, {settings.dtype}; "
            f"{len(data.corpus):,} tokens, {settings.global_batch * settings.block_size:,} a step"
        )

    # The run

    def run(self) -> Outcome:
        """Go on to the last step, or until something else ends it."""
        settings = self.settings
        if self.step == 0:
            self.save()  # also a run that is killed at once can go on, and a full disk is told at once
        begun, began_at = time.monotonic(), self.step
        end: End = "done"
        with signals() as asked:
            while self.step < settings.max_iters:
                late = settings.max_minutes is not None and (
                    time.monotonic() - begun >= settings.max_minutes * 60
                )
                metrics, wishes = self.update(bool(asked), late, self._over_budget())
                evaluated = bool(settings.eval_interval) and (
                    self.step % settings.eval_interval == 0 or self.step == settings.max_iters
                )
                if evaluated:
                    metrics = dataclasses.replace(metrics, val_loss=self.evaluate())
                if self.log is not None:
                    self.log.add(metrics)
                if self.tracking is not None:
                    self.tracking.add(metrics)
                passed = time.monotonic() - begun
                left = passed / (self.step - began_at) * (settings.max_iters - self.step)
                if settings.max_minutes is not None:
                    left = min(left, max(0.0, settings.max_minutes * 60 - passed))
                self.screen.step(metrics, left)
                if self.step % settings.checkpoint_interval == 0 or self.step == settings.max_iters or wishes:
                    self.save()
                if wishes and self.step < settings.max_iters:
                    end = wishes
                    break
        if self.ranks.first and picture.available() and self.step:
            path, drawn = (
                os.path.join(self.out, name) for name in (checkpoints.METRICS, checkpoints.PICTURE)
            )
            picture.draw(path, drawn, self.budget)
        return dataclasses.replace(self.outcome(end), signal=asked[0] if end == "signal" and asked else 0)

    def outcome(self, end: End) -> Outcome:
        return Outcome(self.step, end, self.train_loss, self.val_loss, self.best_val_loss)

    def update(self, asked: bool, late: bool, over: bool) -> tuple[Metrics, End | None]:
        """One step; and whether a rank wishes to end the run, and why."""
        settings, ranks = self.settings, self.ranks
        begun = time.perf_counter()
        micros = self.data.next()
        loaded = time.perf_counter()
        # Dropout is a function of the seed, the step and the rank, as the batch is: nothing to save.
        torch.manual_seed((settings.seed * 1_000_003 + self.step) * 4096 + ranks.rank)
        rate = learning_rate(settings, self.step)
        self.optimiser.set_learning_rate(rate)
        loss = torch.zeros((), device=ranks.device)
        for number, micro in enumerate(micros, 1):
            # Each window counts the same, however the ranks and micro-batches share them out.
            share = len(micro.x) / settings.global_batch
            with ranks.quiet(self.shared, last=number == len(micros)):
                with self._autocast():
                    _, part = self.shared(micro.x, micro.y, micro.documents)
                # The ranks' gradients are averaged, and are to be summed.
                self.scaler.scale(part * (share * ranks.world_size)).backward()
            loss += part.detach() * share
        total, *wishes = ranks.sum(loss.item(), asked, late, over)
        self._apply(total, rate)
        self.step += 1
        self.train_loss = total
        took = time.perf_counter() - begun
        tokens = settings.global_batch * settings.block_size
        metrics = Metrics(
            step=self.step,
            train_loss=total,
            val_loss=None,
            lr=rate,
            tokens=self.step * tokens,
            tokens_per_s=tokens / took,
            loader_ms=1000 * (loaded - begun),
            step_ms=1000 * took,
            rss_mib=resident() / 2**20,
        )
        names: tuple[End, ...] = ("signal", "time", "memory")
        return metrics, next((name for name, wish in zip(names, wishes, strict=True) if wish), None)

    def _apply(self, loss: float, rate: float) -> None:
        """Clip the gradients and change the weights, unless they would be spoilt."""
        for part in self.optimiser.parts:
            self.scaler.unscale_(part)
        largest = self.settings.grad_clip or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest))
        # With float16 a norm beyond all numbers is usual now and then, and the scaler leaves that step out.
        if not _finite(loss) or not (_finite(norm) or self.scaler.is_enabled()):
            what = (
                f"the loss is {loss}" if not _finite(loss) else f"the loss is {loss:.4g}, its gradient {norm}"
            )
            raise DivergedError(
                f"step {self.step + 1}: {what} at a learning rate of {rate:.3g}; the run stops, and "
                f"{os.path.join(self.out, checkpoints.LAST)} keeps the last good state. Begin again "
                "with a lower --learning-rate, a longer --warmup-iters or a --grad-clip, or look for damage "
                "in the data"
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
        """The mean loss over the validation batches; the best weights so far are kept apart."""
        self.model.eval()
        total = 0.0
        for x, y in self.data.validation():
            with self._autocast():
                total += float(self.callable(x, y)[1])
        self.model.train()
        self.val_loss = self.ranks.sum(total)[0] / self.data.evaluations
        if self.best_val_loss is None or self.val_loss < self.best_val_loss:
            self.best_val_loss = self.val_loss
            if self.ranks.first:
                self._checkpoint().save(os.path.join(self.out, checkpoints.BEST))
        return self.val_loss

    # Its state

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            step=self.step,
            settings=self.settings,
            config=self.model.config,
            model=self.model.state_dict(),
            best_val_loss=self.best_val_loss,
        )

    def save(self) -> None:
        """Everything that the run needs to go on as if nothing had happened."""
        if not self.ranks.first:
            return
        if self.log is not None:
            self.log.sync()
        dataclasses.replace(
            self._checkpoint(),
            optimiser=self.optimiser.state_dict(),
            scaler=self.scaler.state_dict(),
            batches=self.data.stream.state_dict(),
        ).save(os.path.join(self.out, checkpoints.LAST))

    def _restore(self, saved: Checkpoint) -> None:
        path = os.path.join(self.out, checkpoints.LAST)
        checkpoints.fill(self.model, saved, path)
        checkpoints.restore(self.optimiser, saved, path)
        if self.scaler.is_enabled() and saved.scaler:
            self.scaler.load_state_dict(dict(saved.scaler))
        assert saved.batches is not None  # or restore would have said so
        self.data.stream.load_state_dict(saved.batches)
        self.step, self.best_val_loss = saved.step, saved.best_val_loss

    def _over_budget(self) -> bool:
        """Whether memory passed the budget, by the kernel's own mark: nothing falls between two steps."""
        if self.budget is None or proc.status().peak <= self.budget:
            return False
        if self.settings.over_budget == "stop":
            return True
        if not self._warned:
            self._warned = True
            peak, budget = format_size(proc.status().peak), format_size(self.budget)
            self.screen.say(f"warning: step {self.step}: memory reached {peak}, the budget is {budget}")
        return False

    def close(self) -> None:
        for one in (self.log, self.tracking):
            if one is not None:
                one.close()


def model_config(settings: Settings) -> ModelConfig:
    """The model that settings describe."""
    assert settings.vocab_size is not None
    return ModelConfig(
        vocab_size=settings.vocab_size,
        block_size=settings.block_size,
        **{name: getattr(settings, name) for name in ARCHITECTURE},
    )


def decided_by(initial: GPT | None) -> dict[str, Any]:
    """The settings that are no longer free when training begins with these weights."""
    if initial is None:
        return {}
    return {name: getattr(initial.config, name) for name in (*ARCHITECTURE, "vocab_size")}


def compiled(model: GPT, settings: Settings, screen: Screen) -> Any:
    """The model through ``torch.compile``, or as it is where that fails; tried before any training."""
    device = next(model.parameters()).device
    try:
        made = torch.compile(model)
        ids = torch.zeros((settings.batch_size, settings.block_size), dtype=torch.int64, device=device)
        made(ids, ids)[1].backward()
    except Exception as error:  # whatever a compiler says
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        screen.say(f"torch.compile does not work here, training without it: {said}")
        return model
    finally:
        model.zero_grad(set_to_none=True)
    return made


@contextmanager
def signals() -> Iterator[list[int]]:
    """The signals that asked the run to end; a second one ends it at once, without saving."""
    asked: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _frame: object) -> None:
        asked.append(number)
        _put_back(before)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread, which alone hears signals
        pass
    try:
        yield asked
    finally:
        _put_back(before)


def _put_back(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _finite(value: float) -> bool:
    return value - value == 0
