"""The steps of the demo, in order, each with a sentence about it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

import lowtide
from lowtide._compare.runs import Run
from lowtide._io.atomic import write_file
from lowtide._prepare.summary import Summary
from lowtide._printable import printable
from lowtide._sizes import format_size
from lowtide.demo import charts, page, sources, training, walks
from lowtide.demo.folder import Folder
from lowtide.demo.page import Story
from lowtide.demo.sources import Texts
from lowtide.demo.terminal import area
from lowtide.demo.training import Training

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a demo. Without ``training`` it needs neither PyTorch nor a tokenizer library."""

    text_size: int
    array_size: int
    tokenizer: str
    training: Mapping[str, Any] | None
    beside: int
    """Bytes on disk beside the array: text, tokens, checkpoints."""


QUICK = Plan(text_size=16 * _MIB, array_size=512 * _MIB, tokenizer="byte", training=None, beside=64 * _MIB)
FULL = Plan(
    text_size=16 * _MIB,
    array_size=1024 * _MIB,
    tokenizer="bpe:1024",
    training=training.SETTINGS,
    beside=128 * _MIB,
)


def tour(out: str, plan: Plan) -> None:
    """Run every step, and write the page into the folder ``out``."""
    if plan.training is not None:
        training.require()
    folder = Folder(out)
    folder.prepare()
    size = walks.fitting_size(plan.array_size, folder.path, plan.beside)
    _Tour(folder, plan, size).run()


@dataclass
class _Tour:
    folder: Folder
    plan: Plan
    size: int
    console: Console = field(default_factory=lambda: Console(highlight=False, markup=False))
    commands: list[tuple[str, str]] = field(default_factory=list)
    step: int = 0

    def run(self) -> None:
        started = time.time()
        texts = self.text()
        corpus, seconds = self.prepare()
        runs = self.two_curves()
        trained = sample = None
        if self.plan.training is not None:
            trained = self.train(self.plan.training)
            sample = self.sample()
        story = Story(
            started=started,
            texts=texts,
            corpus=corpus,
            corpus_seconds=seconds,
            array_size=self.size,
            walks=runs,
            training=trained,
            sample=sample,
            commands=self.commands,
        )
        self.report(story)

    def headline(self, title: str, shows: str) -> None:
        self.step += 1
        steps = 4 if self.plan.training is None else 6
        self.console.print(f"\n{self.step} of {steps} · {title}", style="bold")
        self.console.print(shows)

    def command(self, what: str, *words: str, **options: Any) -> None:
        """Show the command that does the same, and record it for the page."""
        for name, value in options.items():
            words = (*words, "--" + name.replace("_", "-"), str(value))
        line = shlex.join(("lowtide", *words))
        self.commands.append((what, line))
        self.console.print(f"$ {printable(line)}", style="cyan", soft_wrap=True)

    def text(self) -> Texts:
        self.headline("Text", "The Python sources that every interpreter carries are the text of this demo.")
        texts = sources.copy(self.folder.text, self.plan.text_size)
        self.console.print(f"{texts.files:,} files, {format_size(texts.size)}, in {printable(texts.folder)}")
        return texts

    def prepare(self) -> tuple[Summary, float]:
        self.headline(
            "Prepare",
            "Text becomes a corpus: tokens on disk, encoded on all cores in bounded memory. A run that is "
            "killed resumes where it was.",
        )
        options: dict[str, Any] = {"tokenizer": self.plan.tokenizer, "val_fraction": 0.05}
        self.command("Text to tokens", "prepare", self.folder.text, "--out", self.folder.corpus, **options)
        start = time.monotonic()
        with self.console.status("preparing"):
            summary = lowtide.prepare(self.folder.text, self.folder.corpus, **options)
        seconds = time.monotonic() - start
        self.console.print(f"{summary.documents:,} documents, {summary.tokens:,} tokens in {seconds:.1f} s")
        return summary, seconds

    def two_curves(self) -> list[Run]:
        self.headline(
            "Two curves",
            f"An array of {format_size(self.size)}, read with np.memmap and with lowtide, each in a separate "
            "process. Mapped pages stay once they are touched; lowtide reuses its buffers.",
        )
        if self.size < self.plan.array_size:
            self.console.print(
                f"({format_size(self.plan.array_size)} does not fit into the memory or the disk here.)",
                style="dim",
            )
        with (
            self.console.status("reading it four times"),
            walks.array(self.folder.scratch, self.size) as path,
        ):
            runs = list(walks.walk(path))
        self.commands.append(
            (
                "The two curves for every reader, also from the disk",
                f"lowtide compare --make {self.size // _MIB}MiB",
            )
        )
        self.console.print(_panels(runs, self.size))
        self.console.print()
        self.console.print(_table(runs))
        self.console.print(page.memory_summary(runs), page.speed_summary(runs))
        if charts.available():
            chart = charts.svg(charts.two_curves(runs, self.size), 720, 380, standalone=True)
            write_file(self.folder.curves, chart.encode())
        return runs

    def train(self, settings: Mapping[str, Any]) -> Training:
        self.headline(
            "Train",
            "A small GPT trains on the corpus for a minute. Batches are read during the previous step: "
            "waiting for them (loader) takes almost no time, and memory stays constant.",
        )
        settings = training.fit(settings)
        options = {"data": self.folder.corpus, "out": self.folder.run, **settings}
        self.command("A small GPT", "train", **options)
        result = training.train(self.folder.corpus, self.folder.run, settings)
        last = result.metrics[-1]
        early = (
            ""
            if last["step"] == settings["max_iters"]
            else f" of {settings['max_iters']:,}: max_minutes ended it"
        )
        self.console.print(
            f"{last['step']:,} steps{early}, {last['tokens']:,} tokens, {result.seconds:.0f} s"
        )
        return result

    def sample(self) -> str:
        self.headline("Sample", "Text from the trained model.")
        self.command("Text from it", "sample", self.folder.run, **training.SAMPLE)
        parts = []
        for part in training.sample(self.folder.run, training.SAMPLE):
            parts.append(part)
            click.echo(part, nl=False)  # as it comes, and not wrapped
        click.echo()
        return "".join(parts)

    def report(self, story: Story) -> None:
        page.save(self.folder.report, story)
        self.folder.keep(story.to_json())
        self.headline("Report", "Everything on one page, with the commands and what to try next:")
        self.console.print(printable(self.folder.report), style="bold", soft_wrap=True)
        self.console.print(f"{time.time() - story.started:.0f} s in all", style="dim")


def _panels(runs: list[Run], size: int) -> Table:
    """Memory over bytes read, in order: np.memmap and lowtide, on one scale."""
    width, height = 30, 8
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True)
    table.add_column(Text(f"{format_size(size)} ┐", style="dim"), justify="right", no_wrap=True)
    panels = []
    for walk, style in zip((walk for walk in runs if not walk.shuffled), ("yellow", "cyan"), strict=True):
        table.add_column(f"{walks.name(walk)}, in order", no_wrap=True, header_style=style)
        lines = area(walk.figures["samples"], size, size, width, height)
        panels.append([Text(line, style=style) for line in lines])
    for row, cells in enumerate(zip(*panels, strict=True)):
        table.add_row(Text("0 ┘" if row == height - 1 else "│", style="dim"), *cells)
    below = f"0{'bytes read':^{width - 1 - len(format_size(size))}}{format_size(size)}"
    table.add_row("", *(Text(below, style="dim") for _ in panels))
    return table


def _table(runs: list[Run]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, justify in (("reader", "left"), ("order", "left"), ("peak", "right"), ("speed", "right")):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for walk in runs:
        table.add_row(
            walks.name(walk),
            "shuffled" if walk.shuffled else "in order",
            format_size(walks.peak(walk)),
            f"{walk.speed / 1e9:.2f} GB/s" + ("" if walk.figures["complete"] else " (stopped)"),
            style="bold" if walks.name(walk) == "lowtide" else "",
        )
    return table
