"""The command line."""

from __future__ import annotations

import click

from parity_tests.cli.behaviour import command as behaviour
from parity_tests.cli.bench import bench
from parity_tests.cli.check import check, verify
from parity_tests.cli.compare_trainings import compare_trainings
from parity_tests.cli.convert import convert
from parity_tests.cli.fuzz import fuzz_backends
from parity_tests.cli.mutate import mutate
from parity_tests.cli.run import compare, record_one, run
from parity_tests.cli.show import calibrate, diff, list_backends, list_operators, print_operators, show
from parity_tests.cli.translate import translate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="attention-parity")
def main() -> None:
    """Judge implementations of attention against one specification, down to rounding.

    Without a framework installed, `list` and `show` print the specification.
    """


JUDGING = (run, check, verify, record_one, compare, fuzz_backends, mutate)
OTHERS = (bench, behaviour, convert, translate, list_backends, list_operators, show, diff, print_operators, calibrate)

translate.add_command(compare_trainings)
for command in (*JUDGING, *OTHERS):
    main.add_command(command)
