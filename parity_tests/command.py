"""What the commands share: kinds of options, the console, and how a command refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, ProgressColumn

from parity_tests import text

console = Console()
errors = Console(stderr=True)


class CommaList(click.ParamType):
    """Names with commas between them, each one of the choices where there are any."""

    name = "names"

    def __init__(self, choices: tuple[str, ...] = ()) -> None:
        self.choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The names as a list without repetitions."""
        names = list(dict.fromkeys(filter(None, value.split(",")))) if isinstance(value, str) else list(value)
        for name in names:
            if self.choices and name not in self.choices:
                self.fail(f"{name!r}: expected some of {', '.join(self.choices)}.", param, ctx)
        return names


class Device(click.ParamType):
    """The name of a device: cpu or cuda, and which of them where there are several."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        if re.fullmatch(r"(cpu|cuda)(:[1-9][0-9]*)?", value) is None:
            self.fail(f"{value!r}: expected cpu, cuda, or one of several, as cuda:1.", param, ctx)
        return str(value)


class Refused(click.ClickException):
    """What was given cannot be judged."""

    exit_code = 2


Command = Callable[..., None]


def options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator."""

    def decorate(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate


corpus_option = click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sentence pairs, one pair a line with a tab between; generated dates unless given.",
)
device_option = click.option(
    "--device",
    type=Device(),
    metavar="DEVICE",
    default="cpu",
    show_default=True,
    help="Where to run: cpu, cuda, or one of several, as cuda:1.",
)
worker_options = options(
    device_option,
    click.option(
        "--python",
        "pythons",
        metavar="NAME=PATH",
        multiple=True,
        help="Run a backend with another interpreter, "
        "whose environment has NumPy, safetensors and the framework. May be given for each backend.",
    ),
)


def pairs_in(corpus: Path) -> list[text.Pair]:
    """The sentence pairs of a file; what was left out of it is told.

    Raises: CorpusError.
    """
    found = text.read_corpus(corpus)
    if found.told:
        click.echo(f"{corpus}: {found.told}", err=True)
    return found.pairs


def bars(*columns: ProgressColumn) -> Progress:
    """Bars on standard error that go when they are done; where that is no terminal, nothing is printed."""
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def interpreters(pythons: tuple[str, ...]) -> dict[str, str]:
    """The interpreters given as NAME=PATH, by name."""
    chosen = {}
    for entry in pythons:
        name, equals, path = entry.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{entry!r}: expected NAME=PATH, as mxnet=venv/bin/python", param_hint="--python")
        if not Path(path).is_file():
            raise click.BadParameter(f"{path} does not exist", param_hint="--python")
        chosen[name] = str(Path(path).absolute())
    return chosen
