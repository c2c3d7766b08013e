"""What the commands share: kinds of options, the console, and how a command refuses."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

import backends as registry
from attention_core.errors import PATHS
from parity_tests.cases.case import DTYPES, FULL
from parity_tests.cases.suite import NAMES, all_cases
from parity_tests.judge.run import Run
from parity_tests.reports.certificate import Certificate, save
from parity_tests.translation.corpus import Pair, read_corpus
from parity_tests.workers.environment import PATH
from parity_tests.workers.process import WAITING, Progress

console = Console()
errors = Console(stderr=True)


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


def require_hypothesis() -> None:
    """Refuse to fuzz without hypothesis, which shrinks what differs.

    Raises: ClickException if it is not installed.
    """
    if find_spec("hypothesis") is None:
        raise click.ClickException("fuzzing needs hypothesis. Run: pip install hypothesis")


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


input_file = click.Path(exists=True, dir_okay=False, path_type=Path)


def output_file(*names: str, metavar: str = "FILE", **keywords: Any) -> Callable[[Command], Command]:
    """An option that names a file to write."""
    return click.option(*names, type=click.Path(dir_okay=False, path_type=Path), metavar=metavar, **keywords)


def take_path(context: click.Context, option: click.Parameter, path: str | None) -> None:
    """Tell the workers to come which path to take."""
    if path is not None:
        os.environ[PATH] = path


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
dtypes_option = click.option(
    "--dtype",
    "dtypes",
    type=CommaList(DTYPES),
    metavar="DTYPES",
    default=",".join(FULL),
    show_default=True,
    help="dtypes to judge in, with commas; there are " + ", ".join(DTYPES) + ".",
)
cells_options = options(
    dtypes_option,
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
backends_option = click.option(
    "--backend",
    "names",
    type=CommaList(known=registry.available),
    metavar="NAMES",
    help="The backends, with commas; all installed ones unless given.",
)
every_option = click.option("--every", is_flag=True, help="Print a row for every operator, however many there are.")
json_option = output_file("--json", "json_file", help="Write every verdict to a file.")
certificate_option = output_file(
    "--certificate",
    "certificate_file",
    help="Write a certificate as JSON, and beside it, with the suffix .md, as a page.",
)
junit_option = output_file("--junit", "junit_file", help="Write the verdicts as JUnit XML, which CI services show.")


def pairs_in(corpus: Path) -> list[Pair]:
    """The sentence pairs of a file; lines that were left out are reported on standard error.

    Raises: CorpusError.
    """
    content = read_corpus(corpus)
    if content.warning:
        click.echo(f"{corpus}: {content.warning}", err=True)
    return content.pairs


def bars() -> Bars:
    """Bars on standard error that go when they are done; where that is no terminal, nothing is printed."""
    bar = min(40, errors.width // 8)
    rest = max(8, errors.width - bar - 50)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=bar),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}", justify="right"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=rest)),
    )
    # What is printed meanwhile goes above the bars, or to the file that standard output is.
    seen, above = errors.is_terminal, console.is_terminal
    return Bars(*columns, console=errors, transient=True, disable=not seen, redirect_stdout=above)


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


def python_option(help: str) -> Callable[[Command], Command]:
    """The option that gives another interpreter; the command gets the paths by name."""
    return click.option(
        "--python",
        "pythons",
        metavar="NAME=PATH",
        multiple=True,
        callback=lambda context, option, entries: interpreters(entries),
        help=help,
    )


worker_options = options(
    device_option,
    python_option(
        "Run a backend with another interpreter, whose environment has NumPy, safetensors and the framework. May be "
        "given for each backend."
    ),
)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them, so that workers are ended and folders deleted in order."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress(lines: bool = True) -> Iterator[Progress]:
    """How far each part is, on standard error, until the context ends.

    A bar for each: what is done of all, the time so far and the time left, and what is running; where standard error is
    no terminal, a line for each part that is finished, unless a command says so itself.
    """
    with bars() as shown:
        tasks: dict[str, TaskID] = {}

        def report(part: str, done: int, of: int, doing: str = "") -> None:
            if part not in tasks:
                tasks[part] = shown.add_task(part, start=False, total=of, doing=doing)
            if doing != WAITING:
                shown.start_task(tasks[part])
            shown.update(tasks[part], completed=done, total=of, doing=doing)
            if lines and done >= of and not doing and shown.disable:
                line = f"finished    {part}: {done:,} of {of:,} in {shown.tasks[tasks[part]].elapsed or 0.0:.0f} s"
                errors.print(Text(line), soft_wrap=True)

        yield report


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate, and say where."""
    save(certificate, path)
    console.print(Text(f"certified   {path}, {path.with_suffix('.md')}"), soft_wrap=True)


def write_json(outcome: Run, path: Path) -> None:
    """Write every verdict to a file."""
    path.write_text(json.dumps(outcome.as_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
