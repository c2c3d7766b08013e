"""The command `verify`, which repeats a certificate."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from backends.schema import SchemaError, build, clean
from parity_tests.cli import options, paths
from parity_tests.cli.check import Repeatable, Target, judge
from parity_tests.cli.terminal import Refused, console
from parity_tests.conversion.conversion import Conversion
from parity_tests.judge.request import Request
from parity_tests.models.request import ComparisonRequest
from parity_tests.reports.certificate import (
    NOT_COVERED,
    TARGETS,
    CertificateError,
    certify,
    differences,
    environment_changes,
    load,
    other_errors,
)
from parity_tests.reports.table import MOST_RED
from parity_tests.workers.answers import harmless
from parity_tests.workers.target import split_location

KINDS: Mapping[str, type[Repeatable]] = {"check": Request, "convert": Conversion, "compare-models": ComparisonRequest}
"""The requests by the kind that a certificate states."""


@click.command(
    short_help="Verify a certificate by running its targets again.",
    epilog=options.examples(
        "verify certificate.json mine.py", "verify gru.json gru.safetensors --python jax=venv/bin/python"
    ),
)
@click.argument("certificate", metavar="CERTIFICATE", type=paths.InputFile())
@click.argument("targets", metavar="TARGET...", type=Target(), nargs=-1, required=True)
@click.option(
    "--python",
    "pythons",
    metavar="[NAME=]PATH",
    multiple=True,
    help="Run a target, or a framework by name, with another interpreter, as when the certificate was written.",
)
@click.option(
    "--file",
    "files",
    type=paths.InputFile(),
    metavar="FILE",
    multiple=True,
    help="A file listed in the certificate beside TARGET: the output of `convert`, or known divergences (default: the "
    "file of that name beside CERTIFICATE or TARGET).",
)
@options.max_bytes
@click.option(
    "--allow-red", is_flag=True, help="Also exit with 0 if the certificate is red, provided that the results match it."
)
def verify(
    certificate: Path,
    targets: tuple[str, ...],
    pythons: tuple[str, ...],
    files: tuple[Path, ...],
    max_bytes: int | None,
    allow_red: bool,
) -> None:
    """Run each TARGET as the certificate describes, and compare inputs, files, verdicts and errors with it.

    TARGET is an implementation, as for `check`, the SOURCE of `convert`, or ACTUAL and EXPECTED of `compare-models`; a
    path named in the certificate is never run, and its file is looked up by name only. A certificate of `convert` is
    validated again, without writing a file.

    Different package versions are reported but are not a failure; neither are the errors that they change within the
    tolerances, which are reported as not reproduced.

    Exits with 0 if everything matches and is green, with 1 if not, and with 2 if the file is not a certificate or the
    run cannot be repeated.
    """
    try:
        before = load(certificate)
        request, stated = request_of(before["request"], targets, pythons, max_bytes)
        request, listed = relocate(request, targets, certificate, files)
    except CertificateError as error:
        raise Refused(str(error)) from error
    console.print(Text(f"certified   {harmless(', '.join(stated), MOST_NAME)}"), soft_wrap=True)
    console.print(Text(f"judging     {', '.join(targets)}"), soft_wrap=True)
    run = judge(request)
    if isinstance(request, Conversion):
        read = {name: place for name, place in request.files.items() if name != request.output}
        listed = {**{f"{stated[0]}{name.removeprefix(request.file)}": place for name, place in read.items()}, **listed}
    elif isinstance(request, ComparisonRequest):
        listed = {**request.files, **run.files}
    else:
        listed = {**listed, **run.files}
    after = certify(run, request.certificate_entries, listed)
    others, changes, measured = (
        [harmless(line, MOST_LINE) for line in compared(before, after)]
        for compared in (environment_changes, differences, other_errors)
    )
    for line in others:
        console.print(Text(f"other       {line}", style="yellow"), soft_wrap=True)
    if not others:  # the same versions on the same processor: the same errors
        changes += measured
    for line in changes[:MOST_RED]:
        console.print(Text(f"differs     {line}", style="bold red"), soft_wrap=True)
    if changes[MOST_RED:]:
        console.print(f"            ... and {len(changes) - MOST_RED} more")
    if others and measured:
        words = f"{len(measured)} errors, which differ here, for example {measured[0]}"
        console.print(Text(f"not reproduced {words}", style="yellow"), soft_wrap=True)
    console.print(Text(f"not covered {NOT_COVERED}", style="yellow"), soft_wrap=True)
    count, red = len(before["verdicts"]), before["outcome"] == "red"
    if changes:
        console.print(Text(f"not verified {certificate}: {len(changes)} differences", style="bold red"), soft_wrap=True)
        sys.exit(1)
    words = f"verified    {certificate}: {before['outcome']}, {count:,} verdicts as certified"
    console.print(Text(words, style="bold red" if red else "bold green"), soft_wrap=True)
    sys.exit(1 if red and not allow_red else 0)


MOST_NAME = 500
"""The maximum number of printed characters of a target named in a certificate."""
MOST_LINE = 1_000
"""The maximum number of printed characters of a difference."""


def request_of(
    stated: Mapping[str, Any], targets: Sequence[str], pythons: tuple[str, ...], max_bytes: int | None = None
) -> tuple[Repeatable, list[str]]:
    """The request in a certificate, applied to the given targets, and the targets named in it.

    The memory limit of a file's arrays comes from the command line, never from a certificate.
    Raises: CertificateError if it has none.
    """
    kind = stated.get("kind")
    fields: dict[str, Any] = {name: stated[name] for name in stated if name not in ("kind", "command", "other_python")}
    if not isinstance(kind, str) or kind not in TARGETS:
        raise CertificateError(f"the certificate is of {clean(kind)}, which `verify` cannot repeat")
    try:
        if build(bool, stated.get("other_python"), "request.other_python") and not pythons:
            raise CertificateError("the certificate was written with another interpreter: pass --python")
        request: Repeatable = build(KINDS[kind], fields, "request")
    except SchemaError as error:
        raise CertificateError(f"invalid request in the certificate: {error}") from error
    names = TARGETS[kind]
    if len(targets) != len(names):
        raise CertificateError(f"a certificate of `{kind}` needs {' and '.join(names)}, received {', '.join(targets)}")
    if max_bytes is not None and kind != "convert":
        raise CertificateError("--max-bytes applies to certificates of `convert` only")
    given: dict[str, Any] = dict(zip(names, targets, strict=True))
    if kind == "check":
        given["python"] = pythons[0] if pythons else None
    else:
        given["pythons"] = options.interpreters(pythons)
    if kind == "convert":
        given["max_bytes"] = max_bytes
    return replace(request, **given), [getattr(request, name) for name in names]


def relocate(
    request: Repeatable, targets: Sequence[str], certificate: Path, given: Sequence[Path]
) -> tuple[Repeatable, dict[str, Path]]:
    """The request with the paths of the files that it names beside the targets, and these paths by listed name.

    A path in a certificate is not trusted: its last part is looked up among the given files, and beside the certificate
    and the targets.
    Raises: CertificateError if one is not found, or another file is given.
    """
    read = [Path(split_location(target)[0]) for target in targets]
    last = {argument: Path(path).name for argument, path in request.listed_files.items()}
    if others := [path for path in given if path.name not in last.values()]:
        raise CertificateError(f"it lists no file {others[0].name} beside the target")
    folders = dict.fromkeys([certificate.parent, *(path.parent for path in read)])
    taken = {os.path.realpath(path) for path in read}
    found: dict[str, Any] = {}
    for argument, name in last.items():
        places = [*(path for path in given if path.name == name), *(folder / name for folder in folders)]
        found[argument] = next(
            (str(one) for one in places if os.path.isfile(one) and os.path.realpath(one) not in taken), None
        )
        if found[argument] is None:
            where, listed = " or ".join(map(str, folders)), clean(request.listed_files[argument])
            raise CertificateError(f"it lists {listed}, which is not in {where}: name the file with --file")
    return replace(request, **found), {request.listed_files[argument]: Path(path) for argument, path in found.items()}
