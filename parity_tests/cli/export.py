"""The command that writes test vectors, for implementations in any language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from parity_tests.cases.suite import all_cases
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import Refused, console, progress
from parity_tests.format.selection import Selection
from parity_tests.vectors.export import INDEX, is_exportable
from parity_tests.vectors.export import export as written


@click.command(
    short_help="Write test vectors for any language.",
    epilog=options.examples(
        "export --operator DotProductAttention -o vectors",
        "export --operator masked_softmax --dtype float32,bfloat16 --no-gradients -o vectors",
    ),
)
@options.operator
@options.case
@options.dtypes
@click.option("--no-gradients", is_flag=True, help="Leave out cotangents and gradients: no answer needs them.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=paths.OutputFolder(),
    metavar="DIR",
    required=True,
    help="Folder for the vectors: a new one, or an empty one.",
)
def export(folder: Path, no_gradients: bool, **selected: Any) -> None:
    """Write test vectors: for each case and dtype the arrays, a description, and where ONNX has that function a model.

    The arrays are safetensors: inputs, parameters, cotangents, and the expected outputs and gradients, in float64 with
    inputs that the dtype represents exactly. The description is JSON: formula, axes, options, tolerances with their
    reasons, and what must be exactly zero. DIR/index.json lists all files with a digest. `compare --vectors` judges the
    answers of a program.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty: name a new folder, or remove it")
    selection = Selection(**selected)
    cells = selection.cells(all_cases().where(is_exportable))
    if not cells:
        raise Refused("no case matches; `attention-parity list --cases` lists all cases")
    with paths.writing(folder), progress() as report_progress:
        exported = written(cells, selection, folder, not no_gradients, report_progress)
    for reason, count in exported.without.items():
        console.print(Text(f"not in ONNX {count} of {len(cells)}: {reason}", style="dim"), soft_wrap=True)
    also = f", {exported.models} of them also as ONNX models" if exported.models else ""
    without = "" if exported.index.gradients else ", without gradients"
    console.print(Text(f"exported    {len(cells)} vectors{without}{also}; {folder / INDEX}"), soft_wrap=True)
    console.print(Text(f"digest      {exported.index.digest}"), soft_wrap=True)
