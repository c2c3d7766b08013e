"""Checks of the files that commands read and write, made before any work, and atomic writes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from backends.archives import ArchiveError, regular_file
from backends.files import replaceable_file, write_file
from parity_tests.plots import Undrawn, empty_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIMED = "attention_parity.files"
"""The context key of the files that a command reads and writes, each with its option."""


class InputFile(click.ParamType):
    """An existing regular file. The command refuses to write to it, unless it is `rewritten` by design."""

    name = "file"

    def __init__(self, rewritten: bool = False) -> None:
        self.rewritten = rewritten

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, unchanged."""
        path = Path(value)
        try:
            regular_file(path)
        except ArchiveError as error:
            self.fail(str(error), param, ctx)
        if not self.rewritten:
            claim(path, "read", param, ctx)
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Files."""
        return [CompletionItem(incomplete, type="file")]


class OutputFile(InputFile):
    """A file to write; an existing one must be a regular file. Write access is checked immediately."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, unchanged; for a link, the file that it refers to is written."""
        path = Path(value)
        for one in self.outputs(path):
            check_output(one)
            claim(one, "written", param, ctx)
        return path

    def outputs(self, path: Path) -> Iterable[Path]:
        """All files that are written for one path."""
        return (path,)


class CertificateFile(OutputFile):
    """A certificate: a JSON file and a Markdown page beside it."""

    def outputs(self, path: Path) -> Iterable[Path]:
        """Both files."""
        if path.suffix == ".md":
            raise click.BadParameter(
                f"{path} is the path of its page: name the JSON file, such as {path.with_suffix('.json')}"
            )
        yield path
        yield path.with_suffix(".md")  # only of what is a file: / has no suffix


class HtmlFile(OutputFile):
    """An HTML file to write, from a template."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, unchanged."""
        if find_spec("jinja2") is None:
            raise click.ClickException("the report needs Jinja2. Run: pip install jinja2")
        return super().convert(value, param, ctx)


class Picture(OutputFile):
    """A picture to write, in a supported format."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, unchanged."""
        path = super().convert(value, param, ctx)
        try:
            kinds = empty_figure(1.0, 1.0).canvas.get_supported_filetypes()
        except Undrawn as error:
            raise click.ClickException(str(error)) from error
        if path.suffix[1:].lower() not in kinds:
            self.fail(f"{path}: expected a suffix among .{', .'.join(kinds)}", param, ctx)
        return path


class OutputFolder(click.ParamType):
    """A folder to write to, which need not exist; the command checks the files in it by `check_output`."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, unchanged."""
        path = Path(value)
        there = next(one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one))
        if not there.is_dir():
            self.fail(f"{there} is no folder", param, ctx)
        check_output(there / CLAIMED)  # any name that is not there
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Folders."""
        return [CompletionItem(incomplete, type="dir")]


def claim(path: Path, use: str, param: click.Parameter | None, ctx: click.Context | None) -> None:
    """Refuse a file that a command would write twice, or read and write.

    Raises: BadParameter.
    """
    if ctx is None or param is None:
        return
    name = param.get_error_hint(ctx)
    other, before = ctx.meta.setdefault(CLAIMED, {}).setdefault(path.resolve(), (name, use))
    if other != name and "written" in (before, use):
        raise click.BadParameter(f"{path} is also the file of {other}: name another file", ctx, param)


def check_output(path: Path) -> None:
    """Refuse a file that cannot be written.

    Raises: BadParameter, with the option that is being parsed.
    """
    try:
        replaceable_file(path)
    except OSError as error:
        raise click.BadParameter(str(error)) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file within the context.

    Raises: ClickException if writing fails after all, for example on a full disk.
    """
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from error


def write(path: Path, content: str | bytes) -> None:
    """Write a result file atomically.

    Raises: ClickException.
    """
    with writing(path):
        write_file(path, content)


def draw(figure: Figure, path: Path) -> None:
    """Write a picture, in the format of the suffix.

    Raises: ClickException.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower())
    write(path, drawn.getvalue())
