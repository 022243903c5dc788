"""``lowtide completion SHELL``: the script that makes TAB complete."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}

VARIABLE = "_LOWTIDE_COMPLETE"
"""What the script sets when it asks `lowtide` for completions; click derives it from the program's name."""


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes lowtide's commands, options and paths on TAB.

    Run the command for your shell, and open a new shell. Bash must be 4.4 or newer; in zsh the line must come
    after `autoload -U compinit; compinit`.

    \b
        echo 'eval "$(lowtide completion bash)"' >> ~/.bashrc
        echo 'eval "$(lowtide completion zsh)"' >> ~/.zshrc
        lowtide completion fish > ~/.config/fish/completions/lowtide.fish
    """
    click.echo(_SHELLS[shell](ctx.find_root().command, {}, "lowtide", VARIABLE).source())
