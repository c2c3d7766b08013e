"""The options that commands share, and the kinds of their values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class

import backends as registry
from attention_core.errors import PATHS
from parity_tests.cases.case import DTYPES, FULL, MIXED
from parity_tests.cases.suite import NAMES, all_cases
from parity_tests.cli import paths
from parity_tests.judge.request import DEVICE
from parity_tests.workers.environment import PATH


@add_completion_class
class Fish(FishComplete):
    """Completion in fish that keeps names with commas between them whole."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def completing(names: Callable[[], Iterable[str]]) -> Completion:
    """Complete one of the names in a shell."""
    return lambda context, parameter, begun: [name for name in names() if name.startswith(begun)]


complete_backend = completing(registry.available)
complete_case = completing(lambda: [case.id for case in all_cases(trained=True)])


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  attention-parity {line}" for line in lines)


class CommaList(click.ParamType):
    """Names with commas between them, each of the choices if there are any; a shell completes them, or known ones."""

    name = "names"

    def __init__(self, choices: tuple[str, ...] = (), known: Callable[[], Iterable[str]] = tuple) -> None:
        self.choices = choices
        self.known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that the last one may become, behind those that are there."""
        before, comma, begun = incomplete.rpartition(",")
        names = [name for name in self.choices or self.known() if name.startswith(begun)]
        return [CompletionItem(before + comma + name) for name in names if name not in before.split(",")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The names as a list without repetitions."""
        names = list(dict.fromkeys(value.split(","))) if isinstance(value, str) else list(value)
        if isinstance(value, str) and not all(name.strip() for name in names):
            self.fail(f"{value!r} has an empty name: expected names with commas between them.", param, ctx)
        for name in names:
            if self.choices and name not in self.choices:
                self.fail(f"{name!r}: expected some of {', '.join(self.choices)}.", param, ctx)
        return names


class Device(click.ParamType):
    """The name of a device: cpu or cuda, and which of them where there are several."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        if re.fullmatch(DEVICE, value) is None:
            self.fail(f"{value!r}: expected cpu, cuda, or one of several, as cuda:1.", param, ctx)
        return str(value)


class Seconds(click.FloatRange):
    """A time that is neither none nor without end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not finite.", param, ctx)
        return seconds


SECONDS = Seconds(min=0.0, min_open=True)

Command = Callable[..., None]


def combined(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator."""

    def decorate(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate


def output_file(
    *names: str, metavar: str = "FILE", type: click.ParamType | None = None, **keywords: Any
) -> Callable[[Command], Command]:
    """An option that names a file to write."""
    return click.option(*names, type=type or paths.OutputFile(), metavar=metavar, **keywords)


def take_path(context: click.Context, option: click.Parameter, path: str | None) -> None:
    """Tell the workers to come which path to take."""
    if path is not None:
        os.environ[PATH] = path


corpus = click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sentence pairs, one pair a line with a tab between; generated dates unless given.",
)
device = click.option(
    "--device",
    type=Device(),
    metavar="DEVICE",
    default="cpu",
    show_default=True,
    help="Where to run: cpu, cuda, or one of several, as cuda:1.",
)


def dtypes_among(known: tuple[str, ...]) -> Callable[[Command], Command]:
    """The option of the dtypes to judge in, of those."""
    return click.option(
        "--dtype",
        "dtypes",
        type=CommaList(known),
        metavar="DTYPES",
        default=",".join(FULL),
        show_default=True,
        help=f"dtypes to judge in, with commas; there are {', '.join(known)}.",
    )


dtypes = dtypes_among(DTYPES)
selection = combined(
    click.option(
        "--case",
        "pattern",
        metavar="PATTERN",
        shell_complete=complete_case,
        help="Only cases whose id matches, with * and ?.",
    ),
    click.option(
        "--operator",
        "operators",
        type=CommaList(NAMES),
        metavar="NAMES",
        default=(),
        help="Only cases of these operators, with commas.",
    ),
    click.option(
        "--training",
        is_flag=True,
        help="Train translators, too: losses of every step, and parameters at the end. Takes minutes.",
    ),
    click.option(
        "--path",
        type=click.Choice(PATHS),
        callback=take_path,
        expose_value=False,
        help="Have backends take one path for all sizes, where they would choose by size.",
    ),
)
cells = combined(dtypes, selection)
cells_of_backends = combined(dtypes_among((*DTYPES, *MIXED)), selection)
"""The fields of `Selection`, and the path. What mixed precision is, each backend says of its framework."""
backends = click.option(
    "--backend",
    "names",
    type=CommaList(known=registry.available),
    metavar="NAMES",
    help="The backends, with commas; all installed ones unless given.",
)
every = click.option("--every", is_flag=True, help="Print a row for every operator, however many there are.")
json_file = output_file("--json", "json_file", help="Write every verdict to a file.")
certificate = output_file(
    "--certificate",
    "certificate_file",
    type=paths.CertificateFile(),
    help="Write a certificate as JSON, and beside it, with the suffix .md, as a page.",
)
max_bytes = click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="What the arrays of SOURCE may take in memory; 8 times its size and 16 MiB unless given.",
)
junit = output_file("--junit", "junit_file", help="Write the verdicts as JUnit XML, which CI services show.")


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


def python(help: str) -> Callable[[Command], Command]:
    """The option that gives another interpreter; the command gets the paths by name."""
    return click.option(
        "--python",
        "pythons",
        metavar="NAME=PATH",
        multiple=True,
        callback=lambda context, option, entries: interpreters(entries),
        help=help,
    )


worker = combined(
    device,
    python(
        "Run a backend with another interpreter, whose environment has NumPy, safetensors and the framework. May be "
        "given for each backend."
    ),
)
