"""The commands of a checkout: those of attention-parity, and `python -m benchmarks`, which is not installed."""

from __future__ import annotations

from click.testing import CliRunner, Result

from benchmarks.command import bench
from parity_tests.cli.main import main
from parity_tests.tests import commands

COMMANDS = {**dict(commands.commands(main)), ("benchmarks",): bench}


def invoke(*arguments: object) -> Result:
    """Run `attention-parity`, or `python -m benchmarks` if that is the first word, with these arguments."""
    first, *rest = map(str, arguments)
    return CliRunner().invoke(bench, rest) if first == "benchmarks" else commands.invoke(*arguments)
