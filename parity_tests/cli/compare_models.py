"""The command that compares two models, each in a process of its own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import click

from parity_tests.cli import options, paths
from parity_tests.cli.check import Target
from parity_tests.cli.terminal import Refused, console
from parity_tests.judge.run import Run
from parity_tests.models.comparison import Comparison, compare_models
from parity_tests.models.remote import RemoteSide
from parity_tests.models.result import Weights
from parity_tests.models.sides import Side, SideError, open_side
from parity_tests.reports.junit import junit
from parity_tests.workers.process import WorkerFault

DATA = (".onnx", ".npz", ".safetensors")
"""The suffixes of files that are read, and run no code of their own."""

UNDECIDED = 3
"""The exit code if rounding alone could explain every difference."""


@click.command(
    "compare-models",
    short_help="Compare two models, and find the first sublayer that differs.",
    epilog=options.examples(
        'compare-models new.py:Model old.py:Model --inputs "tokens: int (2, 7) < 100"',
        "compare-models port.py:make_model original.py:Model --weights copied --inputs batch.npz --html report.html",
    ),
)
@click.argument("actual", metavar="ACTUAL", type=Target())
@click.argument("expected", metavar="EXPECTED", type=Target())
@click.option(
    "--inputs",
    metavar="FILE|LINES",
    help="Inputs: an .npz file, or lines that declare them, separated by semicolons, from which they are drawn.",
)
@click.option("--names", type=paths.InputFile(), metavar="FILE", help="The names file: which name is which (TOML).")
@click.option(
    "--weights",
    type=click.Choice(get_args(Weights)),
    default="stored",
    show_default=True,
    help="Each side's own arrays, those of EXPECTED in both, or arrays drawn anew in both.",
)
@click.option("--gradients/--no-gradients", default=True, show_default=True, help="Compare gradients, too.")
@click.option("--train-steps", type=click.IntRange(min=0), metavar="N", default=0, help="Steps of training to compare.")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", default=0, help="Seed of what is drawn.")
@options.python(
    "Run a side with another interpreter: NAME is actual, expected, or a word of its file's name. May be repeated."
)
@click.option(
    "--limit",
    type=options.SECONDS,
    metavar="SECONDS",
    default=600.0,
    show_default=True,
    help="Time limit of each run of a side.",
)
@options.json_file
@options.html_file
@options.junit
def compare_models_command(
    actual: str,
    expected: str,
    inputs: str | None,
    names: Path | None,
    weights: Weights,
    gradients: bool,
    train_steps: int,
    seed: int,
    pythons: dict[str, str],
    limit: float,
    json_file: Path | None,
    html_file: Path | None,
    junit_file: Path | None,
) -> None:
    """Compare two models or functions of any frameworks, and find the first sublayer that differs.

    ACTUAL and EXPECTED are module:object or file.py:object (a model, a function, or a class or function make_... that
    makes one), an .onnx file, or an .npz file with inputs and outputs kept from an earlier run. Exits with 0 if they
    agree, with 1 if they do not, and with 3 if rounding alone could explain the difference.
    """
    with ExitStack() as stack:
        try:
            sides: list[Side] = []
            for role, target in (("actual", actual), ("expected", expected)):
                side = open_target(target, python_of(role, target, pythons), limit)
                stack.callback(side.close)
                sides.append(side)
            comparison = compare_models(
                *sides,
                inputs=inputs,
                names=names,
                weights=weights,
                gradients=gradients,
                train_steps=train_steps,
                seed=seed,
            )
        except SideError as error:
            raise Refused(str(error)) from error
        except WorkerFault as fault:
            raise Refused(f"{fault}\n{fault.trace}".strip()) from fault
    console.print(str(comparison), markup=False, highlight=False, soft_wrap=True)
    if html_file is not None:
        paths.write(html_file, comparison.page)
    if json_file is not None:
        paths.write(json_file, json.dumps(comparison.as_json(), indent=1) + "\n")
    if junit_file is not None:
        paths.write(junit_file, junit(_run_of(comparison, actual, expected)))
    sys.exit(0 if comparison.agree else UNDECIDED if comparison.undecided_verdicts and not comparison.red else 1)


def open_target(target: str, python: str, seconds: float) -> Side:
    """The side of a target: a file of data in this process, and code in one of its own.

    Raises: SideError, WorkerFault.
    """
    if target.endswith(DATA):
        return open_side(target)
    return RemoteSide(target, python, seconds)


def python_of(role: str, target: str, pythons: Mapping[str, str]) -> str:
    """The interpreter for a side: that of its role, or of a word of its file's name, else this one."""
    words = [role, *re.split(r"\W|_", Path(target.partition(":")[0]).stem), target.rpartition(":")[2]]
    return next((pythons[word] for word in words if word in pythons), sys.executable)


def _run_of(comparison: Comparison, actual: str, expected: str) -> Run:
    """The comparison as a run, for the reports that know one."""
    command = f"attention-parity compare-models {actual} {expected}"
    return Run([], comparison.verdicts, command=command, selects_cells=False)
