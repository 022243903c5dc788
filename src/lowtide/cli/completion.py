"""``lowtide completion SHELL``: the script that makes TAB complete."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_LOWTIDE_COMPLETE"
"""What the script sets when it asks `lowtide` for completions; click derives it from the program's name."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes lowtide's commands, options and paths on TAB.

    Put one line where your shell finds it, and open a new one. Bash must be 4.4 or newer; in zsh the line
    stands after `autoload -U compinit; compinit`.

    \b
        echo 'eval "$(lowtide completion bash)"' >> ~/.bashrc
        echo 'eval "$(lowtide completion zsh)"' >> ~/.zshrc
        lowtide completion fish > ~/.config/fish/completions/lowtide.fish
    """
    kind = get_completion_class(shell)
    if kind is None:  # click knows all three
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "lowtide", VARIABLE).source())
