"""The command line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from parity_tests.cli.behaviour import command as behaviour
from parity_tests.cli.check import check
from parity_tests.cli.compare_models import compare_models_command
from parity_tests.cli.compare_trainings import compare_trainings
from parity_tests.cli.convert import convert
from parity_tests.cli.export import export
from parity_tests.cli.fuzz import fuzz_backends
from parity_tests.cli.mutate import mutate
from parity_tests.cli.options import SETTINGS
from parity_tests.cli.run import compare, record_one, run
from parity_tests.cli.show import calibrate, diff, list_backends, list_operators, print_operators, show
from parity_tests.cli.translate import translate
from parity_tests.cli.verify import verify
from parity_tests.workers.answers import harmless

LONGEST_ERROR = 4_000
"""The maximum number of printed characters of an error, which may quote a file."""


@contextmanager
def harmless_errors() -> Iterator[None]:
    """Remove control characters from the message of a usage error."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = harmless(error.message, LONGEST_ERROR)
        raise


def as_sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning of this package without the source line; format other warnings as Python does."""
    return (
        f"warning     {message}\n" if category is UserWarning else AS_PYTHON(message, category, filename, lineno, line)
    )


AS_PYTHON = warnings.formatwarning


class Commands(click.Group):
    """A group of commands that refuse empty values and print no control characters.

    An unset variable in a CI file would otherwise select everything, or nothing.
    """

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        """Make the context, with cleaned error messages."""
        with harmless_errors():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, with cleaned error messages."""
        with harmless_errors():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and refuse empty ones.

        Raises: UsageError.
        """
        for before, word in zip(["", *args], args, strict=False):
            if not word.strip() or re.fullmatch(r"--[\w-]+=\s*", word):
                name = word.partition("=")[0] if word.strip() else before
                what = f"the value of {name}" if name.startswith("-") else "an argument"
                raise click.UsageError(f"{what} is empty: omit it, or pass a value", ctx)
        return super().parse_args(ctx, args)


@click.group(cls=Commands, context_settings=SETTINGS)
@click.version_option(package_name="attention-parity")
def main() -> None:
    """Test implementations of attention against one specification, to within rounding error.

    `list` and `show` print the specification without any framework installed.
    """
    warnings.formatwarning = as_sentence
    # Cases with NaN, inf and numbers beyond a dtype are meant: what NumPy says of them is nothing of a target.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"attention_core\.|parity_tests\.")


JUDGING = (run, check, compare_models_command, verify, record_one, export, compare, fuzz_backends, mutate)
OTHERS = (behaviour, convert, translate, list_backends, list_operators, show, diff, print_operators, calibrate)

translate.add_command(compare_trainings)
for command in (*JUDGING, *OTHERS):
    main.add_command(command)
