"""The command line: one module a command, imported when it is called."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from lowtide import __version__
from lowtide.errors import LowtideError

# Listed here with their one line of help, so that `lowtide --help` need not import them all.
COMMANDS = {
    "demo": "Show what lowtide does, on this machine, in a minute or two.",
    "info": "Say what a file is: format, shape, dtype, members.",
    "compare": "Measure np.memmap against lowtide's readers on your own file.",
    "shuffle": "Rewrite an array in a uniformly shuffled order.",
    "prepare": "Turn text, JSON lines or Parquet into a token corpus.",
    "train": "Train a GPT on a token corpus, in memory that does not grow.",
    "sample": "Text from a trained GPT.",
    "export": "Write a trained GPT in the format of Hugging Face.",
    "profile": "Memory of a command, over time and over bytes read.",
    "watch": "Memory of a running process, live.",
    "report": "An HTML report from a saved profile or a .dat file.",
    "doctor": "What this machine and container allow, with advice.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"lowtide.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="lowtide %(version)s")
def cli() -> None:
    """Data bigger than memory, read with memory that never rises."""


def main() -> None:
    """The ``lowtide`` program: what it raises on purpose is a message and not a traceback."""
    try:
        cli(prog_name="lowtide")
    except LowtideError as error:
        click.echo(f"lowtide: {error}", err=True)
        sys.exit(1)
