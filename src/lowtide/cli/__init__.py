"""The command line: one module a command, imported when it is called."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "doctor": "What this machine and container allow, with advice.",
    "profile": "Memory of a command, over time and over bytes read.",
    "report": "An HTML report from a saved profile or a .dat file.",
    "watch": "Memory of a running process, live.",
}


class Commands(click.Group):
    """Finds a command by its module's name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"lowtide.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=Commands)
@click.version_option(package_name="lowtide")
def main() -> None:
    """Data bigger than memory, read with memory that never rises."""
