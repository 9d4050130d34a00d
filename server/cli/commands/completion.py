"""`vouchmq completion bash`, `zsh` and `fish`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from vouchmq.server.cli.program import NAME

VARIABLE = "_VOUCHMQ_COMPLETE"


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print a script with which a shell completes the words of vouchmq: bash, zsh or fish.

    Have the shell read it when it starts: source <(vouchmq completion bash) in ~/.bashrc, the same
    with zsh in ~/.zshrc, or vouchmq completion fish > ~/.config/fish/completions/vouchmq.fish.
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(found(context.find_root().command, {}, NAME, VARIABLE).source())
    return 0
