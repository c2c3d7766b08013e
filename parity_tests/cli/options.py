"""The shared options of the commands, and their parameter types."""

from __future__ import annotations

import glob
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
from parity_tests.cases.suite import all_cases
from parity_tests.cli import paths
from parity_tests.format.case import DTYPES, FULL, MIXED
from parity_tests.format.families import OPERATORS
from parity_tests.judge.request import DEVICE
from parity_tests.workers.environment import PATH

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""The settings of every command line."""


@add_completion_class
class Fish(FishComplete):
    """Completion in fish that keeps names with commas between them whole."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def completing(names: Callable[[], Iterable[str]]) -> Completion:
    """Complete one of the names in a shell."""
    return lambda context, parameter, begun: [name for name in names() if name.startswith(begun)]


complete_backend = completing(registry.available)


def complete_case(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the id of a case in a shell."""
    return [case.id for case in all_cases(trained=True).select(f"{glob.escape(begun)}*")]


def examples(*lines: str, program: str = "attention-parity") -> str:
    """The epilog of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {program} {line}" for line in lines)


class CommaList(click.ParamType):
    """Comma-separated names, each one of the choices if there are any; shells complete the choices or known names."""

    name = "names"

    def __init__(self, choices: tuple[str, ...] = (), known: Callable[[], Iterable[str]] = tuple) -> None:
        self.choices = choices
        self.known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The completions of the last name, after the names before it."""
        before, comma, begun = incomplete.rpartition(",")
        names = [name for name in self.choices or self.known() if name.startswith(begun)]
        return [CompletionItem(before + comma + name) for name in names if name not in before.split(",")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Split the value into a list without duplicates."""
        names = list(dict.fromkeys(value.split(","))) if isinstance(value, str) else list(value)
        if isinstance(value, str) and not all(name.strip() for name in names):
            self.fail(f"{value!r} has an empty name: expected comma-separated names.", param, ctx)
        for name in names:
            if self.choices and name not in self.choices:
                self.fail(f"{name!r}: expected some of {', '.join(self.choices)}.", param, ctx)
        return names


class Device(click.ParamType):
    """The name of a device: cpu or cuda, with an optional index."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name, and return it unchanged."""
        if re.fullmatch(DEVICE, value) is None:
            self.fail(f"{value!r}: expected cpu, cuda, or an index such as cuda:1.", param, ctx)
        return str(value)


class Seconds(click.FloatRange):
    """A positive, finite number of seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number of seconds."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not finite.", param, ctx)
        return seconds


SECONDS = Seconds(min=0.0, min_open=True)

Command = Callable[..., None]


def combine(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine several options into one decorator."""

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
    """Set the path of the workers that are started afterwards."""
    if path is not None:
        os.environ[PATH] = path


corpus = click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of tab-separated sentence pairs, one per line (default: generated dates).",
)
device = click.option(
    "--device",
    type=Device(),
    metavar="DEVICE",
    default="cpu",
    show_default=True,
    help="Device to run on: cpu, cuda, or an index such as cuda:1.",
)


def dtypes_among(known: tuple[str, ...]) -> Callable[[Command], Command]:
    """The option that selects some of these dtypes."""
    return click.option(
        "--dtype",
        "dtypes",
        type=CommaList(known),
        metavar="DTYPES",
        default=",".join(FULL),
        show_default=True,
        help=f"Comma-separated dtypes, of {', '.join(known)}.",
    )


dtypes = dtypes_among(DTYPES)
case = click.option(
    "--case",
    "pattern",
    metavar="PATTERN",
    shell_complete=complete_case,
    help="Only cases whose id matches this pattern (with *, ? and [!...]).",
)
operator = click.option(
    "--operator",
    "operators",
    type=CommaList(OPERATORS),
    metavar="NAMES",
    default=(),
    help="Only cases of these operators (comma-separated).",
)
selection = combine(
    case,
    operator,
    click.option(
        "--training",
        is_flag=True,
        help="Also run the training cases: the loss of every step and the final parameters. Takes minutes.",
    ),
    click.option(
        "--path",
        type=click.Choice(PATHS),
        callback=take_path,
        expose_value=False,
        help="Force blocked or plain computation at all sizes.",
    ),
)
cells = combine(dtypes, selection)
cells_of_backends = combine(dtypes_among((*DTYPES, *MIXED)), selection)
"""The fields of `Selection`, and the path. Each backend defines mixed precision for its framework."""
backends = click.option(
    "--backend",
    "names",
    type=CommaList(known=registry.available),
    metavar="NAMES",
    help="Comma-separated backends (default: all installed).",
)
every = click.option("--every", is_flag=True, help="Print a row for every operator, and all missing functions.")
json_file = output_file("--json", "json_file", help="Write every verdict to a file.")
html_file = output_file(
    "--html", "html_file", type=paths.HtmlFile(), help="Write a report to look at, as one HTML file."
)
summary_file = output_file("--summary", "summary_file", help="Write a summary in Markdown, for the page of a CI job.")
pages = combine(
    html_file,
    summary_file,
    output_file("--badge", "badge_file", help="Write a badge in SVG."),
)
"""What people look at; `terminal.write_pages` writes it."""
certificate = output_file(
    "--certificate",
    "certificate_file",
    type=paths.CertificateFile(),
    help="Write a certificate as JSON, and as a Markdown page with the suffix .md beside it.",
)
max_bytes = click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Memory limit for the arrays of SOURCE (default: 8 times its size plus 16 MiB).",
)
junit = output_file("--junit", "junit_file", help="Write the verdicts as JUnit XML for CI services.")


def interpreters(pythons: tuple[str, ...]) -> dict[str, str]:
    """Parse interpreters in the form NAME=PATH into a dict."""
    chosen = {}
    for entry in pythons:
        name, equals, path = entry.partition("=")
        if not equals or not name:
            raise click.BadParameter(
                f"{entry!r}: expected NAME=PATH, such as mxnet=venv/bin/python", param_hint="--python"
            )
        if not Path(path).is_file():
            raise click.BadParameter(f"{path} does not exist", param_hint="--python")
        chosen[name] = str(Path(path).absolute())
    return chosen


def python(help: str) -> Callable[[Command], Command]:
    """The option for other interpreters; the command receives a dict of paths."""
    return click.option(
        "--python",
        "pythons",
        metavar="NAME=PATH",
        multiple=True,
        callback=lambda context, option, entries: interpreters(entries),
        help=help,
    )


scheduler = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Run on the workers of this Dask scheduler, such as tcp://host:8786, and compare each version that they have.",
)
worker = combine(
    device,
    python(
        "Run a backend with another interpreter, which needs NumPy, safetensors and the framework. May be repeated."
    ),
)
