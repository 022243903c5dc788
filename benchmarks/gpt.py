"""A character GPT with nanoGPT's settings for a CPU: loss and time per step against nanoGPT itself.

nanoGPT is deprecated in favour of nanochat, as its README says; its CPU recipe remains a common reference.
Bars, each in one run that takes turns between the models:

- preset ``nanogpt``: the loss of nanoGPT within 0.02, in at most its time per step;
- preset ``modern``: at least 0.28 lower at the end, the final loss of ``nanogpt`` in at most a third of the
  steps, at most 1.25 times its time per step.

``--text FILE`` trains on that text (nanoGPT publishes 1.88 for tiny Shakespeare) instead of the two that a
Debian system has. ``--ablate`` shows the contribution of each part of ``modern``. ``--speed`` compares times
per step only, in a few dozen steps; on a machine with other work the processor time with ``--threads 1`` is
the figure to look at. ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2`` in
the environment emulates a processor without AVX-512: in PyTorch's own loops, and in its products of bfloat16
and float32 matrices.
"""

from __future__ import annotations

import argparse
import glob
import math
import os
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lowtide
from benchmarks import nanogpt
from benchmarks.harness import Report, run
from lowtide._gpt import optim, presets
from lowtide._gpt.config import resolve
from lowtide._gpt.model import GPT, ModelConfig
from lowtide._gpt.train import keep_heap

SIZES: dict[str, Any] = {"length": 64, "n_layer": 4, "n_head": 4, "n_embd": 128}
BATCH, STEPS, WARMUP, EVERY = 12, 2000, 100, 100
RATE, LEAST, BETAS, DECAY, CLIP = 1e-3, 1e-4, (0.9, 0.99), 0.1, 1.0
TURN = 10  # steps of a model before the next one has its turn


class Data:
    """A text as characters: nine tenths for batches, the last tenth for validation."""

    def __init__(self, text: str, folder: str) -> None:
        letters = sorted(set(text))
        self.vocab_size = len(letters)
        codes = {letter: number for number, letter in enumerate(letters)}
        ids = np.array([codes[letter] for letter in text], np.uint16)
        cut = len(ids) * 9 // 10
        ids[:cut].tofile(os.path.join(folder, "train.bin"))
        self.corpus = lowtide.corpus(os.path.join(folder, "train.bin"), dtype="uint16")
        block = SIZES["length"]
        rows = (len(ids) - cut - 1) // block
        rest = torch.from_numpy(ids[cut:].astype(np.int64))
        self.inputs, self.targets = (rest[shift : shift + rows * block].view(rows, block) for shift in (0, 1))

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same for every model."""
        built = self.corpus.batches(BATCH, SIZES["length"], order="random", seed=seed)
        return iter(built.torch())

    @torch.no_grad()
    def validate(self, model: nn.Module) -> float:
        total = 0.0
        rows = range(0, len(self.inputs), 128)
        for inputs, targets in ((self.inputs[r : r + 128], self.targets[r : r + 128]) for r in rows):
            total += model(inputs, targets)[1].item() * len(inputs)
        return total / len(self.inputs)


@dataclass
class Race:
    """One model during the race."""

    name: str
    model: nn.Module
    optimiser: Any
    set_rate: Callable[[float], None]
    batches: Iterator[tuple[Tensor, Tensor]]
    losses: dict[int, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def turn(self, first: int, last: int) -> None:
        for step in range(first, last):
            x, y = next(self.batches)
            started, used = time.perf_counter(), time.process_time()
            self.set_rate(scheduled(step))
            _, loss = self.model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimiser.step()
            self.optimiser.zero_grad()
            self.seconds.append(time.perf_counter() - started)
            self.processor.append(time.process_time() - used)

    @property
    def final(self) -> float:
        return self.losses[STEPS]

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.seconds) * 1000

    @property
    def processor_milliseconds(self) -> float:
        return statistics.median(self.processor) * 1000

    def steps_to(self, loss: float) -> int | None:
        """The first evaluated step that reached the loss."""
        return next((step for step, value in self.losses.items() if value <= loss), None)


def scheduled(step: int) -> float:
    """nanoGPT's schedule: linear warmup, then a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / (WARMUP + 1)
    part = (step - WARMUP) / (STEPS - WARMUP)
    return LEAST + (RATE - LEAST) * 0.5 * (1 + math.cos(math.pi * part))


def reference(data: Data, seed: int) -> Race:
    torch.manual_seed(seed)
    model = nanogpt.NanoGPT(
        data.vocab_size, SIZES["length"], SIZES["n_layer"], SIZES["n_head"], SIZES["n_embd"]
    )
    built = nanogpt.optimiser(model, RATE, DECAY, BETAS)

    def set_rate(rate: float) -> None:
        for group in built.param_groups:
            group["lr"] = rate

    return Race("nanoGPT", model, built, set_rate, data.batches(seed))


def preset(name: str, data: Data, seed: int, title: str = "", **changed: Any) -> Race:
    """A preset, with some of its choices changed."""
    torch.manual_seed(seed)
    chosen = {**presets.ARCHITECTURES[name], **presets.OPTIMISERS[name], **changed}
    shape = {key: chosen[key] for key in presets.ARCHITECTURES[name]}
    model = GPT(ModelConfig(vocab_size=data.vocab_size, **SIZES, dropout=0.0, **shape))
    rates = {"learning_rate": RATE, "beta1": BETAS[0], "beta2": BETAS[1]}
    given: dict[str, Any] = {
        key: chosen[key] for key in ("optimiser", "weight_decay", "muon_dtype") if key in chosen
    }
    settings = resolve({"data": "-", "device": "cpu", **rates, **given})
    built = optim.make(model, settings)
    return Race(title or name, model, built, built.set_learning_rate, data.batches(seed))


def race(runners: list[Race], data: Data) -> None:
    """Train all models by turns; the losses are reported on the way, since it takes minutes."""
    for step in (*range(0, STEPS, TURN), STEPS):
        if step % EVERY == 0 or step == STEPS:
            for runner in runners:
                runner.losses[step] = data.validate(runner.model)
            stand = ", ".join(f"{runner.name} {runner.losses[step]:.4f}" for runner in runners)
            print(f"step {step:,} of {STEPS:,}: {stand}", file=sys.stderr, flush=True)
        if step < STEPS:
            for runner in runners:
                runner.turn(step, min(step + TURN, STEPS))


def sources() -> str:
    """About a megabyte of the standard library, from files in no particular order."""
    paths = sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py")))
    random.Random(0).shuffle(paths)
    return _ascii(paths)


def manuals() -> str:
    """English: licences and READMEs as a Debian system has them."""
    paths = sorted(glob.glob("/usr/share/common-licenses/*")) + sorted(glob.glob("/usr/share/doc/*/README*"))
    random.Random(0).shuffle(paths)
    return _ascii([path for path in paths if not path.endswith(".gz")])


def _ascii(paths: list[str], limit: int = 1_100_000) -> str:
    text = ""
    for path in paths:
        with open(path, encoding="ascii", errors="ignore") as file:
            text += file.read()
        if len(text) >= limit:
            break
    return text[:limit]


def against(name: str, text: str, seed: int) -> list[Report]:
    """Compare the three models on one text."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        data = Data(text, folder)
        runners = [reference(data, seed), preset("nanogpt", data, seed), preset("modern", data, seed)]
        race(runners, data)
    report = Report(f"A character GPT on {name}: {len(text):,} characters, {STEPS} steps")
    theirs, same, modern = runners
    for runner in runners:
        report.row(
            runner.name,
            **{
                "loss": round(runner.final, 4),
                "ms/step": runner.milliseconds,
                "steps to nanogpt's loss": runner.steps_to(same.final),
            },
        )
    report.claim("nanogpt's loss - nanoGPT's", same.final - theirs.final, 0.02, at_most=True)
    report.claim("nanogpt's time / nanoGPT's", same.milliseconds / theirs.milliseconds, 1.0, at_most=True)
    report.claim("nanogpt's loss - modern's", same.final - modern.final, 0.28)
    report.claim("part of the steps", (modern.steps_to(same.final) or math.inf) / STEPS, 1 / 3, at_most=True)
    report.claim("modern's time / nanogpt's", modern.milliseconds / same.milliseconds, 1.25, at_most=True)
    return [report]


INGREDIENTS: dict[str, dict[str, Any]] = {
    "modern": {},
    "learned positions": {"positions": "learned"},
    "no QK norm": {"qk_norm": False},
    "GELU": {"activation": "gelu"},
    "no zero at the start": {"zero_init": False},
    "tied head": {"tied": True},
    "RMSNorm": {"norm": "rmsnorm"},
    "AdamW": {"optimiser": "adamw"},
    "nanogpt": presets.ARCHITECTURES["nanogpt"] | {"optimiser": "adamw"},
}
"""``modern`` without one ingredient, and without all."""


def speed(text: str, seed: int) -> list[Report]:
    """Time per step of the presets, and of ``modern`` with each dtype of Muon and with AdamW."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        data = Data(text, folder)
        runners = [
            preset("nanogpt", data, seed),
            preset("modern", data, seed),
            preset("modern", data, seed, "modern, Muon in float32", muon_dtype="float32"),
            preset("modern", data, seed, "modern, Muon in bfloat16", muon_dtype="bfloat16"),
            preset("modern", data, seed, "modern, AdamW", optimiser="adamw"),
        ]
        for step in range(0, STEPS, TURN):
            for runner in runners:
                runner.turn(step, min(step + TURN, STEPS))
    report = Report(f"Time per step, {STEPS} steps by turns, {torch.get_num_threads()} threads")
    same, modern = runners[:2]
    for runner in runners:
        report.row(
            runner.name,
            **{
                "ms/step": runner.milliseconds,
                "ratio to nanogpt": round(runner.milliseconds / same.milliseconds, 3),
                "processor ms/step": runner.processor_milliseconds,
                "ratio": round(runner.processor_milliseconds / same.processor_milliseconds, 3),
            },
        )
    report.notes.append(f"Muon's dtype here: {optim.fastest_dtype('cpu')}")
    report.claim("modern's time / nanogpt's", modern.milliseconds / same.milliseconds, 1.25, at_most=True)
    ratio = modern.processor_milliseconds / same.processor_milliseconds
    report.claim("modern's processor time / nanogpt's", ratio, 1.25, at_most=True)
    return [report]


def ablation(name: str, text: str, seed: int) -> list[Report]:
    """Contribution of each ingredient: loss and time without it."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        data = Data(text, folder)
        runners = [preset("modern", data, seed, title, **changed) for title, changed in INGREDIENTS.items()]
        race(runners, data)
    report = Report(f"modern without one ingredient, on {name}, {STEPS} steps")
    whole = runners[0]
    for runner in runners:
        report.row(
            runner.name,
            loss=round(runner.final, 4),
            difference=round(runner.final - whole.final, 4),
            time=round(runner.milliseconds / whole.milliseconds, 2),
        )
    return [report]


def build(options: argparse.Namespace) -> list[Report]:
    """Loss and time per step of the presets against nanoGPT, with its settings for a CPU."""
    global STEPS
    STEPS = options.steps
    torch.set_num_threads(options.threads)
    keep_heap()  # as training does
    texts = {"the Python sources": sources, "English manuals": manuals}
    if options.text:
        with open(options.text, encoding="utf-8") as file:
            own = file.read()
        texts = {os.path.basename(options.text): lambda: own}
    if options.speed:
        return speed(sources(), options.seed)
    built = ablation if options.ablate else against
    return [report for name, text in texts.items() for report in built(name, text(), options.seed)]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", metavar="FILE", help="train on this text")
    parser.add_argument(
        "--ablate", action="store_true", help="leave out the ingredients of modern, one by one"
    )
    parser.add_argument("--speed", action="store_true", help="compare times per step only")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())


if __name__ == "__main__":
    run(build, _options)
