"""Commands in this process: what they print, and how they exit."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner, Result

from benchmarks.command import bench
from parity_tests.cli.main import main


def invoke(*arguments: object) -> Result:
    """Run `attention-parity`, or `python -m benchmarks` if that is the first word, with these arguments."""
    words = [str(argument) for argument in arguments]
    if words[:1] == ["benchmarks"]:
        return CliRunner().invoke(bench, words[1:])
    return CliRunner().invoke(main, words)


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


COMMANDS = {**dict(commands(main)), ("benchmarks",): bench}
"""Every command that `invoke` runs."""
