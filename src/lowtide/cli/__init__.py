"""The command line: one module per command, imported when it is called."""

from __future__ import annotations

import io
import sys
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from lowtide import __version__
from lowtide._printable import printable
from lowtide.cli import output, status
from lowtide.errors import LowtideError, MemoryBudgetExceeded

# With their one line of help, so that `lowtide --help` does not import them all.
COMMANDS = {
    "demo": "Show what lowtide does, on this machine, in a minute or two.",
    "info": "Show what a file is: format, shape, dtype, members.",
    "compare": "Measure np.memmap against lowtide's readers on your own file.",
    "shuffle": "Rewrite an array in a uniformly shuffled order.",
    "copy": "Copy files and corpora to and from buckets.",
    "prepare": "Turn text, JSON lines or Parquet into a token corpus.",
    "train": "Train a GPT on a token corpus, in memory that does not grow.",
    "sample": "Write text with a trained GPT.",
    "export": "Write a trained GPT in the format of Hugging Face.",
    "profile": "Measure the memory of a command, over time and over bytes read.",
    "watch": "Show the memory of a running process, live.",
    "mprof": "Record memory over time, in memory_profiler's files.",
    "report": "Make the HTML report of a saved profile or a .dat file.",
    "doctor": "Show what this machine and container allow, with advice.",
    "completion": "Print the script that makes TAB complete in your shell.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            if close and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {close[0]!r}?")
            return None
        command: click.Command = import_module(f"lowtide.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        # Not around main(): click would take EOFError, and so a truncated file, for Ctrl-D.
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            status.interrupted(*error.args[:1])
            ctx.exit(status.INTERRUPTED)
        except click.ClickException as error:
            # A group without a command (click 8.2): the message is the help, which has no names of strangers.
            keep = "\n" if type(error).__name__ == "NoArgsIsHelpError" else ""
            vars(error).update(message=printable(error.message, keep))
            raise
        except (LowtideError, OSError, EOFError) as error:
            output.abandon()
            if isinstance(error, BrokenPipeError):
                ctx.exit(status.UNREAD)
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            click.echo(f"lowtide: {status.explain(error, command)}", err=True)
            ctx.exit(status.OVER_BUDGET if isinstance(error, MemoryBudgetExceeded) else status.FAILED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        # Click's own method imports every matching command, and a TAB should not wait for NumPy.
        names = [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, message="lowtide %(version)s")
def cli() -> None:
    """Data bigger than memory, read with memory that never rises.

    \b
        lowtide info features.npy                what is it?
        lowtide compare features.npy             how do np.memmap and lowtide read it?
        lowtide profile -- python train.py       does the memory of my program grow?

    \b
        lowtide prepare books/ -o corpus         from text to tokens,
        lowtide train --data corpus --out run    from tokens to a model,
        lowtide sample run                       and back to text

    `lowtide COMMAND --help` has the options and examples.
    """


def main() -> None:
    """Run the ``lowtide`` program; its own errors are messages, not tracebacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no name and no bar is worth an exception
    cli(prog_name="lowtide")
