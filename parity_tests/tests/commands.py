"""Commands in this process: what they print, and how they exit."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner, Result

from parity_tests.cli.main import main


def invoke(*arguments: object) -> Result:
    """Run `attention-parity` with these arguments."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def squeezed(result: Result) -> str:
    """What was printed, without line breaks."""
    return " ".join(result.output.split())


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its names."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command
