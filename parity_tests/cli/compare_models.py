"""The command that compares two models, each in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import click

from parity_tests.cli import options, paths
from parity_tests.cli.check import Target
from parity_tests.cli.terminal import Refused, console, errors, write_certificate
from parity_tests.models.request import ComparisonRequest
from parity_tests.models.result import Weights
from parity_tests.models.sides import SideError
from parity_tests.reports.certificate import certify
from parity_tests.reports.junit import junit
from parity_tests.workers.process import WorkerFault

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
@options.summary_file
@options.junit
@options.certificate
def compare_models_command(
    names: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    summary_file: Path | None,
    junit_file: Path | None,
    certificate_file: Path | None,
    **chosen: Any,
) -> None:
    """Compare two models or functions of any frameworks, and find the first sublayer that differs.

    ACTUAL and EXPECTED are module:object or file.py:object (a model, a function, or a class or function make_... that
    makes one), an .onnx file, or an .npz file with inputs and outputs kept from an earlier run. Exits with 0 if they
    agree, with 1 if they do not, with 3 if rounding alone could explain the difference, and with 2 if they cannot be
    compared, or what agrees cannot be certified.
    """
    try:
        request = ComparisonRequest(**chosen, names=None if names is None else str(names))
        comparison, run = request.compare()
    except SideError as error:
        raise Refused(str(error)) from error
    except WorkerFault as fault:
        raise Refused(f"{fault}\n{fault.trace}".strip()) from fault
    console.print(str(comparison), markup=False, highlight=False, soft_wrap=True)
    if html_file is not None:
        paths.write(html_file, comparison.page)
    if summary_file is not None:
        paths.write(summary_file, comparison.markdown)
    if json_file is not None:
        paths.write(json_file, json.dumps(comparison.as_json(), indent=1) + "\n")
    if junit_file is not None:
        paths.write(junit_file, junit(run))
    code = 0 if comparison.agree else UNDECIDED if comparison.undecided_verdicts and not comparison.red else 1
    if certificate_file is not None and (reason := comparison.reason_against_certificate):
        errors.print(f"not certified {reason}", markup=False, highlight=False, soft_wrap=True)
        code = code or 2
    elif certificate_file is not None:
        files = {**request.files, **run.files}
        write_certificate(certify(run, request.certificate_entries, files), certificate_file)
    sys.exit(code)
